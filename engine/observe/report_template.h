// The page of report/, assembled when the program is built (report/embed.cmake): the text before the
// data and the text after it. Private to engine/observe.
#pragma once

#include <string_view>
#include <utility>

namespace loom::observe {

std::pair<std::string_view, std::string_view> report_template();

}  // namespace loom::observe
