// The fields of chat completions that chat_plan.h has structures for.
#include <algorithm>
#include <boost/json.hpp>

#include "base/quote.h"
#include "base/suggest.h"
#include "serve/api/api_error.h"
#include "serve/api/chat_plan.h"

namespace lapidary::serve {
namespace json = boost::json;
namespace {

constexpr std::string_view kFunction[] = {"function"};
constexpr size_t kLongestName = 128;

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), is_tool_name_char);
}

GrammarEnv::Tool read_tool(const json::value& tool, const std::string& path) {
  Fields fields = Fields::of(tool, path);
  fields.needed("type");
  fields.choice("type", kFunction);
  fields.needed("function");
  Fields function = *fields.object("function");
  GrammarEnv::Tool out = read_function(function);
  fields.done();
  return out;
}

std::vector<GrammarEnv::Tool>::const_iterator find(const std::vector<GrammarEnv::Tool>& tools,
                                                   const std::string& name) {
  return std::find_if(tools.begin(), tools.end(), [&](const auto& tool) { return tool.name == name; });
}

// none: as if no tools were declared. A name: that one, and it must be called.
void read_choice(Fields& fields, ChatTools& tools) {
  const json::value* choice = fields.raw("tool_choice");
  if (choice == nullptr) return;
  if (tools.tools.empty()) {
    const bool harmless = choice->is_string() && (*choice == "none" || *choice == "auto");
    if (harmless) return;
    refuse("invalid_value", "tool_choice", "tool_choice: no tools are declared");
  }
  if (choice->is_string()) {
    static constexpr std::string_view words[] = {"none", "auto", "required"};
    const std::string word = *fields.choice("tool_choice", words);
    if (word == "required") tools.choice = ChatTools::Choice::required;
    if (word == "none") tools = {};
    return;
  }
  Fields object = *fields.object("tool_choice");
  object.needed("type");
  object.choice("type", kFunction);
  object.needed("function");
  Fields function = *object.object("function");
  const std::string name = function.needed_text("name");
  function.done();
  object.done();
  const auto named = find(tools.tools, name);
  if (named == tools.tools.end()) {
    std::vector<std::string> names;
    for (const GrammarEnv::Tool& tool : tools.tools) names.push_back(tool.name);
    const std::optional<std::string> near = nearest(name, names);
    refuse("invalid_value", function.path("name"), "{}: no tool is called {}{}", function.path("name"),
           quoted(name), near ? fmt::format("; did you mean {}?", *near) : "");
  }
  tools.tools = std::vector<GrammarEnv::Tool>{*named};
  tools.choice = ChatTools::Choice::required;
}

ContentFormat sized(ContentFormat format, size_t most) {
  if (format.source.size() > most) {
    refuse("too_long", format.path, "{}: expected at most {} bytes, got {}", format.path, most,
           format.source.size());
  }
  return format;
}

}  // namespace

bool ChatTools::bound() const {
  return choice == Choice::required ||
         std::any_of(tools.begin(), tools.end(), [](const auto& tool) { return !tool.schema.empty(); });
}

GrammarEnv::Tool read_function(Fields& function) {
  const std::string name = function.needed_text("name");
  if (!is_name(name)) {
    refuse("invalid_value", function.path("name"),
           "{}: expected 1 to {} of the characters a-z, A-Z, 0-9, '_', '.', '-', got {}",
           function.path("name"), kLongestName, quoted(name));
  }
  function.text("description");
  const std::optional<Fields> parameters = function.object("parameters");
  const bool strict = function.flag("strict").value_or(false);
  function.done();
  std::string schema;
  if (strict) schema = parameters ? json::serialize(parameters->json()) : R"({"additionalProperties":false})";
  return {name, std::move(schema)};
}

ChatTools read_tools(Fields& fields, const ApiLimits& limits) {
  ChatTools tools;
  fields.refuse_if_present("functions", "it is out of use; declare tools");
  fields.refuse_if_present("function_call", "it is out of use; say tool_choice");
  if (const json::array* list = fields.array("tools", static_cast<size_t>(limits.max_tools))) {
    for (const json::value& tool : *list) {
      const std::string path = item_path("tools", tools.tools.size());
      GrammarEnv::Tool one = read_tool(tool, path);
      if (find(tools.tools, one.name) != tools.tools.end()) {
        refuse("invalid_value", path + ".function.name", "{}.function.name: {} is declared twice", path,
               quoted(one.name));
      }
      tools.tools.push_back(std::move(one));
    }
    if (!tools.tools.empty()) tools.json = json::serialize(*list);
    if (tools.json.size() > limits.max_schema_bytes) {
      refuse("too_long", "tools", "tools: expected at most {} bytes, got {}", limits.max_schema_bytes,
             tools.json.size());
    }
  }
  tools.parallel = fields.flag("parallel_tool_calls").value_or(true);
  const bool parallel = tools.parallel;
  read_choice(fields, tools);
  tools.parallel = parallel;
  return tools;
}

ContentFormat read_schema(Fields& fields, const ApiLimits& limits) {
  const std::string name = fields.needed_text("name", 64);
  if (!is_name(name)) {
    refuse("invalid_value", fields.path("name"), "{}: expected letters, digits, '_' and '-', got {}",
           fields.path("name"), quoted(name));
  }
  fields.text("description");
  fields.flag("strict");  // schemas bind whatever it says
  fields.needed("schema");
  ContentFormat format{ContentFormat::Kind::schema, "", fields.path("schema")};
  format.source = json::serialize(fields.object("schema")->json());
  return sized(std::move(format), limits.max_schema_bytes);
}

ContentFormat read_format(Fields& fields, const ApiLimits& limits) {
  ContentFormat format;
  std::optional<Fields> given = fields.object("response_format");
  if (given) {
    static constexpr std::string_view types[] = {"text", "json_object", "json_schema"};
    given->needed("type");
    const std::string type = *given->choice("type", types);
    if (type == "json_object") {
      format = {ContentFormat::Kind::schema, R"({"type":"object"})", given->path("type")};
    } else if (type == "json_schema") {
      given->needed("json_schema");
      Fields schema = *given->object("json_schema");
      format = read_schema(schema, limits);
      schema.done();
    }
    given->done();
  }
  const auto extension = [&](std::string_view name, ContentFormat::Kind kind) {
    std::optional<std::string> source = fields.text(name, limits.max_schema_bytes);
    if (!source) return;
    if (format.kind != ContentFormat::Kind::text) {
      refuse("invalid_value", name, "{}: {} binds the answer already", name, format.path);
    }
    format = {kind, std::move(*source), std::string(name)};
  };
  extension("regex", ContentFormat::Kind::regex);
  extension("grammar", ContentFormat::Kind::grammar);
  return format;
}

std::optional<bool> thinking_of_effort(Fields& fields, std::string_view name, const ModelFacts& facts) {
  static constexpr std::string_view efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  const std::optional<std::string> effort = fields.choice(name, efforts);
  if (!effort) return {};
  const bool on = *effort != "none";
  if (!facts.thinking_switch) {
    if (!on) return {};
    const std::string path = fields.path(name);
    refuse("unsupported_value", path,
           "{}: the chat template of this model has no switch for thinking; only "
           "\"none\" is possible",
           path);
  }
  return on;
}

ChatOptions read_chat_options(Fields& fields, const ModelFacts& facts) {
  ChatOptions options;
  options.thinking = thinking_of_effort(fields, "reasoning_effort", facts);
  std::optional<Fields> kwargs = fields.object("chat_template_kwargs");
  if (!kwargs) return options;
  for (const std::string_view own :
       {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "continue_final_message"}) {
    kwargs->refuse_if_present(own, "the server sets it");
  }
  options.kwargs = kwargs->json();
  if (const auto thinking = kwargs->flag("enable_thinking")) {
    if (!facts.thinking_switch) {
      refuse("unsupported_value", kwargs->path("enable_thinking"),
             "{}: the chat template of this model has no such switch", kwargs->path("enable_thinking"));
    }
    if (options.thinking && *options.thinking != *thinking) {
      refuse("invalid_value", kwargs->path("enable_thinking"), "{}: reasoning_effort says otherwise",
             kwargs->path("enable_thinking"));
    }
    options.thinking = *thinking;
  }
  return options;
}

}  // namespace lapidary::serve
