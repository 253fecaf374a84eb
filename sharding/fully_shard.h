// fully_shard: shards a module's parameters in place over axes of a mesh. The public face of the sharding engine.
//
//   for (nn::Module* layer : layers) fully_shard(*layer, options);   // bottom-up
//   fully_shard(model, options);                                    // the root owns the rest
//   materialize_shards(model);  nn::init_weights(model, seed);       // or load rows
//   nn::AdamW optimizer(nn::make_parameter_groups(model), ...);     // after sharding: it sees this rank's rows
//   Tensor loss = ...model(ids)...;  autograd::backward(loss);
//   clip_grad_norm(model, 1.0);  optimizer.step();  optimizer.zero_grad();
//
// Names      module and parameter paths do not change.
// Values     are never broadcast: ranks must hold the same values before the call (or the meta device).
// Errors     ConfigError before anything is allocated: a container without forward, a module wrapped twice or after one
//            above it, a parameter without dims, a tie that would span two groups (both paths are named); a call for a
//            module that is not wrapped.
// Threads    the rank's host thread.
// Source     PyTorch FSDP2, _fully_shard.py.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/custom_comm.h"
#include "sharding/fsdp/fsdp_state.h"
#include "sharding/policy.h"

namespace loom::sharding {

// Wraps one module: its own group is the parameters that no wrapped descendant owns.
FsdpState& fully_shard(nn::Module& module, const FullyShardOptions& options);

// Wraps several modules as one group; a module inside another one of the list belongs to that one. Gathered before the
// first runs, resharded after the last.
FsdpState& fully_shard(const std::vector<nn::Module*>& modules, const FullyShardOptions& options);

// Gives every meta shard under `root` this rank's rows of bytes, zero-padded. Values are undefined in the rank's own
// rows.
void materialize_shards(nn::Module& root);

// --- as the methods of FSDPModule; the module must be wrapped ---
void set_modules_to_forward_prefetch(nn::Module& module, const std::vector<nn::Module*>& targets);
void set_modules_to_backward_prefetch(nn::Module& module, const std::vector<nn::Module*>& targets);
// Off: backward keeps whole unsharded gradients and reduces nothing, until a backward with it on. Sets the all-reduce
// switch below too. Recursive.
void set_requires_gradient_sync(nn::Module& root, bool on);
// Off, on a mesh with replicas: backward reduce-scatters and keeps the result in the reduce dtype; shards get no
// gradient until a backward with it on, which all-reduces the sum of all kept results. No effect on a mesh of one
// axis. Recursive.
void set_requires_all_reduce(nn::Module& root, bool on);
// On the root. Off: the end of backward leaves reductions in flight and prefetched gathers pending, for another
// backward to follow.
void set_is_last_backward(nn::Module& root, bool on);
// Whether whole parameters are freed after forward, after backward. From the next forward or backward on. `recurse`:
// wrapped modules below too. Off after backward: the shards must not change (optimizer step) before a backward with
// it on, or reshard().
void set_reshard_after_forward(nn::Module& module, bool on, bool recurse = true);
void set_reshard_after_backward(nn::Module& module, bool on, bool recurse = true);
// Off: this module's backward needs no weights (an embedding), so they are not gathered for it.
void set_unshard_in_backward(nn::Module& module, bool on);
// This module's gradients are the sum over all ranks divided by `factor` (> 0) instead of by their number, for any
// mesh.
void set_gradient_divide_factor(nn::Module& module, double factor);
// Its name in PyTorch 2.7.
void set_reduce_scatter_divide_factor(nn::Module& module, double factor);
// This module's reductions sum and divide afterwards, even if they would average. The gradients are the same up to
// rounding.
void set_force_sum_reduction_for_comms(nn::Module& module, bool on);
void unshard(nn::Module& module);  // and waits; this module's group only
void reshard(nn::Module& module);
// Gathers all groups from the root down, one after the other, and waits for each: before a step, so that ranks that
// come late delay no gather inside it. Forward then gathers nothing that it does not reshard first. As MindSpeed-MM's
// pregather.
void pregather(nn::Module& root);

// The root's next forward, or the next one of a module below it that runs alone, gathers after `event` (the end of the
// optimizer's work on its stream) instead of after all compute work issued so far. One forward:
// the one after it waits for compute again, unless it gets its own event. ConfigError for a module that is
// not the root: at once if the root is known, else at its first forward.
void set_post_optim_event(nn::Module& root, device::Event event);

// --- how this module's group communicates ---
// Set alike on all ranks, before the first forward or between steps. A gather in flight is dropped; after the first
// forward the two that change buffers are collective.

// Gathers with `comm`, in its memory; null: with the process group. N = 1 gathers nothing. Its group then has the
// buffered layout.
void set_custom_all_gather(nn::Module& module, std::shared_ptr<AllGather> comm);
// Reduce-scatters with `comm`, in its memory; null: with the process group. A following all-reduce (replicas) remains
// the process group's.
void set_custom_reduce_scatter(nn::Module& module, std::shared_ptr<ReduceScatter> comm);
// On: gather buffers and the inputs and outputs of reductions are in memory of the process group that all its
// members address. Not together with the two above (ConfigError); ConfigError, naming both groups, if the members
// share no memory.
void set_allocate_memory_from_process_group_for_comm(nn::Module& module, bool on);
// Runs `hook` on every reduced row of gradients of this module: after the reduce-scatter, and after the all-reduce of a
// mesh with replicas; before the row is divided (fp16, force-sum), cast to the original dtype and added to the shards'
// gradients. It may change the row, for example reduce it over ranks outside the mesh; averages count the mesh's ranks
// alone. Not while requires_all_reduce is off. It runs on the thread of the all-reduce stream, or of `stream`, which
// must live as long as the module trains; a stream on a mesh with replicas is a ConfigError: the row must follow the
// all-reduce. An empty hook removes it. Never called in a dry run.
void set_all_reduce_hook(nn::Module& module, AllReduceHook hook, device::Stream* stream = nullptr);

// Several roots of one rank (the stages of a pipeline, a model and its teacher) share one gather buffer and one
// reduction instead of one each. Before their first forward; ConfigError for a module that has run, or
// that turns out not to be a root.
void share_comm_ctx(const std::vector<nn::Module*>& roots);

// The root of a stage of a pipeline. start_unshard() issues the gathers of all its groups and does not wait;
// wait_for_unshard() waits for each. finish_backward() ends its backward of several micro-batches, which ran without
// requires_gradient_sync and is_last_backward: whole gradients are reduced, parameters resharded. As torch's pipelines
// do before a stage's first action, and after its last backward.
void start_unshard(nn::Module& root);
void wait_for_unshard(nn::Module& root);
void finish_backward(nn::Module& root);

// Makes `method` an entry of the wrapped `module` like its forward: call_method() gathers the module's group
// before it and reshards after it, casts inputs and outputs, and takes part in backward. Calls of wrapped modules
// inside it run their own hooks. ConfigError: the module is not wrapped, the name is taken. Recompute of the module
// does not cover it.
//
//   register_fsdp_forward_method(*model, "encode", [model](nn::Args args) { return model->encode(std::move(args)); });
//   Tensor features = call_method(*model, "encode", image);
void register_fsdp_forward_method(nn::Module& module, std::string name, ForwardMethod method);
// ConfigError: the module is not wrapped; an unregistered name (the registered ones are listed).
nn::Value call_method(nn::Module& module, std::string_view name, nn::Args args);
template <class... T>
nn::Value call_method(nn::Module& module, std::string_view name, const T&... positional) {
  nn::Args args;
  (args.add(positional), ...);
  return call_method(module, name, std::move(args));
}

// The p = 2 norm over all gradients, each parameter once whatever axes it is sharded over; the same bits on every rank.
// For ignored parameters, which every rank has, the mean over the ranks counts.
double grad_norm(nn::Module& root);
// The same for the parameters.
double params_norm(nn::Module& root);
// Both by parts of the model: `of` maps a parameter to its part, from 0 to count - 1, by its first path below `root`.
// One exchange for all of them.
struct ParameterParts {
  std::size_t count = 0;
  std::function<std::size_t(const std::string& path)> of;
};
std::vector<double> grad_norms(nn::Module& root, const ParameterParts& parts);
std::vector<double> params_norms(nn::Module& root, const ParameterParts& parts);
// The number of zeros in all gradients, each parameter once.
double zeros_in_grad(nn::Module& root);
// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)); returns the norm before clipping.
double clip_grad_norm(nn::Module& root, double max_norm);

}  // namespace loom::sharding
