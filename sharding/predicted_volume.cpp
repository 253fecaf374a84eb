#include "sharding/predicted_volume.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

#include "engine/core/rounding.h"
#include "engine/dist/context_attention.h"
#include "sharding/expert/expert_module.h"
#include "sharding/fully_shard.h"
#include "sharding/selected_modules.h"
#include "sharding/tensor/matrix_cutter.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::sharding {
namespace {

class Volumes {
 public:
  void add(const comm::Axis& axis, std::int64_t bytes) { add(axis.name(), axis.size(), bytes); }
  void add(const dist::Channel& channel, std::int64_t bytes) { add(channel.ranks->name(), channel.size(), bytes); }
  void add(const std::string& axis, std::int64_t ranks, std::int64_t bytes) {
    if (ranks == 1 || bytes == 0) return;
    auto at = std::ranges::find(all_, axis, &AxisVolume::axis);
    if (at == all_.end()) at = all_.insert(at, {.axis = axis, .ranks = ranks});
    at->predicted_bytes += bytes;
  }
  std::vector<AxisVolume> take() { return std::move(all_); }

 private:
  std::vector<AxisVolume> all_;
};

// --- FSDP

// This rank's part of what a group gathers, and of what it reduces.
struct GroupBytes {
  std::int64_t gathered = 0;
  std::int64_t reduced = 0;
};

GroupBytes bytes_of(const ParamGroup& group) {
  GroupBytes bytes;
  for (const auto& param : group.params()) {
    bytes.gathered += param->gather_input_bytes();
    if (!param->requires_grad()) continue;
    const DType dtype = param->reduce_dtype().value_or(param->compute_dtype());
    bytes.reduced += param->padded_shard_elems() * element_bytes(dtype);
  }
  return bytes;
}

void add_group(Volumes& volumes, const ParamGroup& group, bool has_backward, const StepShape& shape) {
  const auto [gathered, reduced] = bytes_of(group);
  const comm::Axis &shard = group.axes().shard, &replicate = group.axes().replicate;
  const std::int64_t n = shard.size(), m = replicate.size();
  const GroupSwitches& switches = group.switches();
  const std::int64_t micro_batches = shape.micro_batches;
  const bool frees = switches.reshard_after_forward.frees();
  const bool is_left_whole = has_backward && !shape.reshard_after_backward && (switches.unshard_in_backward || !frees);
  volumes.add(shard, (is_left_whole ? 1 : micro_batches) * (n - 1) * gathered);
  if (has_backward && switches.unshard_in_backward && frees) {
    if (const auto k = switches.reshard_after_forward.ranks()) {
      volumes.add("post_forward", *k, micro_batches * (*k - 1) * (n * gathered / *k));
    } else {
      volumes.add(shard, micro_batches * (n - 1) * gathered);
    }
  }
  const std::int64_t reductions = shape.sync_each_batch ? micro_batches : 1;
  volumes.add(shard, reductions * (n - 1) * reduced);
  volumes.add(replicate, reductions * (2 * (m - 1) * reduced / m));
}

// A frozen group is gathered in backward where gradients pass through it: behind a trained one.
void add_groups(Volumes& volumes, nn::Module& model, const StepShape& shape) {
  bool trains = false;
  for (const FsdpState* state : FsdpState::collect(model)) {
    const ParamGroup* group = state->group();
    if (group == nullptr) continue;
    const bool own = std::ranges::any_of(group->params(), [](const auto& param) { return param->requires_grad(); });
    add_group(volumes, *group, own || trains, shape);
    trains = trains || (own && !state->is_root());
  }
}

// --- Recompute

bool is_inside(std::string_view path, std::string_view outer) {
  return outer.empty() || (path.starts_with(outer) && (path.size() == outer.size() || path[outer.size()] == '.'));
}

// Whether the choice's `layers` layers, of which the path names the first, hold the module.
bool has_layer_of(const RecomputedModule& choice, std::string_view path) {
  const std::size_t dot = choice.path.rfind('.');
  const std::string list = choice.path.substr(0, dot);
  const int first = std::stoi(choice.path.substr(dot + 1));
  for (int layer = first; layer < first + choice.layers; ++layer) {
    if (is_inside(path, fmt::format("{}.{}", list, layer))) return true;
  }
  return false;
}

bool runs_again(std::span<const RecomputedModule> recomputed, std::string_view path) {
  return std::ranges::any_of(recomputed, [&](const RecomputedModule& choice) {
    if (choice.part != RecomputedPart::kWhole) return false;
    return choice.layers > 1 ? has_layer_of(choice, path) : is_inside(path, choice.path);
  });
}

bool core_runs_again(std::span<const RecomputedModule> recomputed, std::string_view path) {
  return std::ranges::any_of(recomputed, [&](const RecomputedModule& choice) {
    return choice.part == RecomputedPart::kCoreAttention && is_inside(path, choice.path);
  });
}

// --- Tokens

// What a module's exchanges depend on beside itself.
struct Exchanged {
  Volumes& volumes;
  std::span<const RecomputedModule> recomputed;
  std::int64_t micro_batches;
  std::int64_t tokens;  // of this rank in a micro-batch
  std::int64_t x;       // bytes of an element of activations
};

void add_attention(const Exchanged& of, const std::string& path, const dist::ContextSlot& slot) {
  const dist::Context& context = *slot.context;
  const std::int64_t u = context.ulysses.size(), r = context.ring.size();
  const std::int64_t queries = of.tokens * slot.heads * slot.head_dim;
  const std::int64_t keys = of.tokens * std::max(slot.kv_heads, u) * slot.head_dim;
  const bool again = runs_again(of.recomputed, path), core_again = !again && core_runs_again(of.recomputed, path);
  const std::int64_t forwards = again || core_again ? 2 : 1;
  // The core alone stops before it gives heads back.
  const std::int64_t exchanged = (forwards + 1) * (2 * queries + 2 * keys) - (core_again ? queries : 0);
  of.volumes.add(context.ulysses, of.micro_batches * of.x * exchanged / u * (u - 1));
  const std::int64_t block = 2 * keys * of.x, sums = 2 * keys * std::max<std::int64_t>(of.x, 4);
  const std::int64_t gradients = context.keys == dist::RingKeys::kGathered ? 0 : r * sums;
  of.volumes.add(context.ring, of.micro_batches * ((forwards + 1) * (r - 1) * block + gradients));
}

void add_experts(const Exchanged& of, const std::string& path, const ExpertModule& module, const comm::Axis& axis) {
  const std::int64_t e = axis.size();
  const std::int64_t forwards = runs_again(of.recomputed, path) ? 2 : 1;
  if (module.gathers_tokens()) {
    const std::int64_t hidden = of.tokens * module.row_elems() * of.x, weights = of.tokens * module.choices() * of.x;
    const std::int64_t choices = of.tokens * module.choices() * static_cast<std::int64_t>(sizeof(std::int64_t));
    return of.volumes.add(
        axis, of.micro_batches * (e - 1) * (forwards * (hidden + weights + choices + hidden) + 2 * hidden + weights));
  }
  const std::int64_t rows = of.tokens * module.choices() * module.row_elems() * of.x;
  const std::int64_t counts = static_cast<std::int64_t>(sizeof(std::int64_t)) * module.expert_count() * (e - 1);
  of.volumes.add(axis, of.micro_batches * ((forwards + 1) * (2 * rows * (e - 1) / e) + forwards * counts));
}

// Blocks that end in the last operator of what runs again: nothing needs their sum there.
bool ends_early(std::span<const RecomputedModule> recomputed, std::string_view path) {
  return std::ranges::any_of(recomputed, [&](const RecomputedModule& choice) {
    if (choice.use_reentrant || choice.part != RecomputedPart::kWhole || !is_inside(path, choice.path)) return false;
    return path == choice.path || path.ends_with(".mlp");
  });
}

bool is_trained(nn::Module& model, const nn::ParamSlot& slot) {
  for (const FsdpState* state : FsdpState::collect(model)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      if (std::ranges::find(param->home().slots, &slot) != param->home().slots.end()) return param->requires_grad();
    }
  }
  return true;
}

// Whether backward gathers the input of a block's layers again: for a weight's gradient.
bool gathers_again(nn::Module& model, const SharedMatrices& matrices, const std::string& block, std::int64_t hidden) {
  if (!matrices.gathers_again) return false;
  return std::ranges::any_of(matrices.colwise, [&](const std::string& path) {
    if (parent_of(path) != block) return false;
    nn::MatrixLayer& layer = matrix_at(model, path, "");
    return layer.is_one_product() && inputs_of(layer) == hidden && is_trained(model, *layer.parts().front().slot);
  });
}

// Of `exchanged` per forward and `back` in backward, in units of the part of a rank's hidden states that others have.
struct TensorUnits {
  std::int64_t enter = 0, leave = 0, back = 0;
};

void add_tensor(const Exchanged& of, const TensorShares& shares, nn::Module& model, const comm::Axis& axis) {
  const SharedMatrices& matrices = shares.matrices;
  const std::int64_t t = axis.size();
  const Shape& table = model.find(matrices.embedding)->own_parameters().front()->shard.global_shape;
  const std::int64_t unit = of.tokens * table[1] * of.x * (t - 1) / t;
  const auto add_units = [&](std::int64_t units) { of.volumes.add(axis, of.micro_batches * units * unit); };
  const auto add_modules = [&](const std::vector<std::string>& paths, const TensorUnits& units) {
    for (const std::string& path : paths) {
      const bool again = runs_again(of.recomputed, path);
      const std::int64_t leaves = again && !ends_early(of.recomputed, path) ? 2 : 1;
      add_units((again ? 2 : 1) * units.enter + leaves * units.leave + units.back);
    }
  };
  const bool sequence = matrices.sequence_parallel;
  add_modules(shares.blocks, sequence ? TensorUnits{1, 1, 2} : TensorUnits{0, 2, 2});
  for (const std::string& block : shares.blocks) add_units(gathers_again(model, matrices, block, table[1]) ? 1 : 0);
  if (!sequence) add_modules(matrices.tokens, {0, 1, 1});
  add_units(2);  // the embedding: summed; or scattered, and gathered in backward
  if (!matrices.head.empty()) {
    add_units(sequence ? 1 : 0);  // its input, gathered
    return;
  }
  add_units(2);  // the output layer's input: gathered and scattered back, or its gradient summed
  const std::int64_t logits = of.tokens * round_up(table[0], t) * of.x * (t - 1) / t;
  const std::int64_t statistics = 3 * of.tokens * std::max<std::int64_t>(of.x, 4) * 2 * (t - 1) / t;
  of.volumes.add(axis, of.micro_batches * (matrices.loss_parallel ? statistics : logits));
}

// Gradients that are summed over the ranks that share matrices, once a step.
void add_partial_gradients(Volumes& volumes, nn::Module& model, const TensorShares& shares) {
  for (FsdpState* state : FsdpState::collect(model)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      const auto found = shares.shares.find(param->home().slots.front());
      if (found == shares.shares.end() || found->second.sums == nullptr || !param->requires_grad()) continue;
      const comm::ProcessGroup& ranks = *found->second.sums;
      const std::int64_t bytes = param->shard_elems() * element_bytes(param->original_dtype());
      volumes.add(ranks.name(), ranks.size(), 2 * (ranks.size() - 1) * bytes / ranks.size());
    }
  }
}

dist::ContextDegrees degrees_of(const FullyShardOptions& options) {
  return options.context ? options.context->degrees() : dist::ContextDegrees{};
}

// Of activations: the dtype of compute.
DType activation_dtype(nn::Module& model, const FullyShardOptions& options) {
  if (options.policy.param_dtype) return *options.policy.param_dtype;
  const auto slots = model.named_slots();
  return slots.empty() ? DType::kF32 : slots.front().second->value.dtype();
}

}  // namespace

std::vector<AxisVolume> predicted_volume(nn::Module& model, std::span<const RecomputedModule> recomputed,
                                         const StepShape& shape) {
  Volumes volumes;
  const FsdpState* root = FsdpState::of(model);
  if (root == nullptr) return {};
  add_groups(volumes, model, shape);
  const FullyShardOptions& options = root->options();
  const dist::ContextDegrees degrees = degrees_of(options);
  const auto shares = model.attachment<TensorShares>();
  const std::int64_t cuts = shares == nullptr ? 1 : shares->matrices.token_cuts();
  const std::int64_t length = round_up(shape.tokens, dist::length_unit(degrees) * cuts);
  const Exchanged exchanged{volumes, recomputed, shape.micro_batches, shape.rows * length / degrees.ranks(),
                            element_bytes(activation_dtype(model, options))};
  if (shares != nullptr) {
    add_tensor(exchanged, *shares, model, *options.axes.parts);
    if (!options.cpu_offload) add_partial_gradients(volumes, model, *shares);
  }
  for (auto& [path, module] : model.named_modules()) {
    const auto slot = module->attachment<dist::ContextSlot>();
    if (slot != nullptr && slot->context != nullptr && slot->heads > 0) add_attention(exchanged, path, *slot);
    const auto* experts = dynamic_cast<const ExpertModule*>(module);
    if (experts != nullptr && options.expert_axes) add_experts(exchanged, path, *experts, *options.expert_axes->parts);
  }
  return volumes.take();
}

}  // namespace loom::sharding
