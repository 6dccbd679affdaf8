#include "text/chat.h"

#include <fmt/chrono.h>

#include <ctime>

#include "base/error.h"
#include "text/bridge_call.h"
#include "text/tokenizer_impl.h"

namespace lapidary {
namespace {

std::string local_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm fields{};
  ensure(localtime_r(&now, &fields) != nullptr, ErrorCode::io, "the system clock gives no local time");
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}", fields);
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  TemplateHandle handle;
};

ChatTemplate::ChatTemplate(std::string source) : impl_(std::make_unique<Impl>()) {
  lb_template* handle = nullptr;
  lb_bytes error{};
  check(lb_template_new(borrow(source), &handle, &error), error);
  impl_->handle.reset(handle);
  impl_->source = std::move(source);
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const {
  return impl_->source;
}

std::string ChatTemplate::render(const ChatRequest& request) const {
  const std::string now = request.now ? *request.now : local_time_now();
  lb_bytes text{}, error{};
  check(lb_template_render(impl_->handle.get(), borrow(request.messages_json), borrow(request.tools_json),
                           borrow(request.options_json), borrow(now), &text, &error),
        error);
  return take(text);
}

std::vector<TokenId> chat_ids(const ChatTemplate& chat, const Tokenizer& tokenizer,
                              const ChatRequest& request) {
  const std::string now = request.now ? *request.now : local_time_now();
  lb_ids ids{};
  lb_bytes error{};
  check(
      lb_template_ids(chat.impl_->handle.get(), tokenizer.impl_->handle.get(), borrow(request.messages_json),
                      borrow(request.tools_json), borrow(request.options_json), borrow(now), &ids, &error),
      error);
  return tokenizer.impl_->with_bos(take(ids));
}

}  // namespace lapidary
