// The trace on the golden models: what it says was seen, held against engines run by hand, and checks that
// fail when they must.
#include "kvlab/trace/trace.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "engine/harness.h"
#include "engine/real_models.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;
using kvlab::Trace;
using kvlab::TraceCall;
using kvlab::TraceCallLayer;
using kvlab::TraceOptions;

const KvTypes kHalf(DType::f16);

std::string piece_of(int32_t id) {
  return "<" + std::to_string(id) + ">";
}

EngineOptions options_of(int64_t context = 0) {
  return {.threads = 1, .max_sequences = 1, .context = context, .kv_dtype = kHalf};
}

// As many tokens of a model's golden case as there are, at most `n`.
Tokens prompt_of(const std::string& model, size_t n) {
  Tokens tokens = tokens_of(golden_of(model));
  tokens.resize(std::min(tokens.size(), n));
  return tokens;
}

Trace trace_of(Engine& engine, const TraceOptions& options) {
  return kvlab::run_trace(engine, kHalf, options, piece_of, [](int64_t, int64_t) {});
}

struct Traced {
  Checkpoint checkpoint;
  Engine engine;
  Tokens prompt;
  Trace trace;
  Traced(const std::string& model, int64_t decode_calls, size_t prompt_tokens = 20, int64_t chunk = 7)
      : checkpoint(open_golden(model)),
        engine(checkpoint.spec, *checkpoint.tensors, options_of()),
        prompt(prompt_of(model, prompt_tokens)),
        trace(trace_of(engine, {.prompt = prompt, .decode_calls = decode_calls, .chunk = chunk})) {}
};

std::string failures(const Trace& trace) {
  std::string text;
  for (const kvlab::Check& check : trace.checks)
    if (!check.passed) text += check.name + ": " + check.detail + "\n";
  return text;
}

const TraceCallLayer& layer_of(const TraceCall& call, int64_t index) {
  for (const TraceCallLayer& layer : call.layers)
    if (layer.layer == index) return layer;
  throw std::out_of_range("layer");
}

// What a query attends to, from the scores of a run of its own.
class SightWatch : public Probe {
 public:
  void on_hidden(int64_t, std::span<const RowId>, std::span<const float>) override {}
  void on_final_norm(std::span<const RowId>, std::span<const float>) override {}
  void on_kv(int64_t, RowId, std::span<const float>, std::span<const float>) override {}
  void on_scores(int64_t layer, RowId row, int64_t, int64_t first, std::span<const float> p) override {
    sight[{layer, row.position}] = {first, static_cast<int64_t>(p.size())};
  }
  bool wants_scores() const override { return true; }
  std::map<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>> sight;
};

class TraceOfGoldens : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, TraceOfGoldens, testing::ValuesIn(golden_models()), name_of_model);

TEST_P(TraceOfGoldens, AgreesWithTheModelAndWithAnEngineRunByHand) {
  constexpr int64_t kDecodes = 34;  // over a page and past every window
  Traced run(GetParam(), kDecodes);
  const Trace& trace = run.trace;
  EXPECT_EQ(failures(trace), "");
  EXPECT_EQ(trace.checks.size(), 6u);
  const auto n = static_cast<int64_t>(run.prompt.size());
  EXPECT_EQ(trace.prefill_calls(), (n + 6) / 7);
  EXPECT_EQ(trace.decode_calls(), kDecodes);
  EXPECT_EQ(trace.length(), n + kDecodes);

  // Greedy by hand, and what every query saw.
  SightWatch watch;
  std::vector<float> logits;
  std::vector<int32_t> picked;
  const int32_t sequence = run.engine.open();
  Tokens next = run.prompt;
  for (int64_t i = 0; i <= kDecodes; ++i) {
    const Feed feed{sequence, next, Want::last};
    run.engine.forward(
        {&feed, 1},
        [&](size_t, int64_t, std::span<const float> row) { logits.assign(row.begin(), row.end()); }, &watch);
    picked.push_back(best_of(logits));
    next = {picked.back()};
  }
  run.engine.close(sequence);
  std::vector<int32_t> traced;
  for (const kvlab::Token& token : trace.picked()) {
    traced.push_back(token.id);
    EXPECT_EQ(token.piece, piece_of(token.id));
  }
  EXPECT_EQ(traced, picked);
  for (const TraceCall& call : trace.calls) {
    for (const TraceCallLayer& layer : call.layers) {
      if (layer.query_position < 0) continue;
      const auto [first, count] = watch.sight.at({layer.layer, layer.query_position});
      EXPECT_EQ(layer.first_in_sight, first) << call.index << " " << layer.layer;
      EXPECT_EQ(layer.keys_attended, count) << call.index << " " << layer.layer;
    }
  }
}

TEST_P(TraceOfGoldens, HasEveryPageOfTheEnd) {
  const Traced run(GetParam(), 40);
  std::map<int64_t, int64_t> next;  // position after the last page of a layer
  std::set<std::pair<bool, int64_t>> places;
  int64_t live = 0, held = 0;
  for (const kvlab::TracePage& page : run.trace.pages) {
    if (next.count(page.layer) != 0) {
      EXPECT_EQ(page.first, next[page.layer]);
    }
    next[page.layer] = page.first + page.positions;
    EXPECT_TRUE(places.insert({page.sliding, page.pool_offset}).second) << "two pages in one place";
    EXPECT_LE(page.live_bytes, page.bytes);
    EXPECT_LE(page.bytes, page.pool_bytes);
    EXPECT_NE(page.hash, Hash128{});
    live += page.live_bytes;
  }
  for (const kvlab::TraceSight& sight : run.trace.sight) {
    EXPECT_EQ(next.at(sight.layer), run.trace.length());
    EXPECT_EQ(sight.in_sight + sight.behind, sight.length);
    EXPECT_LE(sight.evicted, sight.behind);
    if (sight.window > 0) {
      EXPECT_EQ(sight.in_sight, std::min(sight.window, sight.length));
    }
    if (sight.window > 0) {
      EXPECT_GT(sight.evicted, 0) << "60 positions are more than a page and a window";
    }
    held += (sight.length - sight.evicted) * run.trace.position_bytes.at(static_cast<size_t>(sight.layer));
  }
  EXPECT_EQ(live, held);
}

TEST(TraceShapes, OfAHybridWithSharedLayers) {
  const Traced run("gemma4-e2b-tiny", 3, 12, 256);
  const TraceCall& prefill = run.trace.calls.at(0);
  const TraceCall& decode = run.trace.calls.at(1);
  const kvlab::SeenShape none{};
  EXPECT_EQ(layer_of(prefill, 0).q, (kvlab::SeenShape{12, 96}));
  EXPECT_EQ(layer_of(prefill, 0).k, (kvlab::SeenShape{12, 16}));
  EXPECT_EQ(layer_of(prefill, 4).k, (kvlab::SeenShape{12, 32}));
  EXPECT_EQ(layer_of(prefill, 9).k, (kvlab::SeenShape{12, 32})) << "the last owner stores all";
  EXPECT_EQ(layer_of(prefill, 9).q, (kvlab::SeenShape{1, 192})) << "and asks for the last token alone";
  EXPECT_EQ(layer_of(prefill, 10).k, none) << "a borrower makes no keys";
  EXPECT_EQ(layer_of(decode, 10).q, (kvlab::SeenShape{1, 96}));
  EXPECT_EQ(layer_of(decode, 10).kv_written_bytes, 0);
  EXPECT_GT(layer_of(decode, 10).kv_read_bytes, 0) << "a borrower reads its owner's again";
  EXPECT_EQ(layer_of(decode, 10).after.end, 13) << "of the owner's pages";
  EXPECT_EQ(layer_of(decode, 0).keys_attended, 8);
  EXPECT_EQ(layer_of(decode, 4).keys_attended, 13);
  EXPECT_EQ(decode.kv_written_bytes, 768);
  EXPECT_EQ(prefill.kv_written_bytes, 12 * 768);
  EXPECT_GT(decode.weights_read_bytes, 0);
}

TEST(TraceShapes, WithoutAProjectionOfValues) {
  const Traced run("gemma4-12b-tiny", 1, 5, 256);
  int64_t seen = 0;
  for (const TraceCallLayer& layer : run.trace.calls.at(0).layers) {
    const AttentionSpec& a = *run.trace.spec.layers.at(static_cast<size_t>(layer.layer)).attention;
    if (!a.k_eq_v) continue;
    ++seen;
    EXPECT_EQ(layer.v.rows, 0);
    EXPECT_EQ(layer.stored_v.rows, 5);
  }
  EXPECT_GT(seen, 0);
}

TEST(TraceEnds, AtAStopTokenThatIsPickedAndNotFed) {
  Traced run("llama-tiny", 6);
  const std::vector<kvlab::Token> all = run.trace.picked();
  const int32_t stop = all.at(3).id;
  size_t first = 0;
  while (all[first].id != stop) ++first;
  const Trace stopped =
      trace_of(run.engine, {.prompt = run.prompt, .decode_calls = 6, .chunk = 256, .stop_ids = {stop}});
  EXPECT_EQ(stopped.end, kvlab::TraceEnd::stop_token);
  EXPECT_EQ(stopped.decode_calls(), static_cast<int64_t>(first));
  EXPECT_EQ(stopped.picked().back().id, stop);
  EXPECT_EQ(failures(stopped), "");
  const json::object out = kvlab::trace_json(stopped, {}, "ids", "");
  EXPECT_EQ(out.at("summary").at("stop_token").at("id").as_int64(), stop);
  EXPECT_EQ(out.at("summary").at("ids").as_array().size(), first);
  EXPECT_EQ(run.trace.end, kvlab::TraceEnd::calls);
}

TEST(TraceEnds, WhereTheContextIsFull) {
  const Checkpoint model = open_golden("gemma4-e2b-tiny");
  Engine engine(model.spec, *model.tensors, options_of(15));
  const Trace trace = trace_of(engine, {.prompt = prompt_of("gemma4-e2b-tiny", 12), .decode_calls = 9});
  EXPECT_EQ(trace.end, kvlab::TraceEnd::context);
  EXPECT_EQ(trace.decode_calls(), 3);
  EXPECT_EQ(trace.length(), 15);
  EXPECT_EQ(failures(trace), "");
}

TEST(TracePicks, KeepToTheWordsOfTheTokenizer) {
  Traced run("llama-tiny", 0);
  const int32_t best = run.trace.picked().at(0).id;
  ASSERT_GT(best, 0);
  const Trace cut = trace_of(run.engine, {.prompt = run.prompt, .decode_calls = 0, .words = best});
  EXPECT_LT(cut.picked().at(0).id, best);
  const kvlab::Picked& picked = *run.trace.calls.back().picked;
  ASSERT_TRUE(picked.runner_up);
  EXPECT_FLOAT_EQ(picked.gap, picked.logit - picked.runner_up_logit);
  float step = picked.runner_up_logit;
  for (int64_t i = 0; i < std::min<int64_t>(picked.gap_ulps, 1 << 24); ++i)
    step = std::nextafter(step, picked.logit);
  if (picked.gap_ulps <= 1 << 24) {
    EXPECT_EQ(step, picked.logit);
  }
}

// Each lie about a run is found by the check that is there for it.
TEST(TraceChecks, FailWhenTheyMust) {
  const Traced run("gemma4-e2b-tiny", 12);
  const auto caught = [&](const char* name, const std::function<void(Trace&)>& lie) {
    Trace trace = run.trace;
    lie(trace);
    kvlab::check_trace(trace);
    bool failed = false;
    for (const kvlab::Check& check : trace.checks)
      failed = failed || (check.name == name && !check.passed);
    EXPECT_TRUE(failed) << name;
    EXPECT_FALSE(trace.passed());
  };
  caught("cache length", [](Trace& t) { t.calls.back().after += 1; });
  caught("cache length", [](Trace& t) { t.calls[3].layers[0].after.end -= 1; });
  caught("cache length", [](Trace& t) { t.calls.back().picked.reset(); });
  caught("bytes written", [](Trace& t) { t.calls[1].layers[4].kv_written_bytes += 2; });
  caught("bytes written", [](Trace& t) { t.calls[1].layers[10].kv_written_bytes = 64; });
  caught("shapes", [](Trace& t) { t.calls[0].layers[2].k.width *= 3; });
  caught("shapes", [](Trace& t) { t.calls[0].layers[2].stored_v.rows = 0; });
  caught("shapes", [](Trace& t) { t.calls.back().layers[12].q.rows = 2; });
  caught("keys in sight", [](Trace& t) { t.calls.back().layers[0].passes.reset(); });
  caught("keys in sight", [](Trace& t) { t.calls.back().layers[4].after.first = 32; });
  caught("positions", [](Trace& t) { t.calls[2].stored_in_order = false; });
  caught("unwatched run", [](Trace& t) { t.calls.back().same_bits_unwatched = false; });
}

TEST(TraceRefuses, WhatCannotBeTraced) {
  const Checkpoint model = open_golden("llama-tiny");
  Engine engine(model.spec, *model.tensors, options_of(8));
  const auto refused = [&](TraceOptions options, ErrorCode code, const std::string& part) {
    expect_error([&] { trace_of(engine, options); }, code, part);
  };
  refused({}, ErrorCode::usage, "the prompt is empty");
  refused({.prompt = {1, 1 << 30}}, ErrorCode::usage, "token id 1073741824: expected 0 to");
  refused({.prompt = Tokens(9, 1)}, ErrorCode::limit, "the prompt has 9 tokens, the context holds 8");
  refused({.prompt = {1}, .chunk = 0}, ErrorCode::usage, "chunk");
}

TEST(TraceJson, HoldsWhatTheTraceHolds) {
  const Traced run("gemma4-31b-tiny", 5);
  const json::object out = kvlab::trace_json(run.trace, {.command = "x"}, "ids", "text");
  EXPECT_EQ(out.at("schema").as_string(), "lapidary.kv.trace");
  EXPECT_EQ(out.at("layers").as_array().size(), run.trace.spec.layers.size());
  const json::array& calls = out.at("calls").as_array();
  ASSERT_EQ(calls.size(), run.trace.calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const TraceCall& call = run.trace.calls[i];
    EXPECT_EQ(calls[i].at("after").as_int64(), call.after);
    EXPECT_EQ(calls[i].at("kv_written_bytes").as_int64(), call.kv_written_bytes);
    EXPECT_EQ(calls[i].at("fed").as_array().size(), call.fed.size());
    EXPECT_EQ(calls[i].at("picked").is_null(), !call.picked.has_value());
    ASSERT_EQ(calls[i].at("layers").as_array().size(), call.layers.size());
    const json::value& first = calls[i].at("layers").at(0);
    EXPECT_EQ(first.at("k").at(1).as_int64(), call.layers[0].k.rows);
    EXPECT_EQ(first.at("k").at(2).as_int64(), call.layers[0].k.width);
    EXPECT_EQ(first.at("cache_after").at("end").as_int64(), call.layers[0].after.end);
  }
  EXPECT_EQ(out.at("pages").as_array().size(), run.trace.pages.size());
  EXPECT_EQ(out.at("pages").at(0).at("xxh3").as_string(), hash_text(run.trace.pages[0].hash));
  EXPECT_EQ(out.at("checks").as_array().size(), 6u);
  EXPECT_EQ(out.at("summary").at("picked_tokens").as_int64(), 6);
}

TEST(RealTrace, OfTheCapitalOfFrance) {
  const Checkpoint model = open_checkpoint(cached_model(kSmol.name));
  Engine engine(model.spec, *model.tensors, options_of(64));
  const Trace trace = trace_of(engine, {.prompt = {504, 3575, 282, 4649, 314}, .decode_calls = 10});
  EXPECT_EQ(failures(trace), "");
  EXPECT_EQ(trace.bytes_per_position(), 23040);
  EXPECT_EQ(trace.length(), 15);
  EXPECT_EQ(trace.picked().size(), 11u);
  EXPECT_EQ(trace.picked().at(0).id, 7042) << " Paris";
  EXPECT_EQ(trace.kv_written_bytes(), 15 * 23040);
  const TraceCallLayer& prefill = layer_of(trace.calls.at(0), 0);
  EXPECT_EQ(prefill.x, (kvlab::SeenShape{5, 576}));
  EXPECT_EQ(prefill.q, (kvlab::SeenShape{5, 576}));
  EXPECT_EQ(prefill.k, (kvlab::SeenShape{5, 192}));
  EXPECT_EQ(prefill.v, (kvlab::SeenShape{5, 192}));
  const TraceCallLayer& decode = layer_of(trace.calls.at(1), 0);
  EXPECT_EQ(decode.k, (kvlab::SeenShape{1, 192}));
  EXPECT_EQ(decode.before.held(), 5);
  EXPECT_EQ(decode.after.held(), 6);
  EXPECT_EQ(decode.keys_attended, 6);
  for (size_t i = 1; i < trace.calls.size(); ++i) EXPECT_EQ(trace.calls[i].kv_written_bytes, 23040);
}

// The window of 512 of a real hybrid, by one prompt that is longer.
TEST(RealTrace, OfGemma3PastItsWindow) {
  const Checkpoint model = open_checkpoint(cached_model(kGemma.name));
  Engine engine(model.spec, *model.tensors, options_of(1024));
  Tokens prompt{2};
  while (prompt.size() < 560) prompt.push_back(static_cast<int32_t>(1000 + 7 * prompt.size()));
  const Trace trace = trace_of(engine, {.prompt = prompt, .decode_calls = 2});
  EXPECT_EQ(failures(trace), "");
  for (const kvlab::TraceSight& sight : trace.sight) {
    if (sight.window == 0) continue;
    EXPECT_EQ(sight.in_sight, 512);
    EXPECT_EQ(sight.behind, 50);
    EXPECT_EQ(sight.evicted, 32);
  }
}

}  // namespace
}  // namespace lapidary::test
