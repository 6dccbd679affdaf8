#include "serve/api/facts.h"

#include <algorithm>

#include "base/hash.h"

namespace lapidary::serve {
namespace {

bool is_reserved(std::string_view name) {
  constexpr std::string_view unused = "<unused", reserved = "<|reserved_special_token_";
  for (const std::string_view head : {unused, reserved}) {
    if (!name.starts_with(head) || !name.ends_with('>')) continue;
    name.remove_prefix(head.size());
    const std::string_view number = name.substr(0, name.find_first_of("|>"));
    if (!number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

ModelFacts::ModelFacts(const Service& service) {
  const ServedModel& model = service.model;
  Hasher hasher;
  for (const std::string* text : {&model.name, &model.hash, &model.numeric_mode, &service.version}) {
    hasher.add(text->size()).add(*text);
  }
  fingerprint = "fp_" + hash_text(hasher.digest()).substr(0, 16);
  for (TokenId id = 0; id < model.words; ++id) {
    longest_token = std::max(longest_token, static_cast<int64_t>(model.tokenizer->token_bytes(id).size()));
    if (is_reserved(model.tokenizer->token_name(id))) reserved.push_back(id);
  }
  if (model.chat == nullptr) return;
  const std::string& source = model.chat->source();
  thinking_switch = source.find("enable_thinking") != std::string::npos;
  declares_tools = source.find("tools") != std::string::npos;
  knows_developer = source.find("developer") != std::string::npos;
}

}  // namespace lapidary::serve
