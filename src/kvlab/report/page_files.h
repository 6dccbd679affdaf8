// The files of src/kvlab/report, built in by cmake/embed.cmake.
#pragma once

#include <string_view>

namespace lapidary::kvlab {

extern const std::string_view kPageHtml;    // with {{title}}, {{css}}, {{js}} and {{data}}
extern const std::string_view kPageStyle;   // CSS
extern const std::string_view kPageScript;  // the scripts, one behind the other

}  // namespace lapidary::kvlab
