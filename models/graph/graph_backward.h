// The recorded backward of one node, compiled. Private to models/graph.
#pragma once

#include <map>
#include <vector>

#include "models/graph/graph_costs.h"
#include "models/graph/graph_program.h"

namespace loom::models {

// By storage: the operator that makes it; -1: none, it is a parameter's, a buffer's or an input's.
std::vector<int> makers_of_storages(const ModelGraph& graph);

// Whether operator `index` is a kernel: not a view.
bool moves(const ModelGraph& graph, const GraphOp& op, OpClass op_class, const std::vector<int>& makers, int index);

// The backward part of a recording, by node.
class BackwardParts {
 public:
  explicit BackwardParts(const ModelGraph& graph);

  bool has(std::int64_t sequence) const { return parts_.contains(sequence); }
  // The node that a save belongs to; -1: none that ran.
  std::int64_t owner(int save) const;
  // `operation` has its saves and its node's inputs and outputs; `fixed`, by tensor: a parameter or buffer.
  GraphBackward compile(std::int64_t sequence, const GraphOperation& operation, const std::vector<int>& makers,
                        const std::vector<bool>& fixed) const;

 private:
  struct Part {
    std::vector<std::size_t> events;  // operators and frees
  };
  const ModelGraph& graph_;
  std::map<std::int64_t, Part> parts_;
  std::map<int, std::int64_t> owners_;
};

}  // namespace loom::models
