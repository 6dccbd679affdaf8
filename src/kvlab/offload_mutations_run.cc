// Damage to a zstd frame, and all the damage done against an engine.
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "kvlab/offload.h"
#include "kvlab/sequence.h"

namespace lapidary::kvlab {
namespace {

constexpr std::string_view kGroup = "zstd";

// A frame of `size` zeros, written in pieces. `states_its_size`: the header says so.
Bytes frame_of_zeros(size_t size, bool states_its_size) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ensure(context != nullptr, ErrorCode::limit, "zstd: no memory for a compressor");
  if (states_its_size) ZSTD_CCtx_setPledgedSrcSize(context.get(), size);
  const Bytes zeros(size_t{1} << 20);
  Bytes frame(size_t{1} << 20);
  ZSTD_outBuffer out{frame.data(), frame.size(), 0};
  for (size_t done = 0; done < size;) {
    const size_t n = std::min(zeros.size(), size - done);
    ZSTD_inBuffer in{zeros.data(), n, 0};
    done += n;
    size_t left = 1;
    while (left != 0 && (done == size || in.pos < in.size)) {
      left = ZSTD_compressStream2(context.get(), &out, &in, done == size ? ZSTD_e_end : ZSTD_e_continue);
      ensure(ZSTD_isError(left) == 0 && out.pos < out.size, ErrorCode::internal, "zstd cannot write {} zeros",
             size);
    }
  }
  frame.resize(out.pos);
  return frame;
}

// Where a frame header states the size of the content, and in how many bytes (RFC 8878, 3.1.1.1).
struct SizeField {
  size_t at = 0, bytes = 0;
};
SizeField size_field(std::span<const std::byte> frame) {
  const auto descriptor = static_cast<unsigned>(frame[4]);
  const bool single_segment = (descriptor & 0x20) != 0;
  constexpr size_t kDictionary[] = {0, 1, 2, 4};
  constexpr size_t kSizes[] = {0, 2, 4, 8};
  const size_t flag = descriptor >> 6;
  return {5 + (single_segment ? 0u : 1u) + kDictionary[descriptor & 3],
          flag == 0 && single_segment ? 1 : kSizes[flag]};
}

class FrameMutator {
 public:
  FrameMutator(std::span<const std::byte> state, int level, TryRestore try_restore)
      : state_(state), frame_(zstd_compressed(state, level)), level_(level), try_(try_restore) {}

  std::vector<Mutation> run() {
    const SizeField size = size_field(frame_);
    flip("magic", 0, "zstd magic");
    flip("size of the content", size.at, "zstd frame");
    flip("the middle", frame_.size() / 2, "zstd frame");
    flip("its checksum", frame_.size() - 1, "zstd frame");
    for (const size_t left : {size_t{0}, size_t{3}}) attempt("truncated", frame_first(left), "zstd magic");
    for (const size_t left : {size.at, frame_.size() / 2, frame_.size() - 1})
      attempt("truncated", frame_first(left), "zstd frame");
    Bytes twice = frame_;
    twice.push_back(std::byte{0});
    attempt("a byte appended", twice, "1 bytes after the end of the zstd frame");
    twice = frame_;
    twice.insert(twice.end(), frame_.begin(), frame_.end());
    attempt("the frame twice", twice, "after the end of the zstd frame");
    attempt("the state, not compressed", Bytes(state_.begin(), state_.end()), "zstd magic");
    bombs();
    Bytes damaged(state_.begin(), state_.end());
    damaged[damaged.size() - sizeof(Hash128)] ^= std::byte{1};
    attempt("a sound frame of a damaged state", zstd_compressed(damaged, level_), ": checksum");
    return std::move(done_);
  }

 private:
  Bytes frame_first(size_t n) const {
    return {frame_.begin(), frame_.begin() + static_cast<std::ptrdiff_t>(n)};
  }

  void flip(const std::string& name, size_t at, std::string expected) {
    Bytes frame = frame_;
    frame[at] ^= std::byte{1};
    attempt("flip a byte: " + name, frame, std::move(expected));
  }

  void bombs() {
    const size_t size = std::max(size_t{64} << 20, 2 * state_.size());
    Bytes bomb = frame_of_zeros(size, true);
    const std::string text = fmt::format("a bomb: {} bytes that become {}", bomb.size(), size);
    attempt(text, bomb, fmt::format("expected at most {} bytes of content, got {}", state_.size(), size));
    attempt(text + ", its size not stated", frame_of_zeros(size, false), "expected the size of the content");
    const SizeField field = size_field(bomb);
    const uint64_t less = state_.size();
    std::memcpy(bomb.data() + field.at, &less, std::min(field.bytes, sizeof less));
    attempt(fmt::format("{}, said to be {}", text, less), bomb, "zstd frame");
  }

  void attempt(std::string name, const Bytes& frame, std::string expected) {
    Mutation m{.group = std::string(kGroup), .name = std::move(name), .expected = std::move(expected)};
    const size_t common = std::min(frame.size(), frame_.size());
    const auto end = frame.begin() + static_cast<std::ptrdiff_t>(common);
    m.at_byte = std::mismatch(frame.begin(), end, frame_.begin()).first - frame.begin();
    std::optional<Refusal> refusal;
    try {
      const Bytes bytes = zstd_decompressed(frame, state_.size(), "damaged state");
      if (std::equal(bytes.begin(), bytes.end(), state_.begin(), state_.end())) {
        m.verdict = Mutation::Verdict::changed_nothing;
        done_.push_back(std::move(m));
        return;
      }
      refusal = try_(bytes);
    } catch (const Error& error) {
      refusal = {error.code(), error.what()};
    }
    m.verdict = Mutation::Verdict::missed;
    if (refusal) {
      m.code = refusal->code;
      m.message = refusal->message;
      const bool named = m.message.find(m.expected) != std::string::npos;
      m.verdict = named ? Mutation::Verdict::caught : Mutation::Verdict::misnamed;
    }
    done_.push_back(std::move(m));
  }

  std::span<const std::byte> state_;
  Bytes frame_;
  int level_;
  TryRestore try_;
  std::vector<Mutation> done_;
};

Bytes saved(const OffloadEngine& s, std::span<const int32_t> tokens) {
  const OpenSequence sequence(s.engine);
  const Feed feed{sequence.id(), tokens, Want::none};
  s.engine.forward({&feed, 1}, [](size_t, int64_t, std::span<const float>) {});
  Bytes bytes;
  s.engine.save(
      sequence.id(), s.model, std::as_bytes(std::span(kRawAttachment)),
      [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  return bytes;
}

}  // namespace

std::vector<Mutation> mutate_frame(std::span<const std::byte> state, int level, TryRestore try_restore) {
  return FrameMutator(state, level, try_restore).run();
}

std::vector<Mutation> run_mutations(const OffloadEngine& s, const OffloadPlan& plan, int level,
                                    OnLabWork on_work) {
  std::vector<int32_t> changed = plan.prompt;
  int32_t& token = changed[changed.size() / 2];
  token = static_cast<int32_t>((token + 1) % s.engine.spec().vocab_size);
  const Bytes state = saved(s, plan.prompt), other = saved(s, changed);
  const OpenSequence target(s.engine);
  const Feed feed{target.id(), std::span(changed).first((changed.size() + 1) / 2), Want::none};
  s.engine.forward({&feed, 1}, [](size_t, int64_t, std::span<const float>) {});
  const std::vector<PageHash> before = page_hashes(s.engine, target.id(), s.types);
  const int64_t moved = s.engine.stats().kv_bytes_restored;
  const auto restore = [&](std::span<const std::byte> bytes, std::string_view name) {
    s.engine.restore(target.id(), bytes, s.model, name, [](std::span<const std::byte>) {});
  };
  const auto put_back = [&] {  // what was missed must not stand in the way of the next one
    s.engine.trim(target.id(), 0);
    s.engine.forward({&feed, 1}, [](size_t, int64_t, std::span<const float>) {});
  };
  const auto try_restore = [&](std::span<const std::byte> bytes) -> std::optional<Refusal> {
    try {
      restore(bytes, "damaged state");
    } catch (const Error& error) {
      return Refusal{error.code(), error.what()};
    }
    put_back();
    return {};
  };
  std::vector<Mutation> all = mutate_state({state, other, s.engine.context()}, try_restore, on_work);
  for (Mutation& m : mutate_frame(state, level, try_restore)) all.push_back(std::move(m));
  const MutationCounts counts = count_mutations(all);
  const bool untouched = page_hashes(s.engine, target.id(), s.types) == before &&
                         (counts.missed > 0 || s.engine.stats().kv_bytes_restored == moved);
  ensure(untouched, ErrorCode::internal, "a refused state left its traces in the cache");
  restore(state, "undamaged state");  // what was refused was refused for its damage
  return all;
}

}  // namespace lapidary::kvlab
