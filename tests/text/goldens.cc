#include "text/goldens.h"

#include <zlib.h>

#include <array>
#include <bit>
#include <charconv>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "cli/text_assets.h"
#include "formats/gguf.h"
#include "text/vocabulary_json.h"

namespace lapidary::goldens {
namespace {

namespace json = boost::json;

const std::string kFolder = LAPIDARY_TEST_DATA "/text/";

std::string unpack(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  ensure(file != nullptr, ErrorCode::io, "{}: cannot be opened", path);
  std::string text;
  std::array<char, 1 << 16> block;
  int got = 0;
  while ((got = gzread(file.get(), block.data(), block.size())) > 0)
    text.append(block.data(), static_cast<size_t>(got));
  ensure(got == 0, ErrorCode::data, "{}: damaged gzip data", path);
  return text;
}

// End of the JSON value that starts at `at`.
size_t value_end(std::string_view text, size_t at) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == ',' || c == '}' || c == ']') && depth == 0) return i;
    if (c == '}' || c == ']') --depth;
  }
  return text.size();
}

std::string_view inside(std::string_view object) {
  return object.substr(1, object.size() - 2);
}

using Sha256State = std::array<uint32_t, 8>;

constexpr std::array<uint32_t, 64> kSha256Rounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void sha256_block(Sha256State& state, const unsigned char* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 |
           block[4 * i + 3];
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                         kSha256Rounds[i] + w[i];
    const uint32_t two =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const Sha256State add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += add[i];
}

}  // namespace

std::string read_text(const std::string& path) {
  if (path.ends_with(".gz")) return unpack(kFolder + path);
  std::ifstream file(kFolder + path, std::ios::binary);
  ensure(file.good(), ErrorCode::io, "{}: cannot be opened", kFolder + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::istringstream text(read_text(path));
  for (std::string line; std::getline(text, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  ensure(!lines.empty(), ErrorCode::data, "{} has no cases", path);
  return lines;
}

std::vector<json::object> read_cases(const std::string& path) {
  std::vector<json::object> cases;
  for (const std::string& line : read_lines(path)) cases.push_back(json::parse(line).as_object());
  return cases;
}

const std::string& tokenizer_json(const std::string& model) {
  static std::map<std::string, std::string> texts;
  const auto found = texts.find(model);
  return found != texts.end() ? found->second : texts[model] = read_text(model + "/tokenizer.json.gz");
}

const Tokenizer& tokenizer(const std::string& model, const std::string& source) {
  static std::map<std::string, Tokenizer> loaded;
  const std::string name = model + "/" + source;
  if (const auto found = loaded.find(name); found != loaded.end()) return found->second;
  if (source == "json")
    return loaded.emplace(name, Tokenizer::from_json(tokenizer_json(model))).first->second;
  if (source == "gguf_of_json") {
    const Tokenizer& json = tokenizer(model, "json");
    const OwnedVocabulary made =
        gguf_vocabulary_of_json(tokenizer_json(model), {.gemma4 = model == "gemma4",
                                                        .vocab_size = tokenizer(model, "gguf").vocab_size(),
                                                        .bos_id = json.bos_id(),
                                                        .eos_id = std::nullopt,
                                                        .pad_id = std::nullopt,
                                                        .adds_bos = json.adds_bos()});
    return loaded.emplace(name, Tokenizer::from_gguf(made.vocabulary)).first->second;
  }
  const std::string bytes = read_text(model + "/vocab.gguf.gz");
  const GgufFile file = parse_gguf(std::as_bytes(std::span(bytes)), model);
  const GgufVocabulary vocabulary = gguf_vocabulary(file);
  if (source == "json_of_gguf") {
    return loaded
        .emplace(name, Tokenizer::from_json(lapidary::tokenizer_json(vocabulary), vocabulary.bos_id,
                                            tokenizer_config_json(vocabulary, 8192)))
        .first->second;
  }
  return loaded.emplace(name, Tokenizer::from_gguf(vocabulary)).first->second;
}

const ChatTemplate& chat_template(const std::string& name) {
  static std::map<std::string, ChatTemplate> loaded;
  if (const auto found = loaded.find(name); found != loaded.end()) return found->second;
  return loaded.emplace(name, ChatTemplate(read_text("templates/" + name + ".jinja"))).first->second;
}

std::string_view raw_field(std::string_view line, std::string_view key) {
  size_t at = 1;
  while (at < line.size() && line[at] == '"') {
    const size_t key_end = line.find('"', at + 1);
    const size_t end = value_end(line, key_end + 2);
    if (line.substr(at + 1, key_end - at - 1) == key) return line.substr(key_end + 2, end - key_end - 2);
    at = end + 1;
  }
  return {};
}

ChatRequest chat_request(std::string_view line) {
  ChatRequest request;
  request.messages_json = raw_field(line, "messages");
  const std::string_view tools = raw_field(line, "tools");
  if (tools != "null") request.tools_json = tools;
  std::string options(inside(raw_field(line, "options")));
  const std::string_view tokens = raw_field(line, "special_tokens");
  if (!tokens.empty()) options += (options.empty() ? "" : ",") + std::string(inside(tokens));
  request.options_json = "{" + options + "}";
  const std::string_view now = raw_field(line, "now");
  if (!now.empty()) request.now = std::string(inside(now));
  return request;
}

std::vector<TokenId> ids_of(const json::value& value) {
  return json::value_to<std::vector<TokenId>>(value);
}

std::string text_of(const json::value& value) {
  return std::string(value.as_string());
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    unsigned byte = 0;
    std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16);
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded(bytes);
  padded.push_back('\x80');
  while (padded.size() % 64 != 56) padded.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<char>(uint64_t{8} * bytes.size() >> shift));
  for (size_t at = 0; at < padded.size(); at += 64)
    sha256_block(state, reinterpret_cast<const unsigned char*>(padded.data()) + at);
  std::string hex;
  for (uint32_t word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

}  // namespace lapidary::goldens
