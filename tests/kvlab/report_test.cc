// The files of a report from data made by hand: what a browser, a spreadsheet and a viewer of traces get.
#include "kvlab/report/report.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <set>

#include "kvlab/report/page_files.h"
#include "kvlab/report/perfetto.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

// A prompt of two tokens and one decode call through an owner with a window and a borrower of its K and V.
constexpr const char* kTrace = R"({
 "schema": "lapidary.kv.trace", "schema_version": 1, "kv_dtype": "f16", "chunk": 256, "context": 64,
 "position_bytes": 64, "prompt": {"mode": "raw", "tokens": [{"id": 5, "piece": "a"}, {"id": 6, "piece": "b"}]},
 "layers": [{"layer": 0, "role": "owner", "owner": 0, "window": 8, "n_heads": 2, "n_kv_heads": 1,
             "head_dim": 16, "k_eq_v": false, "position_bytes": 64},
            {"layer": 1, "role": "borrower", "owner": 0, "window": 8, "n_heads": 2, "n_kv_heads": 1,
             "head_dim": 16, "k_eq_v": false, "position_bytes": 0}],
 "calls": [
  {"index": 0, "kind": "prefill", "first_position": 0, "fed": [{"id": 5, "piece": "a"}, {"id": 6, "piece": "b"}],
   "before": 0, "after": 2, "picked": {"id": 7, "piece": "c|`", "logit": 2.5,
   "runner_up": {"id": 8, "piece": "d", "logit": 2.0}, "gap": 0.5, "gap_ulps": 2097152},
   "logits_xxh3": "00", "seconds": 0.25, "watched_seconds": 0.5, "kv_written_bytes": 128, "kv_read_bytes": 256,
   "weights_read_bytes": 1000, "table_rows_read_bytes": 8, "kv_held_bytes": 128, "kv_page_bytes": 2048,
   "layers": [{"layer": 0, "kv_written_bytes": 128, "kv_read_bytes": 128, "keys_attended": 2},
              {"layer": 1, "kv_written_bytes": 0, "kv_read_bytes": 128, "keys_attended": 2}]},
  {"index": 1, "kind": "decode", "first_position": 2, "fed": [{"id": 7, "piece": "c|`"}],
   "before": 2, "after": 3, "picked": {"id": 9, "piece": "e", "logit": 1.5, "runner_up": null, "gap": null,
   "gap_ulps": null}, "logits_xxh3": "01", "seconds": 0.125, "watched_seconds": 0.5, "kv_written_bytes": 64,
   "kv_read_bytes": 384, "weights_read_bytes": 1000, "table_rows_read_bytes": 4, "kv_held_bytes": 192,
   "kv_page_bytes": 2048,
   "layers": [{"layer": 0, "kv_written_bytes": 64, "kv_read_bytes": 192, "keys_attended": 3},
              {"layer": 1, "kv_written_bytes": 0, "kv_read_bytes": 192, "keys_attended": 3}]}],
 "pages": [], "sight": [],
 "summary": {"prompt_tokens": 2, "prefill_calls": 1, "decode_calls": 1, "picked_tokens": 2,
             "cached_positions": 3, "stopped_by": "-n", "stop_token": null, "text": "ab", "ids": [7, 9],
             "kv_written_bytes": 192},
 "checks": [{"name": "cache length", "passed": true, "detail": "2 + 1 = 3"}]})";

constexpr const char* kOffload = R"({
 "passed": true, "state": {"kv_bytes": 192}, "checks": [{"name": "pages equal", "way": "ram", "passed": true,
 "detail": "1 of 1"}], "tiers": [{"way": "ram", "stored_bytes": 900, "kv_bytes_restored": 192,
 "store_seconds": 0.1, "restore_gb_per_s": 1.5}], "mutations": [],
 "mutation_counts": {"tried": 3, "changed_nothing": 0, "caught": 2, "missed": 1, "misnamed": 0},
 "curve": [{"length": 8, "recompute_seconds": 0.1, "reload": [{"way": "ram", "seconds": 0.1, "speed_up": 2.0}]}],
 "break_even": [], "claim": []})";

json::object object(const char* text) {
  return json::parse(text).as_object();
}

Repro repro() {
  Repro r;
  r.command = "lapidary kv report tiny";
  r.version = "0.1";
  r.model = "tiny & <co>";
  return r;
}

json::object report(bool timings = true) {
  return report_json({.trace = object(kTrace), .offload = object(kOffload)}, repro(), timings);
}

size_t count(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// What a browser reads back as the data of the page.
std::string embedded(const std::string& html) {
  const std::string_view open = "<script type=\"application/json\" id=\"data\">";
  const size_t from = html.find(open) + open.size();
  return html.substr(from, html.find("</script>", from) - from);
}

TEST(Report, NoTextGetsOutOfTheDataElement) {
  const std::string hostile =
      "</script><script>alert(1)</script><!--\xe2\x80\xa8\xe2\x80\xa9]]>&lt;{{js}}\\u003c\"'";
  json::object data = report();
  data["trace"].as_object()["prompt"].as_object()["tokens"].as_array()[0].as_object()["piece"] = hostile;
  const std::string html = report_html(data);
  EXPECT_EQ(count(html, "<script"), count(kPageHtml, "<script") + count(kPageScript, "<script"));
  EXPECT_EQ(count(html, "alert(1)"), 1U);  // as data
  EXPECT_EQ(html.find("<script>alert"), html.npos);
  EXPECT_EQ(html.find("\xe2\x80\xa8"), html.npos);
  EXPECT_EQ(html.find("\xe2\x80\xa9"), html.npos);
  const std::string inside = embedded(html);
  for (const char c : {'<', '>', '&'}) EXPECT_EQ(inside.find(c), inside.npos) << c;
  EXPECT_EQ(json::parse(inside), json::value(data));
}

TEST(Report, ThePageIsWholeAndItsTitleIsText) {
  const std::string html = report_html(report());
  EXPECT_NE(html.find("<title>tiny &amp; &lt;co&gt;: KV cache</title>"), html.npos);
  for (const char* name : {"{{title}}", "{{css}}", "{{js}}", "{{data}}"})
    EXPECT_EQ(html.find(name), html.npos);
  EXPECT_NE(html.find(kPageScript), html.npos);
  EXPECT_NE(html.find(kPageStyle), html.npos);
  EXPECT_EQ(json::parse(embedded(html)), json::value(report()));
}

// An address in the page would be a request, or an invitation to one. The name of SVG's namespace is neither.
TEST(Report, ThePageNamesNoOtherAddress) {
  for (const std::string_view file : {kPageHtml, kPageStyle, kPageScript}) {
    EXPECT_EQ(count(file, "http"), count(file, "http-equiv") + count(file, "http://www.w3.org/2000/svg"));
    EXPECT_EQ(count(file, "url("), 0U);
    EXPECT_EQ(count(file, "innerHTML"), 0U);
  }
}

TEST(Report, WithoutTimingsNothingMeasuredStays) {
  json::object parts = object(kOffload);
  const json::object data = report_json(
      {.trace = object(kTrace), .roofline = object(R"({"runs": []})"), .offload = std::move(parts)}, repro(),
      false);
  EXPECT_FALSE(data.contains("roofline"));
  const std::string text = json::serialize(data);
  for (const char* key : {"seconds", "speed_up", "per_s", "break_even"})
    EXPECT_EQ(text.find(key), text.npos) << key;
  EXPECT_NE(text.find("\"kv_read_bytes\":384"), text.npos);
  // Other seconds, the same bytes.
  std::string slower = kTrace;
  slower.replace(slower.find("0.125"), 5, "0.875");
  const json::object again =
      report_json({.trace = object(slower.c_str()), .offload = object(kOffload)}, repro(), false);
  EXPECT_EQ(report_html(again), report_html(data));
  EXPECT_EQ(report_csv(again), report_csv(data));
  EXPECT_EQ(report_markdown(again), report_markdown(data));
  EXPECT_EQ(perfetto_trace(again, {}), perfetto_trace(data, {}));
}

TEST(Report, ChecksAreThoseOfAllParts) {
  const std::vector<ReportCheck> checks = report_checks(report());
  ASSERT_EQ(checks.size(), 3U);
  EXPECT_EQ(checks[0].name, "cache length");
  EXPECT_EQ(checks[1].name, "pages equal, ram");
  EXPECT_TRUE(checks[1].passed);
  EXPECT_FALSE(checks[2].passed);  // a mutation was missed
  const json::object data = report();
  ASSERT_EQ(data.at("checks").as_array().size(), 3U);  // the page shows these
  EXPECT_EQ(data.at("checks").at(2).at("name").as_string(), "damage is seen");
  EXPECT_FALSE(data.at("checks").at(2).at("passed").as_bool());
  EXPECT_NE(report_markdown(report()).find("**1 of 3 checks failed:**"), std::string::npos);
}

TEST(Report, ARecomputationThatPromisedTheSameBitsIsACheck) {
  const auto with = [](int64_t equal) {
    json::object part = object(R"({"passed": true, "runs": [{"name": "exact", "verdict": "v",
      "promised_exact": true, "recomputations": [{"kv": {"elements": 8, "equal": 0}}]},
      {"name": "fast", "verdict": "v", "promised_exact": false, "recomputations": []}]})");
    part["runs"].at(0).at("recomputations").at(0).at("kv").as_object()["equal"] = equal;
    return report_checks(report_json({.trace = object(kTrace), .recompute = std::move(part)}, repro(), true));
  };
  ASSERT_EQ(with(8).size(), 3U);  // the trace's, exact's and the part's own
  EXPECT_TRUE(with(8)[1].passed);
  EXPECT_FALSE(with(7)[1].passed);
}

TEST(Report, CsvHasOneLineACall) {
  EXPECT_EQ(report_csv(report()),
            "call,kind,first_position,tokens_fed,cache_before,cache_after,kv_written_bytes,kv_read_bytes,"
            "weights_read_bytes,table_rows_read_bytes,kv_held_bytes,kv_page_bytes,picked_id,picked_logit,"
            "runner_up_id,gap,gap_ulps,seconds\n"
            "0,prefill,0,2,0,2,128,256,1000,8,128,2048,7,2.5E0,8,5E-1,2097152,2.5E-1\n"
            "1,decode,2,1,2,3,64,384,1000,4,192,2048,9,1.5E0,,,,1.25E-1\n");
}

TEST(Report, MarkdownKeepsPiecesInTheirCells) {
  const std::string text = report_markdown(report());
  EXPECT_NE(text.find("| 0 | prefill | 2 | 0 → 2 | 128 | 256 | `` \"c\\|`\" `` (7) | 0.5 | 250.00 |\n"),
            text.npos)
      << text;
  EXPECT_NE(text.find("1 decode calls picked 2 tokens"), text.npos);
  EXPECT_NE(text.find("2 + 1 = 3 positions"), text.npos);
  EXPECT_NE(text.find("| command | ` \"lapidary kv report tiny\" ` |"), text.npos);
}

// ---- the trace for viewers

std::vector<TimedCall> timeline() {
  const auto call = [](double unit) {
    return TimedCall{10 * unit,
                     {{0, "query", 0, unit},
                      {0, "layer", 0, 4 * unit},
                      {1, "query", 4 * unit, 5 * unit},
                      {1, "layer", 4 * unit, 8 * unit},
                      {-1, "head", 8 * unit, 9 * unit}}};
  };
  return {call(1e-4), call(1.234567e-5)};
}

class Perfetto : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    trace_ = perfetto_trace(report(GetParam()), GetParam() ? timeline() : std::vector<TimedCall>());
  }
  const json::array& events() const { return trace_.at("traceEvents").as_array(); }
  json::object trace_;
};
INSTANTIATE_TEST_SUITE_P(All, Perfetto, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "measured" : "nominal"; });

TEST_P(Perfetto, EveryEventIsOfAKnownKindAndTimeNeverGoesBack) {
  std::map<std::string, int> kinds;
  double last = 0;
  for (const json::value& event : events()) {
    const std::string kind(event.at("ph").as_string());
    ++kinds[kind];
    EXPECT_TRUE(event.at("name").is_string());
    EXPECT_EQ(event.at("pid").as_int64(), 1);
    EXPECT_TRUE(event.at("tid").is_int64());
    if (kind == "M") continue;
    const double ts = event.at("ts").to_number<double>();
    EXPECT_GE(ts, last);
    last = ts;
    if (kind == "X") {
      EXPECT_GT(event.at("dur").to_number<double>(), 0);
    }
  }
  EXPECT_EQ(kinds["X"], GetParam() ? 2 + 4 + 6 : 2 + 4);  // calls, layers; three operations a call
  EXPECT_EQ(kinds["s"], 2);
  EXPECT_EQ(kinds["f"], 2);
  EXPECT_EQ(kinds["C"], 3 + 2 * 5);
  EXPECT_EQ(kinds.size(), 5U);  // and M
}

// Slices of one track lie apart or inside one another: else a viewer draws nonsense.
TEST_P(Perfetto, SlicesNest) {
  std::map<int64_t, std::vector<double>> open;
  for (const json::value& event : events()) {
    if (event.at("ph").as_string() != "X") continue;
    std::vector<double>& ends = open[event.at("tid").as_int64()];
    const double ts = event.at("ts").to_number<double>(), end = ts + event.at("dur").to_number<double>();
    constexpr double kRounding = 1e-6;
    while (!ends.empty() && ends.back() <= ts + kRounding) ends.pop_back();
    if (!ends.empty()) {
      EXPECT_LE(end, ends.back() + kRounding);
    }
    ends.push_back(end);
  }
  EXPECT_EQ(open.size(), 2U);
}

TEST_P(Perfetto, ArrowsGoFromTheOwnersSliceToTheBorrowers) {
  std::map<int64_t, std::map<std::string, double>> arrows;
  for (const json::value& event : events()) {
    const std::string kind(event.at("ph").as_string());
    if (kind == "s" || kind == "f")
      arrows[event.at("id").as_int64()][kind] = event.at("ts").to_number<double>();
  }
  ASSERT_EQ(arrows.size(), 2U);
  const auto inside = [&](double ts, const char* name) {
    for (const json::value& event : events()) {
      if (event.at("ph").as_string() != "X" || event.at("name").as_string() != name) continue;
      const double from = event.at("ts").to_number<double>();
      if (ts > from && ts < from + event.at("dur").to_number<double>()) return true;
    }
    return false;
  };
  for (auto& [id, ends] : arrows) {
    EXPECT_TRUE(inside(ends["s"], "layer 0")) << id;
    EXPECT_TRUE(inside(ends["f"], "layer 1")) << id;
  }
}

TEST_P(Perfetto, CountersEndAtTheTracesNumbers) {
  std::map<std::string, int64_t> last;
  for (const json::value& event : events()) {
    if (event.at("ph").as_string() == "C")
      last[std::string(event.at("name").as_string())] = event.at("args").at("value").as_int64();
  }
  EXPECT_EQ(last["tokens in the cache"], 3);
  EXPECT_EQ(last["kv_live_bytes"], 192);
  EXPECT_EQ(last["kv_alloc_bytes"], 2048);
  EXPECT_EQ(last["kv_read_bytes of a call"], 384);
  EXPECT_EQ(last["weights_read_bytes of a call"], 1000);
}

}  // namespace
}  // namespace lapidary::kvlab
