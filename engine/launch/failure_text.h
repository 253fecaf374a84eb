// The text of an exception for the user: errors of the engine unchanged, errors of the standard library in words that
// name the file or the flag, and the next step.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace loom::launch {

std::string failure_text(const std::exception& error);

// Whether the machine, not a device, had no memory left.
bool is_out_of_memory(const std::exception& error);
// That, and what needs less: "use ...".
std::string out_of_memory_text(std::string_view advice);

}  // namespace loom::launch
