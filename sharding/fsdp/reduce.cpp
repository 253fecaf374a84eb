#include "sharding/fsdp/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/comm/peer_reduction.h"
#include "engine/core/error.h"
#include "engine/core/shown_path.h"
#include "engine/kernels/fused.h"
#include "engine/nn/optim/landing.h"
#include "sharding/lanes.h"
#include "sharding/memory.h"
#include "sharding/streams.h"

namespace loom::sharding {
namespace {

using comm::ReduceOp;
using device::MemCategory;
using device::StreamId;

// The largest power of two p that divides f with f / p > p before the last doubling.
double fp16_pre_divide(double factor) {
  double p = 1;
  while (std::fmod(factor, p) == 0 && factor / p > p) p *= 2;
  return p;
}

// Chunk `rank` of a gradient that is cut on a dim other than 0.
void fill_runs(const Param& param, const Tensor& grad, int rank, int ranks, DType dtype, std::byte* to) {
  const ChunkRuns chunks = param.chunk_runs();
  const auto* from = static_cast<const std::byte*>(grad.raw());
  const std::int64_t read = chunks.run_elems * element_bytes(grad.dtype());
  const std::int64_t written = chunks.run_elems * element_bytes(dtype);
  for (std::int64_t run = 0; run < chunks.runs; ++run) {
    kernels::cast(chunks.run_elems, grad.dtype(), from + (run * ranks + rank) * read, dtype, to + run * written);
  }
}

// Copies chunk r of every gradient into row r, in the reduce dtype, with zeros behind the last row of a parameter.
void fill_input(const Tensor& input, const std::vector<Param*>& params, const std::vector<Tensor>& grads, int ranks) {
  const DType dtype = input.dtype();
  const auto size = element_bytes(dtype);
  auto* to = static_cast<std::byte*>(input.raw());
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (params[i]->shard_dim() > 0) {
        fill_runs(*params[i], grads[i], rank, ranks, dtype, to);
        to += params[i]->padded_shard_elems() * size;
        continue;
      }
      const Chunk chunk = chunk_of(params[i]->shape()[0], rank, ranks);
      const std::int64_t row_elems = params[i]->shape().row_elems();
      const std::int64_t elems = chunk.rows * row_elems;
      const std::int64_t padded_elems = params[i]->padded_shard_elems();
      if (elems > 0) {
        const Tensor part = grads[i].rows(chunk.row_begin, chunk.rows);
        kernels::cast(elems, part.dtype(), part.raw(), dtype, to);
      }
      std::memset(to + elems * size, 0, static_cast<std::size_t>((padded_elems - elems) * size));
      to += padded_elems * size;
    }
  }
}

// The parts that the members of the group read instead of a flat input: the gradients themselves.
struct GradientParts {
  comm::PeerReduction* group = nullptr;  // null: the flat input is filled and reduced
  DType dtype = DType::kF32;
  std::vector<comm::ReducePart> parts;
};

// The gradients' memory, kept alive by `owners`. One that somebody else holds may be written to while peers read it:
// they get a copy of it.
std::vector<comm::ReducePart> parts_of(const std::vector<Param*>& params, const std::vector<Tensor>& grads,
                                       std::vector<std::shared_ptr<void>>& owners) {
  std::vector<comm::ReducePart> parts;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const void* input = grads[i].raw();
    std::shared_ptr<void> owner = grads[i].storage()->keep_alive();
    if (!grads[i].is_owned_by(1)) {
      const auto bytes = static_cast<std::size_t>(grads[i].nbytes());
      const std::shared_ptr<std::byte> copy = device::HostAllocator::ordinary()->allocate(bytes, false);
      std::memcpy(copy.get(), input, bytes);
      input = copy.get();
      owner = copy;
    }
    owners.push_back(std::move(owner));
    parts.push_back({input, grads[i].numel(), params[i]->padded_shard_elems()});
  }
  return parts;
}

// A piece of work on a stream; every pointer in it is kept alive by `owners`.
struct Buffers {
  GradientParts gradients;
  void* input = nullptr;     // null: `gradients` are read where they are
  void* reduced = nullptr;   // one row, reduce dtype
  void* gradient = nullptr;  // one row, original dtype; may be `reduced`; null: the row is kept
  void* partial = nullptr;   // the row kept so far, reduce dtype; null: none
  std::int64_t input_elems = 0;
  std::int64_t row_elems = 0;
  DType reduce_dtype = DType::kF32;
  DType original_dtype = DType::kF32;
  std::vector<std::shared_ptr<void>> owners = {};

  // `pointer` becomes the tensor's, whose memory is kept.
  void own(const Tensor& tensor, void*& pointer) {
    pointer = tensor.raw();
    owners.push_back(tensor.storage()->keep_alive());
  }
};

void scale_in_place(DType dtype, std::int64_t elems, double divisor, void* data) {
  if (divisor != 1) kernels::scale(dtype, elems, 1 / divisor, data, data);
}

struct Addition {
  void* sum;
  std::int64_t offset_elems;
  std::int64_t elems;
};

// After the last collective: divide, cast to the original dtype, add into gradients that were there before.
void finish_row(const Buffers& b, double post_divide, const std::vector<Addition>& additions) {
  scale_in_place(b.reduce_dtype, b.row_elems, post_divide, b.reduced);
  if (b.gradient != b.reduced) kernels::cast(b.row_elems, b.reduce_dtype, b.reduced, b.original_dtype, b.gradient);
  const auto size = element_bytes(b.original_dtype);
  for (const Addition& a : additions) {
    kernels::add(b.original_dtype, a.elems, a.sum, static_cast<const std::byte*>(b.gradient) + a.offset_elems * size,
                 a.sum);
  }
}

bool all_reduces(const ReduceContext& context) { return context.axes.replicate.size() > 1 && context.all_reduce; }

bool keeps_row(const ReduceContext& context) { return context.axes.replicate.size() > 1 && !context.all_reduce; }

bool runs_hook(const ReduceContext& context) { return context.hook != nullptr && !keeps_row(context); }

// The stream on which the row becomes gradients.
device::Stream& last_stream(const ReduceContext& context) {
  if (runs_hook(context) && context.hook_stream != nullptr) return *context.hook_stream;
  const bool further = all_reduces(context) || runs_hook(context);
  return context.device->stream(further ? kAllReduceStream : kReduceScatterStream);
}

// A collective or the hook, and what follows it when it is the last one.
struct Step {
  std::string_view name;
  device::Cost cost;
  std::function<void()> run;
  std::optional<device::Collective> collective{};
};

std::function<void()> scatter_work(const ReduceContext& context, const ReducePlan& plan, const Buffers& b) {
  return [shard = context.axes.shard, comm = context.comm, plan, b, path = context.path] {
    if (b.gradients.group != nullptr) {
      b.gradients.group->reduce_scatter_parts(kReduceScatterLane, b.gradients.parts, b.gradients.dtype, b.reduced,
                                              b.reduce_dtype, plan.reduce_scatter, path);
      if (b.partial != nullptr) kernels::add(b.reduce_dtype, b.row_elems, b.reduced, b.partial, b.reduced);
      return;
    }
    scale_in_place(b.reduce_dtype, b.input_elems, plan.pre_divide, b.input);
    if (shard.size() > 1 && comm != nullptr) {
      (*comm)(b.reduced, b.input, b.row_elems, b.reduce_dtype, plan.reduce_scatter, shard.group(), path);
    } else if (shard.size() > 1) {
      shard.group().reduce_scatter(kReduceScatterLane, b.input, b.reduced, b.row_elems, b.reduce_dtype,
                                   plan.reduce_scatter, path);
    } else {
      const double factor = plan.reduce_scatter.kind == comm::ReduceKind::kPremulSum ? plan.reduce_scatter.factor : 1.0;
      kernels::scale(b.reduce_dtype, b.row_elems, factor, b.input, b.reduced);
    }
    if (b.partial != nullptr) kernels::add(b.reduce_dtype, b.row_elems, b.reduced, b.partial, b.reduced);
  };
}

using Steps = std::vector<std::pair<device::Stream*, Step>>;

Step scatter_step(const ReduceContext& context, const ReducePlan& plan, const Buffers& b) {
  const comm::Axis& shard = context.axes.shard;
  const std::int64_t size = element_bytes(b.reduce_dtype);
  const device::Collective collective{device::CollectiveKind::kReduceScatter, b.input_elems * size, &shard.ranks(),
                                      shard.name()};
  return {"reduce_scatter",
          {.read_bytes = b.input_elems * size,
           .written_bytes = b.row_elems * size,
           .link_bytes = (shard.size() - 1) * b.row_elems * size,
           .unit = device::Unit::kLink},
          scatter_work(context, plan, b),
          collective};
}

Step all_reduce_step(const ReduceContext& context, const ReducePlan& plan, const Buffers& b) {
  const comm::Axis& replicate = context.axes.replicate;
  const std::int64_t size = element_bytes(b.reduce_dtype);
  const device::Collective collective{device::CollectiveKind::kAllReduce, b.row_elems * size, &replicate.ranks(),
                                      replicate.name()};
  return {"all_reduce",
          {.read_bytes = b.row_elems * size,
           .written_bytes = b.row_elems * size,
           .link_bytes = 2 * (replicate.size() - 1) * b.row_elems * size / replicate.size(),
           .unit = device::Unit::kLink},
          [replicate, plan, b, path = context.path] {
            replicate.group().all_reduce(kAllReduceLane, b.reduced, b.row_elems, b.reduce_dtype, plan.all_reduce, path);
          },
          collective};
}

Steps steps_of(const ReduceContext& context, const ReducePlan& plan, const Buffers& b,
               const std::vector<Addition>& additions) {
  Steps steps;
  steps.push_back({&context.device->stream(kReduceScatterStream), scatter_step(context, plan, b)});
  if (all_reduces(context)) {
    steps.push_back({&context.device->stream(kAllReduceStream), all_reduce_step(context, plan, b)});
  }
  if (runs_hook(context)) {
    steps.push_back({&last_stream(context), {"all_reduce_hook", {}, [hook = context.hook, b] {
                                               hook({b.reduced, b.row_elems, b.reduce_dtype});
                                             }}});
  }
  if (!keeps_row(context)) {
    steps.back().second.run = [run = std::move(steps.back().second.run), b, divide = plan.post_divide, additions] {
      run();
      finish_row(b, divide, additions);
    };
  }
  return steps;
}

// Each step waits for the one before, the first for compute.
void submit(const ReduceContext& context, Steps steps) {
  const bool dry_run = context.device->dry_run();
  device::Stream* before = &context.device->stream(StreamId::kCompute);
  for (auto& [stream, step] : steps) {
    if (stream != before) stream->wait(before->record());
    stream->submit({step.name, context.path, step.cost, dry_run ? nullptr : std::move(step.run), step.collective});
    before = stream;
  }
}

// Null where the input is a flat buffer that ranks fill: their memory is not shared, somebody else moves the bytes, or
// the gradients change on their way into it, or lie in another order. The same on all ranks.
comm::PeerReduction* peer_reduction(const ReduceContext& context, const ReducePlan& plan,
                                    const std::vector<Param*>& params, DType grad_dtype, DType reduce_dtype) {
  if (context.device->dry_run() || context.comm != nullptr || context.axes.shard.size() == 1) return nullptr;
  if (std::ranges::any_of(params, [](const Param* param) { return param->shard_dim() > 0; })) return nullptr;
  if (plan.pre_divide != 1 || !comm::PeerReduction::casts(grad_dtype, reduce_dtype)) return nullptr;
  return comm::PeerReduction::of(context.axes.shard.group());
}

// The flat input on the device's accounts: the emulated device fills one, as it fills one where ranks share no memory.
Tensor accounted_only(device::Device& device, std::int64_t elems, DType dtype, const std::string& what) {
  const std::int64_t bytes = elems * element_bytes(dtype);
  auto storage = std::make_shared<Storage>(Place::kDevice, &device, bytes, kReduceBuffer, what);
  storage->adopt(device.memory().adopt(nullptr, bytes, kReduceBuffer, what));
  return {storage, 0, {elems}, dtype};
}

// Makes every parameter's part of the row its shard's gradient, or an addition to the existing gradient.
std::vector<Addition> give_gradients(const std::vector<Param*>& params, const Tensor& row,
                                     std::vector<std::shared_ptr<void>>& owners) {
  std::vector<Addition> additions;
  std::int64_t offset_elems = 0;
  for (const Param* param : params) {
    const Tensor& shard = param->sharded();
    if (const Tensor before = shard.grad(); before.defined()) {
      additions.push_back({before.raw(), offset_elems, before.numel()});
      owners.push_back(before.storage()->keep_alive());
    } else {
      shard.set_grad({row.storage(), offset_elems, shard.shape(), row.dtype()});
    }
    offset_elems += param->padded_shard_elems();
  }
  return additions;
}

// A copy of `part` in host memory beside the parameter's shard. It does not block: a read of the copy waits for it.
Tensor copy_to_host(const Param& param, const Tensor& part, device::Stream& stream) {
  const Tensor copy = Tensor::empty_beside(param.sharded(), part.shape(), part.dtype(), MemCategory::kGradient,
                                           param.path() + " (gradient)");
  std::function<void()> run;
  if (copy.raw() != nullptr) {
    run = [to = copy.raw(), from = part.raw(), bytes = static_cast<std::size_t>(part.nbytes()),
           to_owner = copy.storage()->keep_alive(),
           from_owner = part.storage()->keep_alive()] { std::memcpy(to, from, bytes); };
  }
  const device::Cost cost{.read_bytes = part.nbytes(),
                          .written_bytes = part.nbytes(),
                          .unit = device::Unit::kHostLink,
                          .pinned = copy.storage()->pinned(),
                          .work = device::WorkKind::kD2H};
  stream.submit({"d2h", param.path(), cost, std::move(run)});
  copy.storage()->set_ready(stream.record());
  return copy;
}

// Copies every shard's part of `gradient` to the host after the work on `stream`, and sets the shard's `.grad` or adds
// to it.
void move_to_host(const std::vector<Param*>& params, const Tensor& gradient, std::int64_t landing,
                  device::Stream& stream) {
  std::int64_t offset_elems = 0;
  for (const Param* param : params) {
    const Tensor& shard = param->sharded();
    const Tensor part(gradient.storage(), offset_elems, shard.shape(), gradient.dtype());
    offset_elems += param->padded_shard_elems();
    const Tensor copy = copy_to_host(*param, part, stream);
    const Tensor before = shard.grad();
    if (!param->cpu_offload()->pin_memory || before.defined()) copy.storage()->wait_ready();
    if (!before.defined()) {
      if (!param->cpu_offload()->wait_in_backward) {
        copy.storage()->attach(std::make_shared<nn::Landing>(nn::Landing{landing}));
      }
      shard.set_grad(copy);
      continue;
    }
    const device::Cost cost{static_cast<double>(copy.numel()), 2 * copy.nbytes(), copy.nbytes()};
    device::Device::current().run_on_host("grad_accumulate", cost, [&] {
      kernels::add(before.dtype(), before.numel(), before.raw(), copy.raw(), before.raw());
    });
    before.storage()->bump_version();
  }
}

// The inputs of a reduction.
struct Reduction {
  int ranks = 1;  // of the shard axis
  DType grad_dtype = DType::kF32;
  DType reduce_dtype = DType::kF32;
  DType original_dtype = DType::kF32;
  std::int64_t row_elems = 0;  // of a rank
  ReducePlan plan = {};
  Comm* comm = nullptr;  // null: the engine's own
  std::string what;      // in errors of memory
};

Reduction reduction_of(const ReduceContext& context, const std::vector<Param*>& params,
                       const std::vector<Tensor>& grads) {
  const DType grad_dtype = grads.front().dtype();
  for (std::size_t i = 0; i < grads.size(); ++i) {
    require(grads[i].dtype() == grad_dtype, "gradients of group '{}' differ in dtype: '{}' {}, '{}' {}", context.path,
            params[0]->path(), name(grad_dtype), params[i]->path(), name(grads[i].dtype()));
  }
  Reduction of{.ranks = context.axes.shard.size(),
               .grad_dtype = grad_dtype,
               .reduce_dtype = params.front()->reduce_dtype().value_or(grad_dtype),
               .original_dtype = params.front()->original_dtype(),
               .what = fmt::format("reduction of '{}'", shown_path(context.path))};
  of.plan = plan_reduction(of.reduce_dtype, of.ranks, context.axes.replicate.size(), context.divide_factor,
                           context.force_sum);
  of.comm = of.ranks > 1 ? context.comm.get() : nullptr;
  for (const Param* param : params) of.row_elems += param->padded_shard_elems();
  return of;
}

// Fills `input`, the flat input, or takes the gradients where peers read them; then lets go of them.
Buffers copy_in(const ReduceContext& context, const Reduction& of, const std::vector<Param*>& params,
                std::vector<Tensor> grads, Tensor& input) {
  Buffers buffers{
      .gradients = {peer_reduction(context, of.plan, params, of.grad_dtype, of.reduce_dtype), of.grad_dtype, {}},
      .input_elems = of.ranks * of.row_elems,
      .row_elems = of.row_elems,
      .reduce_dtype = of.reduce_dtype,
      .original_dtype = of.original_dtype};
  const bool is_flat = buffers.gradients.group == nullptr;
  input = is_flat ? comm_buffer(of.comm, CommBufferUse::kReduceInput, buffers.input_elems, of.reduce_dtype,
                                kReduceBuffer, of.what)
                  : accounted_only(*context.device, buffers.input_elems, of.reduce_dtype, of.what);
  if (!is_flat) buffers.gradients.parts = parts_of(params, grads, buffers.owners);
  context.device->launch("reduce_copy_in",
                         {.read_bytes = buffers.input_elems * element_bytes(of.grad_dtype),
                          .written_bytes = input.nbytes(),
                          .unit = device::Unit::kCopy,
                          .work = kReduceCopyIn},
                         [&] {
                           if (is_flat) fill_input(input, params, grads, of.ranks);
                         });
  grads.clear();
  return buffers;
}

void check_partial(const ReduceContext& context, const Reduction& of) {
  require(context.partial.numel() == of.row_elems && context.partial.dtype() == of.reduce_dtype,
          "group '{}' keeps a partial gradient of {} elements of {}, and this backward gives {} of {}", context.path,
          context.partial.numel(), name(context.partial.dtype()), of.row_elems, name(of.reduce_dtype));
}

}  // namespace

ReducePlan plan_reduction(DType reduce_dtype, int shard_size, int replicate_size, std::optional<double> factor,
                          bool force_sum) {
  const double world = static_cast<double>(shard_size) * replicate_size;
  const bool averages = reduce_dtype != DType::kF16;
  ReducePlan plan;
  if (!averages) {
    const double f = factor.value_or(world);
    plan.pre_divide = fp16_pre_divide(f);
    plan.post_divide = f / plan.pre_divide;
  } else if (force_sum) {
    plan.post_divide = factor.value_or(world);
  } else if (!factor) {
    if (world == 1) return plan;
    plan.reduce_scatter = ReduceOp::avg();
    plan.all_reduce = ReduceOp::avg();
  } else if (*factor == shard_size) {
    plan.reduce_scatter = ReduceOp::avg();
  } else {
    plan.reduce_scatter = ReduceOp::premul_sum(1 / *factor);
  }
  return plan;
}

ReduceState reduce_gradients(const ReduceContext& context, const std::vector<Param*>& params,
                             std::vector<Tensor> grads) {
  const Reduction of = reduction_of(context, params, grads);
  ReduceState state;
  // A variable of PyTorch's loop over the gradients keeps the last one until its reduction is issued: outputs are
  // allocated beside it.
  const Tensor last_gradient = of.ranks > 1 ? grads.back() : Tensor{};
  Buffers buffers = copy_in(context, of, params, std::move(grads), state.input);

  const bool keeps = keeps_row(context);
  const bool offloads = params.front()->cpu_offload().has_value();
  const device::PoolScope pool(context.device->memory(), kReduceScatterStream);
  const Tensor gradient = keeps ? Tensor{}
                                : Tensor::empty({of.row_elems}, of.original_dtype, MemCategory::kGradient,
                                                fmt::format("gradient shards of '{}'", shown_path(context.path)));
  const bool in_place = !keeps && of.comm == nullptr && of.reduce_dtype == of.original_dtype;
  const Tensor reduced = in_place ? gradient
                                  : comm_buffer(of.comm, CommBufferUse::kReduceOutput, of.row_elems, of.reduce_dtype,
                                                kReduceBuffer, of.what);
  buffers.own(state.input, buffers.input);
  buffers.own(reduced, buffers.reduced);
  std::vector<Addition> additions;
  if (!keeps) {
    buffers.own(gradient, buffers.gradient);
    if (!offloads) additions = give_gradients(params, gradient, buffers.owners);
  }
  if (context.partial.defined()) {
    check_partial(context, of);
    buffers.own(context.partial, buffers.partial);
  }
  submit(context, steps_of(context, of.plan, buffers, additions));
  device::Stream& last = last_stream(context);
  state.done = last.record();
  if (offloads && !keeps) move_to_host(params, gradient, context.landing, last);
  // Without an all-reduce nobody reads it after the gradients are cast: as in PyTorch, it is freed here.
  const bool is_held = keeps || context.axes.replicate.size() > 1;
  if (is_held && (!offloads || !in_place)) state.reduced = reduced;
  return state;
}

}  // namespace loom::sharding
