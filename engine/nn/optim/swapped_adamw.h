// SwappedAdamW: AdamW whose moments live in pinned host memory and are on the device only while they are used. Values,
// state names and checkpoints are AdamW's (adamw.h).
//
// Swapped     exp_avg and exp_avg_sq: 8 bytes an element of the shard in fp32. The fp32 shard is the master here and
//             stays on the device, with its gradient.
// Batches     BatchesByMemory: as many whole parameters, in their order, as have moments that fit into the share of the
//             device's unused memory when the step begins; one batch at a time. SlicesByCount: the elements of all
//             parameters in their order, cut into so many runs of equal length, which end anywhere inside a parameter;
//             the next slice comes while one is updated. Parameters without gradient are left out.
// Order       copies to the device on the h2d stream, two for each piece; compute waits for the piece and updates it;
//             copies to the host on the d2h stream. The copies in of a batch wait for the copies out of the one before
//             (slices: of the one before that), whose memory they take.
// Memory      on the device 2 * (bytes of the largest batch), of two slices with SlicesByCount, from the h2d stream's
//             pool while a step runs, and nothing between steps. On the host the moments, pinned, category
//             optimizer_state, made at the first step that has a gradient or when state is loaded.
// Time        of a batch b that is copied in i(b), updated u(b) and copied out o(b): BatchesByMemory takes the sum of
//             i + u + o, less what overlaps inside a batch (pieces are updated while the next come, and leave while the
//             next are updated). SlicesByCount hides copies behind copies of the other direction and behind updates.
// foreach     of AdamWOptions has no effect: the update is fused, as MindSpeed's is.
// Errors      ConfigError when it is made: a parameter in host memory (offload_to_cpu), whose moments are there too.
//             ConfigError of step(), before it changes anything: a parameter whose moments alone do not fit.
// Threads     the rank's host thread.
// Source      MindSpeed-MM, optimizer/swap_optimizer.py (adamw_swap); MindSpeed, --swap-optimizer.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/device/event.h"
#include "engine/nn/optim/adamw_rule.h"

namespace loom::nn {

struct BatchesByMemory {
  double mem_fraction_static = 0.8;  // above 0, at most 1
};
struct SlicesByCount {
  int times = 16;  // at least 1
};
using MomentSwap = std::variant<BatchesByMemory, SlicesByCount>;

class SwappedAdamW final : public Optimizer {
 public:
  // Groups without a learning rate or weight decay get the values of `options`.
  SwappedAdamW(ParameterGroups groups, const AdamWOptions& options, const MomentSwap& swap);

  std::string_view name() const override { return "AdamW"; }
  void step() override;

 protected:
  StateNames state_names(const ParameterGroup&) const override { return AdamWState::names(); }
  ParameterState state_of(const OptimizedParameter& parameter) const override;
  ParameterState make_state(const ParameterGroup&, const OptimizedParameter& parameter,
                            const ParameterState& numbers) override;
  void drop_state(const OptimizedParameter& parameter) override { states_.erase(parameter.value.id()); }
  std::map<std::string, double> options(const ParameterGroup&) const override { return saved_options(options_); }
  void set_options(const ParameterGroup&, const std::map<std::string, double>& options) override {
    load_options(options_, options);
  }

 private:
  using State = AdamWState;  // its tensors are in host memory
  struct Piece;
  using Batch = std::vector<Piece>;
  class Passage;

  State& state_for(const OptimizedParameter& parameter);
  void wait_for_moments();
  void set_ready(const device::Event& home);
  std::vector<Piece> whole_parameters();
  std::vector<Batch> batches();
  static std::vector<Batch> batches_in(const std::vector<Piece>& parameters, double fraction);
  static std::vector<Batch> slices_of(const std::vector<Piece>& parameters, int times);

  AdamWOptions options_;
  const MomentSwap swap_;
  std::unordered_map<const void*, State> states_;  // by Tensor::id() of the parameter
  Tensor last_home_;                               // the last moment copied to the host
};

}  // namespace loom::nn
