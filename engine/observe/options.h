// ProfileOptions and ReportOptions: the records of a run for users.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace loom::observe {

// The contents of a profile: 0 the work of the streams, kernels in one piece, collectives with their ranks; 1 each
// kernel too; 2 also shapes, the waits of streams, and memory.
enum class ProfileLevel : std::uint8_t { kLevel0, kLevel1, kLevel2 };

// --profile and its related flags, with MindSpeed's meanings and defaults (profiler.h).
struct ProfileOptions {
  bool enabled = false;
  std::int64_t step_start = 10;  // first step collected, counted from 0 as Megatron does
  std::int64_t step_end = 12;    // step before which collection ends
  ProfileLevel level = ProfileLevel::kLevel0;
  bool with_cpu = false;       // the host's work too
  bool with_stack = false;     // call sites: the running modules
  bool with_memory = false;    // as in level 2
  bool record_shapes = false;  // as in level 2
  std::filesystem::path save_path = "./profile_dir";
  std::vector<int> ranks{0};                     // collected
  bool all_ranks = false;                        // by mm_tool: settled into `ranks`
  std::optional<std::string> device;             // a device profile: virtual time beside the wall clock's
  std::optional<std::filesystem::path> mm_tool;  // MindSpeed-MM's tools.json, which sets the members above
};

// --report, --memory-snapshot and --print-schedule.
struct ReportOptions {
  std::optional<std::filesystem::path> path;  // --report: an HTML page of the run or plan; none = not written
  std::string device = "cpu";                 // the profile that times a run's recorded step; --device in plans
  // --memory-snapshot: the allocator's events of a step, for torch.cuda._memory_viz; none = not written
  std::optional<std::filesystem::path> memory_snapshot;
  bool print_schedule = false;            // the order of events of the second step, or of the only one
  std::vector<std::string> command_line;  // the words as given, without the program
};

}  // namespace loom::observe
