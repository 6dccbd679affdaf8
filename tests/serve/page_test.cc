#include "serve/page/page.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "serve/api/api_error.h"
#include "serve/page/page_files.h"

namespace lapidary::serve {
namespace {

std::string header(const HttpAnswer& answer, std::string_view name) {
  for (const auto& [other, value] : answer.headers) {
    if (other == name) return value;
  }
  return "";
}

TEST(Page, EveryFileOfTheFolderIsServedWithItsType) {
  const std::vector<std::string> paths = page_paths();
  EXPECT_EQ(paths.size(), kPageFiles.size());
  for (const char* wanted : {"/", "/page/app.css", "/page/js/app.js", "/page/icon.svg"}) {
    EXPECT_NE(std::find(paths.begin(), paths.end(), wanted), paths.end()) << wanted;
  }
  EXPECT_EQ(page_answer("/", "").content_type, "text/html; charset=utf-8");
  EXPECT_EQ(page_answer("/page/js/app.js", "").content_type, "text/javascript; charset=utf-8");
  for (const std::string& path : paths) EXPECT_FALSE(page_answer(path, "").body.empty()) << path;
}

TEST(Page, FilesMayRunAndReachOnlyWhatTheServerHas) {
  for (const std::string& path : page_paths()) {
    const std::string policy = header(page_answer(path, ""), "Content-Security-Policy");
    EXPECT_NE(policy.find("default-src 'none'"), std::string::npos) << path;
    EXPECT_NE(policy.find("script-src 'self'"), std::string::npos) << path;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos) << path;
    EXPECT_EQ(header(page_answer(path, ""), "X-Content-Type-Options"), "nosniff");
  }
}

// A handler or a style in the markup would be refused by the policy, in the reader's browser only.
TEST(Page, TheMarkupHasNothingThatThePolicyRefuses) {
  const std::string html = page_answer("/", "").body;
  for (const char* refused : {"<script>", "<style", " style=", " onclick=", "http:", "https:", "//"}) {
    EXPECT_EQ(html.find(refused), std::string::npos) << refused;
  }
}

TEST(Page, AFileThatTheBrowserHasIsNotSentAgain) {
  const HttpAnswer whole = page_answer("/page/app.css", "");
  const std::string tag = header(whole, "ETag");
  EXPECT_EQ(whole.status, 200);
  for (const std::string& held : {tag, "W/" + tag, "\"other\", " + tag, std::string("*")}) {
    const HttpAnswer again = page_answer("/page/app.css", held);
    EXPECT_EQ(again.status, 304) << held;
    EXPECT_TRUE(again.body.empty()) << held;
    EXPECT_EQ(header(again, "ETag"), tag);
  }
  EXPECT_EQ(page_answer("/page/app.css", "\"other\"").status, 200);
  EXPECT_EQ(page_answer("/", tag).status, 200);  // tags tell files apart
}

TEST(Page, WhatIsNotThereIsNotFound) {
  for (const char* path : {"/page/", "/page/other.js", "/page/../app.css", "/page/index.html"}) {
    EXPECT_THROW(page_answer(path, ""), ApiError) << path;
  }
}

}  // namespace
}  // namespace lapidary::serve
