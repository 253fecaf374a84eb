// What an exception says to the user: the errors of the engine as they are, those of the standard library in words that
// name the file or the flag, and the next step.
#pragma once

#include <exception>
#include <string>

namespace loom::launch {

std::string failure_text(const std::exception& error);

}  // namespace loom::launch
