// TensorPlan: how the matrices of a model are cut over the ranks of tensor parallelism. Attached to a model by its
// author; colwise_parallel and rowwise_parallel of the YAML replace its lists.
//
// colwise   linear layers of which each rank computes some outputs. Those of one attention (a module with a
//           dist::ContextSlot) are cut by whole heads; where there are fewer key/value heads than ranks, neighbours
//           have copies of one.
// rowwise   linear layers that read such outputs: the ranks' products are summed, then the bias is added.
// joined    colwise layers of which each rank computes its part of every matrix.
// tokens    modules that work on each token by itself and are not cut: each rank computes its part of the tokens
//           (mixtures of experts).
// Blocks    the modules right above colwise layers take hidden states as their first argument; their code gives these
//           to the modules below them and reads them nowhere else.
#pragma once

#include <string>
#include <vector>

namespace loom::sharding {

// A layer that computes several of equal size in one: "q, k, v".
struct JoinedMatrices {
  std::string layer;  // a module pattern
  int matrices = 1;
};

struct TensorPlan {
  std::vector<std::string> colwise = {};  // module patterns
  std::vector<std::string> rowwise = {};
  std::vector<std::string> tokens = {};
  std::vector<JoinedMatrices> joined = {};
  // Paths: of the embedding of the vocabulary, and of the layer of the logits; or, in its place, of a head that all
  // ranks have whole.
  std::string embedding = {}, output = {}, head = {};
};

}  // namespace loom::sharding
