// A GGUF vocabulary as the byte-pair parts that the bridge takes.
#pragma once

#include <bridge.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace lapidary {

struct BpeParts {
  std::vector<lb_str> tokens;                        // views into the vocabulary, or into `respelt`
  std::vector<uint8_t> kinds;                        // lb_kind
  std::vector<std::pair<uint32_t, uint32_t>> pairs;  // ids of left and right, by rank
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
