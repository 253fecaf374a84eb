// A case of vision_parity whose model is an InternVL: features, logits, generation and a curve, on 1, 2 and 4 ranks.
#pragma once

#include <filesystem>

#include "tests/support/parity_report.h"

namespace loom::test {

void run_internvl_case(const std::filesystem::path& folder, ParityReport& report);

}  // namespace loom::test
