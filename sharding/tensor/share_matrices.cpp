#include "sharding/tensor/share_matrices.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/core/rounding.h"
#include "engine/dist/operators.h"
#include "engine/dist/sliced_products.h"
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

// The first argument, whole on all ranks, whose gradient is the sum of the ranks'.
void take_whole_input(nn::Module& module, const dist::TensorRanks& shared, const std::string& path) {
  module.wrap_call([shared, path](const nn::Module::Run& inner, Args args) {
    const Tensor x = args.tensor(0);
    args.positional[0] = shared.sequence_parallel ? dist::all_gather(x, 1, shared.ranks, path)
                                                  : dist::with_summed_gradient(x, shared.ranks, path);
    return inner(std::move(args));
  });
}

// What a block's layers read while it runs.
struct InputOfBlock {
  std::shared_ptr<dist::GatheredInput> now;
};

class Running {
 public:
  Running(InputOfBlock& block, std::shared_ptr<dist::GatheredInput> input)
      : block_(block), outer_(std::exchange(block.now, std::move(input))) {}
  ~Running() { block_.now = std::move(outer_); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  InputOfBlock& block_;
  std::shared_ptr<dist::GatheredInput> outer_;
};

// The first argument of a block, gathered beside the product of the layer that reads it first: the modules below wait
// until it is whole, unless they are such a layer.
void gather_beside_products(nn::Module& block, const std::vector<nn::MatrixLayer*>& layers,
                            const dist::TensorRanks& shared, const std::string& path) {
  const auto input = std::make_shared<InputOfBlock>();
  const auto is_layer = [&](nn::Module* module) { return std::ranges::find(layers, module) != layers.end(); };
  for (auto& [below, module] : block.named_modules()) {
    if (module == &block || is_layer(module)) continue;
    module->wrap_call([input](const nn::Module::Run& inner, Args args) {
      if (input->now != nullptr) input->now->wait();
      return inner(std::move(args));
    });
  }
  for (nn::MatrixLayer* layer : layers) {
    layer->run_product_by(
        [input](const Tensor& x, const nn::MatrixLayer::Product& product) {
          if (input->now == nullptr) return product(x);
          if (product.matrix && input->now->is_input(x)) return input->now->product(*product.matrix);
          input->now->wait();
          return product(x);
        },
        nn::MatrixLayer::Bias::kOfProduct);
  }
  block.wrap_call([input, shared, path](const nn::Module::Run& inner, Args args) {
    const auto gathered = std::make_shared<dist::GatheredInput>(
        args.tensor(0), dist::GatheredInput::Options{shared.slices, shared.gathers_again}, shared.ranks, path);
    args.positional[0] = gathered->whole();
    const Running running(*input, gathered);
    nn::Value result = inner(std::move(args));
    gathered->wait();
    return result;
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
  module.wrap_call([shared, path](const nn::Module::Run& inner, Args args) -> nn::Value {
    args.positional[0] = dist::own_part(args.tensor(0), 1, shared.ranks, path);
    const nn::Value result = inner(std::move(args));
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
  embedding.look_up_by(
      [shared, path, first, vocab, padding = embedding.padding()](const Tensor& ids, const Tensor& table) {
        return summed(dist::vocabulary_embedding(ids, table, first, vocab, padding), shared, path);
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
  output.wrap_call([shared, path, first, vocab, &weight](const nn::Module::Run& inner, Args args) -> nn::Value {
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
  if (matrices.output.empty()) return;
  nn::Module& output = *model.find(matrices.output);
  nn::ParamSlot& weight = *output.own_parameters().front();
  cutter.cut_rows(weight);
  share_logits(output, weight, shared, matrices.output);
  take_whole_input(output, shared, matrices.output);
}

}  // namespace

void add_shares(nn::Module& root, const nn::Module& part) {
  const auto own = part.attachment<TensorShares>();
  if (own == nullptr) return;
  const auto before = root.attachment<TensorShares>();
  auto all = std::make_shared<TensorShares>(before == nullptr ? *own : *before);
  all->shares.insert(own->shares.begin(), own->shares.end());
  all->blocks.insert(all->blocks.end(), own->blocks.begin(), own->blocks.end());
  root.attach(std::move(all));
}

void share_matrices(nn::Module& model, const SharedMatrices& matrices, const std::vector<std::string>& expert_paths,
                    const comm::Axis& axis) {
  const auto shared = std::make_shared<const dist::TensorRanks>(
      dist::TensorRanks{{axis.shared_group()}, matrices.sequence_parallel, matrices.slices, matrices.gathers_again});
  MatrixCutter cutter(model, matrices, axis);
  std::map<std::string, std::vector<nn::MatrixLayer*>> blocks;
  for (const std::string& path : matrices.colwise) {
    cutter.cut_outputs(path);
    blocks[parent_of(path)].push_back(&matrix_at(model, path, ""));
  }
  for (const std::string& path : matrices.rowwise) {
    cutter.cut_inputs(path);
    matrix_at(model, path, "").run_product_by([shared, path](const Tensor& x, const nn::MatrixLayer::Product& product) {
      if (shared->slices == 1 || !product.matrix) return summed(product(x), *shared, path);
      return dist::product_and_sum(x, *product.matrix, shared->slices, shared->ranks, path);
    });
  }
  const bool beside = matrices.slices > 1 || matrices.gathers_again;
  for (const auto& [path, layers] : blocks) {
    beside ? gather_beside_products(*model.find(path), layers, *shared, path)
           : take_whole_input(*model.find(path), *shared, path);
  }
  for (const std::string& path : matrices.tokens) share_tokens(*model.find(path), *shared, path);
  if (!matrices.embedding.empty()) {
    auto& embedding = dynamic_cast<nn::Embedding&>(*model.find(matrices.embedding));
    cutter.cut_rows(embedding.weight);
    share_vocabulary(embedding, *shared, matrices.embedding);
  }
  share_output(model, matrices, *shared, cutter);
  std::vector<std::string> partial;
  for (const auto& [path, layers] : blocks) partial.push_back(path);
  const std::vector<std::string> block_paths = partial;
  partial.insert(partial.end(), matrices.tokens.begin(), matrices.tokens.end());
  auto shares = std::make_shared<TensorShares>(cutter.shares(partial, expert_paths));
  shares->matrices = matrices;
  shares->blocks = block_paths;
  model.attach(std::move(shares));
  if (matrices.loss_parallel && matrices.head.empty()) model.attach(std::make_shared<nn::OwnLoss>());
  for (auto& [path, module] : model.named_modules()) {
    const auto slot = module->attachment<dist::TensorSlot>();
    if (slot != nullptr) slot->shared = shared;
  }
}

}  // namespace loom::sharding
