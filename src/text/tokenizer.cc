#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "base/error.h"
#include "base/quote.h"
#include "text/gguf_vocabulary.h"
#include "text/self_check.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr std::array<std::string_view, 9> kTurnEnds = {"<turn|>",    "<|tool_response>", "<end_of_turn>",
                                                       "<|im_end|>", "<|eot_id|>",       "<|eom_id|>",
                                                       "<|end|>",    "<|end_of_turn|>",  "<|return|>"};

std::optional<TokenId> optional_id(int64_t id) {
  return id < 0 ? std::nullopt : std::optional(static_cast<TokenId>(id));
}

// Whether every byte can be written, so that no text is out of reach.
bool knows_all_bytes(const lb_tokenizer* tokenizer) {
  if (lb_tokenizer_byte_level(tokenizer) != 0) return true;
  for (int byte = 0; byte < 256; ++byte) {
    const int64_t id = lb_tokenizer_find(tokenizer, borrow(fmt::format("<0x{:02X}>", byte)));
    if (id < 0 || lb_tokenizer_token(tokenizer, static_cast<size_t>(id)).kind != LB_BYTE) return false;
  }
  return true;
}

// The two settings of tokenizer_config.json that say something about the beginning of text.
struct ConfigHints {
  std::optional<bool> add_bos;
  std::optional<std::string> bos_token;
};

ConfigHints read_hints(std::string_view json) {
  ConfigHints hints;
  if (json.empty()) return hints;
  boost::system::error_code error;
  const boost::json::value file = boost::json::parse({json.data(), json.size()}, error);
  ensure(!error && file.is_object(), ErrorCode::data, "tokenizer_config.json: {}",
         error ? error.message() : "expected an object");
  const boost::json::object& object = file.get_object();
  if (const auto* add = object.if_contains("add_bos_token"); add != nullptr && !add->is_null()) {
    ensure(add->is_bool(), ErrorCode::data,
           "tokenizer_config.json: add_bos_token is {}, expected true or false",
           boost::json::serialize(*add));
    hints.add_bos = add->get_bool();
  }
  const auto* token = object.if_contains("bos_token");
  if (token != nullptr && token->is_object()) token = token->get_object().if_contains("content");
  if (token != nullptr && token->is_string()) hints.bos_token = std::string(token->get_string());
  return hints;
}

// The rule for tokenizer.json. A post-processor that puts a token first decides. Without one: byte-level
// vocabularies take none unless the configuration asks; SentencePiece-style ones were trained with one, which
// is left to the template in some published files.
void apply_bos_rule(const lb_tokenizer* tokenizer, std::optional<int64_t> config_bos,
                    const ConfigHints& hints, size_t size, std::optional<TokenId>& bos_id, bool& adds_bos) {
  const std::optional<TokenId> first = optional_id(lb_tokenizer_first(tokenizer));
  if (first) {
    bos_id = first;
  } else if (config_bos) {
    bos_id = static_cast<TokenId>(*config_bos);
  } else if (hints.bos_token) {
    bos_id = optional_id(lb_tokenizer_find(tokenizer, borrow(*hints.bos_token)));
  }
  ensure(!bos_id || (*bos_id >= 0 && static_cast<size_t>(*bos_id) < size), ErrorCode::data,
         "bos_token_id is {}, but the tokenizer has {} tokens", bos_id.value_or(-1), size);
  const bool spiece = lb_tokenizer_byte_level(tokenizer) == 0;
  adds_bos = first.has_value() || (bos_id.has_value() && hints.add_bos.value_or(spiece));
}

}  // namespace

lb_token Tokenizer::Impl::token(TokenId id) const {
  ensure(id >= 0 && static_cast<size_t>(id) < size, ErrorCode::usage,
         "token id {} is outside the vocabulary of {} tokens", id, size);
  return lb_tokenizer_token(handle.get(), static_cast<size_t>(id));
}

std::vector<TokenId> Tokenizer::Impl::with_bos(std::vector<TokenId> ids) const {
  if (adds_bos && (ids.empty() || ids.front() != *bos_id)) ids.insert(ids.begin(), *bos_id);
  return ids;
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, std::optional<int64_t> bos_id,
                               std::string_view tokenizer_config_json) {
  auto impl = std::make_unique<Impl>();
  lb_tokenizer* handle = nullptr;
  lb_bytes error{};
  check(lb_tokenizer_from_json(borrow(tokenizer_json), &handle, &error), error);
  impl->handle.reset(handle);
  impl->size = lb_tokenizer_size(handle);
  apply_bos_rule(handle, bos_id, read_hints(tokenizer_config_json), impl->size, impl->bos_id, impl->adds_bos);
  Tokenizer tokenizer(std::move(impl));
  self_check(tokenizer, optional_id(lb_tokenizer_unk(handle)), knows_all_bytes(handle));
  return tokenizer;
}

Tokenizer Tokenizer::from_gguf(const GgufVocabulary& vocabulary) {
  const BpeParts parts = bpe_parts(vocabulary);
  static_assert(sizeof(parts.merges[0]) == 3 * sizeof(uint32_t));
  lb_bpe bpe{};
  bpe.tokens = parts.tokens.data();
  bpe.kinds = parts.kinds.data();
  bpe.n_tokens = parts.tokens.size();
  bpe.merges = parts.merges.empty() ? nullptr : parts.merges.front().data();
  bpe.n_merges = parts.merges.size();
  bpe.unk_id = parts.unk_id;
  bpe.split = parts.split;
  bpe.prefix_space = parts.prefix_space ? 1 : 0;
  auto impl = std::make_unique<Impl>();
  lb_tokenizer* handle = nullptr;
  lb_bytes error{};
  check(lb_tokenizer_from_bpe(&bpe, &handle, &error), error);
  impl->handle.reset(handle);
  impl->size = lb_tokenizer_size(handle);
  impl->bos_id = optional_id(vocabulary.bos_id.value_or(-1));
  impl->adds_bos = parts.adds_bos;
  Tokenizer tokenizer(std::move(impl));
  self_check(tokenizer, optional_id(parts.unk_id), knows_all_bytes(handle));
  return tokenizer;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool parse_special) const {
  const size_t valid = utf8_valid_prefix(text);
  ensure(valid == text.size(), ErrorCode::data,
         "text is not UTF-8: invalid or incomplete character at byte {} of {}", valid, text.size());
  lb_ids ids{};
  lb_bytes error{};
  check(lb_tokenizer_encode(impl_->handle.get(), borrow(text), parse_special ? 1 : 0, &ids, &error), error);
  return take(ids);
}

std::vector<TokenId> Tokenizer::encode_lossy(std::string_view bytes, bool parse_special) const {
  return encode(utf8_lossy(bytes), parse_special);
}

std::vector<TokenId> Tokenizer::prompt_ids(std::string_view text, bool parse_special) const {
  return impl_->with_bos(encode(text, parse_special));
}

std::vector<TokenId> Tokenizer::template_ids(std::string_view rendered) const {
  return impl_->with_bos(encode(rendered, true));
}

std::string Tokenizer::decode_bytes(std::span<const TokenId> ids, bool show_special) const {
  std::string bytes;
  for (TokenId id : ids) {
    const lb_token token = impl_->token(id);
    if (show_special || token.kind != LB_SPECIAL) bytes += view(token.bytes);
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool show_special) const {
  return utf8_lossy(decode_bytes(ids, show_special));
}

std::string Tokenizer::token_bytes(TokenId id) const {
  return std::string(view(impl_->token(id).bytes));
}

std::string Tokenizer::token_name(TokenId id) const {
  return std::string(view(impl_->token(id).name));
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  return optional_id(lb_tokenizer_find(impl_->handle.get(), borrow(token)));
}

bool Tokenizer::is_special(TokenId id) const {
  return impl_->token(id).kind == LB_SPECIAL;
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->size);
}

std::optional<TokenId> Tokenizer::bos_id() const {
  return impl_->bos_id;
}

bool Tokenizer::adds_bos() const {
  return impl_->adds_bos;
}

std::vector<TokenId> Tokenizer::turn_end_ids() const {
  std::vector<TokenId> ids;
  for (std::string_view spelling : kTurnEnds) {
    const std::optional<TokenId> id = find(spelling);
    if (id && is_special(*id)) ids.push_back(*id);
  }
  return ids;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool show_special)
    : tokenizer_(tokenizer), show_special_(show_special) {}

std::string StreamDecoder::push(TokenId id) {
  std::string text;
  const lb_token token = tokenizer_.impl_->token(id);
  if (show_special_ || token.kind != LB_SPECIAL) held_ += view(token.bytes);
  utf8_drain(held_, text);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text = utf8_lossy(held_);
  held_.clear();
  return text;
}

}  // namespace lapidary
