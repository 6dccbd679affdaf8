// From text to text with real weights and the model's own vocabulary.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/harness.h"
#include "engine/real_models.h"
#include "engine/sampler.h"
#include "text/tokenizer.h"

namespace lapidary::test {
namespace {

Tokenizer tokenizer_of(const Checkpoint& checkpoint) {
  const GgufFile& file = *checkpoint.text.gguf;
  GgufVocabulary vocabulary;
  vocabulary.model = file.get_string("tokenizer.ggml.model");
  if (file.has("tokenizer.ggml.pre")) vocabulary.pre = file.get_string("tokenizer.ggml.pre");
  vocabulary.tokens = file.get_strings("tokenizer.ggml.tokens");
  vocabulary.types = file.get_ints("tokenizer.ggml.token_type");
  if (file.has("tokenizer.ggml.merges")) vocabulary.merges = file.get_strings("tokenizer.ggml.merges");
  if (file.has("tokenizer.ggml.bos_token_id"))
    vocabulary.bos_id = file.get_int("tokenizer.ggml.bos_token_id");
  if (file.has("tokenizer.ggml.eos_token_id"))
    vocabulary.eos_id = file.get_int("tokenizer.ggml.eos_token_id");
  if (file.has("tokenizer.ggml.add_bos_token"))
    vocabulary.add_bos = file.get_bool("tokenizer.ggml.add_bos_token");
  return Tokenizer::from_gguf(vocabulary);
}

TEST(RealText, TheCapitalOfFranceIsParis) {
  const Checkpoint checkpoint = open_checkpoint(cached_model(kSmol.name));
  const Tokenizer tokenizer = tokenizer_of(checkpoint);
  const Tokens ids = tokenizer.prompt_ids("The capital of France is");
  ASSERT_EQ(ids, (Tokens{504, 3575, 282, 4649, 314}));
  Engine engine(checkpoint.spec, *checkpoint.tensors, {.context = 64});
  Sampler greedy({}, checkpoint.spec.vocab_size);
  const Tokens first = {greedy.sample(feed_last(engine, engine.open(), ids), 0)};
  EXPECT_EQ(first[0], 7042);
  EXPECT_EQ(tokenizer.decode(first, false), " Paris");
}

}  // namespace
}  // namespace lapidary::test
