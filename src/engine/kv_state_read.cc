// Reading a state, which may be damaged, of another model, or hostile. A checksum tells damage from a
// mismatch; either way the message names the field, or layer and positions. Nothing is written to the cache
// before every byte has been checked.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/quote.h"
#include "engine/kv_state.h"
#include "kernels/kernels.h"

namespace lapidary {

using kernels::kBlock;
using namespace kv_state;

namespace {

std::string dtype_text(uint32_t code) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "q8"};
  return code < std::size(kNames) ? kNames[code] : fmt::format("code {}", code);
}

std::string rope_text(uint32_t code) {
  return code <= 3 ? std::string(rope_kind_name(static_cast<RopeKind>(code))) : fmt::format("code {}", code);
}

std::string kind_text(uint32_t code) {
  constexpr const char* kNames[] = {"no attention", "an owner", "a borrower"};
  return code < std::size(kNames) ? kNames[code] : fmt::format("code {}", code);
}

// "field: expected a, got b" of the first field that differs; empty when none does.
class Difference {
 public:
  template <typename T, typename Text>
  Difference& field(std::string_view name, const T& expected, const T& got, Text describe) {
    if (text_.empty() && std::memcmp(&expected, &got, sizeof(T)) != 0)
      text_ = fmt::format("{}: expected {}, got {}", name, describe(expected), describe(got));
    return *this;
  }
  template <typename T>
  Difference& field(std::string_view name, const T& expected, const T& got) {
    return field(name, expected, got, [](const T& value) { return fmt::format("{}", value); });
  }
  Difference& field(std::string_view name, const Hash128& expected, const Hash128& got) {
    return field(name, expected, got, [](const Hash128& hash) { return hash_text(hash); });
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

struct Arithmetic {
  char text[sizeof(Header::arithmetic)];
};

std::string header_difference(const Header& expected, const Header& got) {
  Arithmetic a, b;
  std::memcpy(a.text, expected.arithmetic, sizeof a.text);
  std::memcpy(b.text, got.arithmetic, sizeof b.text);
  const auto text_of = [](const Arithmetic& mode) {
    const std::string_view text(mode.text, sizeof mode.text);
    return quoted(text.substr(0, text.find_last_not_of('\0') + 1));
  };
  return Difference()
      .field("arithmetic", a, b, text_of)
      .field("key dtype", expected.key_dtype, got.key_dtype, dtype_text)
      .field("value dtype", expected.value_dtype, got.value_dtype, dtype_text)
      .field("positions of a page", expected.block, got.block)
      .field("number of layers", expected.n_layers, got.n_layers)
      .field("vocabulary size", expected.vocab_size, got.vocab_size)
      .field("reserved", expected.reserved, got.reserved)
      .text();
}

std::string entry_difference(const LayerEntry& expected, const LayerEntry& got) {
  return Difference()
      .field("layer", expected.layer, got.layer)
      .field("kind", expected.kind, got.kind, kind_text)
      .field("owner", expected.owner, got.owner)
      .field("KV heads", expected.n_kv_heads, got.n_kv_heads)
      .field("head_dim", expected.head_dim, got.head_dim)
      .field("window", expected.window, got.window)
      .field("rope kind", expected.rope_kind, got.rope_kind, rope_text)
      .field("rope theta", expected.rope_theta, got.rope_theta)
      .text();
}

class StateReader {
 public:
  StateReader(const KvCache& cache, const StateKey& key, std::span<const std::byte> bytes,
              std::string_view name)
      : cache_(cache), key_(key), bytes_(bytes), name_(name), expected_(expected_frame(cache, key)) {}

  void check() {
    check_header();
    check_layers();
    if (const std::string d = Difference().field("model hash", key_.model, header_.model).text(); !d.empty())
      refuse("{}; it was saved from another model", d);
    check_sizes();
    check_tokens();
    check_restart();
    for_pages([&](int64_t layer, int64_t block, std::span<const std::byte> page, const Hash128& hash) {
      const Hash128 now = page_hash(header_.hash, layer, block, page);
      if (now != hash)
        damaged("{}: checksum: expected {}, got {}", page_name(layer, block), hash_text(hash),
                hash_text(now));
    });
  }

  void check_room(const KvCache& cache, int32_t sequence) const {
    const int64_t taken = cache.bytes_to_assign(length_, first_blocks(cache));
    const int64_t room = cache.bytes_allowed() - cache.bytes_in_use() + cache.bytes_of_its_own(sequence);
    if (taken > room)
      fail(ErrorCode::limit, "{}: its {} positions need {} bytes of KV pages, {} of {} are free", name_,
           length_, taken, room, cache.bytes_allowed());
  }

  std::span<const std::byte> attachment() const {
    return bytes_.subspan(attachment_at_, pages_at_ - attachment_at_);
  }

  int64_t copy_into(KvCache& cache, int32_t sequence) const {
    std::vector<int32_t> tokens(static_cast<size_t>(length_));
    if (length_ > 0) std::memcpy(tokens.data(), bytes_.data() + tokens_at_, tokens.size() * sizeof(int32_t));
    const std::vector<int64_t> first = first_blocks(cache);
    cache.assign(sequence, tokens, first);
    int64_t copied = 0;
    for_pages([&](int64_t layer, int64_t block, std::span<const std::byte> page, const Hash128&) {
      if (block < first[static_cast<size_t>(layer)]) return;
      cache.copy_in(layer, sequence, block, positions_of(block), page.data());
      copied += static_cast<int64_t>(page.size());
    });
    return copied;
  }

 private:
  std::vector<int64_t> first_blocks(const KvCache& cache) const {
    std::vector<int64_t> first;
    for (size_t i = 0; i < layers_.size(); i++)
      first.push_back(std::max(static_cast<int64_t>(layers_[i].first) / kBlock,
                               cache.first_kept(static_cast<int64_t>(i), length_)));
    return first;
  }

  template <typename... Args>
  [[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::data, "{}: damaged: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::usage, "{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  void check_header() {
    if (bytes_.size() < sizeof(Header))
      damaged("cut short in the header: expected at least {} bytes, got {}", sizeof(Header), bytes_.size());
    std::memcpy(&header_, bytes_.data(), sizeof header_);
    const std::string_view magic(header_.magic, sizeof header_.magic);
    ensure(magic == std::string_view(kMagic, sizeof kMagic), ErrorCode::data,
           "{}: magic: expected a saved state (\"LAPIDKV\\0\"), got {}", name_, quoted(magic));
    ensure(header_.byte_order == kByteOrder, ErrorCode::data, "{}: byte order: expected {:#x}, got {:#x}",
           name_, kByteOrder, header_.byte_order);
    ensure(header_.version == kVersion, ErrorCode::unsupported, "{}: version: expected {}, got {}", name_,
           kVersion, header_.version);
    const Hash128 now = hash128(hashed_part(header_));
    if (now != header_.hash)
      damaged("header: {}", header_suspect(now));  // says which field, as far as the rest can tell
    if (const std::string d = header_difference(expected_.header, header_); !d.empty()) refuse("{}", d);
  }

  // The field of a damaged header that does not go with what follows it, or with this engine.
  std::string header_suspect(const Hash128& now) {
    if (std::string d = header_difference(expected_.header, header_); !d.empty()) return d;
    if (key_.model != header_.model)
      return Difference().field("model hash", key_.model, header_.model).text();
    const std::string checksum = Difference().field("header checksum", header_.hash, now).text();
    tokens_at_ = sizeof(Header) + layers_bytes();
    if (tokens_at_ > bytes_.size()) return checksum;
    const std::span<const std::byte> rest = bytes_.subspan(tokens_at_);
    if (header_.length > rest.size() / sizeof(int32_t))
      return fmt::format("length: {} token ids do not fit into {} bytes", header_.length, rest.size());
    read_layers();
    const size_t token_bytes = static_cast<size_t>(header_.length) * sizeof(int32_t);
    const Hash128 tokens = hash128(rest.first(token_bytes));
    const bool whole = header_.attachment_bytes <= rest.size() && settle_sizes() && total_ == bytes_.size();
    if (tokens != header_.tokens_hash)
      return whole ? Difference().field("checksum of the token ids", header_.tokens_hash, tokens).text()
                   : fmt::format("length: {} positions do not go with a file of {} bytes", header_.length,
                                 bytes_.size());
    if (!whole)
      return fmt::format("attachment bytes: {} do not go with a file of {} bytes", header_.attachment_bytes,
                         bytes_.size());
    const Hash128 attached = hash128(bytes_.subspan(attachment_at_, header_.attachment_bytes));
    const std::string d = Difference()
                              .field("checksum of the attachment", header_.attachment_hash, attached)
                              .field("earliest restart", restart(), header_.earliest_restart)
                              .text();
    return d.empty() ? checksum : d;
  }

  size_t layers_bytes() const { return expected_.layers.size() * sizeof(LayerEntry); }

  void read_layers() {
    layers_.resize(expected_.layers.size());
    std::memcpy(layers_.data(), bytes_.data() + sizeof(Header), layers_bytes());
  }

  void check_layers() {
    if (bytes_.size() - sizeof(Header) < layers_bytes())
      damaged("cut short in the map of layers, layer {}: expected {} bytes at least, got {}",
              (bytes_.size() - sizeof(Header)) / sizeof(LayerEntry), sizeof(Header) + layers_bytes(),
              bytes_.size());
    read_layers();
    for (size_t i = 0; i < layers_.size(); i++) {
      const std::string d = entry_difference(expected_.layers[i], layers_[i]);
      const Hash128 now = entry_hash(header_.hash, layers_[i]);
      if (now != layers_[i].hash && d.empty())
        damaged("map of layers, layer {}: first position {}, or the checksum itself: expected {}, got {}", i,
                layers_[i].first, hash_text(layers_[i].hash), hash_text(now));
      if (now != layers_[i].hash || layers_[i].layer != i)  // no writer puts a layer in another's place
        damaged("map of layers, layer {}: {}", i, d);
      if (!d.empty()) refuse("layer {}: {}", i, d);
    }
  }

  // Where things lie, from the header and the map. False when the numbers overflow.
  bool settle_sizes() {
    attachment_at_ = tokens_at_ + static_cast<size_t>(header_.length) * sizeof(int32_t);
    pages_at_ = total_ = attachment_at_ + static_cast<size_t>(header_.attachment_bytes);
    for (size_t i = 0; i < layers_.size(); i++) {
      const KvGeometry& g = cache_.geometry(static_cast<int64_t>(i));
      if (!g.owner || layers_[i].first >= header_.length) continue;
      const uint64_t positions = header_.length - layers_[i].first;
      size_t bytes = 0;
      const uint64_t hashes = (positions + kBlock - 1) / kBlock * sizeof(Hash128);
      if (__builtin_mul_overflow(positions, g.position_bytes(), &bytes) ||
          __builtin_add_overflow(bytes, hashes, &bytes) || __builtin_add_overflow(total_, bytes, &total_))
        return false;
    }
    return true;
  }

  void check_sizes() {
    tokens_at_ = sizeof(Header) + layers_bytes();
    ensure(header_.length <= static_cast<uint64_t>(cache_.context()), ErrorCode::limit,
           "{}: length: {} positions exceed the context of {}", name_, header_.length, cache_.context());
    length_ = static_cast<int64_t>(header_.length);
    for (size_t i = 0; i < layers_.size(); i++) check_first(i);
    const bool fits = header_.attachment_bytes <= uint64_t{1} << 62 && settle_sizes();
    if (!fits) damaged("attachment bytes: {} is no size of a file", header_.attachment_bytes);
    if (total_ > bytes_.size())
      damaged("cut short in {}: expected {} bytes, got {}", region_at(bytes_.size()), total_, bytes_.size());
    if (total_ < bytes_.size())
      damaged("{} bytes after the end: expected {} bytes, got {}", bytes_.size() - total_, total_,
              bytes_.size());
  }

  // The pages must reach from the first position that the next query sees to the last.
  void check_first(size_t layer) const {
    const KvGeometry& g = cache_.geometry(static_cast<int64_t>(layer));
    const uint64_t first = layers_[layer].first;
    const int64_t most = g.window ? std::max<int64_t>(0, length_ - g.window + 1) : 0;
    if (!g.owner ? first != 0 : first > static_cast<uint64_t>(most) || first % kBlock != 0)
      damaged("map of layers, layer {}: first position: expected a multiple of {} up to {}, got {}", layer,
              kBlock, g.owner ? most : 0, first);
  }

  void check_tokens() const {
    const Hash128 tokens = hash128(bytes_.subspan(tokens_at_, attachment_at_ - tokens_at_)),
                  attached = hash128(bytes_.subspan(attachment_at_, pages_at_ - attachment_at_));
    const std::string d = Difference()
                              .field("token ids: checksum", header_.tokens_hash, tokens)
                              .field("attachment: checksum", header_.attachment_hash, attached)
                              .text();
    if (!d.empty()) damaged("{}", d);
    for (int64_t i = 0; i < length_; i++) {
      int32_t id;
      std::memcpy(&id, bytes_.data() + tokens_at_ + static_cast<size_t>(i) * sizeof id, sizeof id);
      if (id < 0 || id >= key_.spec.vocab_size)
        damaged("token ids: position {}: expected 0 to {}, got {}", i, key_.spec.vocab_size - 1, id);
    }
  }

  // The least length that every layer with a window can go on from.
  uint64_t restart() const {
    uint64_t earliest = 0;
    for (size_t i = 0; i < layers_.size(); i++)
      if (layers_[i].first > 0 && cache_.geometry(static_cast<int64_t>(i)).window > 0)
        earliest = std::max(
            earliest,
            layers_[i].first + static_cast<uint64_t>(cache_.geometry(static_cast<int64_t>(i)).window) - 1);
    return earliest;
  }

  void check_restart() const {
    const std::string d = Difference().field("earliest restart", restart(), header_.earliest_restart).text();
    if (!d.empty()) damaged("{}", d);
  }

  int64_t positions_of(int64_t block) const { return std::min(kBlock, length_ - block * kBlock); }

  std::string page_name(int64_t layer, int64_t block) const {
    return fmt::format("layer {}, positions {} to {}", layer, block * kBlock,
                       block * kBlock + positions_of(block) - 1);
  }

  // f(layer, block, offset, bytes of the page without its checksum) in the order of the file.
  void for_places(FunctionRef<void(int64_t, int64_t, size_t, size_t)> f) const {
    size_t at = pages_at_;
    for (size_t i = 0; i < layers_.size(); i++) {
      const KvGeometry& g = cache_.geometry(static_cast<int64_t>(i));
      if (!g.owner) continue;
      for (int64_t b = static_cast<int64_t>(layers_[i].first) / kBlock; b * kBlock < length_; b++) {
        const size_t bytes = static_cast<size_t>(positions_of(b)) * g.position_bytes();
        f(static_cast<int64_t>(i), b, at, bytes);
        at += bytes + sizeof(Hash128);
      }
    }
  }

  void for_pages(FunctionRef<void(int64_t, int64_t, std::span<const std::byte>, const Hash128&)> f) const {
    for_places([&](int64_t layer, int64_t block, size_t at, size_t size) {
      Hash128 hash;
      std::memcpy(&hash, bytes_.data() + at + size, sizeof hash);
      f(layer, block, bytes_.subspan(at, size), hash);
    });
  }

  std::string region_at(size_t offset) const {
    if (offset < attachment_at_) return "the token ids";
    if (offset < pages_at_) return "the attachment";
    std::string region;
    for_places([&](int64_t layer, int64_t block, size_t at, size_t size) {
      if (offset >= at && offset < at + size + sizeof(Hash128)) region = page_name(layer, block);
    });
    return region;
  }

  const KvCache& cache_;
  const StateKey& key_;
  std::span<const std::byte> bytes_;
  std::string_view name_;
  StateFrame expected_;
  Header header_;
  std::vector<LayerEntry> layers_;
  int64_t length_ = 0;
  size_t tokens_at_ = 0, attachment_at_ = 0, pages_at_ = 0, total_ = 0;
};

}  // namespace

int64_t read_state(KvCache& cache, int32_t sequence, const StateKey& key, std::span<const std::byte> state,
                   std::string_view name, FunctionRef<void(std::span<const std::byte>)> accept) {
  StateReader reader(cache, key, state, name);
  reader.check();
  reader.check_room(cache, sequence);
  accept(reader.attachment());
  return reader.copy_into(cache, sequence);
}

}  // namespace lapidary
