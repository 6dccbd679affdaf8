#include "kvlab/offload_mutations.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>

#include "base/rng.h"
#include "kvlab/offload.h"
#include "kvlab/sequence.h"
#include "kvlab/state_parts.h"

namespace lapidary::kvlab {

using namespace kv_state;

namespace {

struct Field {
  std::string_view name;      // of the field
  std::string_view expected;  // what a message about its damage says
  size_t at = 0, bytes = 0;
};

#define FIELD(type, member, name, expected)                      \
  Field {                                                        \
    name, expected, offsetof(type, member), sizeof(type::member) \
  }

constexpr Field kHeaderFields[] = {
    FIELD(Header, magic, "magic", "magic"),
    FIELD(Header, version, "version", "version"),
    FIELD(Header, byte_order, "byte order", "byte order"),
    FIELD(Header, model, "model hash", "model hash"),
    FIELD(Header, arithmetic, "arithmetic", "arithmetic"),
    FIELD(Header, key_dtype, "key dtype", "key dtype"),
    FIELD(Header, value_dtype, "value dtype", "value dtype"),
    FIELD(Header, block, "positions of a page", "positions of a page"),
    FIELD(Header, n_layers, "number of layers", "number of layers"),
    FIELD(Header, vocab_size, "vocabulary size", "vocabulary size"),
    FIELD(Header, reserved, "reserved", "reserved"),
    FIELD(Header, length, "length", "length"),
    FIELD(Header, earliest_restart, "earliest restart", "earliest restart"),
    FIELD(Header, attachment_bytes, "attachment bytes", "attachment bytes"),
    FIELD(Header, tokens_hash, "checksum of the token ids", "checksum of the token ids"),
    FIELD(Header, attachment_hash, "checksum of the attachment", "checksum of the attachment"),
    FIELD(Header, hash, "header checksum", "header checksum"),
};
// Nothing else says where a layer begins: damage there looks like damage of the checksum over it.
constexpr Field kEntryFields[] = {
    FIELD(LayerEntry, layer, "layer", "layer: expected"),
    FIELD(LayerEntry, kind, "kind", "kind: expected"),
    FIELD(LayerEntry, owner, "owner", "owner: expected"),
    FIELD(LayerEntry, n_kv_heads, "KV heads", "KV heads: expected"),
    FIELD(LayerEntry, head_dim, "head_dim", "head_dim: expected"),
    FIELD(LayerEntry, rope_kind, "rope kind", "rope kind: expected"),
    FIELD(LayerEntry, window, "window", "window: expected"),
    FIELD(LayerEntry, rope_theta, "rope theta", "rope theta: expected"),
    FIELD(LayerEntry, first, "first position", "first position"),
    FIELD(LayerEntry, hash, "checksum", "first position"),
};
#undef FIELD

class StateMutator {
 public:
  StateMutator(const MutationInput& input, TryRestore try_restore, OnLabWork on_work)
      : in_(input), parts_(parts_of(input.state)), try_(try_restore), on_work_(on_work) {
    ensure(parts_.whole, ErrorCode::internal, "a state to be damaged: its parts do not fill its {} bytes",
           input.state.size());
    length_ = static_cast<int64_t>(parts_.header.length);
  }

  std::vector<Mutation> run() {
    flips();
    swaps();
    shifts();
    cuts();
    others();
    splices();
    return std::move(done_);
  }

 private:
  using Change = FunctionRef<void(Bytes&)>;

  void attempt(std::string_view group, std::string name, std::string expected, Change change) {
    if (done_.size() % 16 == 0)
      on_work_("damaging the state on purpose", static_cast<int64_t>(done_.size()), 160);
    Bytes bytes(in_.state.begin(), in_.state.end());
    change(bytes);
    Mutation m{.group = std::string(group), .name = std::move(name), .expected = std::move(expected)};
    const size_t common = std::min(bytes.size(), in_.state.size());
    const auto differs =
        std::mismatch(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(common), in_.state.begin());
    m.at_byte = differs.first - bytes.begin();
    if (bytes.size() == in_.state.size() && differs.first == bytes.end()) {
      m.verdict = Mutation::Verdict::changed_nothing;
    } else if (const std::optional<Refusal> refusal = try_(bytes)) {
      m.code = refusal->code;
      m.message = refusal->message;
      const bool named = m.message.find(m.expected) != std::string::npos;
      m.verdict = named ? Mutation::Verdict::caught : Mutation::Verdict::misnamed;
    } else {
      m.verdict = Mutation::Verdict::missed;
    }
    done_.push_back(std::move(m));
  }

  std::string page_name(const PagePart& page) const {
    const int64_t first = page.block * int64_t{parts_.header.block};
    return fmt::format("layer {}, positions {} to {}", page.layer, first, first + page.positions - 1);
  }
  static std::string entry_name(size_t layer) { return fmt::format("map of layers, layer {}", layer); }

  // Layers that stand for all: the first, the last, one of each kind.
  std::vector<size_t> sample_of_layers() const {
    std::vector<size_t> sample{0, parts_.entries.size() - 1};
    const auto add = [&](auto&& wanted) {
      const auto found = std::find_if(parts_.entries.begin(), parts_.entries.end(), wanted);
      if (found != parts_.entries.end())
        sample.push_back(static_cast<size_t>(found - parts_.entries.begin()));
    };
    add([](const LayerEntry& e) { return e.kind == kOwner && e.window == 0; });
    add([](const LayerEntry& e) { return e.kind == kOwner && e.window > 0; });
    add([](const LayerEntry& e) { return e.kind == kBorrower; });
    std::sort(sample.begin(), sample.end());
    sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
    return sample;
  }
  std::vector<PagePart> sample_of_pages() const {
    const std::vector<PagePart>& all = parts_.pages;
    std::vector<PagePart> sample;
    for (const size_t i : {size_t{0}, all.size() / 2, all.size() - 1})
      if (sample.empty() || sample.back().at != all[i].at) sample.push_back(all[i]);
    return sample;
  }

  void flip(std::string name, std::string expected, size_t at) {
    const auto bit = static_cast<int>(done_.size() % 8);
    attempt("flip a byte", std::move(name), std::move(expected),
            [&](Bytes& bytes) { bytes[at] ^= std::byte{1} << bit; });
  }

  // The middle, or the first byte of a checksum, which is what messages for terminals show of it.
  static size_t place_in(const Field& field) { return field.bytes == sizeof(Hash128) ? 0 : field.bytes / 2; }

  void flips() {
    for (const Field& f : kHeaderFields)
      flip(fmt::format("header, {}", f.name), std::string(f.expected), f.at + place_in(f));
    for (const size_t layer : sample_of_layers())
      for (const Field& f : kEntryFields)
        flip(fmt::format("{}, {}", entry_name(layer), f.name),
             fmt::format("{}: {}", entry_name(layer), f.expected),
             parts_.entry_at(layer) + f.at + place_in(f));
    for (const int64_t position : {int64_t{0}, length_ - 1})
      flip(fmt::format("token id of position {}", position), "token ids: checksum",
           parts_.tokens_at + static_cast<size_t>(position) * sizeof(int32_t));
    if (parts_.pages_at > parts_.attachment_at)
      flip("attachment", "attachment: checksum", parts_.attachment_at);
    for (const PagePart& page : sample_of_pages()) {
      const std::string name = page_name(page), expected = name + ": checksum";
      flip(name + ", first key", expected, page.at);
      flip(name + ", its middle", expected, page.at + page.bytes / 2);
      flip(name + ", last value", expected, page.at + page.bytes - 1);
      flip(name + ", its checksum", expected, page.at + page.bytes);
    }
    // Of any place at once: each must be refused, whatever it names.
    for (uint64_t i = 0; i < 16; i++) {
      const auto draw = philox(11, 0, i);
      const size_t at = draw[0] % in_.state.size();
      attempt("flip a byte", fmt::format("a random one, byte {}", at), "",
              [&](Bytes& bytes) { bytes[at] ^= static_cast<std::byte>(1 + draw[1] % 255); });
    }
  }

  void exchange(std::string name, std::string expected, size_t a, size_t b, size_t size) {
    attempt("swap two parts", std::move(name), std::move(expected), [&](Bytes& bytes) {
      const auto at = [&](size_t offset) { return bytes.begin() + static_cast<std::ptrdiff_t>(offset); };
      std::swap_ranges(at(a), at(a + size), at(b));
    });
  }

  // Two pages for which `wanted` holds, of the same size; nothing when there are none.
  std::optional<std::pair<PagePart, PagePart>> two_pages(
      FunctionRef<bool(const PagePart&, const PagePart&)> wanted) const {
    for (const PagePart& a : parts_.pages)
      for (const PagePart& b : parts_.pages)
        if (a.at < b.at && a.bytes == b.bytes && a.head_dim == b.head_dim && wanted(a, b)) return {{a, b}};
    return {};
  }

  void swaps() {
    const auto pair_of = [&](FunctionRef<bool(const PagePart&, const PagePart&)> wanted) {
      const auto pair = two_pages(wanted);
      if (!pair) return;
      const auto& [a, b] = *pair;
      const int64_t rows = parts_.header.block;
      const std::string name =
          a.layer != b.layer
              ? fmt::format("layers {} and {}, page at {}", a.layer, b.layer, a.block * rows)
              : fmt::format("layer {}, pages at {} and {}", a.layer, a.block * rows, b.block * rows);
      for (const bool checksum : {false, true})
        exchange(name + (checksum ? ", checksums too" : ""), page_name(a) + ": checksum", a.at, b.at,
                 a.bytes + (checksum ? sizeof(Hash128) : 0));
    };
    pair_of([](const PagePart& a, const PagePart& b) {
      return a.layer != b.layer && a.block == b.block && a.positions == b.positions;
    });
    pair_of([](const PagePart& a, const PagePart& b) {
      return a.layer == b.layer && a.positions == b.positions;
    });
    if (parts_.entries.size() > 1)
      exchange("entries of layers 0 and 1", "map of layers, layer 0: layer: expected 0, got 1",
               parts_.entry_at(0), parts_.entry_at(1), sizeof(LayerEntry));
    if (length_ > 1)
      exchange("the first and the last token id", "token ids: checksum", parts_.tokens_at,
               parts_.attachment_at - sizeof(int32_t), sizeof(int32_t));
    if (parts_.types.keys == parts_.types.values) {
      const PagePart& page = parts_.pages.front();  // one head after the other: keys, then values
      const size_t half = page.bytes / static_cast<size_t>(page.n_kv_heads) / 2;
      exchange(fmt::format("keys and values of a head: {}", page_name(page)), page_name(page) + ": checksum",
               page.at, page.at + half, half);
    }
  }

  // The numbers of a page, one position on: what was of position p is now of p + 1.
  void shift_page(const PagePart& page) {
    attempt("shift by a position", fmt::format("values of a head: {}", page_name(page)),
            page_name(page) + ": checksum", [&](Bytes& bytes) {
              const size_t keys = kv_row_bytes(parts_.types.keys, page.head_dim) *
                                  static_cast<size_t>(page.positions),
                           row = static_cast<size_t>(page.head_dim) *
                                 dtype_info(parts_.types.values).block_bytes;
              const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(page.at + keys),
                         end = first + static_cast<std::ptrdiff_t>(row * static_cast<size_t>(page.positions));
              std::rotate(first, end - static_cast<std::ptrdiff_t>(row), end);
            });
  }

  template <typename T>
  void sealed(std::string_view group, std::string name, std::string expected, size_t at,
              const std::function<void(T&)>& change) {
    attempt(group, std::move(name), std::move(expected), [&](Bytes& bytes) {
      T record = record_at<T>(bytes, at);
      change(record);
      put_record(std::span(bytes), at, record);
      seal(bytes);
    });
  }

  void shifts() {
    constexpr std::string_view kGroup = "shift by a position";
    for (const PagePart& page : sample_of_pages())
      if (page.positions > 1) shift_page(page);
    if (length_ > 1)
      attempt(kGroup, "all token ids", "token ids: checksum", [&](Bytes& bytes) {
        const auto at = [&](size_t offset) { return bytes.begin() + static_cast<std::ptrdiff_t>(offset); };
        std::rotate(at(parts_.tokens_at), at(parts_.attachment_at - sizeof(int32_t)),
                    at(parts_.attachment_at));
      });
    sealed<Header>(kGroup, "length + 1, sealed", "cut short in", 0, [](Header& h) { h.length++; });
    sealed<Header>(kGroup, "earliest restart + 1, sealed", "earliest restart: expected", 0,
                   [](Header& h) { h.earliest_restart++; });
    for (const size_t layer : sample_of_layers()) {
      const LayerEntry& entry = parts_.entries[layer];
      if (entry.kind == kNoAttention) continue;
      sealed<LayerEntry>(kGroup, fmt::format("layer {}, first position + 1, sealed", layer),
                         fmt::format("layer {}: first position", layer), parts_.entry_at(layer),
                         [](LayerEntry& e) { e.first++; });
      if (entry.first >= parts_.header.block)
        sealed<LayerEntry>(kGroup, fmt::format("layer {}, first position - 32, sealed", layer),
                           "cut short in", parts_.entry_at(layer),
                           [&](LayerEntry& e) { e.first -= parts_.header.block; });
    }
  }

  void cut(std::string name, std::string expected, size_t size) {
    attempt("truncate", fmt::format("{}: {} bytes left", name, size), std::move(expected),
            [&](Bytes& bytes) { bytes.resize(size); });
  }

  void cuts() {
    cut("nothing left", "cut short in the header", 0);
    cut("in the header", "cut short in the header", sizeof(Header) - 1);
    const size_t last = parts_.entries.size() - 1;
    cut("in the map of layers", fmt::format("cut short in the map of layers, layer {}", last),
        parts_.entry_at(last) + sizeof(LayerEntry) / 2);
    cut("in the token ids", "cut short in the token ids", parts_.attachment_at - 1);
    if (parts_.pages_at > parts_.attachment_at)
      cut("in the attachment", "cut short in the attachment", parts_.pages_at - 1);
    for (const PagePart& page : sample_of_pages()) {
      cut("before " + page_name(page), "cut short in " + page_name(page), page.at);
      cut("in " + page_name(page), "cut short in " + page_name(page), page.at + page.bytes / 2);
      cut("in its checksum", "cut short in " + page_name(page), page.end() - 1);
    }
    attempt("truncate", "the other way: a byte appended", "1 bytes after the end",
            [](Bytes& bytes) { bytes.push_back(std::byte{0}); });
  }

  // Whole and sound, checksums and all, but of something else.
  void others() {
    constexpr std::string_view kGroup = "of something else, sealed";
    const auto header = [&](std::string name, std::string expected,
                            const std::function<void(Header&)>& change) {
      sealed<Header>(kGroup, std::move(name), std::move(expected), 0, change);
    };
    header("another model", "model hash: expected", [](Header& h) { h.model.bytes[0] ^= 1; });
    header("another version of the format", "version: expected", [](Header& h) { h.version++; });
    header("the other byte order", "byte order: expected", [](Header& h) { h.byte_order = 0x04030201; });
    header("another arithmetic", "arithmetic: expected", [](Header& h) { h.arithmetic[0] ^= 1; });
    header("another type of keys", "key dtype: expected", [](Header& h) { h.key_dtype ^= 1; });
    header("another type of values", "value dtype: expected", [](Header& h) { h.value_dtype ^= 1; });
    header("pages of another size", "positions of a page: expected", [](Header& h) { h.block *= 2; });
    header("another vocabulary", "vocabulary size: expected", [](Header& h) { h.vocab_size++; });
    header("longer than the context",
           "length: ", [&](Header& h) { h.length = static_cast<uint64_t>(in_.context) + 1; });
    for (const size_t layer : sample_of_layers()) {
      if (parts_.entries[layer].kind == kNoAttention) continue;
      const auto entry = [&](const char* what, const char* field,
                             const std::function<void(LayerEntry&)>& change) {
        sealed<LayerEntry>(kGroup, fmt::format("layer {} with {}", layer, what),
                           fmt::format("layer {}: {}: expected", layer, field), parts_.entry_at(layer),
                           change);
      };
      entry("another rope theta", "rope theta", [](LayerEntry& e) { e.rope_theta *= 2; });
      entry("another kind of rope", "rope kind", [](LayerEntry& e) { e.rope_kind ^= 1; });
      entry("another window", "window", [](LayerEntry& e) { e.window++; });
      entry("another owner", "owner", [](LayerEntry& e) { e.owner++; });
      entry("one KV head more", "KV heads", [](LayerEntry& e) { e.n_kv_heads++; });
    }
    const int32_t beyond = static_cast<int32_t>(parts_.header.vocab_size);
    sealed<int32_t>(kGroup, "a token id beyond the vocabulary",
                    fmt::format("token ids: position {}: expected", length_ / 2),
                    parts_.tokens_at + static_cast<size_t>(length_ / 2) * sizeof(int32_t),
                    [&](int32_t& id) { id = beyond; });
  }

  void splices() {
    constexpr std::string_view kGroup = "splice of two files";
    if (in_.other.size() != in_.state.size()) return;
    const auto take = [&](std::string name, std::string expected, size_t from, size_t to) {
      attempt(kGroup, std::move(name), std::move(expected),
              [&](Bytes& bytes) { std::memcpy(bytes.data() + from, in_.other.data() + from, to - from); });
    };
    take("the other's header", "map of layers, layer 0", 0, sizeof(Header));
    take("the other's map of layers", "map of layers, layer 0", parts_.entry_at(0), parts_.tokens_at);
    take("the other's token ids", "token ids: checksum", parts_.tokens_at, parts_.attachment_at);
    for (const PagePart& page : sample_of_pages())
      take(fmt::format("the other's page: {}", page_name(page)), page_name(page) + ": checksum", page.at,
           page.end());
    const PagePart& middle = parts_.pages[parts_.pages.size() / 2];
    take(fmt::format("the other's file from {} on", page_name(middle)), page_name(middle) + ": checksum",
         middle.at, in_.state.size());
  }

  const MutationInput& in_;
  StateParts parts_;
  TryRestore try_;
  OnLabWork on_work_;
  int64_t length_ = 0;
  std::vector<Mutation> done_;
};

}  // namespace

std::string_view verdict_name(Mutation::Verdict verdict) {
  switch (verdict) {
    case Mutation::Verdict::caught: return "caught";
    case Mutation::Verdict::misnamed: return "misnamed";
    case Mutation::Verdict::missed: return "missed";
    case Mutation::Verdict::changed_nothing: return "changed nothing";
  }
  fail(ErrorCode::internal, "verdict {} has no name", static_cast<int>(verdict));
}

std::vector<Mutation> mutate_state(const MutationInput& input, TryRestore try_restore, OnLabWork on_work) {
  return StateMutator(input, try_restore, on_work).run();
}

MutationCounts count_mutations(std::span<const Mutation> mutations) {
  MutationCounts counts;
  for (const Mutation& m : mutations) {
    counts.tried++;
    switch (m.verdict) {
      case Mutation::Verdict::caught: counts.caught++; break;
      case Mutation::Verdict::misnamed: counts.misnamed++; break;
      case Mutation::Verdict::missed: counts.missed++; break;
      case Mutation::Verdict::changed_nothing: counts.changed_nothing++; break;
    }
  }
  return counts;
}

}  // namespace lapidary::kvlab
