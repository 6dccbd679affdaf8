// Questions to a served model, with answers held to the published OpenAPI document.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "serve/json_schema.h"
#include "serve/served.h"

namespace lapidary::serve::test {

struct Asked {
  int status = 0;
  HttpAnswer answer;
  json::value body() const { return json::parse(answer.body); }
  json::object error() const { return body().at("error").as_object(); }
};

class Asking {
 public:
  explicit Asking(const ServedOptions& options = {}) : served(options) {}

  Asked ask(const std::string& method, const std::string& path, const std::string& body) {
    const auto exchange = served.send(method, path, body);
    EXPECT_TRUE(exchange->wait()) << path << " " << body;
    const HttpAnswer got = exchange->got();
    return {got.status, got};
  }
  Asked get(const std::string& path) { return ask("GET", path, ""); }
  Asked post(const std::string& path, const json::value& body) {
    return ask("POST", path, json::serialize(body));
  }

  const json::object& document() {
    if (document_.empty()) document_ = get("/openapi.json").body().as_object();
    return document_;
  }
  // The body of a 200, which must fit the schema of the operation. route: as the document has it, where it is
  // not the path.
  json::value good(const std::string& method, const std::string& path, const json::value& body = nullptr,
                   const std::string& route = "") {
    const Asked asked = method == "GET" ? get(path) : post(path, body);
    EXPECT_EQ(asked.status, 200) << path << " " << json::serialize(body) << asked.answer.body;
    if (asked.status != 200) return nullptr;
    const json::value answer = asked.body();
    const std::string verb = method == "GET" ? "get" : "post";
    const json::value& operation = document().at("paths").at(route.empty() ? path : route).at(verb);
    const json::value& schema =
        operation.at("responses").at("200").at("content").at("application/json").at("schema");
    for (const std::string& problem : SchemaChecker(document()).problems(answer, schema)) {
      ADD_FAILURE() << path << " " << problem;
    }
    if (!body.is_null()) {
      const json::value& wanted =
          operation.at("requestBody").at("content").at("application/json").at("schema");
      for (const std::string& problem : SchemaChecker(document()).problems(body, wanted)) {
        ADD_FAILURE() << path << " (request) " << problem;
      }
    }
    return answer;
  }
  // A refusal with this code, about this field (empty: none).
  void refused(const std::string& path, const json::object& body, const std::string& code,
               const std::string& param, int status = 400) {
    const Asked asked = post(path, body);
    SCOPED_TRACE(json::serialize(body).substr(0, 200) + "\n" + asked.answer.body.substr(0, 400));
    ASSERT_EQ(asked.status, status);
    EXPECT_EQ(asked.error().at("code").as_string(), code);
    EXPECT_EQ(asked.error().at("param"), param.empty() ? json::value(nullptr) : json::value(param));
  }

  Served served;

 private:
  json::object document_;
};

}  // namespace lapidary::serve::test
