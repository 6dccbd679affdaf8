#include "cli/table.h"

#include <algorithm>

namespace lapidary {
namespace {

std::string padded(const std::string& cell, size_t width, Align align) {
  const std::string blanks(width - std::min(width, display_width(cell)), ' ');
  return align == Align::left ? cell + blanks : blanks + cell;
}

}  // namespace

TextTable::TextTable(std::vector<std::pair<std::string, Align>> columns) : columns_(std::move(columns)) {}

void TextTable::add(std::vector<std::string> cells) {
  rows_.push_back(std::move(cells));
}

std::string TextTable::text(const Style& style, std::string_view indent) const {
  std::vector<size_t> widths;
  bool headed = false;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = display_width(columns_[c].first);
    headed = headed || width != 0;
    for (const auto& row : rows_) width = std::max(width, display_width(row[c]));
    widths.push_back(width);
  }
  const auto line = [&](auto cell_of) {
    std::string text(indent);
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (c != 0) text += "  ";
      text += padded(cell_of(c), widths[c], columns_[c].second);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::string out;
  if (headed) out += style.dim(line([&](size_t c) { return columns_[c].first; })) + "\n";
  for (const auto& row : rows_) out += line([&](size_t c) { return row[c]; }) + "\n";
  return out;
}

}  // namespace lapidary
