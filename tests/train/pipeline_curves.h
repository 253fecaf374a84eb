// The trained cases of pipeline_parity: curves, and what a stage does in the second step of one (stages).
#pragma once

#include <filesystem>

#include "tests/support/parity_report.h"

namespace loom::test {

// Every *.json of the folder, in the order of their names.
void run_pipeline_curves(const std::filesystem::path& folder, ParityReport& report);
// The base of a case is that of the curve of its name, in `folder`/../curves.
void run_pipeline_stages(const std::filesystem::path& folder, ParityReport& report);

}  // namespace loom::test
