// C interface of the Rust library in bridge/: tokenizers, chat templates and grammars.
//
// Text goes in as pointer and length and need not end in a zero byte. Handles are opaque and, but for matchers, immutable: any number of threads
// may use one at a time. Every function catches Rust panics. A status other than LB_OK leaves the outputs untouched but `error`, which then
// holds a message in UTF-8; the caller frees it, like every other lb_bytes and lb_ids that it was given.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lb_tokenizer lb_tokenizer;
typedef struct lb_template lb_template;

typedef enum lb_status {
  LB_OK = 0,
  LB_DATA = 1,         // input that is damaged, or a template that raised
  LB_UNSUPPORTED = 2,  // well-formed input that names something unknown
  LB_LIMIT = 3,        // out of fuel, too deep, too large
  LB_INTERNAL = 4,     // a panic
} lb_status;

typedef struct lb_str {  // borrowed; `data` may be null when `size` is 0
  const char* data;
  size_t size;
} lb_str;

typedef struct lb_bytes {  // owned; release with lb_bytes_free
  char* data;
  size_t size, capacity;
} lb_bytes;

typedef struct lb_ids {  // owned; release with lb_ids_free
  uint32_t* data;
  size_t size, capacity;
} lb_ids;

void lb_bytes_free(lb_bytes bytes);
void lb_ids_free(lb_ids ids);

// A byte-pair vocabulary given directly, for files that are not a tokenizer.json.
typedef enum lb_split {
  LB_SPLIT_SPIECE = 0,  // blanks become U+2581, no split, unknown characters fall back to bytes
  LB_SPLIT_SMOLLM = 1,  // single digits, then GPT-2's byte-level split
  LB_SPLIT_LLAMA3 = 2,  // Llama 3's pattern, then bytes; whole words of the vocabulary need no merges
} lb_split;

typedef enum lb_kind { LB_PLAIN = 0, LB_ADDED = 1, LB_SPECIAL = 2, LB_BYTE = 3 } lb_kind;

typedef struct lb_bpe {
  const lb_str* tokens;   // [n_tokens], index = id, distinct
  const uint8_t* kinds;   // [n_tokens], lb_kind
  size_t n_tokens;
  const uint32_t* merges;  // [n_merges][3], in order of rank: ids of left, right and of what they make
  size_t n_merges;
  int64_t unk_id;         // -1: none
  int32_t split;          // lb_split
  int32_t prefix_space;   // LB_SPLIT_SPIECE: 1 puts a blank before every piece of plain text
} lb_bpe;

lb_status lb_tokenizer_from_json(lb_str json, lb_tokenizer** out, lb_bytes* error);
lb_status lb_tokenizer_from_bpe(const lb_bpe* bpe, lb_tokenizer** out, lb_bytes* error);
void lb_tokenizer_free(lb_tokenizer* tokenizer);

// `text` must be UTF-8. No beginning-of-text token is added.
lb_status lb_tokenizer_encode(const lb_tokenizer* tokenizer, lb_str text, int32_t parse_special, lb_ids* out, lb_bytes* error);

typedef struct lb_token {
  lb_str name;   // spelling in the vocabulary, valid as long as the tokenizer; empty where the vocabulary has a hole
  lb_str bytes;  // what it decodes to
  uint8_t kind;  // lb_kind
} lb_token;

size_t lb_tokenizer_size(const lb_tokenizer* tokenizer);  // largest id + 1
lb_token lb_tokenizer_token(const lb_tokenizer* tokenizer, size_t id);  // id < size
int64_t lb_tokenizer_find(const lb_tokenizer* tokenizer, lb_str token);  // -1: not there
int64_t lb_tokenizer_unk(const lb_tokenizer* tokenizer);  // -1: none
// The token that the file's own post-processor puts first; -1: none.
int64_t lb_tokenizer_first(const lb_tokenizer* tokenizer);
// 1: GPT-2's byte alphabet, 0: SentencePiece style.
int32_t lb_tokenizer_byte_level(const lb_tokenizer* tokenizer);

lb_status lb_template_new(lb_str source, lb_template** out, lb_bytes* error);
void lb_template_free(lb_template* chat);
// messages, options: JSON; tools: JSON or empty (none declared); now: "YYYY-MM-DDTHH:MM:SS" for strftime_now.
lb_status lb_template_render(const lb_template* chat, lb_str messages, lb_str tools, lb_str options, lb_str now, lb_bytes* out,
                             lb_bytes* error);

// The ids of the rendered request, with special tokens only where the template itself wrote them: what the request spells is text.
lb_status lb_template_ids(const lb_template* chat, const lb_tokenizer* tokenizer, lb_str messages, lb_str tools, lb_str options, lb_str now,
                          lb_ids* out, lb_bytes* error);

// Grammars: what a text may be, as masks over the tokens that may come next.
typedef struct lb_grammar_env lb_grammar_env;  // a vocabulary made ready; a second for a large one, so once per tokenizer
typedef struct lb_grammar lb_grammar;
typedef struct lb_matcher lb_matcher;  // one text; changes, so one thread at a time

typedef enum lb_grammar_kind {
  LB_JSON_SCHEMA = 0,
  LB_REGEX = 1,         // the whole text matches
  LB_LARK = 2,          // the engine's dialect of Lark, without special tokens
  LB_TRUSTED_LARK = 3,  // the same from this program itself: unchecked, may name special tokens
} lb_grammar_kind;

// Stop tokens end a text; a grammar allows them where the text is whole. Keeps the tokenizer alive.
lb_status lb_grammar_env_new(const lb_tokenizer* tokenizer, const uint32_t* stops, size_t n_stops, const lb_grammar_env** out,
                             lb_bytes* error);
void lb_grammar_env_free(const lb_grammar_env* env);
// LB_LIMIT where a grammar is too large or takes too much work, memory or time (10 seconds); LB_UNSUPPORTED where it asks for what would
// not be enforced.
lb_status lb_grammar_new(const lb_grammar_env* env, int32_t kind, lb_str source, lb_grammar** out, lb_bytes* error);
void lb_grammar_free(lb_grammar* grammar);

lb_status lb_matcher_new(const lb_grammar* grammar, lb_matcher** out, lb_bytes* error);
lb_status lb_matcher_fork(const lb_matcher* matcher, lb_matcher** out, lb_bytes* error);  // independent of the original
void lb_matcher_free(lb_matcher* matcher);
// One bit per token, 32 to a word from the lowest up; words: size of the vocabulary / 32, rounded up.
lb_status lb_matcher_mask(lb_matcher* matcher, uint32_t* bits, size_t words, lb_bytes* error);
// Takes ids up to the first that does not fit; `taken` says how many.
lb_status lb_matcher_consume(lb_matcher* matcher, const uint32_t* ids, size_t n_ids, size_t* taken, lb_bytes* error);
lb_status lb_matcher_rollback(lb_matcher* matcher, size_t count, lb_bytes* error);  // takes back the last ids
// The ids that come next whatever is sampled; none where there is a choice.
lb_status lb_matcher_forced(lb_matcher* matcher, lb_ids* out, lb_bytes* error);
// accepting: the text is whole. complete: and nothing can be added to it.
lb_status lb_matcher_state(lb_matcher* matcher, int32_t* accepting, int32_t* complete, lb_bytes* error);

#ifdef __cplusplus
}
#endif
