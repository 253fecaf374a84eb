// memory_parity FILE|FOLDER: the memory of PyTorch FSDP2 on a real device, phase by phase.
//
// Every row of FILE (tests/reference/memory, or tests/memory/mx_rows.json), or the rows that the recorded model in
// FOLDER (tests/reference/graphs/h200_llama_1b) stands for, is run dry as rank 0 of its world and
// compared: allocated bytes within 1 % in every phase, reserved bytes within 5 %, and no two rows in another order than
// measured where they differ by more than 2 %. A line per row: its worst phase, then the signed errors of all phases in
// the order of the file's phases. The figures of mx_rows.json are rounded to 0.01 GiB, which is allowed for.
#include <fmt/format.h>

#include "tests/memory/plain_llama_run.h"
#include "tests/memory/reference_run.h"
#include "tests/support/parity_report.h"

namespace loom::memory_parity {
namespace {

using test::CaseJson;

constexpr double kAllocatedTolerance = 0.01;
constexpr double kReservedTolerance = 0.05;
constexpr double kOrderMatters = 0.02;
constexpr int kSteps = 4;  // the measurement is of the fourth step

constexpr double kGiB = 1024.0 * 1024 * 1024;

// One figure of a row, predicted and measured.
struct Figure {
  std::string phase;
  double predicted = 0;
  double measured = 0;
  double tolerance = 0;  // relative
  double rounding = 0;   // of what was measured

  double error() const { return (predicted - measured) / measured; }
  double share_of_tolerance() const { return std::abs(predicted - measured) / (tolerance * measured + rounding); }
};
using Figures = std::vector<Figure>;

struct ReferencePhase {
  const char* key;
  std::int64_t test::PhaseBytes::*predicted;
  double tolerance;
};
constexpr ReferencePhase kReferencePhases[] = {
    {"after_init_bytes", &test::PhaseBytes::after_init, kAllocatedTolerance},
    {"forward_peak_bytes", &test::PhaseBytes::forward_peak, kAllocatedTolerance},
    {"after_forward_bytes", &test::PhaseBytes::after_forward, kAllocatedTolerance},
    {"backward_peak_bytes", &test::PhaseBytes::backward_peak, kAllocatedTolerance},
    {"after_backward_bytes", &test::PhaseBytes::after_backward, kAllocatedTolerance},
    {"optim_peak_bytes", &test::PhaseBytes::optim_peak, kAllocatedTolerance},
    {"steady_bytes", &test::PhaseBytes::steady, kAllocatedTolerance},
    {"reserved_bytes", &test::PhaseBytes::reserved, kReservedTolerance},
};

using Recorded = std::shared_ptr<const models::GraphProgram>;

Figures reference_figures(const CaseJson& row, const Recorded& recorded) {
  test::ReferenceRun run(test::ReferenceRow::from_json(row), recorded);
  test::PhaseBytes bytes;
  for (int step = 0; step < kSteps; ++step) bytes = run.step();
  Figures figures;
  for (const ReferencePhase& phase : kReferencePhases) {
    auto measured = row.at(phase.key).get<double>();
    // The first row of a process was measured before the workspace was there. Then a steady state of three shards and
    // the workspace is more than three times the one shard of the beginning.
    const bool first = row.at("steady_bytes").get<double>() > 3 * row.at("after_init_bytes").get<double>();
    if (first && phase.predicted == &test::PhaseBytes::after_init) measured += test::kWorkspaceBytes;
    figures.push_back({phase.key, static_cast<double>(bytes.*phase.predicted), measured, phase.tolerance});
  }
  return figures;
}

struct MxPhase {
  const char* key;
  std::int64_t test::StepBytes::*predicted;
  double tolerance;
  bool of_one_micro_batch = false;
};
constexpr MxPhase kMxPhases[] = {
    {"forward_peak_gib", &test::StepBytes::forward_peak, kAllocatedTolerance, true},
    {"after_forward_gib", &test::StepBytes::after_forward, kAllocatedTolerance, true},
    {"backward_peak_gib", &test::StepBytes::backward_peak, kAllocatedTolerance, true},
    {"peak_allocated_gib", &test::StepBytes::peak_allocated, kAllocatedTolerance},
    {"steady_gib", &test::StepBytes::steady, kAllocatedTolerance},
    {"peak_reserved_gib", &test::StepBytes::peak_reserved, kReservedTolerance},
};
constexpr double kMxRounding = 0.01 * kGiB;

Figures mx_figures(const CaseJson& row, const CaseJson& models) {
  test::PlainLlamaRun run(test::PlainLlamaRow::from_json(row, models));
  const test::StepBytes first = run.step();
  test::StepBytes last;
  for (int step = 1; step < kSteps; ++step) last = run.step();
  Figures figures;
  for (const MxPhase& phase : kMxPhases) {
    const bool of_first_step = phase.of_one_micro_batch && row.at("phases_of_first_step").get<bool>();
    figures.push_back({phase.key, static_cast<double>((of_first_step ? first : last).*phase.predicted),
                       row.at(phase.key).get<double>() * kGiB, phase.tolerance, kMxRounding});
  }
  return figures;
}

// Whoever chooses between two configurations by a prediction chooses as by the measurement.
void check_order(const std::vector<Figures>& rows, test::ParityReport& report) {
  int pairs = 0;
  std::string wrong;
  for (std::size_t phase = 0; phase < rows.front().size(); ++phase) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j < rows.size(); ++j) {
        const Figure &low = rows[i][phase], &high = rows[j][phase];
        if (high.measured - high.rounding <= (low.measured + low.rounding) * (1 + kOrderMatters)) continue;
        ++pairs;
        if (low.predicted < high.predicted) continue;
        wrong += fmt::format(" {} of rows {} and {};", low.phase, i, j);
      }
    }
  }
  const std::string detail = fmt::format("{} pairs of rows and phases that differ by more than 2 %", pairs);
  wrong.empty() ? report.passed("order", detail) : report.failed("order", detail + ", wrong:" + wrong);
}

void report_row(const std::string& name, const Figures& figures, test::ParityReport& report) {
  std::string line;
  const Figure* worst = &figures.front();
  for (const Figure& figure : figures) {
    line += fmt::format(" {:+.2f}%", 100 * figure.error());
    if (figure.share_of_tolerance() > worst->share_of_tolerance()) worst = &figure;
  }
  const std::string detail = fmt::format("worst {} {:+.2f} %; {}", worst->phase, 100 * worst->error(), line);
  worst->share_of_tolerance() <= 1 ? report.passed(name, detail) : report.failed(name, detail);
}

int run(const std::filesystem::path& path) {
  const CaseJson content = test::read_case(path);
  const bool mx = !content.is_array();
  if (mx && !(content.at("kind") == "plain_llama_steps")) config_error("kind is {}", content.at("kind").dump());
  const CaseJson rows = mx ? content.at("rows") : content;
  std::vector<Figures> all;
  test::ParityReport report;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const CaseJson row = rows.at(i);
    all.push_back(mx ? mx_figures(row, content.at("models")) : reference_figures(row, nullptr));
    const std::string name = mx ? fmt::format("{:45}", test::PlainLlamaRow::from_json(row, content.at("models")).text())
                                : fmt::format("{:2} {:33}", i, test::ReferenceRow::from_json(row).name());
    const std::string unread = row.unread({"params", "fwd_bwd_opt_ms", "step_ms"});  // times: time_parity
    unread.empty() ? report_row(name, all.back(), report) : report.failed(name, unread);
  }
  if (mx) content.check_all_read({"units", "rows"});
  check_order(all, report);
  return report.finish();
}

// gpu_ref.py computes the loss from the model's logits; the recorded model computes it itself. Here it ends where the
// last module in it does, lm_head, whose results are its own: then FSDP's gather buffer is free before the loss.
models::ModelGraph with_loss_outside(models::ModelGraph graph) {
  using models::EventKind;
  const auto exits = [](int module) {
    return [module](const models::GraphEvent& event) { return event.kind == EventKind::kExit && event.id == module; };
  };
  const int head =
      static_cast<int>(std::ranges::find(graph.modules, "lm_head", &models::GraphModule::path) - graph.modules.begin());
  std::erase_if(graph.events, exits(0));
  const auto end_of_head = std::ranges::find_if(graph.events, exits(head));
  if (end_of_head == graph.events.end()) config_error("{}: lm_head is never called", graph.file);
  models::GraphEvent end = *end_of_head;
  end.id = 0;
  graph.events.insert(end_of_head + 1, end);
  return graph;
}

// FOLDER of a recorded model: the rows of a table that it stands for.
int run_recorded(const std::filesystem::path& folder) {
  const CaseJson about = test::read_case(folder / "rows.json");
  const CaseJson table = test::read_case(folder.parent_path().parent_path() / about.at("source").get<std::string>());
  const auto program = std::make_shared<const models::GraphProgram>(
      models::make_graph_program(with_loss_outside(models::GraphFile(folder / "graph.json.gz").at())));
  std::vector<Figures> all;
  test::ParityReport report;
  for (const CaseJson& index : about.at("rows").elements()) {
    const auto i = index.get<std::size_t>();
    const CaseJson row = table.at(i);
    all.push_back(reference_figures(row, program));
    report_row(fmt::format("{:2} {:33}", i, test::ReferenceRow::from_json(row).name()), all.back(), report);
  }
  about.check_all_read({"case", "activations_after_forward_bytes"});
  check_order(all, report);
  return report.finish();
}

}  // namespace
}  // namespace loom::memory_parity

int main_of_memory_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "memory_parity", [](const std::filesystem::path& path) {
    return is_directory(path) ? loom::memory_parity::run_recorded(path) : loom::memory_parity::run(path);
  });
}
