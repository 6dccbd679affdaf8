#include "cli/state_file.h"

#include <boost/json.hpp>
#include <optional>

#include "base/error.h"
#include "spec/json_fields.h"

namespace lapidary {
namespace {

namespace json = boost::json;

const Hash128& hash_of(Runner& runner) {
  if (!runner.model_hash) runner.model_hash = hash_of_model(runner.model.checkpoint);
  return *runner.model_hash;
}

std::string attachment_of(const Runner& runner) {
  json::object attachment{{"mode", runner.conversation ? "chat" : "raw"}};
  if (runner.conversation) {
    json::array messages;  // as text: numbers in tool calls keep their digits
    for (const Message& message : runner.conversation->messages())
      messages.push_back(json::string(message.json));
    attachment["messages"] = std::move(messages);
  }
  return json::serialize(attachment);
}

Message read_message(const json::value& text, const std::string& where) {
  ensure(text.is_string(), ErrorCode::data, "{}: expected a message as text, got {}", where,
         describe_json(text));
  const std::string spelled(text.get_string());
  const json::value value = parse_json(spelled, where);
  JsonFields fields(value, where);
  Message message{fields.get_string("role"), spelled};
  fields.get_string("content");
  fields.find_string("reasoning_content");
  if (fields.has("tool_calls")) fields.get_array("tool_calls");
  fields.refuse_unknown();
  return message;
}

std::vector<Message> read_messages(JsonFields& fields) {
  std::vector<Message> messages;
  for (const json::value& value : fields.get_array("messages")) {
    messages.push_back(read_message(value, fmt::format("{}[{}]", fields.path("messages"), messages.size())));
  }
  return messages;
}

// The messages of a chat; nothing from a state of raw text.
std::optional<std::vector<Message>> read_attachment(std::span<const std::byte> bytes,
                                                    const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const json::value root = parse_json(text, name + ": attachment");
  JsonFields fields(root, name + ": attachment");
  const std::string mode = fields.get_string("mode");
  ensure(mode == "chat" || mode == "raw", ErrorCode::data, "{}: expected chat or raw, got \"{}\"",
         fields.path("mode"), mode);
  std::optional<std::vector<Message>> messages;
  if (mode == "chat") messages = read_messages(fields);
  fields.refuse_unknown();
  return messages;
}

}  // namespace

void save_state(Runner& runner, AtomicFile& file) {
  const std::string attachment = attachment_of(runner);
  runner.engine->save(runner.session->sequence(), hash_of(runner), std::as_bytes(std::span(attachment)),
                      [&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

void save_state(Runner& runner, const std::filesystem::path& path) {
  AtomicFile file(path);
  save_state(runner, file);
}

void load_state(Runner& runner, const MappedFile& file) {
  const double start = now_seconds();
  std::optional<std::vector<Message>> messages;
  const auto accept = [&](std::span<const std::byte> attachment) {
    messages = read_attachment(attachment, file.name());
    ensure(messages || !runner.conversation, ErrorCode::usage,
           "{}: holds raw text and no conversation; go on from it with --raw", file.name());
  };
  runner.engine->restore(runner.session->sequence(), file.bytes(), hash_of(runner), file.name(), accept);
  if (runner.conversation) runner.conversation->set_messages(std::move(*messages));
  runner.model.times.state_seconds = now_seconds() - start;
}

}  // namespace lapidary
