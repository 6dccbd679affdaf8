// What every result of the lab says of itself, so that it can be made again.
#pragma once

#include <boost/json/object.hpp>
#include <string>

namespace lapidary::kvlab {

inline constexpr int kSchemaVersion = 1;

struct Repro {
  std::string command;       // as typed
  std::string version;       // of the program
  std::string model;         // file or folder name
  std::string model_hash;    // model_hash(), hexadecimal; empty where no weights were read
  std::string numeric_mode;  // Engine::numeric_mode(); empty where nothing was computed
  std::string cpu;
  int threads = 0;
};

// {"schema": "lapidary.kv.trace", "schema_version": 1, "repro": {...}}: the first members of every JSON.
boost::json::object framed(std::string_view schema, const Repro& repro);

}  // namespace lapidary::kvlab
