#include "cli/convert_report.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/json.hpp>
#include <map>

#include "cli/inspect.h"
#include "cli/numbers.h"
#include "cli/table.h"

namespace lapidary {
namespace {

namespace json = boost::json;

struct TypeCount {
  int64_t tensors = 0, elements = 0, bytes = 0;
};

std::map<std::string, TypeCount> count_types(const ConvertPlan& plan) {
  std::map<std::string, TypeCount> out;
  for (const PlannedTensor& tensor : plan.tensors) {
    TypeCount& count = out[std::string(dtype_name(tensor.to))];
    ++count.tensors;
    count.elements += tensor.elements();
    count.bytes += tensor.bytes();
  }
  return out;
}

double bits_per_weight(int64_t bytes, int64_t elements) {
  return elements == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(elements);
}

// Tensors whose format is not the one asked for, by reason.
std::map<std::string, std::vector<const PlannedTensor*>> fallbacks(const ConvertPlan& plan) {
  std::map<std::string, std::vector<const PlannedTensor*>> out;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!tensor.note.empty())
      out[fmt::format("{} instead: {}", dtype_name(tensor.to), tensor.note)].push_back(&tensor);
  }
  return out;
}

std::string lists_text(const ConvertReport& report, const Style& style) {
  TextTable table({{"", Align::right}, {"", Align::left}, {"", Align::left}});
  const auto such_as = [](const std::string& name) { return fmt::format("such as {}", terminal_safe(name)); };
  bool any = false;
  for (const auto& [reason, tensors] : fallbacks(*report.plan)) {
    table.add({std::to_string(tensors.size()), reason, such_as(tensors.front()->name)});
    any = true;
  }
  for (const SkippedGroup& group : group_skipped(report.source->skipped)) {
    table.add({std::to_string(group.names.size()), "not carried over: " + group.reason,
               such_as(group.names.front())});
    any = true;
  }
  std::string out = any ? table.text(style) : "";
  for (const auto* notes : {&report.plan->notes, &report.notes}) {
    for (const std::string& note : *notes) out += fmt::format("  note: {}\n", terminal_safe(note));
  }
  return out;
}

}  // namespace

int64_t peak_memory() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string plan_table(const ConvertPlan& plan, const Style& style) {
  TextTable table({{"tensor", Align::left},
                   {"shape", Align::right},
                   {"from", Align::left},
                   {"to", Align::left},
                   {"bytes", Align::right},
                   {"", Align::left}});
  for (const PlannedTensor& tensor : plan.tensors) {
    table.add({tensor.name, shape_text(tensor.shape), std::string(dtype_name(tensor.from)),
               std::string(dtype_name(tensor.to)), grouped(tensor.bytes()), tensor.note});
  }
  return table.text(style);
}

std::string convert_report_text(const ConvertReport& report, const Style& style) {
  const ConvertPlan& plan = *report.plan;
  std::string out =
      fmt::format("{}  {}, {} → {}\n", style.bold(report.target), report.source->family,
                  report.source->format, plan.format == ModelFormat::gguf ? "gguf v3" : "safetensors");
  TextTable table({{"type", Align::left},
                   {"tensors", Align::right},
                   {"weights", Align::right},
                   {"bytes", Align::right},
                   {"bits per weight", Align::right}});
  for (const auto& [dtype, count] : count_types(plan)) {
    table.add({dtype, std::to_string(count.tensors), grouped(count.elements), grouped(count.bytes),
               fmt::format("{:.2f}", bits_per_weight(count.bytes, count.elements))});
  }
  table.add({"all", std::to_string(plan.tensors.size()), grouped(plan.elements), grouped(plan.tensor_bytes),
             fmt::format("{:.2f}", bits_per_weight(plan.tensor_bytes, plan.elements))});
  out += table.text(style) + lists_text(report, style);
  if (!report.written) return out + "  nothing written (--dry-run)\n";
  return out + fmt::format("  {} in {} file{}, {} with {} thread{}, at most {} of memory\n",
                           bytes_text(report.outcome.bytes), report.outcome.files.size(),
                           report.outcome.files.size() == 1 ? "" : "s", seconds_text(report.seconds),
                           report.threads, report.threads == 1 ? "" : "s", bytes_text(peak_memory()));
}

json::object convert_report_json(const ConvertReport& report) {
  const ConvertPlan& plan = *report.plan;
  json::object types;
  for (const auto& [dtype, count] : count_types(plan)) {
    types[dtype] = {{"tensors", count.tensors}, {"elements", count.elements}, {"bytes", count.bytes}};
  }
  json::array tensors, skipped, notes, files;
  for (const PlannedTensor& tensor : plan.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"slot", slot_name(tensor.slot)},
                       {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                       {"from", dtype_name(tensor.from)},
                       {"to", dtype_name(tensor.to)},
                       {"bytes", tensor.bytes()},
                       {"note", tensor.note}});
  }
  for (const SkippedTensor& tensor : report.source->skipped) {
    skipped.push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  }
  for (const auto* list : {&plan.notes, &report.notes}) {
    for (const std::string& note : *list) notes.emplace_back(note);
  }
  for (const std::string& name : report.outcome.files) files.emplace_back(name);
  return {{"source", report.source->path.string()},
          {"target", report.target},
          {"family", report.source->family},
          {"format", plan.format == ModelFormat::gguf ? "gguf" : "hf"},
          {"written", report.written},
          {"files", std::move(files)},
          {"bytes", report.outcome.bytes},
          {"tensor_bytes", plan.tensor_bytes},
          {"weights", plan.elements},
          {"bits_per_weight", bits_per_weight(plan.tensor_bytes, plan.elements)},
          {"types", std::move(types)},
          {"tensors", std::move(tensors)},
          {"not_carried_over", std::move(skipped)},
          {"notes", std::move(notes)},
          {"seconds", report.seconds},
          {"threads", report.threads},
          {"peak_memory_bytes", peak_memory()},
          {"largest_tensor_bytes", plan.largest_source_bytes}};
}

}  // namespace lapidary
