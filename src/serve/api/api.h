// The routes: a request in, an answer or a stream out. Whatever a client sends, the outcome is an answer in
// OpenAI's shapes; nothing a request does outlives it.
#pragma once

#include "serve/api/service.h"
#include "serve/http/exchange.h"

namespace lapidary::serve {

class Api {
 public:
  explicit Api(Service service);
  ~Api();
  // On a worker's thread, several at once.
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary::serve
