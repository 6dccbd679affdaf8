#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "formats/mapped_file.h"
#include "support/bytes.h"
#include "support/compare.h"
#include "support/cpu_time.h"
#include "support/golden.h"

namespace lapidary {
namespace {

using test::ByteWriter;
using test::expect_error;
using test::GgufBuilder;

constexpr uint32_t kF32 = 0, kQ8_0 = 8, kQ4_K = 12;

GgufFile parse(const std::vector<std::byte>& bytes) {
  return parse_gguf(bytes, "x.gguf");
}

void expect_refused(const GgufBuilder& builder, std::string_view part, ErrorCode code = ErrorCode::data) {
  const auto bytes = builder.finish();
  expect_error([&] { parse(bytes); }, code, part);
  expect_error([&] { parse(bytes); }, code, "x.gguf: ", "every message names the file");
}

std::vector<std::byte> value(auto... numbers) {
  ByteWriter out;
  (out.number(numbers), ...);
  return out.take();
}

TEST(Gguf, ReadsMetadataOfEveryType) {
  const auto bytes = GgufBuilder()
                         .set_raw("u8", 0, value(uint8_t{200}))
                         .set_raw("i8", 1, value(int8_t{-100}))
                         .set_raw("u16", 2, value(uint16_t{60000}))
                         .set_raw("i16", 3, value(int16_t{-30000}))
                         .set("u32", uint32_t{4000000000})
                         .set("i32", int32_t{-2000000000})
                         .set("f32", 1e-6f)
                         .set("bool", true)
                         .set("string", "größe")
                         .set("u64", uint64_t{1} << 62)
                         .set_raw("i64", 11, value(std::numeric_limits<int64_t>::min()))
                         .set_raw("f64", 12, value(0.1))
                         .finish();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.version, 3u);
  EXPECT_EQ(file.metadata.size(), 12u);
  EXPECT_EQ(file.get_int("u8"), 200);
  EXPECT_EQ(file.get_int("i8"), -100);
  EXPECT_EQ(file.get_int("u16"), 60000);
  EXPECT_EQ(file.get_int("i16"), -30000);
  EXPECT_EQ(file.get_int("u32"), 4000000000);
  EXPECT_EQ(file.get_int("i32"), -2000000000);
  EXPECT_EQ(file.get_float("f32"), static_cast<double>(1e-6f));
  EXPECT_EQ(file.get_bool("bool"), true);
  EXPECT_EQ(file.get_string("string"), "größe");
  EXPECT_EQ(file.get_int("u64"), int64_t{1} << 62);
  EXPECT_EQ(file.get_int("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(file.get_float("f64"), 0.1);
  EXPECT_EQ(file.get_float("u8"), 200.0);  // integers are numbers
}

TEST(Gguf, ReadsArraysOfEveryElementType) {
  const auto array = [](uint32_t type, uint64_t count, const std::vector<std::byte>& elements) {
    return ByteWriter().number(type).number(count).raw(elements).take();
  };
  const auto bytes = GgufBuilder()
                         .set_raw("u8", 9, array(0, 2, value(uint8_t{1}, uint8_t{255})))
                         .set_raw("i8", 9, array(1, 2, value(int8_t{1}, int8_t{-1})))
                         .set_raw("u16", 9, array(2, 1, value(uint16_t{65535})))
                         .set_raw("i16", 9, array(3, 1, value(int16_t{-1})))
                         .set_raw("u32", 9, array(4, 1, value(uint32_t{1} << 31)))
                         .set("i32", std::vector<int32_t>{-5, 6, 7})
                         .set("f32", std::vector<float>{0.5f, -2})
                         .set("bool", std::vector<bool>{true, false, true})
                         .set("string", std::vector<std::string>{"a", "", "bc"})
                         .set_raw("u64", 9, array(10, 1, value(uint64_t{1} << 40)))
                         .set_raw("i64", 9, array(11, 1, value(int64_t{-9})))
                         .set_raw("f64", 9, array(12, 1, value(0.1)))
                         .set_raw("empty", 9, array(6, 0, {}))
                         .finish();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.get_ints("u8"), (std::vector<int64_t>{1, 255}));
  EXPECT_EQ(file.get_ints("i8"), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(file.get_ints("u16"), (std::vector<int64_t>{65535}));
  EXPECT_EQ(file.get_ints("i16"), (std::vector<int64_t>{-1}));
  EXPECT_EQ(file.get_ints("u32"), (std::vector<int64_t>{int64_t{1} << 31}));
  EXPECT_EQ(file.get_ints("i32"), (std::vector<int64_t>{-5, 6, 7}));
  EXPECT_EQ(file.get_floats("f32"), (std::vector<double>{0.5, -2}));
  EXPECT_EQ(file.get_bools("bool"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(file.get_strings("string"), (std::vector<std::string_view>{"a", "", "bc"}));
  EXPECT_EQ(file.get_ints("u64"), (std::vector<int64_t>{int64_t{1} << 40}));
  EXPECT_EQ(file.get_ints("i64"), (std::vector<int64_t>{-9}));
  EXPECT_EQ(file.get_floats("f64"), (std::vector<double>{0.1}));
  EXPECT_TRUE(file.get_floats("empty").empty());
  EXPECT_EQ(file.get_floats("i32"), (std::vector<double>{-5, 6, 7}));  // integers are numbers
  EXPECT_TRUE(file.is_array("i32"));
  EXPECT_TRUE(file.is_array("empty"));
  EXPECT_FALSE(file.is_array("missing"));
  EXPECT_FALSE(parse(GgufBuilder().set("n", uint32_t{1}).finish()).is_array("n"));
}

TEST(Gguf, TypedAccessNamesKeyExpectedAndGot) {
  const auto bytes =
      GgufBuilder().set("n", uint32_t{1}).set("s", "x").set("list", std::vector<int32_t>{1}).finish();
  const GgufFile file = parse(bytes);
  const auto refuse = [](FunctionRef<void()> action, std::string_view part) {
    expect_error(action, ErrorCode::data, part);
  };
  refuse([&] { file.get_int("llama.block_count"); },
         "x.gguf: metadata \"llama.block_count\": expected an integer, got nothing: the key is missing");
  refuse([&] { file.get_bool("n"); }, "metadata \"n\": expected a bool, got an integer");
  refuse([&] { file.get_int("s"); }, "metadata \"s\": expected an integer, got a string");
  refuse([&] { file.get_int("list"); }, "metadata \"list\": expected an integer, got an array of integers");
  refuse([&] { file.get_float("s"); }, "expected a number, got a string");
  refuse([&] { file.get_string("n"); }, "expected a string, got an integer");
  refuse([&] { file.get_strings("list"); }, "expected an array of strings, got an array of integers");
  refuse([&] { file.get_ints("n"); }, "expected an array of integers, got an integer");
  refuse([&] { file.get_floats("s"); }, "expected an array of numbers, got a string");
  refuse([&] { file.get_bools("list"); }, "expected an array of bool, got an array of integers");
}

TEST(Gguf, ReadsTensorsAsViews) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::byte> block(34);
  const auto bytes = GgufBuilder()
                         .tensor("w", {3, 2}, kF32, std::as_bytes(std::span(values)))
                         .tensor("q", {32}, kQ8_0, block)
                         .finish();
  const GgufFile file = parse(bytes);
  ASSERT_EQ(file.tensors.size(), 2u);
  const TensorView& w = file.tensors.at("w");
  EXPECT_EQ(w.shape, (Shape{2, 3}));  // the file lists the row length first
  EXPECT_EQ(to_floats(w), values);
  EXPECT_EQ(file.tensors.at("q").dtype, DType::q8_0);
  EXPECT_EQ(file.tensors.at("q").bytes.data(), w.bytes.data() + 32);
  EXPECT_GE(w.bytes.data(), bytes.data());
  EXPECT_LT(w.bytes.data(), bytes.data() + bytes.size());
}

TEST(Gguf, KeepsToTheAlignmentThatTheFileStates) {
  const std::vector<float> values = {1};
  for (const uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    const auto bytes = GgufBuilder()
                           .alignment(alignment)
                           .tensor("a", {1}, kF32, std::as_bytes(std::span(values)))
                           .tensor("b", {1}, kF32, std::as_bytes(std::span(values)))
                           .finish();
    const GgufFile file = parse(bytes);
    EXPECT_EQ(to_floats(file.tensors.at("b")), values);
    EXPECT_EQ(static_cast<size_t>(file.tensors.at("a").bytes.data() - bytes.data()) % alignment, 0u);
  }
  expect_refused(GgufBuilder().set("general.alignment", uint32_t{0}),
                 "general.alignment: expected a power of two, got 0");
  expect_refused(GgufBuilder().set("general.alignment", uint32_t{24}), "expected a power of two, got 24");
  expect_refused(GgufBuilder().set("general.alignment", int32_t{-32}), "expected a power of two, got -32");
  expect_refused(GgufBuilder().set("general.alignment", "32"),
                 "\"general.alignment\": expected an integer, got a string");
  expect_refused(GgufBuilder().set("general.alignment", uint64_t{1} << 40),
                 "expected a power of two, got 1099511627776");
}

TEST(Gguf, ReadsVersion2AndFilesWithoutTensors) {
  EXPECT_EQ(parse(GgufBuilder().version(2).set("a", "b").finish()).version, 2u);
  EXPECT_TRUE(parse(GgufBuilder().set("a", "b").finish()).tensors.empty());
}

TEST(Gguf, RefusesOtherMagicsAndVersions) {
  expect_error([] { parse({}); }, ErrorCode::data,
               "x.gguf: header: truncated: expected 4 bytes at offset 0, got 0");
  expect_error([] { parse(ByteWriter().text("ggml").zeros(20).take()); }, ErrorCode::data,
               "expected the magic \"GGUF\", got bytes 67676d6c");
  expect_refused(GgufBuilder().version(1), "expected version 2 or 3, got 1", ErrorCode::unsupported);
  expect_refused(GgufBuilder().version(4), "expected version 2 or 3, got 4", ErrorCode::unsupported);
  expect_refused(GgufBuilder().version(0), "expected version 2 or 3, got 0", ErrorCode::unsupported);
  expect_refused(GgufBuilder().version(0x03000000), "big-endian files are not supported",
                 ErrorCode::unsupported);
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  constexpr uint64_t kHuge = ~uint64_t{0};
  expect_refused(GgufBuilder().set("a", "b").force_metadata_count(kHuge),
                 "metadata entry 2 of 18446744073709551615: truncated");
  expect_refused(GgufBuilder().force_tensor_count(kHuge), "tensor 1 of 18446744073709551615: truncated");
  expect_refused(GgufBuilder().set_raw("a", 8, value(kHuge)),
                 "metadata \"a\": truncated: expected 18446744073709551615 bytes");
  expect_refused(
      GgufBuilder().set_raw("a", 9, value(uint32_t{8}, kHuge)),
      "metadata \"a\": an array of 18446744073709551615 elements of at least 8 bytes does not fit");
  expect_refused(GgufBuilder().set_raw("a", 9, value(uint32_t{4}, uint64_t{3}, uint32_t{1}, uint32_t{2})),
                 "an array of 3 elements of at least 4 bytes does not fit in the 8 bytes that are left");
  const std::vector<std::byte> long_name(70000, std::byte{'k'});
  expect_refused(GgufBuilder().set(std::string(70000, 'k'), "v"),
                 "key: expected a name of at most 65535 bytes, got 70000");
}

TEST(Gguf, RefusesArraysThatWouldTakeMoreMemoryThanAnyVocabulary) {
  constexpr uint64_t kMost = uint64_t{1} << 24;
  ByteWriter array;
  array.number(static_cast<uint32_t>(GgufType::boolean)).number(kMost).zeros(kMost);
  GgufBuilder builder;
  builder.set_raw("a", 9, array.take());
  const auto most = builder.finish(), more = builder.set("b", std::vector<int32_t>{1}).finish();
  EXPECT_EQ(parse(most).get_bools("a").size(), kMost);
  expect_error([&] { parse(more); }, ErrorCode::limit,
               "metadata \"b\": expected at most 16777216 array elements in a file, got 16777217");
}

TEST(Gguf, RefusesMetadataThatMakesNoSense) {
  expect_refused(GgufBuilder().set("a", "b").set("a", "c"), "metadata \"a\": the key occurs twice");
  expect_refused(GgufBuilder().set_raw("a", 13, {}), "metadata \"a\": unknown metadata type number 13",
                 ErrorCode::unsupported);
  expect_refused(GgufBuilder().set_raw("a", 9, value(uint32_t{99}, uint64_t{0})),
                 "unknown metadata type number 99", ErrorCode::unsupported);
  expect_refused(GgufBuilder().set_raw("a", 9, value(uint32_t{9}, uint64_t{0})),
                 "metadata \"a\": arrays of arrays are not supported", ErrorCode::unsupported);
  expect_refused(GgufBuilder().set_raw("a", 7, value(uint8_t{2})),
                 "metadata \"a\": expected a bool of 0 or 1, got 2");
  expect_refused(GgufBuilder().set("a", uint64_t{1} << 63),
                 "metadata \"a\": the number 9223372036854775808 is beyond 63 bits", ErrorCode::unsupported);
}

TEST(Gguf, RefusesTensorTypesThatWeDoNotReadByNumberAndName) {
  expect_refused(GgufBuilder().tensor_at("blk.0.w", {32}, 17, 0),
                 "tensor \"blk.0.w\": tensor type 17 (IQ2_XS) is not supported", ErrorCode::unsupported);
  expect_refused(GgufBuilder().tensor_at("w", {32}, 9, 0), "tensor type 9 (Q8_1) is not supported",
                 ErrorCode::unsupported);
  expect_refused(GgufBuilder().tensor_at("w", {32}, 4, 0), "tensor type 4 (Q4_2) is not supported",
                 ErrorCode::unsupported);
  expect_refused(GgufBuilder().tensor_at("w", {32}, 39, 0), "tensor type 39 (MXFP4) is not supported",
                 ErrorCode::unsupported);
  expect_refused(GgufBuilder().tensor_at("w", {32}, 4242, 0), "tensor type 4242 (unknown) is not supported",
                 ErrorCode::unsupported);
}

TEST(Gguf, RefusesTensorShapesThatMakeNoSense) {
  const uint64_t big = uint64_t{1} << 32;
  expect_refused(GgufBuilder().tensor_at("w", {1, 1, 1, 1, 1}, kF32, 0),
                 "tensor \"w\": expected at most 4 dimensions, got 5", ErrorCode::unsupported);
  expect_refused(GgufBuilder().tensor_at("w", {big, big}, kF32, 0),
                 "tensor \"w\": the number of elements of shape [4294967296, 4294967296] overflows");
  expect_refused(GgufBuilder().tensor_at("w", {big, big / 4}, kF32, 0),
                 "tensor \"w\": the size in bytes of f32 [1073741824, 4294967296] overflows");
  expect_refused(GgufBuilder().tensor_at("w", {uint64_t{1} << 63}, kF32, 0), "is beyond 63 bits",
                 ErrorCode::unsupported);
  expect_refused(GgufBuilder().tensor_at("w", {128, 2}, kQ4_K, 0),
                 "tensor \"w\": rows of 128 elements are not a whole number of q4_k blocks of 256");
}

TEST(Gguf, RefusesOffsetsOutOfRangeMisalignedOrOverlapping) {
  const auto with = [](uint64_t offset, uint64_t other) {
    return GgufBuilder().tensor_at("a", {16}, kF32, offset).tensor_at("b", {16}, kF32, other).data_bytes(128);
  };
  EXPECT_EQ(parse(with(64, 0).finish()).tensors.size(), 2u);
  expect_refused(
      with(0, 96),
      "tensor \"b\": 64 bytes at offset 96 of the data section are out of range: it has 128 bytes");
  expect_refused(with(0, 128), "tensor \"b\": 64 bytes at offset 128");
  expect_refused(with(~uint64_t{31}, 0), "tensor \"a\": 64 bytes at offset 18446744073709551584");
  expect_refused(with(0, 68),
                 "tensor \"b\": expected an offset that is a multiple of the alignment 32, got 68");
  expect_refused(with(0, 32),
                 "tensor \"b\": its data at offset 32 overlap tensor \"a\" at offset 0 of 64 bytes");
  expect_refused(with(64, 64), "its data at offset 64 overlap tensor");
  expect_refused(GgufBuilder().tensor_at("a", {16}, kF32, 0), "out of range: it has 0 bytes");
  expect_refused(GgufBuilder().tensor_at("a", {16}, kF32, 0).tensor_at("a", {16}, kF32, 64).data_bytes(128),
                 "tensor \"a\": the name occurs twice");
  // Tensors without elements take no room and overlap nothing.
  EXPECT_EQ(
      parse(GgufBuilder().tensor_at("a", {0}, kF32, 0).tensor_at("b", {16}, kF32, 0).data_bytes(64).finish())
          .tensors.size(),
      2u);
}

TEST(Gguf, ReadsSplitMetadata) {
  const auto with = [](uint32_t number, uint32_t count) {
    return GgufBuilder().set("split.no", number).set("split.count", count);
  };
  const GgufFile part = parse(with(1, 3).finish());
  EXPECT_EQ(part.split_number, 1);
  EXPECT_EQ(part.split_count, 3);
  EXPECT_EQ(parse(GgufBuilder().finish()).split_count, 1);
  EXPECT_EQ(parse(with(0, 0).finish()).split_count, 1);  // what merging tools leave behind
  expect_refused(with(3, 3), "split.no 3 is not a part of split.count 3");
  expect_refused(with(1, 0), "split.no 1 is not a part of split.count 0");
  expect_refused(GgufBuilder().set("split.no", int32_t{-1}).set("split.count", int32_t{2}),
                 "split.no -1 is not a part");
  expect_refused(GgufBuilder().set("split.count", "2"), "\"split.count\": expected an integer, got a string");
  expect_refused(GgufBuilder().set("split.no", uint32_t{1}),
                 "metadata \"split.count\": expected an integer, got nothing");
}

TEST(Gguf, MessagesCarryNoControlCharacters) {
  expect_refused(GgufBuilder().set_raw("a\x1b[2J\xff", 99, {}), "metadata \"a\\x1b[2J\\xff\"",
                 ErrorCode::unsupported);
}

TEST(Gguf, ReadsFilesOfTheOriginalTools) {
  const MappedFile mapped(test::data_path("gguf/models/llama3-tiny-Q4_1.gguf"));
  const GgufFile file = parse_gguf(mapped.bytes(), mapped.name());
  EXPECT_EQ(file.version, 3u);
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_strings("tokenizer.ggml.tokens").size(),
            file.get_ints("tokenizer.ggml.token_type").size());
  const TensorView& embedding = file.tensors.at("token_embd.weight");
  EXPECT_EQ(embedding.shape.size(), 2u);
  EXPECT_EQ(embedding.columns(), file.get_int("llama.embedding_length"));
  size_t blocks = 0;
  for (const auto& [name, view] : file.tensors) blocks += view.dtype == DType::q4_1 ? 1 : 0;
  EXPECT_GT(blocks, 0u);
}

// Every prefix of a file that ends in tensor data is refused, and none is read beyond its end (the sanitizers
// watch).
TEST(Gguf, RefusesEveryTruncation) {
  const std::vector<float> values = {1, 2, 3};
  const auto whole = GgufBuilder()
                         .set("s", "text")
                         .set("list", std::vector<std::string>{"a", "b"})
                         .set("numbers", std::vector<float>{1, 2})
                         .tensor("w", {3}, kF32, std::as_bytes(std::span(values)))
                         .finish();
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_TRUE(test::throws_error([&] { parse(part); }, ErrorCode::data, "x.gguf: ")) << size;
  }
}

std::vector<std::byte> vocabulary(int count) {
  std::vector<std::string> tokens, merges;
  for (int i = 0; i < count; ++i) tokens.push_back(fmt::format("token{}", i));
  for (int i = 0; i < 2 * count; ++i) merges.push_back(fmt::format("left{} right{}", i, i));
  return GgufBuilder().set("tokens", tokens).set("merges", merges).finish();
}

TEST(Gguf, LargeVocabulariesAreViewsAndTakeLinearTime) {
  const auto small = vocabulary(16'384), large = vocabulary(262'144);
  const GgufFile file = parse(large);
  ASSERT_EQ(file.get_strings("tokens").size(), 262'144u);
  EXPECT_EQ(file.get_strings("tokens").back(), "token262143");
  const char* begin = reinterpret_cast<const char*>(large.data());
  for (const std::string_view merge : file.get_strings("merges")) {
    ASSERT_TRUE(merge.data() >= begin && merge.data() + merge.size() <= begin + large.size());
  }
  const double ratio = test::cpu_seconds([&] { parse(large); }) / test::cpu_seconds([&] { parse(small); });
  // 16 times as many strings, which also leave the cache. Quadratic work would make it 256.
  EXPECT_LT(ratio, 64);
}

}  // namespace
}  // namespace lapidary
