// What the suites of `lapidary convert` share: conversion within the test's own process, and comparisons of
// models.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/convert_text.h"
#include "formats/convert.h"
#include "formats/spec_difference.h"
#include "support/compare.h"

namespace lapidary::test {

inline ModelFormat format_of_path(const std::filesystem::path& path) {
  return path.extension() == ".gguf" ? ModelFormat::gguf : ModelFormat::hf;
}

struct ConvertCall {
  std::string type = {};  // empty: as it is
  bool allow_requantize = false;
  int64_t shard_bytes = 0;
  int threads = 2;
  bool replace = false;
};

inline ConvertPlan convert(const std::filesystem::path& from, const std::filesystem::path& to,
                           const ConvertCall& call = {}) {
  const Checkpoint source = open_checkpoint(from);
  const Mix* mix = call.type.empty() ? nullptr : find_mix(call.type);
  EXPECT_EQ(mix == nullptr, call.type.empty());
  ConvertPlan plan = plan_conversion(source, {format_of_path(to), mix, call.allow_requantize});
  TextConversion text = convert_text(source, plan.format);
  const auto no_progress = [](int64_t, int64_t) {};
  const ConvertTarget target{to, call.replace, call.shard_bytes, call.threads, no_progress};
  if (plan.format == ModelFormat::gguf) {
    write_gguf_model(source, plan, std::move(text.text), target);
  } else {
    write_hf_model(source, plan, text.text, target);
  }
  return plan;
}

inline void expect_same_spec(const ModelSpec& wanted, const ModelSpec& got) {
  const auto difference = first_difference(wanted, got, false);
  EXPECT_FALSE(difference.has_value())
      << difference->field << ": expected " << difference->wanted << ", got " << difference->got;
  EXPECT_TRUE(difference.has_value() || wanted == got);
}

// Every tensor has the same number format and the same bytes; with `values_only`, the same values.
inline void expect_same_tensors(const Checkpoint& wanted, const Checkpoint& got, bool values_only = false) {
  int64_t seen = 0;
  for_each_tensor(wanted.spec, [&](const TensorInfo& info) {
    const TensorData a = wanted.tensors->read(info.slot), b = got.tensors->read(info.slot);
    ++seen;
    if (values_only) {
      expect_same_bits(to_floats(b.view), to_floats(a.view), slot_name(info.slot));
      return;
    }
    EXPECT_EQ(dtype_name(a.view.dtype), dtype_name(b.view.dtype)) << slot_name(info.slot);
    EXPECT_TRUE(
        std::equal(a.view.bytes.begin(), a.view.bytes.end(), b.view.bytes.begin(), b.view.bytes.end()))
        << slot_name(info.slot);
  });
  EXPECT_GT(seen, 5);
}

}  // namespace lapidary::test
