#include "cli/verify_report.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/error.h"
#include "cli/numbers.h"
#include "cli/table.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

namespace json = boost::json;

std::string small(double value) {
  return value == 0 ? "0" : fmt::format("{:.1e}", value);
}

std::string text_of(const Difference& d) {
  return d.finite ? small(d.max) : "NaN";
}

// The worst of all prompts, layer by layer.
std::vector<LayerComparison> worst_layers(const VerifyReport& report) {
  std::vector<LayerComparison> out;
  for (const PromptResult& prompt : report.prompts) {
    out.resize(prompt.comparison.layers.size());
    for (size_t i = 0; i < out.size(); ++i) {
      const LayerComparison& layer = prompt.comparison.layers[i];
      out[i].owner = layer.owner;
      out[i].hidden.join(layer.hidden);
      out[i].k.join(layer.k);
      out[i].v.join(layer.v);
    }
  }
  return out;
}

std::string greedy_text(const GreedyComparison& greedy) {
  if (!greedy.parts_at) return fmt::format("{} of {}", greedy.equal, greedy.steps);
  return fmt::format("{} of {}, parts at {}, gap {}", greedy.equal, greedy.steps, *greedy.parts_at,
                     small(greedy.gap));
}

std::string checks_text(const std::vector<TokenizerCheck>& checks, const std::string& what,
                        const Style& style) {
  std::string out;
  for (const TokenizerCheck& check : checks) {
    out += fmt::format("{:<10} {}  {}: {}\n", what, check.passed ? "ok    " : style.red("FAILED"), check.name,
                       check.detail);
  }
  return out;
}

std::string prompts_text(const VerifyReport& report, const Style& style) {
  TextTable table({{"prompt", Align::left},
                   {"tokens", Align::right},
                   {"hidden", Align::right},
                   {"K, V", Align::right},
                   {"logits", Align::right},
                   {"rms", Align::right},
                   {"mean KL", Align::right},
                   {"first choice", Align::right},
                   {"greedy", Align::left}});
  for (size_t i = 0; i < report.prompts.size(); ++i) {
    const Comparison& c = report.prompts[i].comparison;
    Difference hidden, kv;
    for (const LayerComparison& layer : c.layers) {
      hidden.join(layer.hidden);
      kv.join(layer.k);
      kv.join(layer.v);
    }
    const LogitComparison& z = c.logits;
    table.add({terminal_safe(report.prompt_names[i]), std::to_string(report.prompt_tokens[i]),
               text_of(hidden), text_of(kv), text_of(z.difference), small(z.difference.rms), small(z.kl_mean),
               fmt::format("{} of {}", z.same_first_choice, z.rows), greedy_text(c.greedy)});
  }
  return table.text(style, "  ");
}

std::string layers_text(const VerifyReport& report, const Style& style) {
  TextTable table({{"layer", Align::right},
                   {"hidden max", Align::right},
                   {"rms", Align::right},
                   {"K max", Align::right},
                   {"V max", Align::right}});
  const std::vector<LayerComparison> layers = worst_layers(report);
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerComparison& layer = layers[i];
    table.add({std::to_string(i), text_of(layer.hidden), small(layer.hidden.rms),
               layer.owner ? text_of(layer.k) : "borrows", layer.owner ? text_of(layer.v) : ""});
  }
  return table.text(style, "  ");
}

double perplexity(double logprob_sum, int64_t tokens) {
  return tokens == 0 ? 0 : std::exp(-logprob_sum / static_cast<double>(tokens));
}

std::string perplexity_text(const LogitComparison& z) {
  if (z.scored == 0) return "-";
  const double got = perplexity(z.logprob_sum, z.scored),
               expected = perplexity(z.expected_logprob_sum, z.scored);
  return fmt::format("{:.6g} {:+.3f} %", got, 100 * (got / expected - 1));
}

// Of all prompts: the means over all rows, the worst of all rows.
LogitComparison all_shipped(const VerifyReport& report) {
  LogitComparison out;
  for (const ShippedResult& prompt : report.shipped) {
    const LogitComparison& z = prompt.logits;
    out.difference.join(z.difference);
    out.max_absolute = std::max(out.max_absolute, z.max_absolute);
    out.kl_mean += z.kl_mean * static_cast<double>(z.rows);
    out.kl_max = std::max(out.kl_max, z.kl_max);
    out.rows += z.rows;
    out.same_first_choice += z.same_first_choice;
    out.scored += z.scored;
    out.logprob_sum += z.logprob_sum;
    out.expected_logprob_sum += z.expected_logprob_sum;
  }
  if (out.rows > 0) out.kl_mean /= static_cast<double>(out.rows);
  return out;
}

std::string shipped_text(const VerifyReport& report, const Style& style) {
  TextTable table({{"prompt", Align::left},
                   {"logits", Align::right},
                   {"mean KL", Align::right},
                   {"max KL", Align::right},
                   {"first choice", Align::right},
                   {"perplexity", Align::right}});
  const auto add = [&](const std::string& name, const LogitComparison& z) {
    table.add({name, text_of(z.difference), small(z.kl_mean), small(z.kl_max),
               fmt::format("{} of {}", z.same_first_choice, z.rows), perplexity_text(z)});
  };
  for (size_t i = 0; i < report.shipped.size(); ++i) {
    add(terminal_safe(report.prompt_names[i]), report.shipped[i].logits);
  }
  add("all", all_shipped(report));
  return table.text(style, "  ") +
         "  Perplexity: of the prompt's last tokens, and how far from the reference's.\n";
}

std::string steps_text(const VerifyReport& report, const Style& style) {
  std::string out = fmt::format("\nstructure: {}\n{}\n{}", report.structure_engine,
                                prompts_text(report, style), layers_text(report, style));
  out += "  Differences are |engine - reference| / max(1, |reference|, rms of its row).\n";
  return out + (report.shipped_engine.empty() ? fmt::format("\nshipped mode: {}\n", report.shipped_note)
                                              : fmt::format("\nshipped mode: {}\n{}", report.shipped_engine,
                                                            shipped_text(report, style)));
}

std::string_view outcome_name(MutationOutcome outcome) {
  switch (outcome) {
    case MutationOutcome::caught: return "caught";
    case MutationOutcome::missed: return "MISSED";
    case MutationOutcome::not_applicable: return "not applicable";
  }
  fail(ErrorCode::internal, "a mutation outcome without a name");
}

std::string mutations_text(const VerifyReport& report, const Style& style) {
  TextTable table(
      {{"damage", Align::left}, {"outcome", Align::left}, {"where", Align::left}, {"seen as", Align::left}});
  for (const MutationResult& m : report.mutations) {
    table.add({m.name, std::string(outcome_name(m.outcome)), m.where, m.detail});
  }
  return table.text(style, "  ");
}

json::object difference_json(const Difference& d) {
  if (!d.finite) return {{"finite", false}, {"position", d.row}};
  return {{"max", d.max}, {"rms", d.rms}, {"position", d.row}};
}

json::array checks_json(const std::vector<TokenizerCheck>& checks) {
  json::array out;
  for (const TokenizerCheck& check : checks) {
    out.push_back({{"name", check.name}, {"passed", check.passed}, {"detail", check.detail}});
  }
  return out;
}

json::object logits_json(const LogitComparison& z) {
  json::object out = difference_json(z.difference);
  out["max_absolute"] = z.max_absolute;
  out["kl_mean"] = z.kl_mean;
  out["kl_max"] = z.kl_max;
  out["rows"] = z.rows;
  out["same_first_choice"] = z.same_first_choice;
  out["scored_tokens"] = z.scored;
  if (z.scored > 0) {
    out["perplexity"] = perplexity(z.logprob_sum, z.scored);
    out["reference_perplexity"] = perplexity(z.expected_logprob_sum, z.scored);
  }
  return out;
}

json::object tolerances_json(const Tolerances& t) {
  return {{"hidden", t.hidden}, {"kv", t.kv}, {"logits", t.logits}, {"mean_kl", t.mean_kl}};
}

json::object shipped_prompt_json(const std::string& name, int64_t tokens, const ShippedResult& prompt) {
  return {{"name", name},
          {"tokens", tokens},
          {"passed", prompt.failure.empty()},
          {"failure", prompt.failure},
          {"logits", logits_json(prompt.logits)},
          {"engine_seconds", prompt.engine_seconds}};
}

json::object prompt_json(const std::string& name, int64_t tokens, const PromptResult& prompt) {
  const Comparison& c = prompt.comparison;
  json::array layers;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    json::object layer{{"layer", i}, {"hidden", difference_json(c.layers[i].hidden)}};
    if (c.layers[i].owner) {
      layer["k"] = difference_json(c.layers[i].k);
      layer["v"] = difference_json(c.layers[i].v);
    }
    layers.push_back(std::move(layer));
  }
  json::object greedy{{"steps", c.greedy.steps}, {"equal", c.greedy.equal}};
  if (c.greedy.parts_at) {
    greedy["parts_at"] = *c.greedy.parts_at;
    greedy["gap"] = c.greedy.gap;
  }
  return {{"name", name},
          {"tokens", tokens},
          {"passed", prompt.failure.empty()},
          {"failure", prompt.failure},
          {"layers", std::move(layers)},
          {"final_norm", difference_json(c.final_norm)},
          {"logits", logits_json(c.logits)},
          {"greedy", std::move(greedy)},
          {"engine_seconds", prompt.engine_seconds},
          {"reference_seconds", prompt.reference_seconds}};
}

std::string kl_text(double worst, double tolerance) {
  return tolerance > 0 ? fmt::format("mean KL {:.2g} nats, within {:.2g}", worst, tolerance)
                       : fmt::format("mean KL {:.2g} nats: stated, not judged", worst);
}

// What a report that passed has shown.
std::string verdict_text(const VerifyReport& report) {
  double structure_kl = 0, shipped_kl = 0;
  for (const PromptResult& prompt : report.prompts)
    structure_kl = std::max(structure_kl, prompt.comparison.logits.kl_mean);
  for (const ShippedResult& prompt : report.shipped) shipped_kl = std::max(shipped_kl, prompt.logits.kl_mean);
  const Tolerances& strict = report.structure_tolerances;
  std::string out =
      "structure: " + (strict.logits > 0 ? fmt::format("every difference within {:.2g}", strict.logits)
                                         : kl_text(structure_kl, strict.mean_kl));
  if (!report.shipped.empty())
    out += "; shipped mode: " + kl_text(shipped_kl, report.shipped_tolerances.mean_kl);
  return out;
}

}  // namespace

std::vector<std::string> VerifyReport::failures() const {
  std::vector<std::string> out;
  for (const auto* checks : {&tokenizer, &template_checks}) {
    for (const TokenizerCheck& check : *checks) {
      if (!check.passed) out.push_back(fmt::format("{}: {}", check.name, check.detail));
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (!prompts[i].failure.empty())
      out.push_back(fmt::format("structure: {}: {}", prompt_names[i], prompts[i].failure));
  }
  for (size_t i = 0; i < shipped.size(); ++i) {
    if (!shipped[i].failure.empty())
      out.push_back(fmt::format("shipped mode: {}: {}", prompt_names[i], shipped[i].failure));
  }
  for (const MutationResult& m : mutations) {
    if (m.outcome == MutationOutcome::missed)
      out.push_back(fmt::format("self-test: \"{}\" was not seen", m.name));
  }
  return out;
}

bool VerifyReport::passed() const {
  return failures().empty();
}

std::string verify_text(const VerifyReport& report, const Style& style) {
  std::string out = fmt::format("model      {} ({}; {})\nreference  {}{}\n", terminal_safe(report.model),
                                report.format, report.dtypes, report.reference,
                                report.against.empty() ? "" : ", weights of " + report.against);
  if (!report.file.empty()) out += fmt::format("file       ok      {}\n", report.file);
  out += report.tokenizer.empty() ? "tokenizer  none: nothing to check\n"
                                  : checks_text(report.tokenizer, "tokenizer", style);
  out += checks_text(report.template_checks, "template", style);
  out += fmt::format(
      "tensors    ok      {} consumed, each of the shape that the model needs; {} skipped with a reason\n",
      report.tensors, report.skipped_tensors);
  if (!report.window_note.empty()) out += "windows    " + report.window_note + "\n";
  out += report.prompts.empty() ? "\nthe model was not run: what comes before failed\n"
                                : steps_text(report, style);
  if (!report.mutations.empty()) out += "\n" + mutations_text(report, style);
  const std::vector<std::string> failures = report.failures();
  out += "\n";
  for (const std::string& failure : failures)
    out += fmt::format("{}  {}\n", style.red("FAILED"), terminal_safe(failure));
  if (failures.empty()) {
    out +=
        fmt::format("{}  {}; {}\n", style.bold("PASSED"), verdict_text(report), seconds_text(report.seconds));
  }
  return out;
}

json::object verify_json(const VerifyReport& report) {
  json::array structure, shipped, mutants, failures;
  const auto all_passed = [](const auto& prompts) {
    return std::all_of(prompts.begin(), prompts.end(), [](const auto& p) { return p.failure.empty(); });
  };
  for (size_t i = 0; i < report.prompts.size(); ++i) {
    structure.push_back(prompt_json(report.prompt_names[i], report.prompt_tokens[i], report.prompts[i]));
  }
  for (size_t i = 0; i < report.shipped.size(); ++i) {
    shipped.push_back(
        shipped_prompt_json(report.prompt_names[i], report.prompt_tokens[i], report.shipped[i]));
  }
  for (const MutationResult& m : report.mutations) {
    mutants.push_back(
        {{"name", m.name}, {"outcome", outcome_name(m.outcome)}, {"where", m.where}, {"detail", m.detail}});
  }
  for (const std::string& failure : report.failures()) failures.push_back(json::string(failure));
  const auto step = [&](const std::string& engine, const Tolerances& tolerances, bool passed,
                        json::array prompts) {
    return json::object{{"engine", engine},
                        {"tolerances", tolerances_json(tolerances)},
                        {"passed", passed},
                        {"prompts", std::move(prompts)}};
  };
  json::value shipped_step;  // null: shipped_note says why
  if (!report.shipped_engine.empty()) {
    shipped_step = step(report.shipped_engine, report.shipped_tolerances, all_passed(report.shipped),
                        std::move(shipped));
    shipped_step.as_object()["all"] = logits_json(all_shipped(report));
  }
  return {{"model", utf8_lossy(report.model)},
          {"format", report.format},
          {"dtypes", report.dtypes},
          {"reference", report.reference},
          {"against", utf8_lossy(report.against)},
          {"file", report.file},
          {"tokenizer", checks_json(report.tokenizer)},
          {"template", checks_json(report.template_checks)},
          {"tensors", report.tensors},
          {"skipped_tensors", report.skipped_tensors},
          {"window_note", report.window_note},
          {"structure", step(report.structure_engine, report.structure_tolerances, all_passed(report.prompts),
                             std::move(structure))},
          {"shipped", std::move(shipped_step)},
          {"shipped_note", report.shipped_note},
          {"mutations", std::move(mutants)},
          {"failures", std::move(failures)},
          {"passed", report.passed()},
          {"seconds", report.seconds}};
}

}  // namespace lapidary
