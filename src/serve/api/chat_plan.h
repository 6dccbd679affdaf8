// What a chat asks of the model, whatever endpoint it came through: from messages, tools and a format to the
// ids of a prompt and the grammar of its answer.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/api/chat_messages.h"
#include "serve/api/facts.h"
#include "serve/api/fields.h"
#include "serve/api/service.h"
#include "text/constraint.h"

namespace lapidary::serve {

struct ChatTools {
  enum class Choice { automatic, required };
  std::string json;                     // as the template gets them; empty: none
  std::vector<GrammarEnv::Tool> tools;  // that may be called; with a schema: those that are strict
  Choice choice = Choice::automatic;
  bool parallel = true;
  bool bound() const;          // calls need a grammar
  std::string path = "tools";  // for messages
};

// What the content must be.
struct ContentFormat {
  enum class Kind { text, schema, regex, grammar };
  Kind kind = Kind::text;
  std::string source;  // of the schema, the expression, the grammar
  std::string path;    // of the field that has it
};

struct ChatOptions {
  std::optional<bool> thinking;  // absent: what the template does by itself
  boost::json::object kwargs;    // of chat_template_kwargs
};

// Reading the fields of chat completions.
ChatTools read_tools(Fields& fields, const ApiLimits& limits);  // tools, tool_choice, parallel_tool_calls
ContentFormat read_format(Fields& fields, const ApiLimits& limits);      // response_format, regex, grammar
ChatOptions read_chat_options(Fields& fields, const ModelFacts& facts);  // reasoning_effort, kwargs
// One function of a tool list: its name, description, parameters, strict.
GrammarEnv::Tool read_function(Fields& function);
// The parts of a json_schema format: {"name", "schema", "strict", "description"}.
ContentFormat read_schema(Fields& fields, const ApiLimits& limits);
// "none" to "xhigh" → thinking or not; refused where the template has no switch.
std::optional<bool> thinking_of_effort(Fields& fields, std::string_view name, const ModelFacts& facts);

struct ChatPlan {
  std::vector<TokenId> prompt;
  bool in_thought = false;  // it ends inside an open thought
  bool tools = false;       // calls are calls
  bool one_call = false;    // the first one ends the turn
  std::optional<Constraint> constraint;
};
// ApiError: the model has no template, the template refuses the messages, tools without a way to call them,
// a bad schema, a beginning that the schema does not allow.
ChatPlan plan_chat(const Service& service, const ModelFacts& facts, const ChatMessages& messages,
                   const ChatTools& tools, const ContentFormat& format, const ChatOptions& options);

// The prompt alone, as text and as ids: for /apply-template.
struct RenderedChat {
  std::string text;
  std::vector<TokenId> ids;
};
RenderedChat render_chat(const Service& service, const ModelFacts& facts, const ChatMessages& messages,
                         const ChatTools& tools, const ChatOptions& options);

}  // namespace lapidary::serve
