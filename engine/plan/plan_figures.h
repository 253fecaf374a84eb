// The figures of two plans beside each other.
//
// Text     a line for each figure; all of one part and kind have one unit, which the line names. At most kTextColumns.
// JSON     the same figures, in bytes and ns.
// Threads  safe from any number of threads.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/planner.h"

namespace loom::plan {

enum class FigureKind : std::uint8_t { kBytes, kTime, kRate, kShare, kCount, kMoney };

// A figure that one of them does not have is 0: no such collective, no such phase.
struct FigurePair {
  std::string part;    // "step", "memory in forward"
  std::string figure;  // "peak allocated"
  FigureKind kind = FigureKind::kCount;
  double a = 0;
  double b = 0;

  std::optional<double> ratio() const { return a == 0 ? std::nullopt : std::optional(b / a); }
};

// Time and speed of the step, its training if it is asked for, and the peaks of memory.
std::vector<FigurePair> main_figures(const StepEstimate& a, const StepEstimate& b);
// These, and memory by phase and category, the step's time by what the device does and by phase, its collectives, and
// the bytes over each axis of ranks. What is 0 in both is left out.
std::vector<FigurePair> all_figures(const StepEstimate& a, const StepEstimate& b);

// `a` and `b` are the titles of the columns.
std::string figure_table(std::span<const FigurePair> figures, std::string_view a, std::string_view b);
nlohmann::ordered_json to_json(std::span<const FigurePair> figures);

}  // namespace loom::plan
