// What `lapidary kv offload` found, for a terminal.
#pragma once

#include <string>

#include "cli/terminal.h"
#include "kvlab/offload/offload.h"

namespace lapidary {

struct OffloadView {
  std::string model;         // file or folder name
  std::string numeric_mode;  // Engine::numeric_mode()
  int threads = 0;
  bool every_layer = false;  // a line for each, with its checksums
};

std::string offload_text(const kvlab::OffloadReport& report, const OffloadView& view, const Style& style);
std::string state_file_text(const kvlab::StateFileReport& report, const OffloadView& view,
                            const Style& style);

}  // namespace lapidary
