// Names and sizes of the number formats of a KV cache.
#include "base/kv_types.h"

#include <gtest/gtest.h>

#include "support/compare.h"

namespace lapidary::test {
namespace {

TEST(KvTypes, NamesAreReadBack) {
  for (const DType k : {DType::f32, DType::f16, DType::bf16, DType::i8})
    for (const DType v : {DType::f32, DType::f16, DType::bf16, DType::i8})
      EXPECT_EQ(kv_types_from_name(kv_types_name({k, v}), "x"), KvTypes(k, v));
  EXPECT_EQ(kv_types_name(DType::i8), "q8");
  EXPECT_EQ(kv_types_name({DType::i8, DType::f16}), "k=q8,v=f16");
  EXPECT_EQ(kv_types_from_name("v=f16,k=q8", "x"), KvTypes(DType::i8, DType::f16));
}

TEST(KvTypes, OtherNamesAreRefused) {
  for (const char* name :
       {"", "q4", "i8", "q8_0", "k=q8", "k=q8,v=", "k=q8,k=f16", "q8,f16", "k=q8,v=f16,", "f16 "})
    expect_error([&] { kv_types_from_name(name, "--kv-dtype"); }, ErrorCode::usage,
                 "--kv-dtype: expected f32, f16, bf16 or q8, or one for each as in k=q8,v=f16, got ", name);
}

TEST(KvTypes, BytesOfARowCountTheScale) {
  EXPECT_EQ(kv_row_bytes(DType::f32, 64), 256u);
  EXPECT_EQ(kv_row_bytes(DType::f16, 64), 128u);
  EXPECT_EQ(kv_row_bytes(DType::i8, 64), 68u);
  expect_error([] { kv_row_bytes(DType::q8_0, 64); }, ErrorCode::unsupported, "got q8_0");
}

}  // namespace
}  // namespace lapidary::test
