// The page of report/, its parts put together when the program is built (report/embed.cmake): what stands before the
// data and what stands after it. Private to engine/observe.
#pragma once

#include <string_view>
#include <utility>

namespace loom::observe {

std::pair<std::string_view, std::string_view> report_template();

}  // namespace loom::observe
