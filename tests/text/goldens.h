// The text goldens in tests/data/text: cases, vocabularies and templates, read once per test binary.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/tokenizer.h"

namespace lapidary::goldens {

std::string read_text(const std::string& path);  // under tests/data/text; *.gz is unpacked
std::vector<std::string> read_lines(const std::string& path);
std::vector<boost::json::object> read_cases(const std::string& path);

// `source`: "json" (tokenizer.json), "gguf" (the vocabulary of a GGUF file), or either made from the other as
// `lapidary convert` does: "gguf_of_json", "json_of_gguf". Loaded once.
const Tokenizer& tokenizer(const std::string& model, const std::string& source);
const std::string& tokenizer_json(const std::string& model);
const ChatTemplate& chat_template(const std::string& name);

// Bytes of the value of a key of the object in `line`, unparsed, so that numbers keep their digits. Empty
// when the key is absent.
std::string_view raw_field(std::string_view line, std::string_view key);
// The request of a template case, in its own spelling.
ChatRequest chat_request(std::string_view line);

std::vector<TokenId> ids_of(const boost::json::value& value);
std::string text_of(const boost::json::value& value);
std::string from_hex(std::string_view hex);
std::string sha256_hex(std::string_view bytes);

}  // namespace lapidary::goldens
