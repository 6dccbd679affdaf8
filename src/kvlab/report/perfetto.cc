#include "kvlab/report/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <map>
#include <string>

#include "base/error.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

constexpr int kProcess = 1, kCalls = 1, kLayers = 2;  // ids of the process and its tracks
constexpr double kNominalSeconds = 1e-3;

// Microseconds to three decimals: what the format counts in.
double microseconds(double seconds) {
  return std::round(seconds * 1e9) / 1e3;
}

class Events {
 public:
  void name(const char* what, int track, const std::string& text, int order) {
    add({{"ph", "M"}, {"name", what}, {"pid", kProcess}, {"tid", track}, {"args", {{"name", text}}}});
    if (order == 0) return;
    add({{"ph", "M"},
         {"name", "thread_sort_index"},
         {"pid", kProcess},
         {"tid", track},
         {"args", {{"sort_index", order}}}});
  }
  void slice(int track, std::string_view name, double start, double end, json::object args) {
    // Both ends are rounded, not the length: neighbours must not overlap.
    const double from = microseconds(start), to = microseconds(end);
    json::object event{{"ph", "X"},
                       {"name", name},
                       {"cat", "kv"},
                       {"pid", kProcess},
                       {"tid", track},
                       {"ts", from},
                       {"dur", std::round((to - from) * 1e3) / 1e3}};
    if (!args.empty()) event["args"] = std::move(args);
    add(std::move(event));
  }
  void counter(std::string_view name, double at, int64_t value) {
    add({{"ph", "C"},
         {"name", name},
         {"pid", kProcess},
         {"tid", 0},
         {"ts", microseconds(at)},
         {"args", {{"value", value}}}});
  }
  void flow(double from, double to, const std::string& name) {
    const int64_t id = ++flows_;
    for (const bool start : {true, false}) {
      json::object event{
          {"ph", start ? "s" : "f"}, {"name", name},   {"cat", "owner to borrower"},           {"id", id},
          {"pid", kProcess},         {"tid", kLayers}, {"ts", microseconds(start ? from : to)}};
      if (!start) event["bp"] = "e";
      add(std::move(event));
    }
  }
  size_t size() const { return events_.size(); }
  // In order of time; of slices that begin together the one that holds the others first, as viewers nest
  // them.
  json::array take() {
    const auto place = [](const json::value& event) {
      const json::object& e = event.as_object();
      const json::value *ts = e.if_contains("ts"), *dur = e.if_contains("dur");
      return std::pair(ts ? ts->to_number<double>() : -1.0, dur ? -dur->to_number<double>() : 0.0);
    };
    std::stable_sort(events_.begin(), events_.end(),
                     [&](const json::value& a, const json::value& b) { return place(a) < place(b); });
    return std::move(events_);
  }

 private:
  void add(json::object event) { events_.push_back(std::move(event)); }
  json::array events_;
  int64_t flows_ = 0;
};

int64_t number(const json::value& value, std::string_view key) {
  return value.as_object().at(key).to_number<int64_t>();
}

std::string role_of(const json::value& layer) {
  const int64_t window = number(layer, "window");
  const std::string kind = window ? fmt::format("sliding, window {}", window) : std::string("global");
  return layer.at("role").as_string() == "borrower"
             ? fmt::format("{}, reads layer {}", kind, number(layer, "owner"))
             : kind;
}

// The middle of a layer's slice, where an arrow is certain to meet it.
struct LayerTime {
  double start = 0, end = 0;
};

std::map<int64_t, LayerTime> nominal_layers(const json::value& call) {
  const json::array& layers = call.at("layers").as_array();
  std::map<int64_t, LayerTime> times;
  const double share = kNominalSeconds / static_cast<double>(std::max<size_t>(1, layers.size()));
  for (size_t i = 0; i < layers.size(); ++i)
    times[number(layers[i], "layer")] = {share * static_cast<double>(i), share * static_cast<double>(i + 1)};
  return times;
}

std::map<int64_t, LayerTime> measured_layers(const TimedCall& call) {
  std::map<int64_t, LayerTime> times;
  for (const TimedSpan& span : call.spans) {
    if (span.what == "layer") times[span.layer] = {span.start, span.end};
  }
  return times;
}

void add_layers(Events& events, const json::value& call, const std::map<int64_t, LayerTime>& times,
                double start, const std::map<int64_t, const json::value*>& layers) {
  std::map<int64_t, const json::value*> seen;
  for (const json::value& layer : call.at("layers").as_array()) seen[number(layer, "layer")] = &layer;
  for (const auto& [index, time] : times) {
    json::object args;
    const auto facts = seen.find(index);
    if (facts != seen.end()) {
      args["kind"] = role_of(*layers.at(index));
      for (const char* key : {"kv_read_bytes", "kv_written_bytes", "keys_attended"})
        args[key] = number(*facts->second, key);
    }
    events.slice(kLayers, fmt::format("layer {}", index), start + time.start, start + time.end, args);
  }
  for (const auto& [index, time] : times) {
    const auto layer = layers.find(index);
    if (layer == layers.end() || layer->second->at("role").as_string() != "borrower") continue;
    const auto owner = times.find(number(*layer->second, "owner"));
    if (owner == times.end()) continue;
    events.flow(start + (owner->second.start + owner->second.end) / 2, start + (time.start + time.end) / 2,
                fmt::format("K and V of layer {}", owner->first));
  }
}

void add_counters(Events& events, const json::value& call, double at) {
  events.counter("tokens in the cache", at, number(call, "after"));
  events.counter("kv_live_bytes", at, number(call, "kv_held_bytes"));
  events.counter("kv_alloc_bytes", at, number(call, "kv_page_bytes"));
  events.counter("kv_read_bytes of a call", at, number(call, "kv_read_bytes"));
  events.counter("weights_read_bytes of a call", at, number(call, "weights_read_bytes"));
}

}  // namespace

json::object perfetto_trace(const json::object& report, const std::vector<TimedCall>& timed) {
  const json::object& trace = report.at("trace").as_object();
  const json::array& calls = trace.at("calls").as_array();
  ensure(timed.empty() || timed.size() == calls.size(), ErrorCode::internal,
         "a timeline of {} calls for a trace of {}", timed.size(), calls.size());
  std::map<int64_t, const json::value*> layers;
  for (const json::value& layer : trace.at("layers").as_array()) {
    if (layer.at("role").as_string() != "none") layers[number(layer, "layer")] = &layer;
  }
  size_t spans = 0;
  for (const TimedCall& call : timed) spans += call.spans.size();
  const bool with_operations = spans <= kMostPerfettoEvents;

  Events events;
  const std::string model(report.at("repro").at("model").as_string());
  events.name("process_name", 0, "lapidary kv report: " + model, 0);
  events.name("thread_name", kCalls, "forward calls", 1);
  events.name("thread_name", kLayers, with_operations && !timed.empty() ? "layers and operations" : "layers",
              2);
  double start = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const json::value& call = calls[i];
    const double seconds = timed.empty() ? kNominalSeconds : timed[i].seconds;
    json::object args{{"tokens fed", static_cast<int64_t>(call.at("fed").as_array().size())},
                      {"cache before", number(call, "before")},
                      {"cache after", number(call, "after")},
                      {"kv_written_bytes", number(call, "kv_written_bytes")},
                      {"kv_read_bytes", number(call, "kv_read_bytes")}};
    if (call.at("picked").is_object()) {
      args["picked id"] = number(call.at("picked"), "id");
      args["picked piece"] = call.at("picked").at("piece");
    }
    events.slice(kCalls, fmt::format("{} {}", std::string(call.at("kind").as_string()), i), start,
                 start + seconds, std::move(args));
    if (i == 0) {  // counters begin where nothing is cached
      for (const char* name : {"tokens in the cache", "kv_live_bytes", "kv_alloc_bytes"})
        events.counter(name, 0, 0);
    }
    add_layers(events, call, timed.empty() ? nominal_layers(call) : measured_layers(timed[i]), start, layers);
    if (!timed.empty() && with_operations) {
      for (const TimedSpan& span : timed[i].spans) {
        if (span.what != "layer") events.slice(kLayers, span.what, start + span.start, start + span.end, {});
      }
    }
    add_counters(events, call, start + seconds);
    start += seconds;
  }

  json::object out;
  out["displayTimeUnit"] = "ms";
  out["otherData"] = report.at("repro");
  json::object& facts = out["otherData"].as_object();
  facts["times"] = timed.empty() ? "nominal: one millisecond a call, shared evenly by its layers"
                                 : "measured in a run of its own, watched by a clock";
  if (!with_operations) facts["operations"] = "left out: too many for a viewer";
  out["traceEvents"] = events.take();
  return out;
}

}  // namespace lapidary::kvlab
