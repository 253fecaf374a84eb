// Optimizer: updates parameters from their gradients, and keeps state beside each of them.
//
// Groups    parameters with the same learning rate and weight decay; make_parameter_groups() makes them from a module,
//           after sharding: they are this rank's shards then. A parameter that does not require grad is left out.
// State     named as torch names it ("exp_avg", "exp_avg_sq", "step"), by the path of its parameter; a tensor has the
//           box of its parameter. A parameter that has had no gradient yet has no state. Groups of one optimizer may
//           have state of different kinds (Muon).
// Saving    state_dict() gives the optimizer's own tensors, host_copies() values that stay; an optimizer that has
//           loaded them goes on bit for bit as the one they come from, whatever the number of ranks was.
// Threads   the rank's host thread.
// Source    torch.optim.Optimizer.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/nn/module.h"

namespace loom::nn {

struct OptimizedParameter {
  std::string path;  // empty for a parameter of no module: its state cannot be saved
  Tensor value;      // a leaf with bytes
  ShardSpec shard;
};

struct ParameterGroup {
  std::vector<OptimizedParameter> parameters;
  // None: the optimizer's, filled in when it is made. May be changed between steps.
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  bool hidden_matrices = false;  // as GroupOptions::hidden_matrices_apart made it
  double lr_mult = 1;            // Megatron's: set_lr() and the optimizer's own rate give the group lr times this
};

using ParameterGroups = std::vector<ParameterGroup>;

// The rule of a single parameter.
struct ParameterRule {
  bool decays = true;
  double lr_mult = 1;

  bool operator==(const ParameterRule&) const = default;
};

struct GroupOptions {
  std::optional<double> weight_decay = {};  // of the parameters that decay; none: the optimizer's
  // Two groups instead of one: the second holds parameters of one dim or none (norms) and biases, and does not decay.
  // Either may be empty. The rule is Megatron's.
  bool no_decay_on_norms_and_biases = false;
  // One more group, the first: weights of two dims, and stacks of them (experts), without embeddings and the output
  // layer, by role and not by name: no parameter of an nn::Embedding, nor one tied to it, nor of a module that is
  // called lm_head, output_layer, score or v_head. It may be empty.
  bool hidden_matrices_apart = false;
  // By a parameter's first path, in addition to the rules above. With it there are as many groups as needed, none of
  // them empty: hidden matrices first, then by decay, then in the order of their first parameters.
  std::function<ParameterRule(const std::string& path)> rule_of = nullptr;
};

// Every parameter of `module` that requires grad, once, under its first path. ConfigError while a group is gathered.
ParameterGroups make_parameter_groups(Module& module, const GroupOptions& options = {});

// A piece of state: a tensor with its box, or a number.
using StateValue = std::variant<LocalTensor, double>;
using ParameterState = std::map<std::string, StateValue>;

struct GroupState {
  std::vector<std::string> paths;
  std::map<std::string, double> options;  // by torch's name: "lr", "weight_decay", ...
};

struct OptimizerState {
  std::map<std::string, ParameterState> parameters;  // by path
  std::vector<GroupState> groups;
};

OptimizerState host_copies(const OptimizerState& state);

// The parts of a parameter's state, by torch's names.
struct StateNames {
  std::vector<std::string> tensors;
  std::vector<std::string> numbers;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // The name in messages: "AdamW".
  virtual std::string_view name() const = 0;
  // One update from the collected gradients; bumps the parameters' versions. Parameters without gradient are skipped.
  virtual void step() = 0;
  // Drops the gradients.
  void zero_grad();

  ParameterGroups& groups() { return groups_; }
  const ParameterGroups& groups() const { return groups_; }
  // The parameters of all groups, in their order.
  std::vector<Tensor> parameters() const;
  // Sets the rate of all groups, each times its lr_mult.
  void set_lr(double lr);

  // Throw ConfigError for an optimizer of parameters without paths.
  OptimizerState state_dict() const;
  // From now on the parameters have exactly this state, or none if they are not in it. A tensor may be larger than
  // this rank's box (see load_state_dict of a module). The options of the groups are taken over unless `state.groups`
  // is empty.
  //
  // Throws   ConfigError, with nothing changed: a path of another optimizer, a piece of state that is missing or
  //          unknown, another whole shape, a tensor that does not contain the box, other groups.
  void load_state_dict(const OptimizerState& state);

 protected:
  explicit Optimizer(ParameterGroups groups) : groups_(std::move(groups)) {}

  // --- defined by each optimizer ---
  virtual StateNames state_names(const ParameterGroup& group) const = 0;
  // A parameter's state; empty when it has none. Tensors have the parameter's box.
  virtual ParameterState state_of(const OptimizedParameter& parameter) const = 0;
  // Makes the state of a parameter, with undefined values in the tensors, and gives it back to be written.
  virtual ParameterState make_state(const ParameterGroup& group, const OptimizedParameter& parameter,
                                    const ParameterState& numbers) = 0;
  virtual void drop_state(const OptimizedParameter& parameter) = 0;
  // Options of a group by torch's names, besides lr and weight_decay.
  virtual std::map<std::string, double> options(const ParameterGroup& group) const = 0;
  virtual void set_options(const ParameterGroup& group, const std::map<std::string, double>& options) = 0;

 private:
  void check_paths(std::string_view verb) const;
  void check_groups(const OptimizerState& state) const;
  void check_state(const ParameterGroup& group, const OptimizedParameter& parameter, const ParameterState& given) const;

  ParameterGroups groups_;
};

}  // namespace loom::nn
