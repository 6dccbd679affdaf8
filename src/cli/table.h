// Tables of text for terminals: columns as wide as their widest cell, numbers to the right.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/terminal.h"

namespace lapidary {

enum class Align { left, right };

class TextTable {
 public:
  // An empty heading for every column means a table without a heading line.
  explicit TextTable(std::vector<std::pair<std::string, Align>> columns);
  void add(std::vector<std::string> cells);  // REQUIRES: as many cells as columns
  std::string text(const Style& style, std::string_view indent = "  ") const;

 private:
  std::vector<std::pair<std::string, Align>> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lapidary
