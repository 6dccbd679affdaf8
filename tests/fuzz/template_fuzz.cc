// Any bytes as a chat template, then a NUL, then messages as JSON (a small conversation when absent).
// Whatever a template does, a render ends in text that is UTF-8 or in an Error.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/chat.h"
#include "text/utf8.h"

namespace {

constexpr std::string_view kMessages =
    R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi <b>&amp;</b> 1e22"},)"
    R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{"x":1.5,"y":[true,null]}}}]},)"
    R"({"role":"tool","tool_call_id":"c1","content":"{}"}])";
constexpr std::string_view kTools =
    R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]}}}])";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t nul = input.find('\0');
  try {
    const ChatTemplate chat{std::string(input.substr(0, nul))};
    ChatRequest request;
    request.messages_json = nul == std::string_view::npos ? kMessages : input.substr(nul + 1);
    request.tools_json = kTools;
    request.options_json =
        R"({"add_generation_prompt":true,"bos_token":"<bos>","eos_token":"<eos>","big":123456789012345678901234567890})";
    request.now = "2026-11-30T12:00:00";
    const std::string text = chat.render(request);
    if (utf8_valid_prefix(text) != text.size()) std::abort();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) std::abort();  // a panic inside the library
  }
  return 0;
}
