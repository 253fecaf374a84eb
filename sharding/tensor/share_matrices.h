// Tensor and sequence parallelism: the ranks that share matrices, the cut of their parameters, and what moves between
// the ranks in forward and backward.
//
// Mesh        W ranks are dp_replicate x dp_shard x tp, tp fastest: t neighbours share matrices; FSDP works on the
//             W / t ranks with the same parts. Gradients are averaged over W / t.
// Forward     a block's input is whole on all ranks, or gathered along the sequence; what rowwise layers give is
//             all-reduced, or reduce-scattered along the sequence. The embedding has some ids of the vocabulary, the
//             output layer too: with loss_parallel the cross-entropy is computed on parts of the logits.
// Overlap     with overlap_slices collectives of linear layers run beside their products; with regather_colwise_input
//             colwise layers keep a rank's part of their input (dist/sliced_products.h). The output layer's input is
//             gathered at once, and so is that of adapters, and of layers that are groups of FSDP themselves.
// Gradients   of parameters that are not cut and see a part of the work (norms on parts of a sequence, norms of a
//             rank's heads, routers, copies of key/value heads) are partial: sum_partial_gradients() adds them up once
//             a step.
// Norms       count copies of a parameter once (TensorShares).
// Vocabulary  as torch.chunk cuts it: the last rank may have fewer ids, and at least one.
// Errors      ConfigError for a model without a plan, heads or an inner size that t does not divide, a vocabulary of
//             which a rank would have nothing, and modules that are no linear layers.
// Source      Megatron-LM (column- and row-parallel layers, sequence parallelism), torch.distributed.tensor.parallel.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/comm/mesh.h"
#include "engine/nn/module.h"
#include "sharding/config/fsdp2_config.h"
#include "sharding/tensor/tensor_plan.h"

namespace loom::sharding {

// The paths that a plan selects.
struct SharedMatrices {
  int ranks = 1;
  bool sequence_parallel = false;
  bool loss_parallel = true;
  int slices = 1;              // of the collectives of linear layers
  std::string slices_mark;     // where the file says it
  bool gathers_again = false;  // the input of colwise layers, in backward
  std::vector<std::string> colwise, rowwise, tokens;
  std::vector<JoinedMatrices> joined;   // of these layers, by path
  std::string embedding, output, head;  // paths; one of the last two is empty

  // Into how many parts the tokens of a rank are cut: along the sequence, or for experts.
  int token_cuts() const { return sequence_parallel || !tokens.empty() ? ranks : 1; }
};

// Attached to a model whose matrices are shared.
struct TensorShares {
  struct Share {
    int copies = 1;                                      // ranks of tensor parallelism with the same elements
    std::shared_ptr<comm::ProcessGroup> sums = nullptr;  // over which gradients are summed; null: they are alike
  };
  std::unordered_map<const nn::ParamSlot*, Share> shares;
  SharedMatrices matrices;
  std::vector<std::string> blocks;  // with colwise layers right below
};

// Of `config` and the model's plan, checked. Before anything is allocated.
SharedMatrices shared_matrices(nn::Module& model, const Fsdp2Config& config);

// Cuts the parameters and puts the communication around the modules. Before parameters are sharded. `expert_paths`:
// modules whose experts have ranks of their own. Collective.
void share_matrices(nn::Module& model, const SharedMatrices& matrices, const std::vector<std::string>& expert_paths,
                    const comm::Axis& axis);

// Adds the shares of a model that is part of `root` to those of `root`: of the stages of a pipeline.
void add_shares(nn::Module& root, const nn::Module& part);

// After the backward of a step, before norms and the optimizer. Collective.
void sum_partial_gradients(nn::Module& root);

// Copies of the parameter of this slot, 1 without tensor parallelism.
int copies_of(const TensorShares* shares, const nn::ParamSlot& slot);

}  // namespace loom::sharding
