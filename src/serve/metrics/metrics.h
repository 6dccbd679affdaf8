// What Prometheus reads at /metrics. Names, units and labels are vLLM's where the meaning is equal, so that
// dashboards made for it work; what it does not have is below `lapidary:`. No label has more values than the
// program knows: an endpoint is a route, anything else is "other".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/http/http_server.h"
#include "serve/record.h"
#include "serve/scheduler/scheduler.h"

namespace lapidary::serve {

// A metric as documentation prints it.
struct MetricDescription {
  std::string name, type, labels, help;  // type: "counter", "gauge", "histogram"; labels: "a, b"
};

class Metrics : public Observer {
 public:
  struct About {
    std::string model;    // label model_name of everything
    std::string version;  // of the program
    std::string numeric_mode;
    std::vector<std::string> endpoints;  // the routes that the label may name
  };
  explicit Metrics(const About& about);
  ~Metrics() override;
  Metrics(const Metrics&) = delete;

  void on_request(const RequestRecord& record) override;
  // The text of /metrics: what the requests left, and the state of scheduler and HTTP as given. From any
  // thread.
  std::string text(const SchedulerView& scheduler, const HttpStats& http) const;
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // All there are, in the order of the text.
  std::vector<MetricDescription> describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// vLLM's word for how a text ended: "stop", "length", "abort", "error".
const char* finished_reason(EndReason reason);

}  // namespace lapidary::serve
