// "Did you mean ...?": the known word nearest to a misspelt one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);
// The nearest of `known`, of which `word` may be a misspelt beginning; nothing when all are further than a
// third of the word's length (at least one edit is allowed).
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace lapidary
