#include "sharding/fsdp/fsdp_state.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/nn/call_stack.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/gradients_of.h"
#include "engine/tensor/ops.h"
#include "sharding/fsdp/agreement.h"
#include "sharding/lanes.h"
#include "sharding/streams.h"

namespace loom::sharding {

using device::StreamId;

namespace {

// The shard or the replicate axes of all states, each set of ranks once.
std::vector<comm::Axis> axes_of(const std::vector<FsdpState*>& states, comm::Axis FsdpAxes::*which) {
  std::vector<comm::Axis> axes;
  for (const FsdpState* state : states) axes.push_back(state->options().axes.*which);
  return distinct(axes);
}

}  // namespace

FsdpState::FsdpState(std::vector<nn::Module*> modules, const FullyShardOptions& options,
                     std::unique_ptr<ParamGroup> group)
    : modules_(std::move(modules)),
      hooked_(options.hook_module != nullptr ? std::vector<nn::Module*>{options.hook_module} : modules_),
      options_(options),
      group_(std::move(group)),
      reshard_chosen_(options.reshard_after_forward.has_value()) {}

void FsdpState::set_reshard_after_forward(bool on) {
  reshard_chosen_ = true;
  if (group_ != nullptr) switch_reshard_after_forward(on);
}

void FsdpState::switch_reshard_after_forward(bool on) {
  GroupSwitches switches = group_->switches();
  switches.reshard_after_forward = on ? group_->reshard_when_on() : ReshardAfterForward::never();
  group_->set_switches(switches);
}

void FsdpState::install_hooks() {
  // The module owns its state through the attachment; its hooks need no ownership.
  for (nn::Module* module : hooked_) {
    module->register_pre_hook(
        [this](nn::Module& about_to_run, nn::Args& args) {
          if (!is_first_to_run(about_to_run)) return;
          to_run() = hooked_;
          pre_forward(args);
        },
        /*prepend=*/true);
    module->register_post_hook([this](nn::Module& ran, nn::Value output) {
      std::erase(to_run(), &ran);
      return to_run().empty() ? post_forward(std::move(output)) : output;
    });
  }
}

std::vector<nn::Module*>& FsdpState::to_run() { return autograd::in_backward() ? to_run_again_ : to_run_; }

bool FsdpState::is_first_to_run(const nn::Module& module) {
  const std::vector<nn::Module*>& waiting = to_run();
  if (hooked_.size() == 1 || waiting.empty()) return true;
  // A recompute that stopped early left some waiting; the next one begins with a module that has run, or with all.
  return is_recomputed_for_its_backward() &&
         (waiting.size() == hooked_.size() || std::find(waiting.begin(), waiting.end(), &module) == waiting.end());
}

void FsdpState::set_post_optim_event(device::Event event) {
  if (is_initialized() && !is_root_) {
    config_error("set_post_optim_event of '{}' (a {}): the event belongs to the root, a {}; set it there", path_,
                 modules_.front()->type_name(), shared_->states.front()->modules_.front()->type_name());
  }
  post_optim_event_ = std::move(event);
}

void FsdpState::share(std::shared_ptr<InFlight> in_flight) {
  if (is_initialized()) {
    config_error("share_comm_ctx of a {} that has run forward already; call it before the first forward",
                 modules_.front()->type_name());
  }
  in_flight_ = std::move(in_flight);
}

void FsdpState::register_forward_method(const nn::Module& module, std::string name, ForwardMethod method) {
  const auto [place, is_new] = methods_.try_emplace({&module, name}, std::move(method));
  if (is_new) return;
  config_error("a {} has a forward method '{}' already; register each name once", module.type_name(), name);
}

nn::Value FsdpState::call_method(nn::Module& module, std::string_view name, nn::Args args) {
  const auto found = methods_.find({&module, std::string(name)});
  if (found == methods_.end()) {
    std::vector<std::string_view> names;
    for (const auto& [key, method] : methods_) {
      if (key.first == &module) names.push_back(key.second);
    }
    config_error("a {} has no forward method '{}' (it has {}); add it with register_fsdp_forward_method()",
                 module.type_name(), name, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  const nn::RunningCall running(module);
  pre_forward(args);
  return post_forward(found->second(std::move(args)));
}

FsdpState* FsdpState::of(const nn::Module& module) { return module.attachment<FsdpState>().get(); }

std::vector<FsdpState*> FsdpState::collect(nn::Module& module) {
  std::vector<FsdpState*> states;
  for (auto& [path, child] : module.named_modules()) {
    FsdpState* state = of(*child);
    if (state != nullptr && std::find(states.begin(), states.end(), state) == states.end()) states.push_back(state);
  }
  return states;
}

void FsdpState::lazy_init() {
  if (is_initialized()) return;
  auto shared = std::make_shared<Shared>();
  shared->comm.device = &device::Device::current();
  shared->comm.in_flight = in_flight_ != nullptr ? in_flight_ : std::make_shared<InFlight>();
  if (modules_.size() > 1) {
    config_error(
        "the outermost wrapped module must be a single one, but {} modules wrapped together ('{}', ...) run first; "
        "wrap the model that holds them too",
        modules_.size(), modules_.front()->type_name());
  }
  for (auto& [path, child] : modules_.front()->named_modules()) {
    FsdpState* state = of(*child);
    if (state == nullptr || (!shared->states.empty() && state->shared_ == shared)) continue;
    state->shared_ = state->is_initialized() ? state->shared_ : shared;
    if (state->shared_ != shared) {
      config_error(
          "module '{}' has run forward on its own before '{}' did, and is its own root now; run forward through "
          "the outer module first",
          path, modules_.front()->type_name());
    }
    if (state != this) state->check_not_set_up_as_root(path, *modules_.front());
    state->path_ = path;
    shared->states.push_back(state);
  }
  is_root_ = true;
  if (group_ != nullptr && !reshard_chosen_) switch_reshard_after_forward(false);
  const std::vector<std::string> lines = describe_for_agreement(shared->states);
  check_agreement(lines, axes_of(shared->states, &FsdpAxes::shard));
  check_agreement(lines, axes_of(shared->states, &FsdpAxes::replicate));
  for (FsdpState* state : shared->states) {
    if (state->group_ != nullptr) state->group_->lazy_init(state->path_, shared->comm);
  }
  check_ignored_have_values();
}

// A parameter without a group was left out by ignored_params; its owner gives it values.
void FsdpState::check_ignored_have_values() const {
  for (auto& [path, slot] : modules_.front()->named_slots()) {
    if (slot->value.storage()->allocated()) continue;
    config_error(
        "parameter '{}' is ignored and has no values yet; initialise or load the weights before the first forward",
        path);
  }
}

void FsdpState::begin_iteration() {
  lazy_init();
  if (shared_->iteration_root != nullptr || autograd::in_backward()) return;
  shared_->iteration_root = this;
  gather_after_optimizer();
}

// Makes later gathers wait for the optimizer's work, or for all work of the compute stream.
void FsdpState::gather_after_optimizer() {
  device::Device& device = *shared_->comm.device;
  std::optional<device::Event>& optimized = shared_->states.front()->post_optim_event_;
  const device::Event ready = optimized ? *optimized : device.stream(StreamId::kCompute).record();
  optimized.reset();
  device.stream(kGatherCopyInStream).wait(ready);
  device.stream(kGatherStream).wait(ready);
}

void FsdpState::pregather() {
  lazy_init();
  gather_after_optimizer();
  for (FsdpState* state : shared_->states) {
    if (state->group_ == nullptr) continue;
    state->group_->unshard();
    state->group_->wait_for_unshard();
  }
}

void FsdpState::start_unshard() {
  lazy_init();
  gather_after_optimizer();
  for (FsdpState* state : shared_->states) {
    if (state->group_ != nullptr) state->group_->unshard();
  }
}

void FsdpState::wait_for_unshard() {
  for (FsdpState* state : shared_->states) {
    if (state->group_ != nullptr) state->group_->wait_for_unshard();
  }
}

void FsdpState::finish_backward() {
  std::vector<std::pair<ParamGroup*, GroupSwitches>> before;
  for (FsdpState* state : shared_->states) {
    if (state->group_ == nullptr) continue;
    GroupSwitches switches = state->group_->switches();
    before.emplace_back(state->group_.get(), switches);
    switches.reduce_grads = switches.all_reduce_grads = switches.reshard_after_backward = true;
    state->group_->set_switches(switches);
  }
  const bool was_last = std::exchange(is_last_backward, true);
  root_post_backward();
  is_last_backward = was_last;
  for (const auto& [group, switches] : before) group->set_switches(switches);
}

void FsdpState::cast_inputs(nn::Args& args) const {
  const MixedPrecisionPolicy& policy = options_.policy;
  if (!policy.cast_forward_inputs || !policy.param_dtype) return;
  args.map_tensors([&](const Tensor& t) { return is_floating(t.dtype()) ? ops::cast(t, *policy.param_dtype) : t; });
}

nn::Value FsdpState::cast_outputs(nn::Value output) const {
  const MixedPrecisionPolicy& policy = options_.policy;
  if (!policy.output_dtype) return output;
  return output.map_tensors(
      [&](const Tensor& t) { return is_floating(t.dtype()) ? ops::cast(t, *policy.output_dtype) : t; });
}

bool FsdpState::is_recomputed_for_its_backward() const {
  return training_state_ == TrainingState::kPreBackward &&
         (group_ == nullptr || group_->training_state() == TrainingState::kPreBackward);
}

void FsdpState::hook_inputs(nn::Args& args) {
  if (group_ == nullptr || !autograd::grad_enabled()) return;
  std::vector<Tensor> inputs;
  for (const Tensor& tensor : args.tensors()) {
    if (tensor.requires_grad()) inputs.push_back(tensor);
  }
  if (inputs.empty()) return;
  const std::vector<Tensor> passed =
      autograd::identity_with_backward("fsdp_post_backward", inputs, [this] { group_->post_backward(); });
  std::size_t next = 0;
  args.map_tensors([&](const Tensor& tensor) { return tensor.requires_grad() ? passed[next++] : tensor; });
}

void FsdpState::pre_forward(nn::Args& args) {
  if (is_recomputed_for_its_backward()) {
    cast_inputs(args);  // the same dtypes as in forward
    if (group_ != nullptr && !group_->is_unsharded()) {
      group_->unshard();
      group_->wait_for_unshard();
    }
    return;
  }
  check_model(!autograd::in_function() || !autograd::grad_enabled(),
              "'{}' is sharded and runs in a function that value_and_grad() differentiates: its groups reduce the "
              "gradients of backward() only; differentiate before fully_shard(), or run backward()",
              path_.empty() ? modules_.front()->type_name() : path_);
  training_state_ = TrainingState::kForward;
  begin_iteration();
  cast_inputs(args);
  if (group_ != nullptr) group_->pre_forward();
  hook_inputs(args);
  if (autograd::in_backward()) return;  // what comes next in forward has been through backward already
  for (FsdpState* target : forward_prefetch_) {
    if (target->group_ != nullptr) target->group_->prefetch(TrainingState::kForward);
  }
}

nn::Value FsdpState::post_forward(nn::Value output) {
  if (is_recomputed_for_its_backward()) return cast_outputs(std::move(output));
  if (group_ != nullptr) group_->post_forward();
  std::vector<Tensor> outputs;
  output.collect_tensors(outputs);
  for (const Tensor& tensor : outputs) {
    if (!tensor.requires_grad()) continue;
    tensor.register_hook([this](const Tensor&) {
      pre_backward();
      return Tensor{};
    });
  }
  training_state_ = TrainingState::kIdle;
  if (shared_->iteration_root == this) end_iteration();
  return cast_outputs(std::move(output));
}

void FsdpState::end_iteration() {
  shared_->comm.release_held();
  shared_->iteration_root = nullptr;
  if (autograd::backward_expected()) return;
  // Without a backward to come, nothing else would notice new weights: free what reshard_after_forward kept and what
  // was prefetched for a module that did not run.
  for (FsdpState* state : shared_->states) {
    if (state->group_ == nullptr) continue;
    state->group_->reshard();
    state->group_->drop_gather();
  }
}

void FsdpState::pre_backward() {
  training_state_ = TrainingState::kPreBackward;
  if (!shared_->callback_queued) {
    shared_->callback_queued = true;
    FsdpState* root = shared_->states.front();
    autograd::queue_callback([root] { root->root_post_backward(); });
  }
  if (group_ != nullptr) group_->pre_backward(/*default_prefetch=*/backward_prefetch_.empty());
  for (FsdpState* target : backward_prefetch_) {
    if (target->group_ != nullptr) target->group_->prefetch(TrainingState::kPreBackward);
  }
}

void FsdpState::check_not_set_up_as_root(const std::string& path, const nn::Module& root) const {
  const std::string_view what = in_flight_ != nullptr ? "share_comm_ctx"
                                : post_optim_event_   ? "set_post_optim_event"
                                                      : std::string_view{};
  if (what.empty()) return;
  config_error("{} was called for '{}' (a {}), but the root is a {}; call it for the root", what, path,
               modules_.front()->type_name(), root.type_name());
}

void FsdpState::check_all_ran() {
  to_run_again_.clear();
  if (to_run_.empty()) return;
  log_warning(
      "{}{} of the modules wrapped together as '{}' did not run in forward (a {} first); their group was not resharded "
      "by it",
      rank_prefix(), to_run_.size(), path_, to_run_.front()->type_name());
  to_run_.clear();
}

// Ranks that reduced different groups in this backward meet here instead of waiting for each other.
void FsdpState::check_reductions() {
  device::Device& device = *shared_->comm.device;
  const auto meet = [&](StreamId id, comm::Lane lane, comm::Axis FsdpAxes::*which) {
    for (const comm::Axis& axis : axes_of(shared_->states, which)) {
      if (axis.size() == 1) continue;
      device.stream(id).submit({{}, path_, {}, [axis, lane] { axis.group().barrier(lane, "end of backward"); }});
      device.stream(StreamId::kCompute).wait(device.stream(id).record());
    }
  };
  // A check of this engine, not a part of the step: it takes no virtual time.
  const device::IssueLog::Pause pause(device.log());
  meet(kReduceScatterStream, kReduceScatterLane, &FsdpAxes::shard);
  meet(kAllReduceStream, kAllReduceLane, &FsdpAxes::replicate);
}

void FsdpState::root_post_backward() {
  shared_->callback_queued = false;
  for (FsdpState* state : shared_->states) {
    ParamGroup* group = state->group_.get();
    if (group != nullptr && group->training_state() != TrainingState::kPostBackward) group->post_backward();
    state->training_state_ = TrainingState::kIdle;
    if (group == nullptr) continue;
    group->set_training_state(TrainingState::kIdle);
    if (is_last_backward) group->finalize_backward();
  }
  for (FsdpState* state : shared_->states) state->check_all_ran();
  if (!is_last_backward) return;
  check_reductions();
  shared_->comm.post_forward_order.clear();
  shared_->comm.wait_for_reduction();
}

}  // namespace loom::sharding
