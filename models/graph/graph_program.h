// GraphProgram: a ModelGraph ready for replay: what each call of a module does in forward, and each node in backward.
//
// Calls     a module's call is the list of its operators, frees and calls of other modules. Its arguments are the
//           tensors of its positional arguments and, behind them, whatever else it reads that was made before it: a
//           recompute of the call and a cast of its inputs see all of them.
// Nodes     an operator whose inputs require gradients makes a node of the tape. Its backward is the recorded one:
//           saved tensors and incoming gradients in, operators in their order, one gradient for each input.
// Left out  sums of gradients and their accumulation into parameters: the tape makes its own.
// Errors    ConfigError "FILE: ..." for a recording that contradicts itself: a gradient that no operator makes, a
//           module that is left before it is entered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/device/cost.h"
#include "models/graph/graph_file.h"

namespace loom::models {

struct GraphStep {
  enum class Kind : std::uint8_t { kOp, kFree, kCall } kind = Kind::kOp;
  int index = 0;  // of an operation, a storage or a call
};

// An output: a view of the storage of `of`, or, without it, of a storage of its own.
struct GraphOutput {
  int tensor = 0;
  int of = -1;
};

struct GraphOperation {
  int name = 0;           // in ModelGraph::ops
  bool has_cost = false;  // else it moves nothing: a view
  device::Cost cost;
  std::vector<int> ins;
  std::vector<GraphOutput> outs;
  int node = -1;                  // in GraphProgram::nodes; -1: it makes none
  std::vector<int> saved_before;  // tensors that are saved before the operator runs
  std::vector<int> saved_after;   // and after it
  std::vector<int> node_inputs;   // of `ins` those that require gradients
  std::vector<int> node_outputs;  // positions in `outs` that gradients come to
};

// The backward of a node. A slot is a tensor that lives while it runs: the saved tensors, then the gradients that
// come in, then what its operators make.
struct GraphBackward {
  // A slot, or the tensor of a parameter or buffer.
  struct Place {
    int slot = -1;
    int parameter = -1;
  };
  struct Output {
    int slot = 0;
    int tensor = 0;  // its shape
    bool is_view = false;
    Place of;  // of a view: whose storage it shows
  };
  struct Step {
    int name = -1;  // in ModelGraph::ops; -1: `frees` alone
    bool has_cost = false;
    device::Cost cost;
    std::vector<Place> ins;
    std::vector<Output> outs;
    std::vector<int> frees;  // slots
  };
  struct Incoming {
    int slot = 0;
    int output = 0;  // of the node
  };
  struct Return {
    int slot = -1;    // -1: none of its own
    int output = -1;  // the gradient of this output is passed on; -1: none
  };
  bool is_recorded = false;  // else its outputs have no gradient
  int slots = 0;
  std::vector<Incoming> incoming;
  std::vector<Step> steps;
  std::vector<Return> returns;  // by input of the node
};

struct GraphCall {
  int module = -1;             // -1: what surrounds the model
  std::int64_t number = 0;     // of this module's calls
  std::size_t positional = 0;  // of the arguments
  std::vector<int> arguments;  // tensors
  std::vector<int> results;
  std::vector<GraphStep> steps;
  std::vector<int> made;  // tensors that are bound inside
};

// Operators of unknown names: priced by their bytes.
struct UnknownOperator {
  std::string name;
  double share = 0;  // of the bytes that all operators move
};

struct GraphProgram {
  ModelGraph graph;
  std::vector<GraphCall> calls;                // 0 surrounds the model's
  std::vector<std::vector<int>> module_calls;  // by module, in order: positions in `calls`
  std::vector<GraphOperation> operations;
  std::vector<GraphBackward> nodes;
  std::vector<std::vector<int>> tensors_of;  // by storage
  // What the forward makes, nobody frees before the backward, and autograd does not hold: a result that the caller
  // drops before the backward. Tensors, one a storage.
  std::vector<int> kept;
  int loss = -1;                         // the tensor
  std::vector<UnknownOperator> unknown;  // largest share first
};

GraphProgram make_graph_program(ModelGraph graph);

}  // namespace loom::models
