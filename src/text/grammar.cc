#include "text/grammar.h"

#include <algorithm>

#include "base/error.h"
#include "base/quote.h"
#include "text/call_schema.h"
#include "text/tokenizer_impl.h"
#include "text/turn.h"

namespace lapidary {
namespace {

struct GrammarDelete {
  void operator()(const lb_grammar_env* env) const { lb_grammar_env_free(env); }
  void operator()(lb_grammar* grammar) const { lb_grammar_free(grammar); }
  void operator()(lb_matcher* matcher) const { lb_matcher_free(matcher); }
};

// Levels of lists and objects that a constrained call may nest. Each is a rule of the grammar, because a
// call that is nested too deep for the parser (kMaxCallDepth) must not be a call for the grammar either.
constexpr int kCallLevels = 32;
constexpr size_t kMaxCallGrammar = 256 << 10;

constexpr std::string_view kCallTokens =
    "KEY: /[^:,{}\\[\\]\\s\\x00-\\x1f]+/\n"
    "INTEGER: /-?(0|[1-9][0-9]{0,30})/\n"
    "NUMBER: /-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?/\n"
    "TEXT: /(?s:.+)/\n"
    "string: <|\"|> TEXT? <|\"|>\n"
    "word: NUMBER | \"true\" | \"false\" | \"null\"\n";

bool names_a_tool(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), is_tool_name_char);
}

}  // namespace

struct GrammarMatcher::Impl {
  std::unique_ptr<lb_matcher, GrammarDelete> handle;
};

struct Grammar::Impl {
  std::unique_ptr<lb_grammar, GrammarDelete> handle;
};

struct GrammarEnv::Impl {
  std::unique_ptr<const lb_grammar_env, GrammarDelete> handle;
  int64_t vocab_size = 0;
  std::vector<TokenId> stop_ids;
  MaskBits text;
  bool has_string_mark = false;
};

GrammarMatcher::GrammarMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

void GrammarMatcher::mask(std::span<uint32_t> mask) {
  lb_bytes error{};
  check(lb_matcher_mask(impl_->handle.get(), mask.data(), mask.size(), &error), error);
}

size_t GrammarMatcher::consume(std::span<const TokenId> ids) {
  static_assert(sizeof(TokenId) == sizeof(uint32_t));
  size_t taken = 0;
  lb_bytes error{};
  const auto* data = reinterpret_cast<const uint32_t*>(ids.data());  // a negative id is one that never fits
  check(lb_matcher_consume(impl_->handle.get(), data, ids.size(), &taken, &error), error);
  return taken;
}

void GrammarMatcher::rollback(size_t count) {
  lb_bytes error{};
  check(lb_matcher_rollback(impl_->handle.get(), count, &error), error);
}

GrammarMatcher GrammarMatcher::fork() const {
  lb_matcher* handle = nullptr;
  lb_bytes error{};
  check(lb_matcher_fork(impl_->handle.get(), &handle, &error), error);
  auto impl = std::make_unique<Impl>();
  impl->handle.reset(handle);
  return GrammarMatcher(std::move(impl));
}

std::vector<TokenId> GrammarMatcher::forced() {
  lb_ids ids{};
  lb_bytes error{};
  check(lb_matcher_forced(impl_->handle.get(), &ids, &error), error);
  return take(ids);
}

bool GrammarMatcher::accepting() {
  int32_t accepting = 0, complete = 0;
  lb_bytes error{};
  check(lb_matcher_state(impl_->handle.get(), &accepting, &complete, &error), error);
  return accepting != 0;
}

bool GrammarMatcher::complete() {
  int32_t accepting = 0, complete = 0;
  lb_bytes error{};
  check(lb_matcher_state(impl_->handle.get(), &accepting, &complete, &error), error);
  return complete != 0;
}

GrammarMatcher Grammar::begin() const {
  lb_matcher* handle = nullptr;
  lb_bytes error{};
  check(lb_matcher_new(impl_->handle.get(), &handle, &error), error);
  auto impl = std::make_unique<GrammarMatcher::Impl>();
  impl->handle.reset(handle);
  return GrammarMatcher(std::move(impl));
}

GrammarEnv::GrammarEnv(const Tokenizer& tokenizer, std::span<const TokenId> stop_ids) {
  auto impl = std::make_shared<Impl>();
  impl->vocab_size = tokenizer.vocab_size();
  impl->stop_ids.assign(stop_ids.begin(), stop_ids.end());
  std::vector<uint32_t> stops;
  for (const TokenId id : stop_ids) {
    ensure(id >= 0 && id < impl->vocab_size, ErrorCode::usage,
           "stop token {} is outside the vocabulary of {} tokens", id, impl->vocab_size);
    stops.push_back(static_cast<uint32_t>(id));
  }
  const lb_tokenizer* words = tokenizer.impl_->handle.get();
  const lb_grammar_env* handle = nullptr;
  lb_bytes error{};
  check(lb_grammar_env_new(words, stops.data(), stops.size(), &handle, &error), error);
  impl->handle.reset(handle);
  impl->text.resize(mask_words(impl->vocab_size));
  for (TokenId id = 0; id < impl->vocab_size; ++id) {
    const lb_token token = lb_tokenizer_token(words, static_cast<size_t>(id));
    const bool stop = std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
    if (token.kind != LB_SPECIAL && token.bytes.size > 0 && !stop) mask_add(impl->text, id);
  }
  impl->has_string_mark = TurnSyntax::of(tokenizer, stop_ids).string_mark.has_value();
  impl_ = std::move(impl);
}

Grammar GrammarEnv::compile(int kind, std::string_view source) const {
  lb_grammar* handle = nullptr;
  lb_bytes error{};
  check(lb_grammar_new(impl_->handle.get(), kind, borrow(source), &handle, &error), error);
  auto grammar = std::make_shared<Grammar::Impl>();
  grammar->handle.reset(handle);
  return Grammar(std::move(grammar));
}

Grammar GrammarEnv::json_schema(std::string_view schema) const {
  return compile(LB_JSON_SCHEMA, schema);
}

Grammar GrammarEnv::regex(std::string_view pattern) const {
  return compile(LB_REGEX, pattern);
}

Grammar GrammarEnv::lark(std::string_view source) const {
  return compile(LB_LARK, source);
}

Grammar GrammarEnv::call_body(std::span<const std::string> names) const {
  std::vector<Tool> tools;
  for (const std::string& name : names) tools.push_back({name, ""});
  return call_body(tools);
}

Grammar GrammarEnv::call_body(std::span<const Tool> tools) const {
  ensure(impl_->has_string_mark, ErrorCode::unsupported,
         "this vocabulary has no token <|\"|>, so its model knows no tool calls");
  ensure(!tools.empty(), ErrorCode::usage, "tool calls: expected at least one tool");
  std::string source = "start: \"call:\" (", rules;
  for (size_t i = 0; i < tools.size(); ++i) {
    ensure(names_a_tool(tools[i].name), ErrorCode::usage,
           "tool name {}: expected one or more of A-Z, a-z, 0-9, '_', '.', '-'", quoted(tools[i].name));
    std::string arguments = "object_0";
    if (!tools[i].schema.empty()) {
      arguments = fmt::format("arguments_{}", i);
      rules += call_rules(tools[i].schema, arguments, kCallLevels, "tool " + quoted(tools[i].name));
    }
    source += fmt::format("{}\"{}\" {}", i == 0 ? "" : " | ", tools[i].name, arguments);
  }
  source += ")\n" + rules;
  for (int level = 0; level < kCallLevels; ++level) {
    const bool last = level + 1 == kCallLevels;
    source += fmt::format(
        "object_{0}: \"{{\" (KEY \":\" value_{0} (\",\" KEY \":\" value_{0})*)? \"}}\"\n"
        "value_{0}: string | word{1}\n",
        level, last ? "" : fmt::format(" | object_{0} | list_{0}", level + 1));
    if (!last) {
      source += fmt::format("list_{0}: \"[\" (value_{0} (\",\" value_{0})*)? \"]\"\n", level + 1);
    }
  }
  source += kCallTokens;
  ensure(source.size() <= kMaxCallGrammar, ErrorCode::limit,
         "tool calls: the grammar of their arguments has {} bytes, the limit is {}", source.size(),
         kMaxCallGrammar);
  return compile(LB_TRUSTED_LARK, source);
}

int64_t GrammarEnv::vocab_size() const {
  return impl_->vocab_size;
}

std::span<const TokenId> GrammarEnv::stop_ids() const {
  return impl_->stop_ids;
}

std::span<const uint32_t> GrammarEnv::text_mask() const {
  return impl_->text;
}

}  // namespace lapidary
