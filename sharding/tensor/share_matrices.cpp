#include "sharding/tensor/share_matrices.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/core/error.h"
#include "engine/dist/context_attention.h"
#include "engine/dist/operators.h"
#include "engine/dist/tensor_slot.h"
#include "engine/dist/vocabulary.h"
#include "engine/nn/layers.h"
#include "engine/nn/router_loss.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "sharding/cut_parameter.h"
#include "sharding/fsdp/fsdp_state.h"
#include "sharding/selected_modules.h"
#include "sharding/tensor/tensor_plan.h"

namespace loom::sharding {
namespace {

using nn::Args;
using nn::Value;

// --- The plan

std::string where_of(const Fsdp2Config& config) { return config.value_mark("tensor_parallel_size").text(); }

std::vector<ModulePattern> parsed(const std::vector<std::string>& patterns) {
  std::vector<ModulePattern> result;
  for (const std::string& pattern : patterns) {
    result.push_back(ModulePattern::parse(pattern, "the model's plan", {"the model's plan", 0, 0}));
  }
  return result;
}

// --- A linear layer

struct Matrix {
  nn::ParamSlot* weight = nullptr;
  nn::ParamSlot* bias = nullptr;
  int outputs = 0;  // dims of the weight
  int inputs = 1;
  std::function<void(std::function<Tensor(const Tensor&)>)> sum_product_by;
};

Matrix matrix_of(nn::Module& module, const std::string& path, const std::string& where) {
  if (auto* linear = dynamic_cast<nn::Linear*>(&module)) {
    return {&linear->weight, linear->bias, 0, 1, [linear](auto sum) { linear->sum_product_by(std::move(sum)); }};
  }
  if (auto* conv = dynamic_cast<nn::Conv1D*>(&module)) {
    return {&conv->weight, &conv->bias, 1, 0, [conv](auto sum) { conv->sum_product_by(std::move(sum)); }};
  }
  config_error("{}: '{}' is a {}, and tensor parallelism cuts linear layers; take it out of the plan", where, path,
               module.type_name());
}

// What a rank keeps of `units` equal pieces.
struct Piece {
  std::int64_t first = 0;
  std::int64_t count = 0;
  int copies = 1;
};

Piece piece_of(std::int64_t units, int ranks, int rank) {
  if (units % ranks == 0) return {rank * (units / ranks), units / ranks, 1};
  const int copies = ranks / static_cast<int>(units);
  return {rank / copies, 1, copies};
}

// The heads of an attention that a colwise layer computes: all, or those of keys and values.
std::int64_t units_of(nn::Module& model, const std::string& path, std::int64_t outputs,
                      const std::vector<std::string>& colwise) {
  const auto slot = model.find(parent_of(path))->attachment<dist::ContextSlot>();
  if (slot == nullptr || slot->heads == 0) return outputs;
  if (slot->kv_heads == slot->heads) return slot->heads;
  std::int64_t most = 0;
  for (const std::string& other : colwise) {
    if (parent_of(other) != parent_of(path)) continue;
    const Matrix matrix = matrix_of(*model.find(other), other, "");
    most = std::max(most, matrix.weight->shard.global_shape[matrix.outputs]);
  }
  return outputs * slot->heads / most;
}

void check_units(const std::string& path, std::int64_t units, std::int64_t outputs, std::int64_t most_heads, int ranks,
                 const std::string& where) {
  if (units % ranks == 0) return;
  const bool heads = units != outputs;
  if (units < most_heads && ranks % units == 0) return;  // copies of key/value heads
  config_error("{}: {} ranks cannot share '{}', which has {} {}; use a tensor_parallel_size that divides {}", where,
               ranks, path, units, heads ? "heads" : "outputs", units);
}

// --- Cutting

class Cutter {
 public:
  Cutter(nn::Module& model, const SharedMatrices& matrices, const comm::Axis& axis)
      : model_(model), matrices_(matrices), axis_(axis) {}

  void cut_outputs(const std::string& path) {
    const Matrix matrix = matrix_of(*model_.find(path), path, "");
    const std::int64_t outputs = matrix.weight->shard.global_shape[matrix.outputs];
    const std::int64_t units = units_of(model_, path, outputs, matrices_.colwise);
    const Piece piece = piece_of(units, axis_.size(), axis_.rank());
    cut(*matrix.weight, matrix.outputs, outputs / units, piece);
    if (matrix.bias != nullptr) cut(*matrix.bias, 0, outputs / units, piece);
  }
  void cut_inputs(const std::string& path) {
    const Matrix matrix = matrix_of(*model_.find(path), path, "");
    const std::int64_t inputs = matrix.weight->shard.global_shape[matrix.inputs];
    cut(*matrix.weight, matrix.inputs, 1, piece_of(inputs, axis_.size(), axis_.rank()));
    if (matrix.bias != nullptr) row_biases_.insert(matrix.bias);
  }
  // Rows of a table of the vocabulary.
  void cut_rows(nn::ParamSlot& table) {
    if (is_cut(table)) return;
    cut(table, 0, 1, piece_of(table.shard.global_shape[0], axis_.size(), axis_.rank()));
  }

  // Of all other parameters of `model`: which are alike, and which see a part of the work.
  TensorShares shares(const std::vector<std::string>& partial, const std::vector<std::string>& apart) {
    TensorShares result;
    for (auto& [path, slot] : model_.named_slots()) {
      const auto below = [&path = path](const std::string& above) { return is_below(path, above); };
      if (std::ranges::any_of(apart, below)) continue;
      if (const auto found = cut_.find(slot->value.id()); found != cut_.end()) {
        result.shares[slot] = found->second;
        continue;
      }
      const bool sees_part =
          matrices_.sequence_parallel || (std::ranges::any_of(partial, below) && !row_biases_.contains(slot));
      result.shares[slot] = {axis_.size(), sees_part ? axis_.shared_group() : nullptr};
    }
    return result;
  }

 private:
  bool is_cut(const nn::ParamSlot& slot) const { return cut_.contains(slot.value.id()); }

  // `unit`: the size of a piece's unit.
  void cut(nn::ParamSlot& slot, int dim, std::int64_t unit, const Piece& piece) {
    Shape box = slot.value.shape();
    Offset offset = slot.shard.offset;
    box[dim] = piece.count * unit;
    offset[static_cast<std::size_t>(dim)] = piece.first * unit;
    cut_parameter(model_, slot, offset, box);
    TensorShares::Share share{piece.copies, nullptr};
    if (piece.copies > 1) share.sums = axis_.consecutive(piece.copies, "tp_copies").shared_group();
    cut_[slot.value.id()] = share;
  }

  nn::Module& model_;
  const SharedMatrices& matrices_;
  const comm::Axis& axis_;
  std::unordered_map<const void*, TensorShares::Share> cut_;  // by the identity of what is left
  std::set<const nn::ParamSlot*> row_biases_;
};

// --- Communication

// The first argument, whole on all ranks, whose gradient is the sum of the ranks'.
void take_whole_input(nn::Module& module, const dist::TensorRanks& shared, const std::string& path) {
  module.wrap_call([shared, path](const nn::Module::Run& inner, Args args) {
    const Tensor x = args.tensor(0);
    args.positional[0] = shared.sequence_parallel ? dist::all_gather(x, 1, shared.ranks, path)
                                                  : dist::with_summed_gradient(x, shared.ranks, path);
    return inner(std::move(args));
  });
}

// Over the ranks; along the sequence each keeps its part.
Tensor summed(const Tensor& x, const dist::TensorRanks& shared, const std::string& path) {
  if (shared.sequence_parallel) return dist::reduce_scatter(x, 1, shared.ranks, path);
  return dist::all_reduce(x, shared.ranks, path, dist::Loss::kOfAll);
}

// Each rank computes its part of the tokens.
void share_tokens(nn::Module& module, const dist::TensorRanks& shared, const std::string& path) {
  if (shared.sequence_parallel) return;
  module.wrap_call([shared, path](const nn::Module::Run& inner, Args args) -> Value {
    args.positional[0] = dist::own_part(args.tensor(0), 1, shared.ranks, path);
    const Value result = inner(std::move(args));
    const auto joined = [&](const Tensor& part) {
      return dist::all_gather(part, 1, shared.ranks, path, dist::Loss::kOfAll);
    };
    if (result.is_tensor()) return joined(result.tensor());
    nn::ValueList list = result.list();
    list[0] = joined(list[0].tensor());
    return list;
  });
}

void share_vocabulary(nn::Embedding& embedding, const dist::TensorRanks& shared, const std::string& path) {
  const std::int64_t first = embedding.weight.shard.offset[0], vocab = embedding.weight.shard.global_shape[0];
  embedding.look_up_by([shared, path, first, vocab](const Tensor& ids, const Tensor& table) {
    return summed(dist::vocabulary_embedding(ids, table, first, vocab), shared, path);
  });
}

// The logits joined, or with targets the loss of their parts.
void share_logits(nn::Module& output, const nn::ParamSlot& weight, const dist::TensorRanks& shared,
                  const std::string& path) {
  const std::int64_t first = weight.shard.offset[0], vocab = weight.shard.global_shape[0];
  output.wrap_call([shared, path, first, vocab, &weight](const nn::Module::Run& inner, Args args) -> Value {
    if (args.positional.size() == 1) {
      return dist::all_gather(inner(std::move(args)).tensor(), -1, shared.ranks, path, dist::Loss::kOfAll);
    }
    const Tensor targets = args.tensor(1);
    if (const std::int64_t chunk = args.positional[2].number(); chunk > 0) {
      return dist::vocabulary_linear_cross_entropy(args.tensor(0), weight.value, targets, chunk, first, vocab,
                                                   shared.ranks, path);
    }
    args.positional.resize(1);
    return dist::vocabulary_cross_entropy(inner(std::move(args)).tensor(), targets, first, vocab, shared.ranks, path);
  });
}

nn::ParamSlot& weight_of(nn::Module& module) { return *module.own_parameters().front(); }

}  // namespace

SharedMatrices shared_matrices(nn::Module& model, const Fsdp2Config& config) {
  SharedMatrices matrices;
  matrices.ranks = config.tensor_parallel_size;
  matrices.sequence_parallel = config.sequence_parallel;
  matrices.loss_parallel = config.loss_parallel;
  if (matrices.ranks == 1) return matrices;
  const std::string where = where_of(config);
  const auto plan = model.attachment<TensorPlan>();
  if (plan == nullptr) {
    config_error("{}: {} has no plan of tensor parallelism; write 1", where, model.type_name());
  }
  const ModelTree tree(model);
  std::vector<std::string> warnings;
  WrittenAs written_as;
  const auto paths = [&](const std::vector<ModulePattern>& given, const std::vector<std::string>& own) {
    return listed_modules(model, given.empty() ? parsed(own) : given, tree, warnings, written_as);
  };
  matrices.colwise = paths(config.colwise_parallel, plan->colwise);
  matrices.rowwise = paths(config.rowwise_parallel, plan->rowwise);
  matrices.tokens = paths({}, plan->tokens);
  matrices.embedding = plan->embedding;
  matrices.output = plan->output;
  for (const std::string& path : matrices.colwise) {
    const Matrix matrix = matrix_of(*model.find(path), path, where);
    const std::int64_t outputs = matrix.weight->shard.global_shape[matrix.outputs];
    const auto attention = model.find(parent_of(path))->attachment<dist::ContextSlot>();
    const std::int64_t most_heads = attention == nullptr ? 0 : attention->heads;
    check_units(path, units_of(model, path, outputs, matrices.colwise), outputs, most_heads, matrices.ranks, where);
  }
  for (const std::string& path : matrices.rowwise) {
    const Matrix matrix = matrix_of(*model.find(path), path, where);
    const std::int64_t inputs = matrix.weight->shard.global_shape[matrix.inputs];
    if (inputs % matrices.ranks == 0) continue;
    config_error("{}: {} ranks cannot share '{}', which has {} inputs; use a tensor_parallel_size that divides {}",
                 where, matrices.ranks, path, inputs, inputs);
  }
  const std::int64_t vocab = weight_of(*model.find(matrices.embedding)).shard.global_shape[0];
  if (vocab % matrices.ranks != 0) {
    config_error("{}: {} ranks cannot share a vocabulary of {}; use a tensor_parallel_size that divides it", where,
                 matrices.ranks, vocab);
  }
  return matrices;
}

void share_matrices(nn::Module& model, const SharedMatrices& matrices, const std::vector<std::string>& expert_paths,
                    const comm::Axis& axis) {
  const auto shared =
      std::make_shared<const dist::TensorRanks>(dist::TensorRanks{{axis.shared_group()}, matrices.sequence_parallel});
  Cutter cutter(model, matrices, axis);
  std::set<std::string> blocks;
  for (const std::string& path : matrices.colwise) {
    cutter.cut_outputs(path);
    blocks.insert(parent_of(path));
  }
  for (const std::string& path : matrices.rowwise) {
    cutter.cut_inputs(path);
    matrix_of(*model.find(path), path, "").sum_product_by([shared, path](const Tensor& product) {
      return summed(product, *shared, path);
    });
  }
  for (const std::string& path : blocks) take_whole_input(*model.find(path), *shared, path);
  for (const std::string& path : matrices.tokens) share_tokens(*model.find(path), *shared, path);
  auto& embedding = dynamic_cast<nn::Embedding&>(*model.find(matrices.embedding));
  cutter.cut_rows(embedding.weight);
  share_vocabulary(embedding, *shared, matrices.embedding);
  nn::Module& output = *model.find(matrices.output);
  cutter.cut_rows(weight_of(output));
  share_logits(output, weight_of(output), *shared, matrices.output);
  take_whole_input(output, *shared, matrices.output);
  std::vector<std::string> partial(blocks.begin(), blocks.end());
  partial.insert(partial.end(), matrices.tokens.begin(), matrices.tokens.end());
  auto shares = std::make_shared<TensorShares>(cutter.shares(partial, expert_paths));
  shares->matrices = matrices;
  shares->blocks.assign(blocks.begin(), blocks.end());
  model.attach(std::move(shares));
  if (matrices.loss_parallel) model.attach(std::make_shared<nn::OwnLoss>());
  for (auto& [path, module] : model.named_modules()) {
    const auto slot = module->attachment<dist::TensorSlot>();
    if (slot != nullptr) slot->shared = shared;
  }
}

namespace {

// In host memory one by one: nothing of the device's is used.
void sum_over(const std::shared_ptr<comm::ProcessGroup>& ranks, const std::vector<Tensor>& gradients) {
  const autograd::NoGrad unrecorded;
  std::vector<Tensor> flat;
  std::vector<std::int64_t> sizes;
  for (const Tensor& gradient : gradients) {
    if (gradient.storage()->place() == Place::kHost) {
      ranks->all_reduce(comm::kHostLane, gradient.raw(), gradient.numel(), gradient.dtype(), comm::ReduceOp::sum(),
                        "partial gradients");
      continue;
    }
    flat.push_back(ops::reshape(gradient, {gradient.numel()}));
    sizes.push_back(gradient.numel());
  }
  if (flat.empty()) return;
  const Tensor all = dist::all_reduce(ops::concat(flat, 0), {ranks}, "partial gradients", dist::Loss::kOfAll);
  const std::vector<Tensor> parts = sizes.size() == 1 ? std::vector<Tensor>{all} : ops::split(all, sizes, 0);
  for (std::size_t i = 0; i < flat.size(); ++i) flat[i].copy_from(parts[i]);
}

}  // namespace

void sum_partial_gradients(nn::Module& root) {
  const auto shares = root.attachment<TensorShares>();
  if (shares == nullptr) return;
  std::vector<std::pair<std::shared_ptr<comm::ProcessGroup>, std::vector<Tensor>>> by_ranks;
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      const auto found = shares->shares.find(param->home().slots.front());
      if (found == shares->shares.end() || found->second.sums == nullptr) continue;
      param->wait_for_shard_grad();
      const Tensor gradient = param->sharded().grad();
      if (!gradient.defined() || gradient.numel() == 0) continue;
      auto entry = std::ranges::find(by_ranks, found->second.sums, [](const auto& e) { return e.first; });
      if (entry == by_ranks.end()) entry = by_ranks.insert(entry, {found->second.sums, {}});
      entry->second.push_back(gradient);
    }
  }
  for (const auto& [ranks, gradients] : by_ranks) sum_over(ranks, gradients);
}

int copies_of(const TensorShares* shares, const nn::ParamSlot& slot) {
  if (shares == nullptr) return 1;
  const auto found = shares->shares.find(&slot);
  return found == shares->shares.end() ? 1 : found->second.copies;
}

}  // namespace loom::sharding
