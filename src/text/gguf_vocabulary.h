// A GGUF vocabulary as the byte-pair parts that the bridge takes.
#pragma once

#include <bridge.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace lapidary {

struct BpeParts {
  std::vector<lb_str> tokens;  // [V]: views into the vocabulary, or into `respelt`
  std::vector<uint8_t> kinds;  // [V]: lb_kind
  std::vector<MergeIds> found_merges;
  std::span<const MergeIds> merges;  // by rank: found_merges, or those that the vocabulary knows
  int64_t unk_id = -1;
  lb_split split = LB_SPLIT_SPIECE;
  bool prefix_space = false;
  bool adds_bos = false;
  std::vector<std::string> respelt;  // runs of blanks, written with U+2581
};

// Error(unsupported) on a model or pre-tokenizer that is not known, Error(data) on contradictions.
// `vocabulary` must outlive the result.
BpeParts bpe_parts(const GgufVocabulary& vocabulary);

}  // namespace lapidary
