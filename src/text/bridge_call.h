// The C++ face of bridge/include/bridge.h: statuses become Error, owned buffers are copied and released.
#pragma once

#include <bridge.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace lapidary {

struct BridgeDelete {
  void operator()(lb_tokenizer* tokenizer) const { lb_tokenizer_free(tokenizer); }
  void operator()(lb_template* chat) const { lb_template_free(chat); }
};

using TokenizerHandle = std::unique_ptr<lb_tokenizer, BridgeDelete>;
using TemplateHandle = std::unique_ptr<lb_template, BridgeDelete>;

inline lb_str borrow(std::string_view text) {
  return {text.data(), text.size()};
}
inline std::string_view view(lb_str text) {
  return text.size == 0 ? std::string_view() : std::string_view(text.data, text.size);
}

inline std::string take(lb_bytes bytes) {
  const std::unique_ptr<lb_bytes, void (*)(lb_bytes*)> owner(&bytes, [](lb_bytes* b) { lb_bytes_free(*b); });
  return bytes.size == 0 ? std::string() : std::string(bytes.data, bytes.size);
}

inline std::vector<int32_t> take(lb_ids ids) {
  const std::unique_ptr<lb_ids, void (*)(lb_ids*)> owner(&ids, [](lb_ids* i) { lb_ids_free(*i); });
  return std::vector<int32_t>(ids.data, ids.data + ids.size);
}

// Throws what the bridge reported.
inline void check(lb_status status, lb_bytes error) {
  if (status == LB_OK) return;
  const ErrorCode code = status == LB_DATA          ? ErrorCode::data
                         : status == LB_UNSUPPORTED ? ErrorCode::unsupported
                         : status == LB_LIMIT       ? ErrorCode::limit
                                                    : ErrorCode::internal;
  throw Error(code, take(error));
}

}  // namespace lapidary
