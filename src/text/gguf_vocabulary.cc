#include "text/gguf_vocabulary.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/quote.h"
#include "text/bridge_call.h"
#include "text/token_index.h"

namespace lapidary {
namespace {

using Merge = MergeIds;

enum GgufType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

constexpr std::string_view kBlank = "\xE2\x96\x81";  // U+2581, SentencePiece's visible blank

bool all_blanks(std::string_view token) {
  return !token.empty() && token.find_first_not_of(' ') == std::string_view::npos;
}

// -1: not a run; else the kind of character it repeats. A single character counts as a run of one.
int run_kind(std::string_view token) {
  if (token.empty()) return -1;
  if (token.find_first_not_of('\n') == std::string_view::npos) return 0;
  if (token.find_first_not_of('\t') == std::string_view::npos) return 2;
  if (token.size() % kBlank.size() != 0) return -1;
  for (size_t i = 0; i < token.size(); i += kBlank.size()) {
    if (token.substr(i, kBlank.size()) != kBlank) return -1;
  }
  return 1;
}

// Types as lb_kind. What a file calls user-defined is a delimiter of the chat format in gemma4, where the
// source has it special; in the older files it is a plain added token, but for the two image marks, which
// were published as special.
uint8_t kind_of(const GgufVocabulary& vocabulary, size_t id) {
  if (vocabulary.types.empty()) return LB_PLAIN;
  const std::string_view token = vocabulary.tokens[id];
  switch (vocabulary.types[id]) {
    case kNormal:
    case kUnused: return LB_PLAIN;
    case kUnknown:
    case kControl: return LB_SPECIAL;
    case kUserDefined:
      if (vocabulary.model == "gemma4" || token == "<start_of_image>" || token == "<end_of_image>")
        return LB_SPECIAL;
      return LB_ADDED;
    case kByte: return LB_BYTE;
    default:
      fail(ErrorCode::data, "tokenizer.ggml.token_type of token {}: {}, expected 1 to 6", id,
           vocabulary.types[id]);
  }
}

void merges_from_file(const GgufVocabulary& vocabulary, const TokenIndex& index, std::vector<Merge>& merges) {
  merges.reserve(vocabulary.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view merge = vocabulary.merges[rank];
    const size_t blank = merge.find(' ');
    if (blank == std::string_view::npos || merge.find(' ', blank + 1) != std::string_view::npos) {
      fail(ErrorCode::data, "tokenizer.ggml.merges, entry {}: {} is not two tokens with a blank between",
           rank, quoted(merge));
    }
    const std::string_view left = merge.substr(0, blank), right = merge.substr(blank + 1);
    joined.assign(left).append(right);
    const Merge ids = {index.find(left), index.find(right), index.find(joined)};
    if (std::find(ids.begin(), ids.end(), TokenIndex::kNone) != ids.end()) {
      fail(ErrorCode::data, "tokenizer.ggml.merges, entry {}: {} needs a token that is not in the vocabulary",
           rank, quoted(merge));
    }
    merges.push_back(ids);
  }
}

// Ids in the order in which SentencePiece merges into them: by score, which is the order of ids in every file
// whose scores fall with the id (or say nothing). Only then do ids stand in for scores.
std::vector<uint32_t> merge_order(const GgufVocabulary& vocabulary) {
  std::vector<uint32_t> order(vocabulary.tokens.size());
  for (size_t id = 0; id < order.size(); ++id) order[id] = static_cast<uint32_t>(id);
  bool falling = true;
  double last = 0;
  bool any = false;
  for (size_t id = 0; id < vocabulary.scores.size(); ++id) {
    if (vocabulary.types[id] != kNormal) continue;
    falling = falling && (!any || vocabulary.scores[id] <= last);
    last = vocabulary.scores[id];
    any = true;
  }
  if (!falling) {
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return vocabulary.scores[a] > vocabulary.scores[b]; });
  }
  return order;
}

// A SentencePiece vocabulary carries no merges, but they follow from it: every split of a token into two
// tokens is one. Runs of newlines, blanks and tabs come first (they are atoms to SentencePiece), longest left
// part first; then the rest in merge order, again longest left part first.
void rebuild_merges(const GgufVocabulary& vocabulary, const std::vector<std::string_view>& tokens,
                    const TokenIndex& index, std::vector<Merge>& merges) {
  struct Run {
    size_t left, right;  // characters
    int kind;
    Merge merge;
  };
  std::vector<Run> runs;
  std::vector<Merge> rest;
  rest.reserve(2 * tokens.size());
  std::vector<uint64_t> prefix;
  for (const uint32_t id : merge_order(vocabulary)) {
    const std::string_view token = tokens[id];
    const int kind = vocabulary.types[id] == kUserDefined ? run_kind(token) : -1;
    const size_t unit = kind == 1 ? kBlank.size() : 1;
    TokenIndex::prefix_hashes(token, prefix);
    for (size_t cut = token.size(); cut-- > 1;) {
      if ((static_cast<unsigned char>(token[cut]) & 0xC0) == 0x80) continue;  // inside a character
      const uint32_t left = index.find(token.substr(0, cut), prefix[cut]);
      if (left == TokenIndex::kNone) continue;
      const uint32_t right = index.find(token.substr(cut), index.part_hash(prefix, cut, token.size()));
      if (right == TokenIndex::kNone) continue;
      if (kind >= 0) {
        runs.push_back({cut / unit, (token.size() - cut) / unit, kind, {left, right, id}});
      } else {
        rest.push_back({left, right, id});
      }
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    if (a.left != b.left) return a.left > b.left;
    if (a.right != b.right) return a.right > b.right;
    return a.kind < b.kind;
  });
  merges.reserve(runs.size() + rest.size());
  for (const Run& run : runs) merges.push_back(run.merge);
  merges.insert(merges.end(), rest.begin(), rest.end());
}

std::vector<Merge> find_merges(const GgufVocabulary& vocabulary,
                               const std::vector<std::string_view>& tokens) {
  const TokenIndex index(tokens);
  std::vector<Merge> merges;
  if (!vocabulary.merges.empty()) {
    merges_from_file(vocabulary, index, merges);
  } else {
    ensure(vocabulary.model == "llama", ErrorCode::data,
           "tokenizer.ggml.merges is missing; model {} needs it", quoted(vocabulary.model));
    rebuild_merges(vocabulary, tokens, index, merges);
  }
  return merges;
}

void check_known_merges(const GgufVocabulary& vocabulary) {
  for (size_t rank = 0; rank < vocabulary.known_merges.size(); ++rank) {
    for (const uint32_t id : vocabulary.known_merges[rank]) {
      ensure(id < vocabulary.tokens.size(), ErrorCode::data,
             "merge {}: token {} is outside the vocabulary of {} tokens", rank, id, vocabulary.tokens.size());
    }
  }
}

void check_sizes(const GgufVocabulary& vocabulary) {
  const size_t n = vocabulary.tokens.size();
  ensure(n > 0, ErrorCode::data, "tokenizer.ggml.tokens is empty");
  ensure(n < (size_t{1} << 24), ErrorCode::limit, "tokenizer.ggml.tokens has {} entries, the limit is {}", n,
         size_t{1} << 24);
  ensure(vocabulary.types.empty() || vocabulary.types.size() == n, ErrorCode::data,
         "tokenizer.ggml.token_type has {} entries, expected {} as tokens", vocabulary.types.size(), n);
  ensure(vocabulary.scores.empty() || vocabulary.scores.size() == n, ErrorCode::data,
         "tokenizer.ggml.scores has {} entries, expected {} as tokens", vocabulary.scores.size(), n);
  const std::pair<const char*, std::optional<int64_t>> ids[] = {{"bos_token_id", vocabulary.bos_id},
                                                                {"eos_token_id", vocabulary.eos_id},
                                                                {"unknown_token_id", vocabulary.unk_id},
                                                                {"padding_token_id", vocabulary.pad_id}};
  for (const auto& [name, id] : ids) {
    ensure(!id || (*id >= 0 && static_cast<size_t>(*id) < n), ErrorCode::data,
           "tokenizer.ggml.{} is {}, but there are {} tokens", name, id.value_or(0), n);
  }
}

// Settings that a file may leave out have a meaning per kind, which every writer of the format relies on.
void apply_kind(const GgufVocabulary& vocabulary, BpeParts& parts) {
  const std::string& model = vocabulary.model;
  const std::string& pre = vocabulary.pre;
  const bool spiece = model == "llama" || model == "gemma4";
  if (spiece) {
    ensure(pre.empty() || pre == "default" || pre == model, ErrorCode::unsupported,
           "tokenizer.ggml.pre is {}, which is not known for tokenizer.ggml.model {}", quoted(pre),
           quoted(model));
    ensure(!vocabulary.types.empty(), ErrorCode::data,
           "tokenizer.ggml.token_type is missing; model {} needs it", quoted(model));
    parts.split = LB_SPLIT_SPIECE;
    parts.prefix_space = vocabulary.add_space_prefix.value_or(model == "llama");
    parts.adds_bos = vocabulary.add_bos.value_or(true) || model == "gemma4";
  } else if (model == "gpt2") {
    ensure(pre == "smollm" || pre == "llama-bpe", ErrorCode::unsupported,
           "tokenizer.ggml.pre is {}, expected smollm or llama-bpe with tokenizer.ggml.model \"gpt2\"",
           quoted(pre));
    ensure(!vocabulary.add_space_prefix.value_or(false), ErrorCode::unsupported,
           "tokenizer.ggml.add_space_prefix is true, which is not known for model \"gpt2\"");
    parts.split = pre == "smollm" ? LB_SPLIT_SMOLLM : LB_SPLIT_LLAMA3;
    parts.adds_bos = vocabulary.add_bos.value_or(pre == "llama-bpe");
  } else {
    fail(ErrorCode::unsupported, "tokenizer.ggml.model is {}, expected llama, gemma4 or gpt2", quoted(model));
  }
  ensure(!parts.adds_bos || vocabulary.bos_id, ErrorCode::data,
         "tokenizer.ggml.bos_token_id is missing, but model {} wants a beginning-of-text token",
         quoted(model));
}

int64_t unknown_id(const GgufVocabulary& vocabulary) {
  if (vocabulary.unk_id) return *vocabulary.unk_id;
  const auto found = std::find(vocabulary.types.begin(), vocabulary.types.end(), kUnknown);
  return found == vocabulary.types.end() ? -1 : found - vocabulary.types.begin();
}

}  // namespace

BpeParts bpe_parts(const GgufVocabulary& vocabulary) {
  check_sizes(vocabulary);
  BpeParts parts;
  apply_kind(vocabulary, parts);
  const size_t n = vocabulary.tokens.size();
  std::vector<std::string_view> tokens = vocabulary.tokens;
  if (vocabulary.model == "llama") {  // converters write runs of U+2581 as blanks
    parts.respelt.reserve(static_cast<size_t>(std::count_if(tokens.begin(), tokens.end(), all_blanks)));
    for (std::string_view& token : tokens) {
      if (!all_blanks(token)) continue;
      std::string& run = parts.respelt.emplace_back();
      for (size_t i = 0; i < token.size(); ++i) run += kBlank;
      token = run;
    }
  }
  parts.tokens.reserve(n);
  parts.kinds.reserve(n);
  for (size_t id = 0; id < n; ++id) {
    parts.tokens.push_back(borrow(tokens[id]));
    parts.kinds.push_back(kind_of(vocabulary, id));
  }
  if (vocabulary.known_merges.empty()) {
    parts.found_merges = find_merges(vocabulary, tokens);
    parts.merges = parts.found_merges;
  } else {
    check_known_merges(vocabulary);
    parts.merges = vocabulary.known_merges;
  }
  parts.unk_id = unknown_id(vocabulary);
  return parts;
}

std::vector<MergeIds> merge_ids(const GgufVocabulary& vocabulary) {
  const BpeParts parts = bpe_parts(vocabulary);
  return {parts.merges.begin(), parts.merges.end()};
}

}  // namespace lapidary
