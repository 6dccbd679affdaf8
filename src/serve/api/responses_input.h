// `input` and `instructions` of /v1/responses as the messages of a chat.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace lapidary::serve {

// Items that the model wrote in one turn (reasoning, message, calls) become one message of the assistant.
class InputMessages {
 public:
  void add_instructions(const std::string& text);
  // A string, or an array of at most max_items. Throws ApiError.
  void add_input(const boost::json::value& input, int64_t max_items);

  boost::json::array messages;
  std::vector<std::string> places;  // of messages: "input[2]"

 private:
  void add_item(const boost::json::value& value, const std::string& place);
  void add_message(const boost::json::value& value, const std::string& place);
  void add_call(const boost::json::value& value, const std::string& place);
  void add_call_output(const boost::json::value& value, const std::string& place);
  void add_reasoning(const boost::json::value& value, const std::string& place);
  void add(boost::json::object message, std::string place);
  boost::json::object& assistant(const std::string& place);
  void end_turn();

  boost::json::object turn_;  // the assistant's, still growing; empty: none
  std::string turn_place_;
};

}  // namespace lapidary::serve
