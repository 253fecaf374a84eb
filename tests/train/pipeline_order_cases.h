// The reference cases of pipeline_parity, by family.
//
//   orders   one file a case: who computes what when, equal token for token; its lists, figures and refusals
#pragma once

#include <filesystem>

#include "tests/support/parity_report.h"

namespace loom {

// Every *.json of the folder, in the order of their names.
void run_pipeline_orders(const std::filesystem::path& folder, test::ParityReport& report);

}  // namespace loom
