// The output of /v1/responses while it grows: items (reasoning, message, function_call) and the events that
// tell a client of them, in OpenAI's order. One piece after the other, from one thread at a time.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lapidary::serve {

class ResponseItems {
 public:
  // Gets every event but those of the response as a whole; `fields` lacks type and sequence_number.
  using Emit = std::function<void(std::string_view type, boost::json::object fields)>;

  // key: what makes the ids of the items unique. emit: may be empty.
  ResponseItems(std::string key, Emit emit);

  void add_reasoning(std::string_view text);
  void add_text(std::string_view text, boost::json::array logprobs);
  void add_call(std::string_view call_id, std::string_view name, std::string_view arguments);
  // The end of the output: closes the item that is open. Without any output there is an empty message.
  // cut: the text ended before the model was through.
  void close(bool cut);

  const boost::json::array& items() const { return items_; }  // closed ones

 private:
  enum class Open { none, reasoning, message };
  void open_reasoning();
  void open_message();
  void close_open(bool cut);
  void emit(std::string_view type, boost::json::object fields);
  boost::json::object part_fields(boost::json::object part) const;
  boost::json::object at() const;  // item_id, output_index, content_index
  std::string id(std::string_view prefix) const;
  void add_item(boost::json::object item);

  std::string key_;
  Emit emit_;
  boost::json::array items_;
  Open open_ = Open::none;
  std::string text_;             // of the open item
  boost::json::array logprobs_;  // likewise
};

}  // namespace lapidary::serve
