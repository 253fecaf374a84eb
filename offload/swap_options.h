// SwapOptions: the activations of a job that leave the device, by its flags. The file's key is beside them:
// activation_offload_modules (sharding/config).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace loom::offload {

class SwapWatch;

// The saved tensors of one block that leave, by their numbers (activation_swap.h).
struct ChosenTensors {
  std::string block;  // its path
  std::vector<std::int64_t> ordinals;
  bool operator==(const ChosenTensors&) const = default;
};

struct SwapOptions {
  bool swap_attention = false;  // --swap-attention: all that swap_modules save, in every decoder layer but the last
  std::vector<std::string> swap_modules = {"input_norm", "self_attention", "post_attention_norm"};
  // Beside --swap-attention: the number of first layers whose MLPs are recomputed in backward.
  std::int64_t swap_recompute_mlps = 0;

  bool smart_swap = false;  // --smart-swap: tensors are chosen until a step fits
  // MiB, the limit of a step; none: the device profile's memory.
  std::optional<std::int64_t> smart_swap_device_size = {};
  std::vector<ChosenTensors> smart_swap_chosen = {};  // filled in before the ranks start (engine/plan/smart_swap.h)
  std::shared_ptr<SwapWatch> smart_swap_watch = {};   // for the planned step that the choice is made from; else null

  // Whether flags enable swap; the file may swap too.
  bool swaps() const { return swap_attention || !smart_swap_chosen.empty() || smart_swap_watch != nullptr; }
};

}  // namespace loom::offload
