// TORCHELASTIC_ERROR_FILE: where torchrun looks for the cause of a rank that failed, to show it in its report.
#pragma once

#include <string_view>

namespace loom::launch {

// Writes `text` there, with the time; nothing where the variable is not set, or the file cannot be written: the error
// itself has been printed.
void write_error_file(std::string_view text) noexcept;

}  // namespace loom::launch
