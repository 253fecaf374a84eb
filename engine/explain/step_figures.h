// StepFigures: the time of a step's work on one rank's device, and what FSDP does in it, in the terms that a trace of
// torch.profiler and a plan have in common.
//
// Step      of a trace with annotations "Optimizer.step#...": the last one, from the end of the optimizer's step before
//           it; else all of it. Work belongs to it that was launched within.
// Phase     of work: when the host launched it. The forward begins at a root's pre-forward, the backward with its first
//           node.
// Group     of work in forward: the innermost module of FSDP that runs; in backward: the one whose backward began last.
//           Copies and collectives of FSDP itself have none. Groups that differ in numbers alone are one:
//           model.layers.{*}.
// Order     "AG g": all-gather issued, "W g": waited for and copied out, "RS g": reduction; in the order of the host.
// Classes   by the names of kernels in a trace, by operators in a plan.
// Units     microseconds of device time, streams added up, but for step and busy.
// Threads   any.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/torch/profiler_trace.h"
#include "engine/plan/planner.h"

namespace loom::explain {

// kShardingCopy: FSDP's own copies in and out of buffers.
enum class WorkClass : std::uint8_t { kProduct, kAttention, kOther, kShardingCopy, kCollective };
inline constexpr std::size_t kWorkClasses = 5;
// "matrix products".
std::string_view name_of(WorkClass work);

enum class StepPhase : std::uint8_t { kForward, kBackward, kOptimizer };
inline constexpr std::size_t kStepPhases = 3;
std::string_view name_of(StepPhase phase);

struct StepFigures {
  double step_us = 0;                                       // from the host's begin to the end of the last work
  double busy_us = 0;                                       // in which work that is no collective runs
  std::array<double, kStepPhases> by_phase{};               // without collectives
  std::array<double, kWorkClasses> by_class{};              //
  std::map<std::string, std::array<double, 2>> by_group{};  // forward, backward; without copies and collectives
  std::vector<std::string> order{};
  std::size_t works = 0;
};

// ConfigError that begins with the file: several devices, no work in the step.
StepFigures figures_of(const io::ProfilerTrace& trace, std::string_view file);
// Precondition: recorded with the sites of entries (MemoryOptions::record_allocator).
StepFigures figures_of(const plan::PlannedRun& run);

// How many events of one order have to go and come to give the other.
std::size_t events_apart(const std::vector<std::string>& one, const std::vector<std::string>& other);

}  // namespace loom::explain
