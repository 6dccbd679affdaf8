// What the log says of a request, and what it must not.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "cli/serve/server_log.h"

namespace lapidary::test {
namespace {

serve::RequestRecord chat_record() {
  serve::RequestRecord record;
  record.id = "req-1";
  record.client = "alice";
  record.method = "POST";
  record.endpoint = "/v1/chat/completions";
  record.status = 200;
  record.stream = true;
  record.seconds = 1.25;
  record.first_token_seconds = 0.25;
  serve::JobEnd end;
  end.reason = serve::EndReason::stop_token;
  end.prompt_tokens = 45;
  end.cached_tokens = 16;
  end.generated_tokens = 7;
  record.texts = {end, end};
  return record;
}

TEST(RequestLog, OneObjectForARequest) {
  const boost::json::object line = record_json(chat_record());
  EXPECT_EQ(line.at("id").as_string(), "req-1");
  EXPECT_EQ(line.at("client").as_string(), "alice");
  EXPECT_EQ(line.at("endpoint").as_string(), "/v1/chat/completions");
  EXPECT_EQ(line.at("status").as_int64(), 200);
  EXPECT_EQ(line.at("seconds").as_double(), 1.25);
  EXPECT_EQ(line.at("first_token_seconds").as_double(), 0.25);
  EXPECT_EQ(line.at("prompt_tokens").as_int64(), 90);
  EXPECT_EQ(line.at("cached_tokens").as_int64(), 32);
  EXPECT_EQ(line.at("generated_tokens").as_int64(), 14);
  EXPECT_EQ(line.at("texts").as_array().size(), 2u);
  EXPECT_EQ(line.at("texts").as_array()[0].at("end").as_string(),
            serve::end_reason_name(serve::EndReason::stop_token));
  EXPECT_FALSE(line.contains("error_code"));
}

TEST(RequestLog, RefusalsSayTheirCode) {
  serve::RequestRecord record;
  record.status = 400;
  record.error_code = "unknown_field";
  record.error_param = "temprature";
  const boost::json::object line = record_json(record);
  EXPECT_EQ(line.at("error_code").as_string(), "unknown_field");
  EXPECT_EQ(line.at("error_param").as_string(), "temprature");
  EXPECT_FALSE(line.contains("texts"));
  EXPECT_FALSE(line.contains("first_token_seconds"));
  EXPECT_NE(record_text(record).find("unknown_field (temprature)"), std::string::npos);
}

TEST(RequestLog, TextForPeopleHasTheSame) {
  const std::string text = record_text(chat_record());
  for (const char* part :
       {"POST /v1/chat/completions 200", "90 tokens in (32 cached), 14 out", "[alice, req-1]"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace
}  // namespace lapidary::test
