// State: the parts of a run that go into a checkpoint, by the names that torch.distributed.checkpoint gives them.
//
// Names    model.<path>; optimizer.state.<path>.exp_avg, .exp_avg_sq, .step; optimizer.param_groups.<i>.lr and so on;
//          and further values of the trainer. The path is an item's place in Python's nested dict.
// Tensors  this rank's boxes; not copies, but for parts of joined matrices (nn/shard_spec.h).
// Ties     a parameter under several paths is one tensor; all its names are saved, its bytes once.
// Threads  the rank's host thread.
#pragma once

#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/formats/dcp/dcp_metadata.h"
#include "engine/formats/torch/plain_value.h"
#include "engine/nn/optim/optimizer.h"
#include "engine/nn/shard_spec.h"
#include "engine/nn/state_dict.h"

namespace loom::checkpoint {

struct ItemName {
  std::string name;
  std::vector<io::DcpKey> path;
};

// {"optimizer", "state", "w", "exp_avg"} -> "optimizer.state.w.exp_avg".
ItemName name_of(std::vector<io::DcpKey> path);

struct StateTensor {
  std::vector<ItemName> names;  // messages show the first
  nn::LocalTensor local;

  const std::string& name() const { return names.front().name; }
};

struct StateValue {
  ItemName name;
  io::PlainValue value;
};

struct State {
  std::vector<StateTensor> tensors;
  std::vector<StateValue> values;  // equal on every rank
  bool is_part = false;            // other ranks may have tensors that this one has not: stages of a pipeline

  void add(std::vector<io::DcpKey> path, const nn::LocalTensor& local);
  void add(std::vector<io::DcpKey> path, io::PlainValue value);
};

// Parameters and persistent buffers, under `key` ("model").
void add_module(State& state, const nn::StateDict& module, const std::string& key = "model");

// State and groups of an optimizer, under "optimizer", named as by torch's get_optimizer_state_dict; a number of
// AdamW's state ("step") is a tensor of one element. Parameters that have no state yet are listed in the value
// "optimizer.without_state". Paths of its groups that are `elsewhere` have their state on other ranks.
void add_optimizer(State& state, const nn::OptimizerState& optimizer,
                   const std::unordered_set<std::string>& elsewhere = {});

}  // namespace loom::checkpoint
