#include "kvlab/offload/tiers.h"

#include <zstd.h>

#include <cstring>
#include <utility>

#include "base/error.h"

namespace lapidary::kvlab {
namespace {

// Also of skippable frames, which hold nothing.
bool begins_with_magic(std::span<const std::byte> frame) {
  uint32_t magic = 0;
  if (frame.size() < sizeof magic) return false;
  std::memcpy(&magic, frame.data(), sizeof magic);
  return magic == ZSTD_MAGICNUMBER;
}

void check(size_t result, const char* action) {
  ensure(ZSTD_isError(result) == 0, ErrorCode::internal, "zstd cannot {}: {}", action,
         ZSTD_getErrorName(result));
}

}  // namespace

int zstd_most_level() {
  return ZSTD_maxCLevel();
}

Bytes zstd_compressed(std::span<const std::byte> bytes, int level) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ensure(context != nullptr, ErrorCode::limit, "zstd: no memory for a compressor");
  check(ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level), "set its level");
  check(ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1), "add a checksum");
  Bytes frame(ZSTD_compressBound(bytes.size()));
  const size_t size = ZSTD_compress2(context.get(), frame.data(), frame.size(), bytes.data(), bytes.size());
  check(size, "compress");
  frame.resize(size);
  return frame;
}

Bytes zstd_decompressed(std::span<const std::byte> frame, size_t most, std::string_view name) {
  ensure(begins_with_magic(frame), ErrorCode::data,
         "{}: zstd magic: expected a zstd frame, got {} other bytes", name, frame.size());
  const size_t size = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  ensure(ZSTD_isError(size) == 0, ErrorCode::data, "{}: damaged: zstd frame: {}", name,
         ZSTD_getErrorName(size));
  ensure(size == frame.size(), ErrorCode::data, "{}: damaged: {} bytes after the end of the zstd frame", name,
         frame.size() - size);
  const unsigned long long content = ZSTD_getFrameContentSize(frame.data(), frame.size());
  ensure(content != ZSTD_CONTENTSIZE_ERROR, ErrorCode::data, "{}: damaged: zstd frame header", name);
  ensure(content != ZSTD_CONTENTSIZE_UNKNOWN, ErrorCode::data,
         "{}: zstd frame header: expected the size of the content, got none", name);
  ensure(content <= most, ErrorCode::limit, "{}: zstd frame: expected at most {} bytes of content, got {}",
         name, most, content);
  Bytes bytes(static_cast<size_t>(content));
  const size_t got = ZSTD_decompress(bytes.data(), bytes.size(), frame.data(), frame.size());
  ensure(ZSTD_isError(got) == 0, ErrorCode::data, "{}: damaged: zstd frame: {}", name,
         ZSTD_getErrorName(got));
  ensure(got == bytes.size(), ErrorCode::data,
         "{}: damaged: zstd frame: expected {} bytes of content, got {}", name, bytes.size(), got);
  return bytes;
}

ZstdTier::ZstdTier(std::unique_ptr<Tier> inner, int level, size_t most)
    : inner_(std::move(inner)), level_(level), most_(most) {}

std::string ZstdTier::what() const {
  return fmt::format("zstd level {}, then {}", level_, inner_->what());
}

void ZstdTier::store(std::span<const std::byte> bytes) {
  inner_->store(zstd_compressed(bytes, level_));
}

Bytes ZstdTier::load() const {
  return zstd_decompressed(inner_->load(), most_, name());
}

}  // namespace lapidary::kvlab
