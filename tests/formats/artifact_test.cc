// Packed models as files: what is written comes back, and nothing that is damaged passes.
#include "formats/artifact.h"

#include <gtest/gtest.h>

#include <fstream>

#include "formats/artifact_bytes.h"
#include "formats/artifact_writer.h"
#include "formats/mapped_file.h"
#include "support/bytes.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;

// A checkpoint whose tensors count up, so that no two look alike.
Checkpoint small_source() {
  Checkpoint source;
  source.path = "somewhere/small.gguf";
  source.format = "gguf v3";
  source.family = "llama";
  source.spec = small_spec();
  source.text.tokenizer_json = R"({"model": {}})";
  source.text.chat_template = "{{ messages }}";
  source.text.chat_template_source = "GGUF metadata";
  source.text.bos_id = 1;
  source.text.stop_ids = {2, 3};
  return source;
}

// Packed weights are any bytes to this layer: float values as they are stand for them.
fs::path write_small(const fs::path& path) {
  const Checkpoint source = small_source();
  Hash128 model_hash;
  model_hash.bytes.fill(7);
  ArtifactWriter writer(path, source, model_hash, {});
  float next = 1;
  const auto values = [&](const TensorInfo& info) {
    std::vector<float> out(static_cast<size_t>(element_count(info.shape, "")));
    for (float& x : out) x = next++;
    return out;
  };
  for_each_tensor(source.spec, [&](const TensorInfo& info) {
    if (info.is_matrix()) return;
    const std::vector<float> v = values(info);
    writer.write(info.slot, {DType::f32, info.shape, std::as_bytes(std::span(v))});
  });
  for_each_matrix(source.spec, [&](const TensorInfo& info) {
    const std::vector<float> v = values(info);
    writer.write_packed(info.slot, {DType::f32, info.shape, "as-it-is", std::as_bytes(std::span(v))});
  });
  writer.commit();
  return path;
}

class SmallArtifact : public testing::Test {
 protected:
  SmallArtifact() : file(write_small(dir.path() / "small.lapidary")) {
    bytes.assign(file.bytes().begin(), file.bytes().end());
  }

  void look_at_all(const std::vector<std::byte>& altered) const {
    const auto artifact = std::make_shared<Artifact>(parse_artifact(altered, "x.lapidary"));
    artifact_tensors(artifact, artifact_spec(*artifact));
    verify_artifact(*artifact, [](int64_t, int64_t) {});
  }
  void refused(const std::vector<std::byte>& altered, ErrorCode code, const std::string& part) const {
    expect_error([&] { look_at_all(altered); }, code, part);
    expect_error([&] { look_at_all(altered); }, code, "x.lapidary: ", "every message names the file");
  }
  // The index with one piece of text replaced, its checksum right.
  std::vector<std::byte> edited(const std::string& from, const std::string& to) const {
    std::string index = index_of(bytes);
    const size_t at = index.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << index;
    return with_index(bytes, index.replace(at, from.size(), to));
  }

  TempDir dir;
  MappedFile file;
  std::vector<std::byte> bytes;
};

TEST_F(SmallArtifact, ComesBackAsItWasWritten) {
  const Checkpoint opened = open_checkpoint(dir.path() / "small.lapidary"), source = small_source();
  EXPECT_EQ(opened.spec, source.spec);
  EXPECT_EQ(opened.format, "packed v1");
  EXPECT_EQ(opened.family, "llama");
  EXPECT_EQ(opened.text.tokenizer_json, source.text.tokenizer_json);
  EXPECT_EQ(opened.text.chat_template, source.text.chat_template);
  EXPECT_EQ(opened.text.chat_template_source, source.text.chat_template_source);
  EXPECT_EQ(opened.text.bos_id, source.text.bos_id);
  EXPECT_EQ(opened.text.eos_id, std::nullopt);
  EXPECT_EQ(opened.text.stop_ids, source.text.stop_ids);
  EXPECT_EQ(opened.file_bytes, static_cast<int64_t>(bytes.size()));
  ASSERT_NE(opened.artifact, nullptr);
  EXPECT_EQ(opened.artifact->facts.source, "small.gguf");
  EXPECT_EQ(opened.artifact->facts.source_format, "gguf v3");
  EXPECT_EQ(hash_text(opened.artifact->facts.model_hash), "07070707070707070707070707070707");
  EXPECT_EQ(to_floats(opened.tensors->read({TensorKind::token_embedding}).view).front(), 1.0f);
  const auto head = opened.tensors->packed({TensorKind::output_head});
  ASSERT_TRUE(head.has_value()) << "a tied head is packed as an untied one would be";
  EXPECT_EQ(head->layout, "as-it-is");
  EXPECT_EQ(head->shape, (Shape{6, 4}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(head->bytes.data()) % 64, 0u);
  EXPECT_FALSE(opened.tensors->packed({TensorKind::output_norm}).has_value());
  expect_error(
      [&] {
        opened.tensors->read({TensorKind::query, 0});
      },
      ErrorCode::unsupported, "layers.0.query: its weights are packed");
  look_at_all(bytes);
}

TEST_F(SmallArtifact, LargeSectionsHavePagesOfTheirOwn) {
  Checkpoint source = small_source();
  source.text.tokenizer_json = std::string(100'000, ' ');
  const fs::path path = dir.path() / "large.lapidary";
  {
    ArtifactWriter writer(path, source, {}, {});
    writer.commit();
  }
  const MappedFile large(path);
  const Artifact artifact = parse_artifact(large.bytes(), "large");
  EXPECT_EQ(artifact.find(artifact_text::tokenizer)->offset % 4096, 0);
  EXPECT_EQ(artifact.find(artifact_text::spec)->offset, 64);
}

TEST_F(SmallArtifact, EveryDamagedByteIsNoticed) {
  ASSERT_LT(bytes.size(), 20'000u);
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::vector<std::byte> altered = bytes;
    altered[at] ^= std::byte{0x10};
    bool noticed = false;
    try {
      look_at_all(altered);
    } catch (const Error& error) {
      noticed = true;
      EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
    }
    EXPECT_TRUE(noticed) << "byte " << at << " of " << bytes.size();
  }
}

TEST_F(SmallArtifact, EveryShorterFileIsRefused) {
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> altered(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(parse_artifact(altered, "x.lapidary"), Error) << size << " bytes";
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  refused(longer, ErrorCode::data, "expected the end of a packed model in the last 64 bytes");
}

TEST_F(SmallArtifact, AnotherVersionIsRefusedByName) {
  std::vector<std::byte> altered = bytes;
  altered[8] = std::byte{2};
  refused(altered, ErrorCode::unsupported, "version: expected 1, got 2; pack the model again");
  altered = bytes;
  std::swap(altered[12], altered[15]);
  refused(altered, ErrorCode::unsupported, "byte order: expected 0x01020304, got 0x04020301");
}

TEST_F(SmallArtifact, DamageIsNamedByItsSection) {
  const Artifact artifact = parse_artifact(bytes, "x");
  for (const ArtifactSection& section : artifact.sections) {
    std::vector<std::byte> altered = bytes;
    altered[static_cast<size_t>(section.offset)] ^= std::byte{1};
    refused(altered, ErrorCode::data, "section \"" + section.name + "\": checksum: expected ");
  }
}

TEST_F(SmallArtifact, ExchangedSectionsAreNoticed) {
  const Artifact artifact = parse_artifact(bytes, "x");
  const auto range = [&](const char* name) {
    const ArtifactSection* section = artifact.find(name);
    return std::pair(static_cast<std::ptrdiff_t>(section->offset),
                     static_cast<std::ptrdiff_t>(section->length));
  };
  const auto [gate, size] = range("layers.0.gate");
  const auto [up, same_size] = range("layers.0.up");
  ASSERT_EQ(size, same_size);
  std::vector<std::byte> altered = bytes;
  std::swap_ranges(altered.begin() + gate, altered.begin() + gate + size, altered.begin() + up);
  refused(altered, ErrorCode::data, "section \"layers.0.gate\": checksum");
}

TEST_F(SmallArtifact, WhatTheIndexSaysIsHeldToTheModel) {
  refused(edited(R"("layers.0.gate")", R"("layers.0.gats")"), ErrorCode::data,
          "expected a section layers.0.gate, got none");
  refused(edited(R"("layers.0.gate")", R"("layers.0.up")"), ErrorCode::data,
          "section \"layers.0.up\": expected one, got a second");
  refused(edited(R"("name":"output_norm","kind":"plain")", R"("name":"output_norm","kind":"text")"),
          ErrorCode::data, "dtype");
  refused(edited(R"("layers.0.gate","kind":"packed")", R"("layers.0.gate","kind":"parked")"), ErrorCode::data,
          "kind: expected text, plain or packed, got \"parked\"");
  refused(edited(R"("layers.0.gate","kind":"packed","dtype":"f32")",
                 R"("layers.0.gate","kind":"packed","dtype":"i32")"),
          ErrorCode::data, "tensor \"layers.0.gate\": expected f32, f16, bf16 or a block format, got i32");
  refused(edited(R"("layers.0.gate","kind":"packed","dtype":"f32")",
                 R"("layers.0.gate","kind":"packed","dtype":"q8_0")"),
          ErrorCode::data, "section layers.0.gate: row length: expected a multiple of 32 for q8_0, got 4");
  refused(edited(R"("layers.0.gate","kind":"packed","dtype":"f32")",
                 R"("layers.0.gate","kind":"packed","dtype":"f33")"),
          ErrorCode::data, "dtype: expected a number format, got \"f33\"");
  refused(edited(R"("dtype":"f32","shape":[6,4])", R"("dtype":"f32","shape":[4,6])"), ErrorCode::data,
          "tensor \"token_embedding\": expected the shape [6, 4], got [4, 6]");
  refused(edited(R"("name":"token_embedding","kind":"plain","dtype":"f32")",
                 R"("name":"token_embedding","kind":"plain","dtype":"f16")"),
          ErrorCode::data, "section token_embedding: length: expected 48, got 96");
  refused(edited(R"("text.chat_template")", R"("text.chat_templates")"), ErrorCode::data,
          "section \"text.chat_templates\": no such text is known");
  refused(edited(R"("text.spec")", R"("text.tokenizer_config_json")"), ErrorCode::data,
          "expected a section text.spec, got none");
  refused(edited(R"("offset":64)", R"("offset":128)"), ErrorCode::data,
          "section \"text.spec\": offset: expected 64, got 128");
  refused(edited(R"("offset":64)", R"("offset":-64)"), ErrorCode::data, "offset: expected 64, got -64");
  refused(edited(R"("family")", R"("famille")"), ErrorCode::data, "famil");
}

TEST_F(SmallArtifact, IdsOutsideTheVocabularyAreRefused) {
  const auto open = [&](const std::string& from, const std::string& to) {
    const fs::path path = dir.write("ids.lapidary", std::span<const std::byte>(edited(from, to)));
    open_checkpoint(path);
  };
  open(R"("bos_id":1)", R"("bos_id":5)");
  expect_error([&] { open(R"("bos_id":1)", R"("bos_id":6)"); }, ErrorCode::data,
               "ids.lapidary: bos_id: expected 0 to 5, got 6");
  expect_error([&] { open(R"("stop_ids":[2,3])", R"("stop_ids":[2,-3])"); }, ErrorCode::data,
               "ids.lapidary: stop_ids: expected 0 to 5, got -3");
}

TEST_F(SmallArtifact, LengthsBeyondTheFileAreRefused) {
  const Artifact artifact = parse_artifact(bytes, "x");
  const int64_t length = artifact.sections.front().length;
  for (const char* wrong : {"0", "-1", "2047", "4095", "9223372036854775807", "1000000"}) {
    refused(edited(fmt::format(R"("length":{})", length), fmt::format(R"("length":{})", wrong)),
            ErrorCode::data, "section \"");  // that length, or the place that follows from it
  }
}

TEST_F(SmallArtifact, NothingHidesBetweenSections) {
  const Artifact artifact = parse_artifact(bytes, "x");
  const ArtifactSection& first = artifact.sections[0];
  ASSERT_GT(artifact.sections[1].offset, first.offset + first.length);
  std::vector<std::byte> altered = bytes;
  altered[static_cast<size_t>(first.offset + first.length)] = std::byte{9};
  refused(altered, ErrorCode::data,
          fmt::format("byte {}: expected 0 between sections, got 9", first.offset + first.length));
}

TEST(ArtifactWriter, IsSeenWholeOrNotAtAll) {
  const TempDir dir;
  const fs::path path = dir.path() / "m.lapidary";
  { const ArtifactWriter writer(path, small_source(), {}, {}); }  // gives up before commit()
  EXPECT_TRUE(fs::is_empty(dir.path()));
  write_small(path);
  const auto before = fs::file_size(path);
  { const ArtifactWriter writer(path, small_source(), {}, {}); }
  EXPECT_EQ(fs::file_size(path), before) << "what was there stays";
}

}  // namespace
}  // namespace lapidary::test
