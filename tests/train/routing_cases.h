// Cases of moe_parity on given logits.
#pragma once

#include <filesystem>

#include "tests/support/parity_report.h"

namespace loom::test {

// Every entry of DIR/case.json with the tensors of DIR/tensors.safetensors: a case each, in fp64 and in fp32, with the
// tolerances of the file. A key that is not used fails its case.
void run_routing_cases(const std::filesystem::path& folder, ParityReport& report);

}  // namespace loom::test
