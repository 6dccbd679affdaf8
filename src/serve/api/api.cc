#include "serve/api/api.h"

#include <algorithm>

#include "base/quote.h"
#include "base/suggest.h"
#include "serve/api/endpoints.h"

namespace lapidary::serve {
namespace {

bool matches(const std::string& route, std::string_view path) {
  const size_t brace = route.find('{');
  if (brace == std::string::npos) return route == path;
  return path.size() > brace && path.substr(0, brace) == std::string_view(route).substr(0, brace);
}

ApiError unknown_path(std::string_view path, const std::vector<Endpoint>& endpoints) {
  std::vector<std::string> known;
  for (const Endpoint& endpoint : endpoints) known.push_back(endpoint.path);
  std::optional<std::string> near = nearest(path, known);
  if (!near && !path.starts_with("/v1")) near = nearest("/v1" + std::string(path), known);
  return {404, "not_found_error", "unknown_path", "",
          fmt::format("there is no {} here{}", quoted(path, 80),
                      near ? fmt::format("; did you mean {}?", *near) : "")};
}

}  // namespace

struct Api::Impl {
  std::shared_ptr<const Service> service;
  std::shared_ptr<const ModelFacts> facts;
  std::vector<Endpoint> endpoints = all_endpoints();

  RequestRecord record_of(const HttpRequest& request, std::string endpoint) const {
    RequestRecord record;
    record.id = request.id;
    record.client = request.client;
    record.method = request.method;
    record.endpoint = std::move(endpoint);
    return record;
  }

  void refuse_method(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                     const std::string& route, const std::string& allowed) const {
    const auto reply = std::make_shared<Reply>(service, exchange, record_of(request, route));
    const ApiError error(405, "invalid_request_error", "method_not_allowed", "",
                         fmt::format("{} takes {}, not {}", route, allowed, quoted(request.method, 20)));
    reply->answer({405, "application/json", error.body(), {{"Allow", allowed}}});
  }

  void run(const Endpoint& endpoint, HttpRequest request, const std::shared_ptr<Exchange>& exchange) const {
    const auto reply = std::make_shared<Reply>(service, exchange, record_of(request, endpoint.path));
    try {
      Call call{service, facts, std::move(request), reply};
      endpoint.handle(call);
    } catch (const ApiError& error) {
      reply->error(error);
    } catch (const Error& error) {
      const bool theirs = error.code() != ErrorCode::internal && error.code() != ErrorCode::io;
      theirs ? reply->error(client_error(error, "invalid_request", "")) : reply->internal_error(error.what());
    } catch (const std::exception& error) {
      reply->internal_error(error.what());
    }
  }

  void handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange) const {
    std::string allowed, route;
    for (const Endpoint& endpoint : endpoints) {
      if (!matches(endpoint.path, request.path)) continue;
      if (endpoint.method == request.method) return run(endpoint, std::move(request), exchange);
      if (allowed.find(endpoint.method) == std::string::npos) {
        allowed += (allowed.empty() ? "" : ", ") + endpoint.method;
      }
      route = endpoint.path;
    }
    if (!allowed.empty()) return refuse_method(request, exchange, route, allowed);
    const auto reply = std::make_shared<Reply>(service, exchange, record_of(request, "unknown"));
    reply->error(unknown_path(request.path, endpoints));
  }
};

Api::Api(Service service) : impl_(std::make_unique<Impl>()) {
  impl_->service = std::make_shared<const Service>(std::move(service));
  impl_->facts = std::make_shared<const ModelFacts>(*impl_->service);
}

Api::~Api() = default;

void Api::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  impl_->handle(std::move(request), exchange);
}

}  // namespace lapidary::serve
