// moe_parity DIR: the routers of transformers and Megatron.
//
// Every subfolder of DIR with a case.json has cases on given logits (routing_cases.h): choices and weights of routers,
// auxiliary losses with their gradients, updates of the correction bias, capacity.
#include "tests/train/routing_cases.h"

namespace loom {
namespace {

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  for (const auto& cases : test::case_folders(folder, "case.json")) test::run_routing_cases(cases, report);
  return report.finish();
}

}  // namespace
}  // namespace loom

int main(int argc, char** argv) { return loom::test::parity_main(argc, argv, "moe_parity", loom::run); }
