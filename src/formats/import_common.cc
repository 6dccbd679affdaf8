#include "formats/import_common.h"

#include "base/error.h"

namespace lapidary {

int64_t last_owner_of_kind(const std::vector<bool>& full, int64_t owners, int64_t layer,
                           const std::string& path) {
  if (layer < owners) return layer;
  for (int64_t j = owners - 1; j >= 0; --j) {
    if (full[static_cast<size_t>(j)] == full[static_cast<size_t>(layer)]) return j;
  }
  fail(ErrorCode::data,
       "{}: expected a layer of the same kind among the first {} for layer {} to borrow from, got none", path,
       owners, layer);
}

int64_t checked_double(int64_t value, const std::string& path) {
  ensure(value >= 1 && value <= INT64_MAX / 2, ErrorCode::data, "{}: expected a positive size, got {}", path,
         value);
  return 2 * value;
}

std::vector<int64_t> read_token_ids(JsonFields& fields, std::string_view key, int64_t vocab_size) {
  std::vector<int64_t> out;
  const boost::json::value& value = fields.get(key);
  const auto take = [&](const boost::json::value& id) {
    ensure(id.is_int64() && id.get_int64() >= 0 && id.get_int64() < vocab_size, ErrorCode::data,
           "{}: expected token ids from 0 to {}, got {}", fields.path(key), vocab_size - 1,
           describe_json(id));
    out.push_back(id.get_int64());
  };
  if (value.is_array()) {
    for (const boost::json::value& id : value.get_array()) take(id);
  } else if (!value.is_null()) {
    take(value);
  }
  return out;
}

}  // namespace lapidary
