// State: the state of one fully_shard call, kept with its module (hooks, group, prefetch lists), and the root's duties.
//
// Root       unknown when modules are wrapped: the first state that runs forward initialises all states below its
//            module (lazily, once) and is the real root. Any state may be the root of one forward (an encoder run
//            alone) without becoming the real root.
// Methods    a module's other entries (register_forward_method) run between the same hooks as its forward.
// Hooks      pre-forward: root duties, input cast, gather, the identity node whose backward is post-backward, forward
//            prefetch. post-forward: reshard, pre-backward hooks on outputs, output cast last.
// Recompute  a forward inside backward casts as the first one did, gathers only groups that are not gathered, does not
//            reshard, prefetches nothing ahead and leaves no trace in the order of forwards. The end of backward
//            completes anything it leaves unfinished (an early stop).
// Threads    the rank's host thread.
// Source     PyTorch FSDP2, _fsdp_state.py.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/fsdp/comm_context.h"
#include "sharding/fsdp/param_group.h"

namespace loom::sharding {

// An entry of a module beside forward ("encode").
using ForwardMethod = std::function<nn::Value(nn::Args)>;

class FsdpState : public std::enable_shared_from_this<FsdpState> {
 public:
  // Several modules share one state and group: gathered before the first of them runs, resharded after the last.
  FsdpState(std::vector<nn::Module*> modules, const FullyShardOptions& options, std::unique_ptr<ParamGroup> group);
  // Adds the hooks to the modules. Once.
  void install_hooks();

  const std::vector<nn::Module*>& modules() const { return modules_; }
  ParamGroup* group() const { return group_.get(); }  // null: the call owns no parameters
  const FullyShardOptions& options() const { return options_; }
  bool is_root() const { return is_root_; }
  const std::string& path() const { return path_; }

  // The states of `module` and the modules below it, in pre-order, each once.
  static std::vector<FsdpState*> collect(nn::Module& module);
  static FsdpState* of(const nn::Module& module);

  void set_forward_prefetch(std::vector<FsdpState*> targets) { forward_prefetch_ = std::move(targets); }
  void set_backward_prefetch(std::vector<FsdpState*> targets) { backward_prefetch_ = std::move(targets); }
  const std::vector<FsdpState*>& forward_prefetch() const { return forward_prefetch_; }
  const std::vector<FsdpState*>& backward_prefetch() const { return backward_prefetch_; }
  // Overrides the options (for the root: overrides false if the options have none).
  void set_reshard_after_forward(bool on);
  bool is_last_backward = true;
  // The next forward's gathers come after `event` instead of after the compute work issued so far. Once.
  void set_post_optim_event(device::Event event);
  bool has_post_optim_event() const { return post_optim_event_.has_value(); }
  // This root's gathers and reductions share `in_flight` with other roots'. Must precede its initialisation.
  void share(std::shared_ptr<InFlight> in_flight);
  // `module` is one of modules().
  void register_forward_method(const nn::Module& module, std::string name, ForwardMethod method);
  nn::Value call_method(nn::Module& module, std::string_view name, nn::Args args);

  // Makes this the root of all states below its module. Collective; the first forward does it, or an explicit call.
  void lazy_init();
  // Gathers the groups of all states under this one, in their order, and waits for each.
  void pregather();
  // Of a root: its parts, and the end of a backward of several micro-batches (fully_shard.h).
  void start_unshard();
  void wait_for_unshard();
  void finish_backward();
  bool is_initialized() const { return shared_ != nullptr; }
  // Forwards of groups that the next backward will prefetch against; 0 after it, and without grad mode.
  std::size_t recorded_forwards() const { return shared_ == nullptr ? 0 : shared_->comm.post_forward_order.size(); }

 private:
  // State shared under one root.
  struct Shared {
    CommContext comm;
    std::vector<FsdpState*> states;  // root first
    FsdpState* iteration_root = nullptr;
    bool callback_queued = false;
  };

  void switch_reshard_after_forward(bool on);
  void pre_forward(nn::Args& args);
  nn::Value post_forward(nn::Value output);
  void pre_backward();
  void root_post_backward();
  // The modules that have yet to run, in this forward or in the recompute of one.
  std::vector<nn::Module*>& to_run();
  bool is_first_to_run(const nn::Module& module);
  void check_all_ran();
  void check_ignored_have_values() const;
  // ConfigError: a root's property was set here, and `root` is above.
  void check_not_set_up_as_root(const std::string& path, const nn::Module& root) const;
  void check_reductions();
  void begin_iteration();
  void gather_after_optimizer();
  void end_iteration();
  void cast_inputs(nn::Args& args) const;
  nn::Value cast_outputs(nn::Value output) const;
  // The module runs again inside backward, between its pre-backward and its post-backward: it is gathered and its hooks
  // are in the graph.
  bool is_recomputed_for_its_backward() const;
  void hook_inputs(nn::Args& args);

  const std::vector<nn::Module*> modules_;
  const std::vector<nn::Module*> hooked_;  // modules whose forward gathers and reshards: modules_ or the one around
  std::vector<nn::Module*> to_run_;        // if several: those that have not run yet in this forward
  std::vector<nn::Module*> to_run_again_;  // the same in backward, where a recompute may stop before the last one
  std::map<std::pair<const nn::Module*, std::string>, ForwardMethod> methods_;
  std::optional<device::Event> post_optim_event_;
  std::shared_ptr<InFlight> in_flight_;  // shared with other roots; null: it has its own
  const FullyShardOptions options_;
  const std::unique_ptr<ParamGroup> group_;
  std::vector<FsdpState*> forward_prefetch_;
  std::vector<FsdpState*> backward_prefetch_;
  std::string path_;
  bool is_root_ = false;
  bool reshard_chosen_;  // by the options or the user
  TrainingState training_state_ = TrainingState::kIdle;
  std::shared_ptr<Shared> shared_;
};

}  // namespace loom::sharding
