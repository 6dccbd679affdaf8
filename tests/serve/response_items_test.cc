// The events of /v1/responses: their order, and that what they add up to is the item that is handed out.
#include "serve/api/response_items.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lapidary::serve {
namespace {

namespace json = boost::json;

struct Recorder {
  std::vector<std::string> types;
  std::vector<json::object> fields;
  ResponseItems items{"x", [this](std::string_view type, json::object all) {
                        types.emplace_back(type);
                        fields.push_back(std::move(all));
                      }};
  // The texts of all events of a type, joined.
  std::string joined(std::string_view type, std::string_view field) const {
    std::string out;
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] == type) out += fields[i].at(field).as_string();
    }
    return out;
  }
};

TEST(ResponseItems, ThoughtThenTextThenCallsInOpenAIsOrder) {
  Recorder all;
  all.items.add_reasoning("let me ");
  all.items.add_reasoning("see");
  all.items.add_text("It is", json::array());
  all.items.add_text(" so.", json::array());
  all.items.add_call("call_1", "look", R"({"a":1})");
  all.items.close(false);
  const std::vector<std::string> expected = {
      "response.output_item.added",
      "response.content_part.added",
      "response.reasoning_text.delta",
      "response.reasoning_text.delta",
      "response.reasoning_text.done",
      "response.content_part.done",
      "response.output_item.done",
      "response.output_item.added",
      "response.content_part.added",
      "response.output_text.delta",
      "response.output_text.delta",
      "response.output_text.done",
      "response.content_part.done",
      "response.output_item.done",
      "response.output_item.added",
      "response.function_call_arguments.delta",
      "response.function_call_arguments.done",
      "response.output_item.done",
  };
  EXPECT_EQ(all.types, expected);
  ASSERT_EQ(all.items.items().size(), 3u);
  EXPECT_EQ(all.joined("response.output_text.delta", "delta"), "It is so.");
  EXPECT_EQ(all.joined("response.output_text.done", "text"), "It is so.");
  EXPECT_EQ(all.joined("response.reasoning_text.done", "text"), "let me see");
  const json::object& message = all.items.items()[1].as_object();
  EXPECT_EQ(message.at("content").at(0).at("text").as_string(), "It is so.");
  EXPECT_EQ(message.at("status").as_string(), "completed");
  const json::object& call = all.items.items()[2].as_object();
  EXPECT_EQ(call.at("arguments").as_string(), R"({"a":1})");
  EXPECT_EQ(call.at("call_id").as_string(), "call_1");
}

TEST(ResponseItems, EventsOfOneItemAgreeOnItsIdAndPlace) {
  Recorder all;
  all.items.add_reasoning("a");
  all.items.add_text("b", json::array());
  all.items.close(false);
  std::vector<std::string> ids(2);
  for (const json::object& fields : all.fields) {
    const auto index = fields.at("output_index").to_number<size_t>();
    ASSERT_LT(index, 2u);
    const json::string& id =
        fields.contains("item") ? fields.at("item").at("id").as_string() : fields.at("item_id").as_string();
    if (ids[index].empty()) ids[index] = id;
    EXPECT_EQ(ids[index], id);
  }
  EXPECT_NE(ids[0], ids[1]);
}

TEST(ResponseItems, ATextThatWasCutIsIncomplete) {
  Recorder all;
  all.items.add_text("half", json::array());
  all.items.close(true);
  EXPECT_EQ(all.items.items()[0].at("status").as_string(), "incomplete");
}

TEST(ResponseItems, NothingAtAllIsAnEmptyMessage) {
  Recorder all;
  all.items.close(false);
  ASSERT_EQ(all.items.items().size(), 1u);
  EXPECT_EQ(all.items.items()[0].at("content").at(0).at("text").as_string(), "");
  EXPECT_EQ(all.types.front(), "response.output_item.added");
  EXPECT_EQ(all.types.back(), "response.output_item.done");
}

TEST(ResponseItems, LogprobsOfAllDeltasAreTheMessages) {
  Recorder all;
  all.items.add_text("a", {json::object{{"token", "a"}}});
  all.items.add_text("b", {json::object{{"token", "b"}}});
  all.items.close(false);
  const json::array& logprobs = all.items.items()[0].at("content").at(0).at("logprobs").as_array();
  ASSERT_EQ(logprobs.size(), 2u);
  EXPECT_EQ(logprobs[1].at("token").as_string(), "b");
}

}  // namespace
}  // namespace lapidary::serve
