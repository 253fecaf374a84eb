// pipeline_parity DIR: the pipelines of DIR against the software whose rules they follow. DIR/orders and DIR/splits are
// data: no model is built. DIR/curves and DIR/stages train, their ranks as threads.
//
// Output   as parity_report.h; a folder that is missing has no cases.
#include <filesystem>
#include <string_view>

#include "tests/support/parity_report.h"
#include "tests/train/pipeline_curves.h"
#include "tests/train/pipeline_order_cases.h"
#include "tests/train/pipeline_splits.h"

namespace loom::pipeline_parity {
namespace {

// A folder of DIR, and what runs its cases. A family of cases is one entry.
struct Family {
  std::string_view folder;
  void (*run)(const std::filesystem::path&, test::ParityReport&);
};

constexpr Family kFamilies[] = {
    {"orders", run_pipeline_orders},
    {"splits", test::run_splits},
    {"curves", test::run_pipeline_curves},
    {"stages", test::run_pipeline_stages},
};

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  for (const Family& family : kFamilies) {
    if (std::filesystem::exists(folder / family.folder)) family.run(folder / family.folder, report);
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::pipeline_parity

int main_of_pipeline_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "pipeline_parity", loom::pipeline_parity::run);
}
