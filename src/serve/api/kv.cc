// State of the KV memory: /v1/kv, and what an operator may do to the prefix cache.
#include <boost/json/object.hpp>

#include "serve/api/endpoints.h"
#include "serve/api/fields.h"
#include "serve/api/kv_json.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

void read_kv(Call& call) {
  call.reply->json(kv_json(call.service->model, call.service->scheduler->view()));
}

// These take no fields; the body may be left out.
void expect_no_fields(const Call& call) {
  if (call.request.body.empty()) return;
  const json::object body = parse_body(call.request, call.service->limits.max_json_depth);
  Fields(body, "").done();
}

void save_kv(Call& call) {
  expect_no_fields(call);
  int64_t tokens = 0;
  try {
    tokens = call.service->scheduler->save_cache();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::usage) refuse("no_kv_dir", "", "{}", error.what());
    throw ApiError(500, "server_error", "save_failed", "", "the cache could not be saved; the log says why");
  }
  call.reply->json(json::object{{"tokens", tokens}});
}

void clear_kv(Call& call) {
  expect_no_fields(call);
  call.service->scheduler->clear_cache();
  call.reply->json(json::object{{"cleared", true}});
}

}  // namespace

std::vector<Endpoint> kv_endpoints() {
  return {{"GET", "/v1/kv", read_kv}, {"POST", "/v1/kv/save", save_kv}, {"POST", "/v1/kv/clear", clear_kv}};
}

}  // namespace lapidary::serve
