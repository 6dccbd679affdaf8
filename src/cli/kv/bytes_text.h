// `lapidary kv bytes` for people.
#pragma once

#include <string>

#include "cli/terminal.h"
#include "kvlab/bytes/bytes.h"

namespace lapidary {

struct BytesTextOptions {
  std::string name, numeric_mode;
  bool every_layer = false;
};
std::string bytes_text_view(const kvlab::BytesReport& report, const ModelSpec& spec,
                            const BytesTextOptions& options, const Style& style);

}  // namespace lapidary
