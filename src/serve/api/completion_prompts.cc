#include "serve/api/completion_prompts.h"

#include <boost/json.hpp>

#include "serve/api/api_error.h"
#include "serve/api/sampling_fields.h"

namespace lapidary::serve {
namespace json = boost::json;

namespace {

std::vector<TokenId> nonempty(std::vector<TokenId> ids, const std::string& path) {
  if (ids.empty())
    refuse("invalid_value", path, "{}: the prompt is empty: there is nothing to go on from", path);
  return ids;
}

}  // namespace

std::vector<std::vector<TokenId>> read_prompts(Fields& fields, const Service& service,
                                               const ModelFacts& facts, int64_t max_prompts) {
  const Tokenizer& tokenizer = *service.model.tokenizer;
  const bool special = fields.flag("add_special_tokens").value_or(true);
  const auto ids_of_text = [&](const json::value& text) {
    const std::string_view view(text.get_string().data(), text.get_string().size());
    check_text_size(view.size(), service, facts, "prompt");
    return special ? tokenizer.prompt_ids(view) : tokenizer.encode(view, true);
  };
  const json::value& prompt = fields.needed("prompt");
  std::vector<std::vector<TokenId>> out;
  if (prompt.is_string()) {
    out.push_back(nonempty(ids_of_text(prompt), "prompt"));
    return out;
  }
  if (!prompt.is_array()) {
    refuse("invalid_type", "prompt", "prompt: expected a string, token ids, or an array of those, got {}",
           kind_name(prompt));
  }
  const json::array& items = prompt.get_array();
  if (items.empty()) nonempty({}, "prompt");
  if (items[0].is_number()) {
    out.push_back(ids_of(items, "prompt", service.model.words));
    return out;
  }
  if (static_cast<int64_t>(items.size()) > max_prompts) {
    refuse("too_long", "prompt", "prompt: expected at most {} prompts, got {}", max_prompts, items.size());
  }
  for (const json::value& item : items) {
    const std::string path = item_path("prompt", out.size());
    if (item.is_array()) {
      out.push_back(nonempty(ids_of(item.get_array(), path, service.model.words), path));
    } else if (item.is_string()) {
      out.push_back(nonempty(ids_of_text(item), path));
    } else {
      refuse("invalid_type", path, "{}: expected a string or an array of token ids, got {}", path,
             kind_name(item));
    }
  }
  return out;
}

}  // namespace lapidary::serve
