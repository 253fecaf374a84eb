// Adaptive recompute: for each module, the cheapest of keeping, recomputing and swapping its activations with which a
// step fits a budget of device memory.
//
// Modules   the file's recompute_modules, else the containers that it wraps ("model.layers.{*}"). Modules of
//           one type with parameters of the same shapes are alike: one class.
// Modes     of a module: keep all; keep the results of selected operators (recompute_keep: selected_ops_needed); swap
//           what it saves to the host; recompute it; recompute it and swap its input too. Recompute is not reentrant.
// Costs     from the planner: a step with all modules of a class in one mode, against the step that keeps all. Saved
//           bytes and added time of one module are the difference over their number. A mode that saves nothing, or
//           saves less than a cheaper one, is left out.
// Search    exact over the numbers of modules in each mode (those that no other choice beats in both bytes and time),
//           in the order of their cost; planning finds the first that fits. So the reported figures of the choice,
//           peak and step, come from its own plan, and a larger budget never costs more.
// Places    of a class, in the order of forward: swapped, recomputed, selected, kept. The first to leave have the most
//           time to come back.
// Same      input, same choice: nothing is measured.
// Errors    ConfigError: no file, no module to choose for. OutOfMemoryError with the minimum that a step needs, with
//           all modules in their smallest mode.
// Threads   the calling thread.
// Source    MindSpeed, adaptive selective recompute; its measured first steps are planned here.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/planner.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::plan {

enum class KeepMode : std::uint8_t { kKeep, kSelected, kSwap, kRecompute, kRecomputeSwapped };
inline constexpr std::size_t kKeepModes = 5;
std::string_view name(KeepMode mode);

struct AdaptedModule {
  std::string path;
  KeepMode mode = KeepMode::kKeep;
};

// The effect of one mode on one module of a class.
struct ModeCost {
  std::int64_t saved_bytes = 0;
  std::int64_t added_ns = 0;
};

struct AdaptedClass {
  std::string type;                          // of the modules
  std::vector<std::string> paths = {};       // in the order of forward
  std::vector<std::size_t> places = {};      // of these, among the modules of all classes
  std::array<ModeCost, kKeepModes> costs{};  // of kKeep: nothing
  std::array<int, kKeepModes> counts{};      // chosen: modules in each mode
};

struct AdaptiveChoice {
  std::vector<AdaptedClass> classes;
  std::vector<AdaptedModule> modules;
  std::int64_t budget_bytes = 0;
  StepEstimate all_kept;  // the step that keeps everything, in unlimited memory; its run is dropped
  StepEstimate chosen;
};

// The choice for `arguments.memory.device_memory_mib`, or the profile's memory.
AdaptiveChoice choose_adaptive(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                               const virtual_time::HardwareProfile& profile);

// Puts a choice into a configuration.
void apply_modes(const std::vector<AdaptedModule>& modules, sharding::Fsdp2Config& config);

// Modules by mode, bytes and times; as JSON.
nlohmann::ordered_json to_json(const AdaptiveChoice& choice);
// A table: a line for each class and mode that saves something or is in use, and the step against the step that keeps
// all.
std::string to_text(const AdaptiveChoice& choice);

}  // namespace loom::plan
