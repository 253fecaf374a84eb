// Cases of pipeline_parity on splits: which layers lie on which stage.
#pragma once

#include <filesystem>

#include "tests/support/parity_report.h"

namespace loom::test {

// Every case of every FILE.json of the folder, in the order of names; the name says whose rule it is. All figures of
// all stages must be equal, and what the original refuses must be refused. A key that is not used fails its case.
void run_splits(const std::filesystem::path& folder, ParityReport& report);

}  // namespace loom::test
