#include "spec/model_hash.h"

#include "base/dtype.h"
#include "spec/tensor_table.h"

namespace lapidary {
namespace {

// With its length in front, so that no two lists of texts run into the same bytes.
void add_text(Hasher& hasher, std::string_view text) {
  hasher.add(uint64_t{text.size()}).add(text);
}

}  // namespace

Hash128 model_hash(const ModelSpec& spec, const TensorSource& source) {
  Hasher hasher;
  add_text(hasher, spec_to_json(spec));
  for_each_tensor(spec, [&](const TensorInfo& info) {
    if (!info.required) return;
    const TensorData tensor = source.read(info.slot);
    add_text(hasher, slot_name(info.slot));
    add_text(hasher, dtype_name(tensor.view.dtype));
    add_text(hasher, shape_text(tensor.view.shape));
    hasher.add(uint64_t{tensor.view.bytes.size()}).add(tensor.view.bytes);
    source.release(info.slot);
  });
  return hasher.digest();
}

}  // namespace lapidary
