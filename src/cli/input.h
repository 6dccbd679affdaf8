// Text and ids from arguments, files and stdin.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary {

// All of stdin; Error(limit) beyond 256 MiB.
std::string read_stdin();
// "-" means stdin.
std::string read_text(const std::string& path);

// Token ids "1,2,3" or "1 2 3" or "[1, 2, 3]". Error(usage) names the first word that is no id; `what` says
// where it came from.
std::vector<int32_t> parse_ids(std::string_view text, std::string_view what);
// --ids: a list as above, or a .json file that holds an array of ids or an object with "input_ids".
std::vector<int32_t> ids_argument(const std::string& argument);

}  // namespace lapidary
