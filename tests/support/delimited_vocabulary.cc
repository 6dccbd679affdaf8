#include "support/delimited_vocabulary.h"

#include <fmt/format.h>

#include <boost/json.hpp>

namespace lapidary::test {
namespace json = boost::json;

std::string delimited_tokenizer_json() {
  json::object vocabulary;
  json::array added;
  int next = 0;
  const auto add = [&](const std::string& text) { vocabulary[text] = next++; };
  for (const char* special : {"<pad>", "<eos>", "<bos>", "<unk>", "<|channel>", "<channel|>", "<|tool_call>",
                              "<tool_call|>", "<|\"|>", "<|turn>", "<turn|>", "<|tool_response>"}) {
    added.push_back({{"id", next},
                     {"content", special},
                     {"special", true},
                     {"normalized", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"single_word", false}});
    add(special);
  }
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte));
  for (int i = 0; next < 320; ++i)
    add(i < 26 ? std::string(1, static_cast<char>('a' + i)) : fmt::format("word{}", i));
  return json::serialize(json::object{
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         json::array{
             json::object{{"type", "Replace"}, {"pattern", {{"String", "\xE2\x96\x81"}}}, {"content", " "}},
             json::object{{"type", "ByteFallback"}}, json::object{{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocabulary},
        {"merges", json::array{}}}}});
}

}  // namespace lapidary::test
