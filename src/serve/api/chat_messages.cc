#include "serve/api/chat_messages.h"

#include <boost/json.hpp>
#include <set>

#include "base/quote.h"
#include "serve/api/api_error.h"

namespace lapidary::serve {
namespace json = boost::json;

std::string json_string(std::string_view text) {
  return json::serialize(json::string(text.data(), text.size()));
}

std::string object_text(const std::string& text, const std::string& path) {
  constexpr int64_t kDepth = 64;
  bool good = false;
  try {
    good = parse_json(text, kDepth).is_object();
  } catch (const ApiError&) {
    good = false;
  }
  if (!good) refuse("invalid_value", path, "{}: expected the text of a JSON object", path);
  return text;
}

namespace {

class Reader {
 public:
  explicit Reader(const ModelFacts& facts) : facts_(facts) {}

  void read(const json::value& value, const std::string& path, bool last) {
    static constexpr std::string_view roles[] = {"system", "developer", "user", "assistant", "tool"};
    Fields fields = Fields::of(value, path);
    fields.needed("role");
    const std::string role = *fields.choice("role", roles);
    if (role == "assistant") {
      assistant(fields, last);
    } else {
      role == "tool" ? tool(fields) : said(fields, role);
    }
    fields.done();
  }
  ChatMessages take() { return std::move(out_); }

 private:
  void begin(std::string_view role) { message_ = R"({"role":)" + json_string(role); }
  void add(std::string_view key, std::string_view raw) { message_ += fmt::format(",\"{}\":{}", key, raw); }
  void end() { out_.json.push_back(message_ + "}"); }

  static std::string part_text(const json::value& part, const std::string& path) {
    Fields fields = Fields::of(part, path);
    const std::string type = fields.needed_text("type");
    if (type != "text") {
      refuse("unsupported_content", fields.path("type"),
             "{}: expected \"text\" (the server reads text only), got {}", fields.path("type"), quoted(type));
    }
    std::string text = fields.needed_text("text");
    fields.raw("cache_control");  // what other servers' clients mark prompts with: the cache needs no marks
    fields.done();
    return text;
  }

  // Nothing: absent or null.
  static std::optional<std::string> content(Fields& fields) {
    const json::value* value = fields.raw("content");
    if (value == nullptr) return {};
    const std::string path = fields.path("content");
    if (value->is_string()) return std::string(value->get_string());
    if (!value->is_array()) {
      refuse("invalid_type", path, "{}: expected a string or an array of parts, got {}", path,
             kind_name(*value));
    }
    std::string text;
    size_t index = 0;
    for (const json::value& part : value->get_array()) {
      if (index > 0) text += '\n';
      text += part_text(part, item_path(path, index++));
    }
    return text;
  }
  static std::string needed_content(Fields& fields) {
    std::optional<std::string> text = content(fields);
    if (!text) fields.needed("content");
    return std::move(*text);
  }
  void name(Fields& fields) {
    if (const auto name = fields.text("name", 256)) add("name", json_string(*name));
  }

  void said(Fields& fields, const std::string& role) {
    begin(role == "developer" && !facts_.knows_developer ? "system" : role);
    add("content", json_string(needed_content(fields)));
    name(fields);
    end();
  }

  void tool(Fields& fields) {
    begin("tool");
    add("content", json_string(needed_content(fields)));
    const std::string id = fields.needed_text("tool_call_id", 256);
    if (calls_.count(id) == 0) {
      const std::string path = fields.path("tool_call_id");
      refuse("invalid_value", path, "{}: no message before has a tool call with the id {}", path, quoted(id));
    }
    add("tool_call_id", json_string(id));
    name(fields);
    end();
  }

  void assistant(Fields& fields, bool last) {
    begin("assistant");
    const std::optional<std::string> text = content(fields);
    std::optional<std::string> reasoning = fields.text("reasoning_content");
    if (const auto same = fields.text("reasoning"); same && !reasoning) reasoning = same;
    const json::array* calls = fields.array("tool_calls", 1024);
    const bool has_calls = calls != nullptr && !calls->empty();
    for (const std::string_view unknown : {"audio", "function_call"}) {
      fields.refuse_if_present(unknown, "this server does not read it");
    }
    fields.raw("refusal");  // answers as the SDK gives them back; there are none here
    fields.raw("annotations");
    if (!text && !has_calls) fields.needed("content");
    add("content", json_string(text.value_or("")));
    if (reasoning) add("reasoning_content", json_string(*reasoning));
    if (has_calls) add("tool_calls", tool_calls(*calls, fields.path("tool_calls")));
    name(fields);
    if (last && !has_calls) {
      out_.prefill = text;
      out_.prefill_path = fields.path("content");
      return;
    }
    end();
  }

  std::string tool_calls(const json::array& calls, const std::string& path) {
    std::string out = "[";
    size_t index = 0;
    for (const json::value& call : calls) {
      Fields fields = Fields::of(call, item_path(path, index));
      const std::string id = fields.needed_text("id", 256);
      static constexpr std::string_view types[] = {"function"};
      fields.choice("type", types);
      fields.integer("index", 0);  // of a streamed call, sent back as it was put together
      fields.needed("function");
      Fields function = *fields.object("function");
      const std::string name = function.needed_text("name", 256);
      const std::string arguments =
          object_text(function.needed_text("arguments"), function.path("arguments"));
      function.done();
      fields.done();
      calls_.insert(id);
      out += fmt::format(R"({}{{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                         index++ > 0 ? "," : "", json_string(id), json_string(name), arguments);
    }
    return out + "]";
  }

  const ModelFacts& facts_;
  ChatMessages out_;
  std::set<std::string> calls_;  // ids so far
  std::string message_;
};

}  // namespace

ChatMessages read_messages(const json::array& messages, const std::string& path, const ModelFacts& facts) {
  if (messages.empty()) refuse("invalid_value", path, "{}: there must be at least one", path);
  Reader reader(facts);
  for (size_t i = 0; i < messages.size(); ++i) {
    reader.read(messages[i], item_path(path, i), i + 1 == messages.size());
  }
  return reader.take();
}

}  // namespace lapidary::serve
