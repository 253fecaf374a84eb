// Promise: ranks that share matrices train as one rank: losses, gradient norms before and after clipping and weights
//          agree in fp64 to 1e-12, on every mesh, with and without sequence parallelism and beside shared experts. The
//          bias of a rowwise layer is added once, and parameters that several ranks hold stay equal to the bit.
// World:   Llama with biases, Qwen2 whose embedding is its output layer, Qwen3-MoE, DeepSeek-V3 and GPT-2 of 2 layers,
//          in fp64; 4 sequences a step, 10 steps of AdamW clipped to a fifth of the norm; 1 to 8 ranks as threads.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <numeric>

#include "engine/nn/init.h"
#include "engine/nn/optim/adamw.h"
#include "engine/nn/router_loss.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "sharding/tensor/share_matrices.h"
#include "tests/support/boxes.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

constexpr std::int64_t kSeq = 8, kVocab = 16;
constexpr int kBatch = 4, kSteps = 10;
constexpr double kTolerance = 1e-12;

DecoderConfig llama() {
  DecoderConfig config;
  config.family = DecoderFamily::kLlama;
  config.vocab_size = kVocab;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 2;
  config.max_position_embeddings = 16;
  config.initializer_range = 0.4;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  return config;
}

DecoderConfig qwen2() {
  DecoderConfig config = llama();
  config.family = DecoderFamily::kQwen2;
  config.attention_output_bias = config.mlp_bias = false;
  config.tie_word_embeddings = true;
  return config;
}

DecoderConfig qwen3_moe() {
  DecoderConfig config = llama();
  config.family = DecoderFamily::kQwen3Moe;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = false;
  config.qk_norm = true;
  config.moe =
      MoeConfig{.num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 3, .norm_topk_prob = true};
  return config;
}

DecoderConfig deepseek_v3() {
  return parse_decoder_yaml(
      "model_type: deepseek_v3\nvocab_size: 16\nhidden_size: 8\nintermediate_size: 12\nnum_hidden_layers: 2\n"
      "num_attention_heads: 4\nnum_key_value_heads: 4\nmax_position_embeddings: 16\nrms_norm_eps: 1.0e-6\n"
      "n_routed_experts: 4\nn_shared_experts: 1\nnum_experts_per_tok: 2\nmoe_intermediate_size: 4\nn_group: 2\n"
      "topk_group: 1\nrouted_scaling_factor: 1.5\nfirst_k_dense_replace: 1\nnorm_topk_prob: true\nq_lora_rank: 6\n"
      "kv_lora_rank: 6\nqk_nope_head_dim: 2\nqk_rope_head_dim: 2\nv_head_dim: 2\ninitializer_range: 0.4\n"
      "tie_word_embeddings: false\n",
      "deepseek_v3.yaml");
}

// Its vocabulary is odd, and its q, k and v are one matrix.
DecoderConfig gpt2() {
  DecoderConfig config = qwen2();
  config.family = DecoderFamily::kGpt2;
  config.vocab_size = kVocab + 1;
  config.num_key_value_heads = 4;
  return config;
}

struct Mesh {
  int ranks = 1;
  int tp = 1;
  std::string keys = {};  // further ones of the sharding file
  int sharding_size = 0;  // 0: all ranks with the same parts

  std::string yaml(const DecoderConfig& config) const {
    const char* layers = config.family == DecoderFamily::kGpt2 ? "transformer.h" : "model.layers";
    return fmt::format("sharding_size: {}\nsub_modules_to_wrap: [{}'{}.{{*}}']\ntensor_parallel_size: {}\n{}",
                       sharding_size == 0 ? "auto" : fmt::to_string(sharding_size),
                       config.tie_word_embeddings ? "" : "model.embed_tokens, lm_head, ", layers, tp, keys);
  }
};

using Whole = std::map<std::string, std::vector<double>>;

struct Curve {
  std::vector<double> losses, norms, clipped_norms;
  Whole weights;
  std::int64_t copies = 0;  // elements of parameters that one more rank holds
};

// On meta, before any rank has bytes.
void make_double(nn::Module& model) {
  std::map<const void*, Tensor> of;  // by identity: ties stay ties
  for (auto& [path, slot] : model.named_slots()) {
    Tensor& value = of[slot->value.id()];
    if (!value.defined()) {
      value = Tensor::meta(slot->value.shape(), DType::kF64, slot->name);
      value.set_requires_grad(slot->value.requires_grad());
    }
  }
  for (auto& [path, slot] : model.named_slots()) slot->value = of.at(slot->value.id());
}

// `bias`: of every layer, by the place in the whole parameter, times this.
void write_weights(nn::Module& model, double bias) {
  nn::init_weights(model, 3);
  for (auto& [path, slot] : model.named_slots()) {
    if (!path.ends_with("bias")) continue;
    nn::fill_parts(slot->local(), path, [bias, places = path.size()](const nn::LocalTensor& box) {
      std::vector<double> values(static_cast<std::size_t>(box.value.numel()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = bias * std::sin(static_cast<double>(box.shard.offset[0]) + static_cast<double>(i + places));
      }
      if (!values.empty()) box.value.copy_from(Tensor::from(values, box.value.shape(), DType::kF64));
    });
  }
}

// The mean over a data rank's rows of step `step`.
Tensor loss_of(nn::Module& model, int step, int data_rank, int data_ranks) {
  std::vector<std::int32_t> ids, targets;
  for (int row = data_rank * kBatch / data_ranks; row < (data_rank + 1) * kBatch / data_ranks; ++row) {
    for (int i = 0; i < kSeq; ++i) {
      ids.push_back((5 * i + 3 * row + 7 * step * (i % 3)) % kVocab);
      targets.push_back((7 * i + row + step + 1) % kVocab);
    }
  }
  const Shape shape{kBatch / data_ranks, kSeq};
  const Tensor wanted = Tensor::from(targets, shape);
  if (model.attachment<nn::OwnLoss>() == nullptr) return ops::cross_entropy(model(Tensor::from(ids, shape)), wanted);
  nn::Args args;
  args.add(Tensor::from(ids, shape));
  args.named.emplace_back("targets", wanted);
  return model.call(std::move(args)).tensor();
}

std::int64_t add_box(const nn::LocalTensor& box, const std::vector<std::size_t>& places, std::vector<double>& whole) {
  std::int64_t copies = 0;
  const std::vector<double> values = box.value.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    double& element = whole[places[i]];
    if (!std::isnan(element)) {
      EXPECT_EQ(element, values[i]) << "element " << places[i];
      ++copies;
    }
    element = values[i];
  }
  return copies;
}

// Writes a rank's boxes into whole tensors; what several ranks hold has to be the same to the bit. Returns how many
// elements others had held before.
std::int64_t add_boxes(const nn::StateDict& boxes, Whole& wholes) {
  std::int64_t copies = 0;
  for (const nn::StateEntry& entry : boxes) {
    const nn::ShardSpec& shard = entry.local.shard;
    std::vector<double>& whole = wholes[entry.path];
    whole.resize(static_cast<std::size_t>(shard.global_shape.numel()), NAN);
    std::vector<std::size_t> places(whole.size());
    std::iota(places.begin(), places.end(), 0U);
    for (const nn::LocalTensor& box : nn::file_parts(entry.local, entry.path)) {
      copies += add_box(box, test::box_of(places, shard.global_shape, box.shard.offset, box.value.shape()), whole);
    }
  }
  return copies;
}

// A key's bias moves all scores of a query alike, so its gradient is 0: AdamW divides rounding by rounding. Rotary keys
// are another matter.
void forget_key_biases(Whole& weights, std::int64_t width) {
  for (auto& [path, values] : weights) {
    if (path.ends_with("c_attn.bias")) std::fill_n(values.begin() + width, width, 0.0);
  }
}

struct Training {
  DecoderConfig config;
  int steps = kSteps;
  double bias = 0.3;
};

Curve trained(const Training& training, const Mesh& mesh) {
  Curve curve;
  struct OfRank {
    Curve curve;
    nn::StateDict boxes;
  };
  const auto ranks = test::of_each_rank(mesh.ranks, [&](RankContext& context, comm::World& world) {
    OfRank own;
    const auto model = build_decoder(training.config);
    make_double(*model);
    Fsdp2Options options;
    options.weights.load = [&](nn::Module& built) { write_weights(built, training.bias); };
    models::fully_shard(*model, world, sharding::parse_fsdp2_config(mesh.yaml(training.config), "f.yaml"), options);
    nn::AdamW optimizer(nn::make_parameter_groups(*model), {.lr = 1e-3, .weight_decay = 0.1});
    for (int step = 0; step < training.steps; ++step) {
      const Tensor loss = loss_of(*model, step, context.rank() / mesh.tp, mesh.ranks / mesh.tp);
      autograd::backward(loss);
      sharding::sum_partial_gradients(*model);
      own.curve.losses.push_back(loss.item());
      own.curve.norms.push_back(sharding::grad_norm(*model));
      sharding::clip_grad_norm(*model, own.curve.norms.back() / 5);
      own.curve.clipped_norms.push_back(sharding::grad_norm(*model));
      optimizer.step();
      optimizer.zero_grad();
    }
    own.boxes = nn::host_copies(sharding::local_state_dict(*model));
    return own;
  });
  curve.norms = ranks[0].curve.norms;
  curve.clipped_norms = ranks[0].curve.clipped_norms;
  curve.losses.resize(static_cast<std::size_t>(training.steps));
  for (const OfRank& own : ranks) {
    EXPECT_EQ(own.curve.norms, curve.norms);
    for (std::size_t i = 0; i < curve.losses.size(); ++i) curve.losses[i] += own.curve.losses[i] / mesh.ranks;
    curve.copies += add_boxes(own.boxes, curve.weights);
  }
  if (training.config.family == DecoderFamily::kGpt2) forget_key_biases(curve.weights, training.config.hidden_size);
  return curve;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], kTolerance * std::max(1.0, std::abs(expected[i]))) << what << " " << i;
  }
}

void expect_same(const Curve& actual, const Curve& expected) {
  expect_near(actual.losses, expected.losses, "loss of step");
  expect_near(actual.norms, expected.norms, "gradient norm of step");
  expect_near(actual.clipped_norms, expected.clipped_norms, "clipped gradient norm of step");
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (const auto& [path, values] : expected.weights) expect_near(actual.weights.at(path), values, path);
}

constexpr const char* kSequence = "sequence_parallel: true\n";

TEST(TensorParallelTraining, IsThatOfOneRankOnEveryMesh) {
  for (const DecoderConfig& config : {llama(), qwen2(), qwen3_moe(), deepseek_v3(), gpt2()}) {
    const Curve one = trained({config}, {});
    for (std::size_t i = 0; i < one.norms.size(); ++i) EXPECT_NEAR(one.clipped_norms[i], one.norms[i] / 5, 1e-5);
    for (const auto& [ranks, tp] : {std::pair{2, 2}, {4, 4}, {4, 2}}) {
      for (const char* keys : {"", kSequence, "loss_parallel: false\n"}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, tp {}, {}", model_type(config.family), ranks, tp, keys));
        expect_same(trained({config}, {ranks, tp, keys}), one);
      }
    }
    SCOPED_TRACE("replicas");
    expect_same(trained({config}, {8, 2, kSequence, 2}), one);
  }
}

TEST(TensorParallelTraining, IsThatOfOneRankBesideSharedExperts) {
  const Curve one = trained({qwen3_moe()}, {});
  for (const char* sequence : {"", kSequence}) {
    for (const auto& [ranks, ep] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
      SCOPED_TRACE(fmt::format("{} ranks, ep {} {}", ranks, ep, sequence));
      const std::string keys =
          fmt::format("expert_parallel_size: {}\nmoe_modules: ['model.layers.{{*}}.mlp.experts']\n{}", ep, sequence);
      expect_same(trained({qwen3_moe()}, {ranks, 2, keys}), one);
    }
  }
}

// Added on each of t ranks, it would count t times.
TEST(TensorParallelTraining, AddsTheBiasOfARowwiseLayerOnce) {
  const auto first_loss = [](double bias, const Mesh& mesh) {
    return trained({llama(), 1, bias}, mesh).losses.front();
  };
  const double once = first_loss(0.3, {});
  EXPECT_GT(std::abs(first_loss(0.6, {}) - once), 1e-3);
  for (const int tp : {2, 4}) {
    for (const char* keys : {"", kSequence}) EXPECT_NEAR(first_loss(0.3, {tp, tp, keys}), once, kTolerance);
  }
}

// trained() compares whatever several ranks hold. Two key/value heads on four ranks: each on two of them.
TEST(TensorParallelTraining, KeepsCopiesOfKeyValueHeadsEqualToTheBit) {
  const std::int64_t of_heads = 2 * 2 * (8 * 4 + 4);          // weights and biases of keys and values, of two layers
  const std::int64_t of_norms = (2 * 2 + 1) * 8 + 2 * 2 * 8;  // with the biases of rowwise layers
  for (const char* keys : {"", kSequence}) {
    EXPECT_EQ(trained({llama()}, {2, 2, keys}).copies, of_norms);
    EXPECT_EQ(trained({llama()}, {4, 4, keys}).copies, of_heads + 3 * of_norms);
    EXPECT_EQ(trained({llama()}, {8, 4, keys}).copies, of_heads + 3 * of_norms);
  }
}

}  // namespace
}  // namespace loom::models
