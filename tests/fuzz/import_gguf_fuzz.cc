// Any GGUF file as a model: either an Error, or a valid spec whose every tensor is bound, fits the table and
// can be read.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/import_gguf.h"
#include "spec/tensor_io.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  GgufModel model;
  BoundTensors tensors(nullptr);
  GgufFile file;
  try {
    file = parse_gguf(std::as_bytes(std::span(data, size)), "fuzz");
    model = import_gguf_spec(file);
    bind_gguf_tensors(model, file, tensors);
  } catch (const Error&) {
    return 0;
  }
  check_tensors(model.spec, tensors);  // what was bound must keep its promises: an Error here is a find
  return 0;
}
