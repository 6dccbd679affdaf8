// docs/serving.md and deploy/ say what the program does: flags, defaults, metrics.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "formats/mapped_file.h"
#include "serve/metrics/metrics.h"
#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

const std::filesystem::path kRoot = data_path("../..");

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Flag -> default, as --help has them: "off" for a flag whose help names none.
std::map<std::string, std::string> flags_of_help() {
  const Program program;
  const Outcome help = program.run({"serve", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  static const std::regex flag(R"(^  (?:-\w,)?(--[a-z-]+))"), given(R"(\(default:? ([^()]*)\))");
  std::map<std::string, std::string> flags;
  std::string name, text;
  const auto finish = [&] {
    std::smatch match;
    if (!name.empty() && name != "--help")
      flags[name] = std::regex_search(text, match, given) ? match[1].str() : "off";
    name.clear();
  };
  for (const std::string& line : lines_of(help.out)) {
    std::smatch match;
    if (std::regex_search(line, match, flag)) {
      finish();
      name = match[1];
      text = line;
    } else if (line.starts_with("     ")) {
      text += " " + line.substr(line.find_first_not_of(' '));
    } else {
      finish();
    }
  }
  finish();
  return flags;
}

// First and second cell of the table rows whose first cell is code: `x`.
std::map<std::string, std::string> rows_of(const std::string& text, const std::string& begins_with) {
  static const std::regex row(R"(^\| `([^`]+)` \| ([^|]*) \|)");
  std::map<std::string, std::string> rows;
  for (const std::string& line : lines_of(text)) {
    std::smatch match;
    if (std::regex_search(line, match, row) && match[1].str().starts_with(begins_with))
      rows[match[1]] = match[2];
  }
  return rows;
}

TEST(ServeDocs, EveryFlagIsThereWithItsDefault) {
  const std::string document = read_text_file(kRoot / "docs/serving.md");
  EXPECT_EQ(rows_of(document, "--"), flags_of_help());
}

TEST(ServeDocs, EveryMetricIsThereWithItsKind) {
  const serve::Metrics metrics(serve::Metrics::About{"m", "1", "exact", {"/v1/models"}});
  std::map<std::string, std::string> known;
  for (const serve::MetricDescription& metric : metrics.describe()) known[metric.name] = metric.type;
  ASSERT_GT(known.size(), 20u);
  const std::string document = read_text_file(kRoot / "docs/serving.md");
  std::map<std::string, std::string> rows = rows_of(document, "vllm:");
  rows.merge(rows_of(document, "lapidary:"));
  EXPECT_EQ(rows, known);
}

// A flag of ours as a word: what belongs to other programs in these files is listed.
TEST(ServeDeploy, FlagsExist) {
  const std::map<std::string, std::string> known = flags_of_help();
  const std::set<std::string> of_others = {"--no-install-recommends",
                                           "--system",
                                           "--uid",
                                           "--home-dir",
                                           "--shell",
                                           "--now",
                                           "--interval",
                                           "--timeout",
                                           "--start-period",
                                           "--rm",
                                           "--memory",
                                           "--read-only",
                                           "--from",
                                           "--no-create-home"};
  static const std::regex word(R"((?:^|[\s\[",`])(--[a-z][a-z-]*))");
  size_t ours = 0;
  for (const char* name : {"lapidary.service", "Containerfile", "nginx.conf", "prometheus.yml"}) {
    const std::string text = read_text_file(kRoot / "deploy" / name);
    for (std::sregex_iterator match(text.begin(), text.end(), word), end; match != end; ++match) {
      const std::string flag = (*match)[1];
      ours += known.contains(flag) ? 1 : 0;
      EXPECT_TRUE(known.contains(flag) || of_others.contains(flag)) << name << ": " << flag;
    }
  }
  EXPECT_GT(ours, 10u);
}

TEST(ServeDeploy, NginxWaitsLongerThanARequestMayTake) {
  const std::string nginx = read_text_file(kRoot / "deploy/nginx.conf");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(nginx, match, std::regex(R"(proxy_read_timeout (\d+)s)")));
  EXPECT_GT(std::stoi(match[1]), std::stoi(flags_of_help().at("--timeout")));
  EXPECT_NE(nginx.find("proxy_buffering off"), std::string::npos);
}

}  // namespace
}  // namespace lapidary::test
