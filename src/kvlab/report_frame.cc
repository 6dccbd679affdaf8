#include "kvlab/report_frame.h"

namespace lapidary::kvlab {

boost::json::object framed(std::string_view schema, const Repro& repro) {
  boost::json::object out;
  out["schema"] = schema;
  out["schema_version"] = kSchemaVersion;
  boost::json::object r;
  r["command"] = repro.command;
  r["version"] = repro.version;
  r["model"] = repro.model;
  if (!repro.model_hash.empty()) r["model_hash"] = repro.model_hash;
  if (!repro.numeric_mode.empty()) r["numeric_mode"] = repro.numeric_mode;
  if (!repro.cpu.empty()) r["cpu"] = repro.cpu;
  if (repro.threads > 0) r["threads"] = repro.threads;
  out["repro"] = std::move(r);
  return out;
}

}  // namespace lapidary::kvlab
