// How a route becomes a function, and what the function answers through.
#pragma once

#include <boost/json/value.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "serve/api/api_error.h"
#include "serve/api/facts.h"
#include "serve/api/service.h"
#include "serve/http/exchange.h"

namespace lapidary::serve {

// The answer to one request, and the record of it: observers hear once, when the answer is complete or the
// last holder lets go. Thread-safe. Whoever answers first is heard; what comes after is ignored.
class Reply {
 public:
  Reply(std::shared_ptr<const Service> service, std::shared_ptr<Exchange> exchange, RequestRecord record);
  ~Reply();
  Reply(const Reply&) = delete;

  void answer(HttpAnswer answer);
  void json(const boost::json::value& body);  // with status 200
  // An answer; once a stream has begun, an event with the error, and the end of the stream.
  // `event`: what is written into a stream instead.
  void error(const ApiError& error, const std::string& event = {});
  void internal_error(std::string what);  // our own mistake, or the machine's: 500

  void begin_stream();  // text/event-stream
  void write(std::string piece);
  void end_stream();
  bool streaming() const;

  // For the record, which waits until so many texts have been added.
  void expect_texts(size_t n);
  void token_now();          // a token of some text has come
  void gap(double seconds);  // between two tokens of one text
  void add_text(const JobEnd& end);
  void note_internal(std::string what);  // for the record only, never for the client
  void add_guarded(int64_t loops_ended, int64_t reserved_wanted);

  Exchange& exchange() { return *exchange_; }
  const std::shared_ptr<Exchange>& shared_exchange() const { return exchange_; }

 private:
  static constexpr int kPeerGone = 499;  // in the record only
  bool claim(bool stream);               // true once: the right to answer
  void finish(int status);               // the answer is complete
  void tell(bool last);  // the observers, once the record is complete or nobody is left to complete it
  std::shared_ptr<const Service> service_;
  std::shared_ptr<Exchange> exchange_;
  mutable std::mutex mutex_;
  RequestRecord record_;  // guarded by mutex_, as all below
  bool claimed_ = false, streaming_ = false, answered_ = false, finished_ = false;
  size_t texts_expected_ = 0;
  const Clock::time_point begin_;
};

// A request on its way. Endpoints may move out of it.
struct Call {
  std::shared_ptr<const Service> service;
  std::shared_ptr<const ModelFacts> facts;
  HttpRequest request;
  std::shared_ptr<Reply> reply;
};

// On a worker's thread. May throw ApiError (answered as it is) and Error (answered by answer_error()); may
// return before the answer is there, keeping the reply.
struct Endpoint {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", or with one last part that matches all the rest: "/v1/models/{id}"
  std::function<void(Call& call)> handle;
};

// Every endpoint of the API: the lists of the files, one after the other.
std::vector<Endpoint> all_endpoints();

std::vector<Endpoint> chat_endpoints();         // chat.cc
std::vector<Endpoint> completions_endpoints();  // completions.cc
std::vector<Endpoint> embeddings_endpoints();   // embeddings.cc
std::vector<Endpoint> kv_endpoints();           // kv.cc
std::vector<Endpoint> models_endpoints();       // models.cc
std::vector<Endpoint> openapi_endpoints();      // openapi.cc
std::vector<Endpoint> page_endpoints();         // page/page.cc
std::vector<Endpoint> responses_endpoints();    // responses.cc
std::vector<Endpoint> tokens_endpoints();       // tokens.cc

ApiError internal_api_error();  // 500, and nothing of what went wrong
// What an Error means to a client: usage, data, unsupported, limit are refusals of what it sent (400).
ApiError client_error(const Error& error, std::string_view code, std::string_view param);

}  // namespace lapidary::serve
