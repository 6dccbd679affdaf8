#include "formats/safetensors.h"

#include <gtest/gtest.h>

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
using test::data_path;
using test::expect_error;
using test::safetensors_bytes;

SafetensorsFile parse(const std::vector<std::byte>& bytes) {
  return parse_safetensors(bytes, "x.safetensors");
}

void expect_refused(std::string_view header, size_t data_bytes, std::string_view part,
                    ErrorCode code = ErrorCode::data) {
  const auto bytes = safetensors_bytes(header, data_bytes);
  expect_error([&] { parse(bytes); }, code, part, header);
  expect_error([&] { parse(bytes); }, code, "x.safetensors: ", "every message names the file");
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const auto bytes = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"none":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}}   )",
      12 + 4);
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors.size(), 3u);
  const TensorView& b = file.tensors.at("b");
  EXPECT_EQ(b.dtype, DType::bf16);
  EXPECT_EQ(b.shape, (Shape{2, 3}));
  EXPECT_EQ(b.bytes.data(), bytes.data() + bytes.size() - 12);  // a view: nothing is copied
  EXPECT_EQ(b.bytes.size(), 12u);
  EXPECT_EQ(file.tensors.at("a").shape, Shape{});
  EXPECT_EQ(file.tensors.at("a").bytes.size(), 4u);
  EXPECT_TRUE(file.tensors.at("none").bytes.empty());
}

TEST(Safetensors, ReadsEveryDtypeOfTheFormatThatWeKnow) {
  const std::pair<const char*, DType> known[] = {
      {"F64", DType::f64},     {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16},
      {"I64", DType::i64},     {"I32", DType::i32}, {"I16", DType::i16}, {"I8", DType::i8},
      {"U64", DType::u64},     {"U32", DType::u32}, {"U16", DType::u16}, {"U8", DType::u8},
      {"BOOL", DType::boolean}};
  for (const auto& [name, dtype] : known) {
    const size_t size = dtype_info(dtype).block_bytes;
    const auto header =
        fmt::format(R"({{"t":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", name, 3 * size);
    EXPECT_EQ(parse(safetensors_bytes(header, 3 * size)).tensors.at("t").dtype, dtype) << name;
  }
}

TEST(Safetensors, ReadsAnEmptyFile) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", 0)).tensors.empty());
}

TEST(Safetensors, RefusesTruncatedAndOversizedHeaders) {
  const auto refuse = [](std::vector<std::byte> bytes, std::string_view part) {
    expect_error([&] { parse(bytes); }, ErrorCode::data, part);
  };
  refuse({}, "x.safetensors: truncated: expected a header length of 8 bytes, got 0");
  refuse(ByteWriter().number<uint32_t>(2).take(), "truncated: expected a header length of 8 bytes, got 4");
  refuse(ByteWriter().number<uint64_t>(3).text("{}").take(),
         "truncated: expected a header of 3 bytes, got 2");
  refuse(ByteWriter().number<uint64_t>(100'000'001).text("{}").take(),
         "expected a header of at most 100000000 bytes, got 100000001");
  refuse(ByteWriter().number<uint64_t>(~uint64_t{0}).text("{}").take(), "got 18446744073709551615");
  refuse(ByteWriter().number<uint64_t>(~uint64_t{7}).text("{}").take(), "expected a header of at most");
  refuse(safetensors_bytes("", 0), "expected a header that starts with '{', got \"\"");
  refuse(safetensors_bytes(" {}", 0), "expected a header that starts with '{', got \" {}\"");
  refuse(safetensors_bytes("[]", 0), "expected a header that starts with '{', got \"[]\"");
}

TEST(Safetensors, RefusesHeadersThatAreNotJson) {
  expect_refused("{", 0, "expected valid JSON");
  expect_refused("{\"a\xff\":1}", 0, "expected valid JSON");
  expect_refused("{} {}", 0, "expected the end of the JSON text");
  expect_refused(std::string("{}\0", 3), 0, "expected the end of the JSON text");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  expect_refused(deep, 0, "expected valid JSON");
}

TEST(Safetensors, RefusesDuplicateNames) {
  expect_refused(
      R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
      2, "got \"t\" twice");
  expect_refused(R"({"t":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1,
                 "got \"dtype\" twice");
  // The same name in other letters
  expect_refused(
      R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0074":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
      2, "got \"t\" twice");
}

TEST(Safetensors, RefusesEntriesOfTheWrongForm) {
  expect_refused(R"({"t":7})", 0, "tensor \"t\": expected an object, got the number 7");
  expect_refused(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, "tensor \"t\".dtype: expected a value");
  expect_refused(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor \"t\".shape: expected a value");
  expect_refused(R"({"t":{"dtype":"U8","shape":[1]}})", 1, "tensor \"t\".data_offsets: expected a value");
  expect_refused(R"({"t":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1,
                 ".dtype: expected a string, got the number 8");
  expect_refused(R"({"t":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1,
                 ".shape: expected an array, got the number 1");
  expect_refused(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}})", 1,
                 "tensor \"t\".strides: expected a known field");
  expect_refused(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1,
                 ".data_offsets: expected two numbers, got 1");
  expect_refused(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
                 "expected two numbers, got 3");
  expect_refused(R"({"__metadata__":7})", 0, "__metadata__: expected an object");
  expect_refused(R"({"__metadata__":{"format":7}})", 0, "expected a string, got the number 7");
}

TEST(Safetensors, RefusesUnknownDtypesByName) {
  expect_refused(R"({"blk":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", 1,
                 "tensor \"blk\": dtype \"F8_E4M3\" is not supported", ErrorCode::unsupported);
  expect_refused(R"({"blk":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4,
                 "dtype \"f32\" is not supported", ErrorCode::unsupported);
  expect_refused(R"({"blk":{"dtype":"","shape":[1],"data_offsets":[0,4]}})", 4, "dtype \"\" is not supported",
                 ErrorCode::unsupported);
}

TEST(Safetensors, RefusesSizesThatAreNoSizes) {
  expect_refused(R"({"t":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
                 ".shape: expected an integer from 0 to 2^63 - 1, got the number -1");
  expect_refused(R"({"t":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "from 0 to 2^63 - 1");
  expect_refused(R"({"t":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1,
                 "from 0 to 2^63 - 1");
  expect_refused(R"({"t":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1, "got the string \"1\"");
  expect_refused(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1,
                 ".data_offsets: expected an integer");
}

TEST(Safetensors, RefusesShapesWhoseSizeOverflows) {
  expect_refused(R"({"t":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                 "tensor \"t\": the number of elements of shape [4294967296, 4294967296] overflows");
  expect_refused(R"({"t":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
                 "tensor \"t\": the size in bytes of f64 [4611686018427387904] overflows");
  expect_refused(R"({"t":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                 "overflows");
}

TEST(Safetensors, RefusesOffsetsThatDoNotFitTheShapeOrTheFile) {
  expect_refused(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                 "tensor \"t\".data_offsets: expected 8 bytes for f32 [2], got 4 from 0 to 4");
  expect_refused(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7,
                 "[0, 8] are out of order or range: the data have 7 bytes");
  expect_refused(
      R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[9223372036854775800,9223372036854775807]}})", 8,
      "out of order or range");
  expect_refused(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8,
                 "[8, 0] are out of order or range");
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  const auto two = [](int b1, int e1, int b2, int e2) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                       R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                       e1 - b1, b1, e1, e2 - b2, b2, e2);
  };
  EXPECT_EQ(parse(safetensors_bytes(two(4, 8, 0, 4), 8)).tensors.size(), 2u);
  expect_refused(two(0, 5, 4, 8), 8,
                 "tensor \"b\": data_offsets [4, 8] overlap tensor \"a\", which ends at 5");
  expect_refused(two(0, 8, 0, 8), 8, "overlap tensor");
  expect_refused(two(0, 8, 2, 4), 8,
                 "tensor \"b\": data_offsets [2, 4] overlap tensor \"a\", which ends at 8");
  expect_refused(two(0, 4, 5, 8), 8,
                 "tensor \"b\": data_offsets [5, 8] leave a hole: the tensors before it end at 4");
  expect_refused(two(1, 4, 4, 8), 8,
                 "tensor \"a\": data_offsets [1, 4] leave a hole: the tensors before it end at 0");
  expect_refused(two(0, 4, 4, 8), 9, "the tensors end at byte 8 of the data, which have 9 bytes");
  expect_refused("{}", 1, "the tensors end at byte 0 of the data, which have 1 bytes");
}

TEST(Safetensors, MessagesCarryNoControlCharacters) {
  const auto bytes =
      safetensors_bytes("{\"a\\u001b[2J\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,0]}}", 0);
  expect_error([&] { parse(bytes); }, ErrorCode::unsupported, "tensor \"a\\x1b[2J\"");
}

std::vector<std::byte> many_tensors(int count) {
  std::string header = "{";
  for (int i = 0; i < count; ++i) {
    header += fmt::format(R"({}"model.layers.{}.w":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, i, i + 1);
  }
  return safetensors_bytes(header + "}", static_cast<size_t>(count));
}

TEST(Safetensors, ManyTensorsTakeLinearTime) {
  const auto few = many_tensors(1'000), many = many_tensors(16'000);
  EXPECT_EQ(parse(many).tensors.size(), 16'000u);
  const double ratio = test::cpu_seconds([&] { parse(many); }) / test::cpu_seconds([&] { parse(few); });
  // Measured: 19. With a comparison of every pair planted in the reader: 64.
  EXPECT_LT(ratio, 32);
}

TEST(WriteSafetensors, ComesBackWithTheSameBytes) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> halves = {7, 8, 9};
  const std::map<std::string, TensorView> tensors = {
      {"w\"eird\n", {DType::f32, {2, 3}, std::as_bytes(std::span(values))}},
      {"halves", {DType::f16, {3}, std::as_bytes(std::span(halves))}},
      {"scalar", {DType::f32, {}, std::as_bytes(std::span(values)).first(4)}},
      {"empty", {DType::i64, {0}, {}}},
  };
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"note", "größe"}};
  const std::vector<std::byte> bytes = write_safetensors(tensors, metadata);
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(file.metadata, metadata);
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    const TensorView& got = file.tensors.at(name);
    EXPECT_EQ(got.dtype, expected.dtype) << name;
    EXPECT_EQ(got.shape, expected.shape) << name;
    EXPECT_TRUE(std::equal(got.bytes.begin(), got.bytes.end(), expected.bytes.begin(), expected.bytes.end()))
        << name;
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  EXPECT_EQ(header_bytes % 8, 0u);
}

TEST(WriteSafetensors, RefusesWhatTheFormatCannotSay) {
  const std::vector<std::byte> block(34);
  expect_error(
      [&] {
        write_safetensors({{"t", {DType::q8_0, {32}, block}}});
      },
      ErrorCode::unsupported, "tensor \"t\": safetensors has no dtype for q8_0");
  expect_error(
      [&] {
        write_safetensors({{"__metadata__", {DType::u8, {34}, block}}});
      },
      ErrorCode::usage, "keeps this name for itself");
  expect_error(
      [&] {
        write_safetensors({{"t", {DType::f32, {8}, block}}});
      },
      ErrorCode::internal, "tensor \"t\": f32 [8] does not take 34 bytes");
}

TEST(Safetensors, RewritesGoldenFilesWithTheSameTensors) {
  for (const char* path :
       {"models/gemma4-e2b-tiny/model.safetensors", "models/gemma4-31b-tiny/model.safetensors"}) {
    const test::Golden golden(data_path(path));
    const auto bytes = write_safetensors(golden.file().tensors, golden.file().metadata);
    const SafetensorsFile again = parse(bytes);
    ASSERT_EQ(again.tensors.size(), golden.file().tensors.size());
    EXPECT_EQ(again.metadata, golden.file().metadata);
    for (const auto& [name, view] : golden.file().tensors) {
      EXPECT_EQ(again.tensors.at(name).shape, view.shape);
      EXPECT_TRUE(std::equal(view.bytes.begin(), view.bytes.end(), again.tensors.at(name).bytes.begin(),
                             again.tensors.at(name).bytes.end()))
          << name;
    }
  }
}

// Every prefix of a real file is refused, and none is read beyond its end (the sanitizers watch).
TEST(Safetensors, RefusesEveryTruncation) {
  const std::vector<std::byte> whole =
      write_safetensors({{"a", {DType::u8, {3}, std::as_bytes(std::span("abc", 3))}},
                         {"b", {DType::u8, {2}, std::as_bytes(std::span("de", 2))}}});
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_TRUE(test::throws_error([&] { parse(part); }, ErrorCode::data, "x.safetensors: ")) << size;
  }
}

TEST(SafetensorsIndex, ReadsTheFileOfEachTensor) {
  const auto path = data_path("models/gemma4-31b-tiny-sharded/model.safetensors.index.json");
  const auto files = parse_safetensors_index(read_text_file(path), "index");
  EXPECT_GT(files.size(), 50u);
  for (const auto& [tensor, file] : files) {
    const test::Golden shard(path.parent_path() / file);
    EXPECT_TRUE(shard.has(tensor)) << tensor;
  }
}

TEST(SafetensorsIndex, RefusesFoldersDuplicatesAndOtherForms) {
  const auto refuse = [](std::string_view json, std::string_view part) {
    expect_error([&] { parse_safetensors_index(json, "i.json"); }, ErrorCode::data, part, json);
  };
  using namespace std::string_view_literals;
  refuse(R"({"weight_map":{"t":"../secret"}})",
         "i.json: weight_map: \"t\": expected a file name without a folder, got \"../secret\"");
  refuse(R"({"weight_map":{"t":"/etc/passwd"}})", "without a folder");
  refuse(R"({"weight_map":{"t":"a\\b"}})", "without a folder");
  refuse(R"({"weight_map":{"t":".."}})", "without a folder");
  refuse(R"({"weight_map":{"t":""}})", "without a folder");
  refuse(R"({"weight_map":{"t":"a\u0000b"}})", "without a folder");
  refuse(R"({"weight_map":{"t":7}})", "expected a string, got the number 7");
  refuse(R"({"weight_map":{"t":"a","t":"b"}})", "got \"t\" twice");
  refuse(R"({"weight_map":[]})", "weight_map: expected an object, got an array of 0");
  refuse(R"({})", "weight_map: expected a value");
  refuse("", "expected valid JSON");
}

}  // namespace
}  // namespace lapidary
