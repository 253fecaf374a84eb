#include "sharding/tensor/share_matrices.h"

#include <set>
#include <utility>

#include "engine/core/rounding.h"
#include "engine/dist/operators.h"
#include "engine/dist/tensor_slot.h"
#include "engine/dist/vocabulary.h"
#include "engine/nn/layers.h"
#include "engine/nn/router_loss.h"
#include "engine/tensor/ops/general.h"
#include "sharding/selected_modules.h"
#include "sharding/tensor/matrix_cutter.h"

namespace loom::sharding {
namespace {

using nn::Args;
using nn::Value;

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

// The logits of the whole vocabulary. The last ranks' parts may be shorter: they are gathered as long as the first.
Tensor joined_logits(const Tensor& part, std::int64_t vocab, const dist::TensorRanks& shared, const std::string& path) {
  const std::int64_t most = ceil_div(vocab, static_cast<std::int64_t>(shared.ranks.size())), own = part.shape()[-1];
  Tensor padded = part;
  if (own < most) {
    Shape rest = part.shape();
    rest[-1] = most - own;
    padded = ops::concat({part, Tensor::zeros(rest, part.dtype())}, -1);
  }
  const Tensor all = dist::all_gather(padded, -1, shared.ranks, path, dist::Loss::kOfAll);
  const std::int64_t padding = all.shape()[-1] - vocab;
  return padding == 0 ? all : ops::split(all, {vocab, padding}, -1).front();
}

// The logits joined, or with targets the loss of their parts.
void share_logits(nn::Module& output, const nn::ParamSlot& weight, const dist::TensorRanks& shared,
                  const std::string& path) {
  const std::int64_t first = weight.shard.offset[0], vocab = weight.shard.global_shape[0];
  output.wrap_call([shared, path, first, vocab, &weight](const nn::Module::Run& inner, Args args) -> Value {
    if (args.positional.size() == 1) {
      return joined_logits(inner(std::move(args)).tensor(), vocab, shared, path);
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

// All ranks compute the head of all tokens.
void take_all_tokens(nn::Module& head, const dist::TensorRanks& shared, const std::string& path) {
  if (!shared.sequence_parallel) return;
  head.wrap_call([shared, path](const nn::Module::Run& inner, Args args) {
    args.positional[0] = dist::all_gather(args.tensor(0), 1, shared.ranks, path, dist::Loss::kOfAll);
    return inner(std::move(args));
  });
}

void share_output(nn::Module& model, const SharedMatrices& matrices, const dist::TensorRanks& shared,
                  MatrixCutter& cutter) {
  if (!matrices.head.empty()) {
    take_all_tokens(*model.find(matrices.head), shared, matrices.head);
    return;
  }
  nn::Module& output = *model.find(matrices.output);
  nn::ParamSlot& weight = *output.own_parameters().front();
  cutter.cut_rows(weight);
  share_logits(output, weight, shared, matrices.output);
  take_whole_input(output, shared, matrices.output);
}

}  // namespace

void share_matrices(nn::Module& model, const SharedMatrices& matrices, const std::vector<std::string>& expert_paths,
                    const comm::Axis& axis) {
  const auto shared =
      std::make_shared<const dist::TensorRanks>(dist::TensorRanks{{axis.shared_group()}, matrices.sequence_parallel});
  MatrixCutter cutter(model, matrices, axis);
  std::set<std::string> blocks;
  for (const std::string& path : matrices.colwise) {
    cutter.cut_outputs(path);
    blocks.insert(parent_of(path));
  }
  for (const std::string& path : matrices.rowwise) {
    cutter.cut_inputs(path);
    matrix_at(model, path, "").run_product_by([shared, path](const Tensor& x, const nn::MatrixLayer::Product& product) {
      return summed(product(x), *shared, path);
    });
  }
  for (const std::string& path : blocks) take_whole_input(*model.find(path), *shared, path);
  for (const std::string& path : matrices.tokens) share_tokens(*model.find(path), *shared, path);
  auto& embedding = dynamic_cast<nn::Embedding&>(*model.find(matrices.embedding));
  cutter.cut_rows(embedding.weight);
  share_vocabulary(embedding, *shared, matrices.embedding);
  share_output(model, matrices, *shared, cutter);
  std::vector<std::string> partial(blocks.begin(), blocks.end());
  partial.insert(partial.end(), matrices.tokens.begin(), matrices.tokens.end());
  auto shares = std::make_shared<TensorShares>(cutter.shares(partial, expert_paths));
  shares->matrices = matrices;
  shares->blocks.assign(blocks.begin(), blocks.end());
  model.attach(std::move(shares));
  if (matrices.loss_parallel && matrices.head.empty()) model.attach(std::make_shared<nn::OwnLoss>());
  for (auto& [path, module] : model.named_modules()) {
    const auto slot = module->attachment<dist::TensorSlot>();
    if (slot != nullptr) slot->shared = shared;
  }
}

}  // namespace loom::sharding
