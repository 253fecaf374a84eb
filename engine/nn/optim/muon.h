// Muon: orthogonalized momentum for the hidden matrices, AdamW for everything else; equal on any number of ranks.
//
// Matrices    the groups whose hidden_matrices is set (make_parameter_groups): weights [A,B], and stacks [E,A,B] of
//             experts, each matrix separately. buffer += (1 - mu) (g - buffer); u = g + mu (buffer - g) with Nesterov's
//             form, else buffer; O = orthogonalized(u); W = (1 - lr wd) W - lr s O, where s is the scale of the shape.
// Sharded     each matrix has an owner among the ranks of its shard axis: the whole u goes to it, is orthogonalized
//             there in one order of sums, and its rows go back. N ranks process N matrices at once, a round: largest
//             first, owners in rising and falling order by turns. u travels in bf16 (fp64 for fp64 parameters), the
//             momentum stays sharded in fp32. Stacks are cut by matrix, and none of them travels.
// Order       momentum and gather of a round are issued before the one before it is orthogonalized, and the one before
//             that is applied after it; gathers and scatters on RowShards::stream, on a lane of their own.
// Memory      a momentum beside each shard; during a step this rank's rows of up to three rounds in bf16, two whole
//             updates that it owns, and the buffers of orthogonalized() for the largest one.
// The rest    AdamW with the learning rate and weight decay of its groups; MuonOptions::scalar_lr gives it a rate of
//             its own.
// State       "momentum_buffer" for hidden matrices, AdamW's for the others.
// Errors      ConfigError at construction: shards in host memory (offload_to_cpu), a matrix of which the ranks of its
//             shard axis have only a part, fp16 parameters.
// Threads     the rank's host thread. step() is collective.
// Source      torch/optim/_muon.py (the whole-matrix form); MindSpeed-MM, mindspeed_mm/optimizer/muon.py
//             (matched_adamw_rms 0.2 is the spectral scale times 0.2); megatron/core/optimizer/muon.py (scale modes,
//             coefficients).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/device/device.h"
#include "engine/nn/optim/adamw_rule.h"
#include "engine/nn/optim/muon_options.h"
#include "engine/tensor/ops/orthogonalize.h"

namespace loom::nn {

// How the ranks of an axis hold a parameter; Muon takes matrices that are cut by rows.
struct RowShards {
  std::shared_ptr<comm::ProcessGroup> ranks;
  std::int64_t padded_rows = 0;                          // of each rank; the last ones are padded
  Shape together;                                        // all that the ranks hold
  int dim = 0;                                           // that is cut
  device::StreamId stream = device::StreamId::kCompute;  // of exchanges among them
};
// By Tensor::id() of the parameter. Parameters that are not here are whole on this rank.
using ShardedParameters = std::unordered_map<const void*, RowShards>;

// The iteration with `steps` steps.
ops::NewtonSchulz iteration_of(MuonCoefficients coefficients, int steps);
// s without the extra factor.
double scale_of(MuonScale scale, std::int64_t rows, std::int64_t columns);

class Muon final : public Optimizer {
 public:
  // `sharded`: of the groups' parameters (sharding/sharded_parameters.h gives FSDP's).
  // Groups without a learning rate or weight decay get the values of `adamw`.
  Muon(ParameterGroups groups, const ShardedParameters& sharded, const MuonOptions& options, const AdamWOptions& adamw);
  ~Muon() override;

  std::string_view name() const override { return "Muon"; }
  void step() override;

 protected:
  StateNames state_names(const ParameterGroup& group) const override;
  ParameterState state_of(const OptimizedParameter& parameter) const override;
  ParameterState make_state(const ParameterGroup& group, const OptimizedParameter& parameter,
                            const ParameterState& numbers) override;
  void drop_state(const OptimizedParameter& parameter) override;
  std::map<std::string, double> options(const ParameterGroup& group) const override;
  void set_options(const ParameterGroup& group, const std::map<std::string, double>& options) override;

 private:
  class Matrix;
  class Round;
  // The matrices of a round.
  struct Deal {
    comm::ProcessGroup* ranks = nullptr;  // ranks that share them; null: not shared
    bool back = false;                    // owners in falling order
    std::vector<const OptimizedParameter*> matrices;
  };
  RowShards shards_of(const OptimizedParameter& parameter) const;
  std::vector<Deal> deal(const ParameterGroup& group) const;
  Round begin(const ParameterGroup& group, const Deal& deal);
  void step_matrices(const ParameterGroup& group);

  MuonOptions options_;
  AdamWRule rest_;
  ShardedParameters shards_;                         // of matrices that several ranks share
  std::unordered_map<const void*, Tensor> buffers_;  // of matrices, by Tensor::id() of the parameter
};

}  // namespace loom::nn
