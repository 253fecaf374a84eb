// memory_parity FILE: the memory of PyTorch FSDP2 on a real device, phase by phase.
//
// Every row of FILE (tests/reference/memory) is run dry as rank 0 of its world and compared: allocated bytes within 1 %
// in every phase, reserved bytes within 5 %, and no two rows in another order than measured where they differ by more
// than 2 %. A line per row: its worst phase, then the signed errors of all phases in the order of kPhases.
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/memory/reference_run.h"
#include "tests/support/parity_report.h"

namespace loom {
namespace {

using nlohmann::json;

constexpr double kAllocatedTolerance = 0.01;
constexpr double kReservedTolerance = 0.05;
constexpr double kOrderMatters = 0.02;
constexpr int kSteps = 4;  // the measurement is of the fourth step

struct Phase {
  const char* key;
  std::int64_t test::PhaseBytes::*predicted;
  double tolerance;
};
constexpr Phase kPhases[] = {
    {"after_init_bytes", &test::PhaseBytes::after_init, kAllocatedTolerance},
    {"forward_peak_bytes", &test::PhaseBytes::forward_peak, kAllocatedTolerance},
    {"after_forward_bytes", &test::PhaseBytes::after_forward, kAllocatedTolerance},
    {"backward_peak_bytes", &test::PhaseBytes::backward_peak, kAllocatedTolerance},
    {"after_backward_bytes", &test::PhaseBytes::after_backward, kAllocatedTolerance},
    {"optim_peak_bytes", &test::PhaseBytes::optim_peak, kAllocatedTolerance},
    {"steady_bytes", &test::PhaseBytes::steady, kAllocatedTolerance},
    {"reserved_bytes", &test::PhaseBytes::reserved, kReservedTolerance},
};

test::PhaseBytes predict(const test::ReferenceRow& row) {
  test::ReferenceRun run(row);
  test::PhaseBytes bytes;
  for (int step = 0; step < kSteps; ++step) bytes = run.step();
  return bytes;
}

double relative(std::int64_t predicted, std::int64_t measured) {
  return static_cast<double>(predicted - measured) / static_cast<double>(measured);
}

// The first rows of a process were measured before the workspace was there.
std::int64_t measured_bytes(const json& row, std::size_t index, const Phase& phase) {
  const bool without_workspace = (index == 0 || index == 29) && phase.predicted == &test::PhaseBytes::after_init;
  return row.at(phase.key).get<std::int64_t>() + (without_workspace ? test::kWorkspaceBytes : 0);
}

// Whoever chooses between two configurations by a prediction chooses as by the measurement.
void check_order(const json& rows, const std::vector<test::PhaseBytes>& predictions, test::ParityReport& report) {
  int pairs = 0;
  std::string wrong;
  for (const Phase& phase : kPhases) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j < rows.size(); ++j) {
        const auto low = static_cast<double>(measured_bytes(rows[i], i, phase));
        const auto high = static_cast<double>(measured_bytes(rows[j], j, phase));
        if (high <= low * (1 + kOrderMatters)) continue;
        ++pairs;
        if (predictions[i].*phase.predicted < predictions[j].*phase.predicted) continue;
        wrong += fmt::format(" {} of rows {} and {};", phase.key, i, j);
      }
    }
  }
  const std::string detail = fmt::format("{} pairs of rows and phases that differ by more than 2 %", pairs);
  wrong.empty() ? report.passed("order", detail) : report.failed("order", detail + ", wrong:" + wrong);
}

int run(const std::filesystem::path& path) {
  std::ifstream file(path);
  const json rows = json::parse(file);
  std::vector<test::PhaseBytes> predictions;
  test::ParityReport report;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = test::ReferenceRow::from_json(rows[i]);
    const test::PhaseBytes bytes = predict(row);
    std::string worst;
    double worst_share = 0;
    bool good = true;
    std::string line;
    for (const Phase& phase : kPhases) {
      const std::int64_t predicted = bytes.*phase.predicted;
      const double error = relative(predicted, measured_bytes(rows[i], i, phase));
      line += fmt::format(" {:+.2f}%", 100 * error);
      good = good && std::abs(error) <= phase.tolerance;
      if (std::abs(error) / phase.tolerance >= worst_share) {
        worst_share = std::abs(error) / phase.tolerance;
        worst = fmt::format("{} {:+.2f} %", phase.key, 100 * error);
      }
    }
    predictions.push_back(bytes);
    const std::string name = fmt::format("{:2} {:33}", i, row.name());
    const std::string detail = fmt::format("worst {}; {}", worst, line);
    good ? report.passed(name, detail) : report.failed(name, detail);
  }
  check_order(rows, predictions, report);
  return report.finish();
}

}  // namespace
}  // namespace loom

int main(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "memory_parity",
                                 [](const std::filesystem::path& path) { return loom::run(path); });
}
