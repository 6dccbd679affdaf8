// config.json of anyone: either an Error, or a spec that is valid and survives its own JSON.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "formats/import_hf.h"
#include "spec/footprint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  HfConfig config;
  try {
    config = import_hf_config(text, "config.json");
  } catch (const Error&) {
    return 0;
  }
  config.spec.validate();
  if (config.spec.n_layers() <= 64 && spec_from_json(spec_to_json(config.spec)) != config.spec) std::abort();
  if (count_parameters(config.spec).resident <= 0) std::abort();
  kv_bytes_per_token(config.spec, DType::f32);
  return 0;
}
