// Promise: Qwen3 and Qwen3-MoE are the modules of transformers, path by path, and compute what it does: every head of q
//          and k is normed before the rotation, and a sparse layer is the weighted sum of the experts each token chose.
//
// References are written out here in fp64; gradients are compared with central differences.
#include <cmath>
#include <gtest/gtest.h>
#include <map>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using Doubles = std::vector<double>;

std::filesystem::path reference() {
  return std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/training/qwen3moe_w2";
}

// H 6, two layers, 4 heads of 4 with 2 key/value heads; with experts: 4 of width 3, of which a token uses 2.
DecoderConfig tiny(DecoderFamily family) {
  DecoderConfig config;
  config.family = family;
  config.vocab_size = 11;
  config.hidden_size = 6;
  config.intermediate_size = 5;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.qk_norm = true;
  if (family == DecoderFamily::kQwen3Moe) {
    config.moe =
        MoeConfig{.num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 3, .norm_topk_prob = true};
  }
  return config;
}

Doubles normals(std::int64_t count, std::uint64_t stream) {
  Doubles values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(normal_at(stream, static_cast<std::uint64_t>(i)));
  return values;
}

// The model with fp64 parameters, all of them random.
std::shared_ptr<nn::Module> random_model(const DecoderConfig& config) {
  auto model = build_decoder(config);
  std::uint64_t stream = 100;
  for (auto& [path, slot] : model->named_slots()) {
    Doubles values = normals(slot->shard.global_shape.numel(), ++stream);
    for (double& value : values) value = (slot->shard.global_shape.ndim() == 1 ? 1.0 : 0.0) + 0.4 * value;
    slot->value = Tensor::from(values, slot->shard.global_shape).set_requires_grad(true);
  }
  return model;
}

Doubles parameter(nn::Module& model, const std::string& path) {
  for (auto& [name, slot] : model.named_slots()) {
    if (name == path) return slot->value.to_vector<double>();
  }
  ADD_FAILURE() << "no parameter " << path;
  return {};
}

// y [rows, n] = x [rows, k] . w [n, k]^T
Doubles multiply(const Doubles& x, const Doubles& w, std::size_t k) {
  const std::size_t rows = x.size() / k, n = w.size() / k;
  Doubles y(rows * n);
  for (std::size_t i = 0; i < rows * n * k; ++i) {
    y[i / (n * k) * n + i / k % n] += x[i / (n * k) * k + i % k] * w[i / k % n * k + i % k];
  }
  return y;
}

void expect_near(const Doubles& actual, const Doubles& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
}

TEST(Qwen3Tree, HasTheParametersOfTheReferenceFile) {
  std::map<std::string, std::vector<std::int64_t>> stored, built;
  const io::SafetensorsFile file(reference() / "model.safetensors");
  for (const auto& tensor : file.tensors()) stored[tensor.name] = tensor.shape.sizes();
  const auto model = build_decoder(load_decoder_config(reference()));
  for (const auto& [path, tensor] : model->named_parameters()) built[path] = tensor.shape().sizes();
  EXPECT_EQ(built, stored);
}

TEST(Qwen3Tree, HasTheClassesOfTransformers) {
  using Classes = std::map<std::string, std::string>;
  const auto classes = [](const DecoderConfig& config) {
    Classes result;
    const auto model = build_decoder(config);
    for (const auto& [path, module] : model->named_modules()) result[path] = module->type_name();
    return result;
  };
  const Classes dense = classes(tiny(DecoderFamily::kQwen3));
  EXPECT_EQ(dense.at(""), "Qwen3ForCausalLM");
  EXPECT_EQ(dense.at("model"), "Qwen3Model");
  EXPECT_EQ(dense.at("model.rotary_emb"), "Qwen3RotaryEmbedding");
  EXPECT_EQ(dense.at("model.layers.1"), "Qwen3DecoderLayer");
  EXPECT_EQ(dense.at("model.layers.1.self_attn"), "Qwen3Attention");
  EXPECT_EQ(dense.at("model.layers.1.self_attn.q_norm"), "RMSNorm");
  EXPECT_EQ(dense.at("model.layers.1.mlp"), "Qwen3MLP");
  const Classes moe = classes(tiny(DecoderFamily::kQwen3Moe));
  EXPECT_EQ(moe.at(""), "Qwen3MoeForCausalLM");
  EXPECT_EQ(moe.at("model.layers.1"), "Qwen3MoeDecoderLayer");
  EXPECT_EQ(moe.at("model.layers.1.mlp"), "Qwen3MoeSparseMoeBlock");
  EXPECT_EQ(moe.at("model.layers.1.mlp.gate"), "Qwen3MoeTopKRouter");
  EXPECT_EQ(moe.at("model.layers.1.mlp.experts"), "Qwen3MoeExperts");
}

TEST(Qwen3Tree, HasPlainMlpsInLayersWithoutExperts) {
  DecoderConfig config = tiny(DecoderFamily::kQwen3Moe);
  config.moe->mlp_only_layers = {1};
  const auto model = build_decoder(config);
  EXPECT_EQ(model->find("model.layers.0.mlp")->type_name(), "Qwen3MoeSparseMoeBlock");
  EXPECT_EQ(model->find("model.layers.1.mlp")->type_name(), "Qwen3MoeMLP");
  EXPECT_EQ(model->find("model.layers.1.mlp.gate_proj")->own_parameters()[0]->shard.global_shape, (Shape{5, 6}));
}

class BothGrains : public ::testing::TestWithParam<bool> {
 protected:
  BothGrains() {
    if (GetParam()) rank_.context.slot<nn::KernelOptions>() = nn::KernelOptions::pytorch();
  }
  test::TestRank rank_;
};
INSTANTIATE_TEST_SUITE_P(Qwen3, BothGrains, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "pytorch" : "fast"; });

// transformers' Qwen3Attention: q and k heads x / rms(x) * weight, then rotated; softmax(q.k / 2) over earlier
// positions; 2 query heads share a key/value head.
TEST_P(BothGrains, AttentionNormsEveryHeadOfQAndKBeforeTheRotation) {
  constexpr std::size_t kSeq = 5, kHeads = 4, kKv = 2, kDim = 4, kHidden = 6;
  const DecoderConfig config = tiny(DecoderFamily::kQwen3);
  const auto model = random_model(config);
  const std::string prefix = "model.layers.0.self_attn.";
  const Doubles hidden = normals(kSeq * kHidden, 1);
  const auto table = [&](double (*f)(double)) {
    Doubles values;
    for (std::size_t i = 0; i < kSeq * kDim; ++i) {
      values.push_back(f(static_cast<double>(i / kDim) * std::pow(100.0, -static_cast<double>(i % 2) / 2.0)));
    }
    return values;
  };
  const Doubles cos = table(std::cos), sin = table(std::sin);
  const auto heads = [&](const char* projection, const char* norm) {
    Doubles x = multiply(hidden, parameter(*model, prefix + projection + ".weight"), kHidden);
    const std::size_t count = x.size() / (kSeq * kDim);
    if (norm == nullptr) return x;
    const Doubles weight = parameter(*model, prefix + norm + ".weight");
    for (std::size_t h = 0; h < kSeq * count; ++h) {
      double square = 0;
      for (std::size_t d = 0; d < kDim; ++d) square += x[h * kDim + d] * x[h * kDim + d];
      Doubles normed;
      for (std::size_t d = 0; d < kDim; ++d) {
        normed.push_back(x[h * kDim + d] / std::sqrt(square / kDim + config.norm_eps) * weight[d]);
      }
      for (std::size_t d = 0; d < kDim; ++d) {
        const std::size_t at = h / count * kDim + d;
        const double turned = d < kDim / 2 ? -normed[d + kDim / 2] : normed[d - kDim / 2];
        x[h * kDim + d] = normed[d] * cos[at] + turned * sin[at];
      }
    }
    return x;
  };
  const Doubles q = heads("q_proj", "q_norm"), k = heads("k_proj", "k_norm"), v = heads("v_proj", nullptr);
  Doubles joined(kSeq * kHeads * kDim);
  for (std::size_t s = 0; s < kSeq; ++s) {
    for (std::size_t h = 0; h < kHeads; ++h) {
      Doubles weights;
      double total = 0;
      for (std::size_t t = 0; t <= s; ++t) {
        double score = 0;
        for (std::size_t d = 0; d < kDim; ++d) {
          score += q[(s * kHeads + h) * kDim + d] * k[(t * kKv + h / 2) * kDim + d];
        }
        weights.push_back(std::exp(score / 2));
        total += weights.back();
      }
      for (std::size_t i = 0; i < (s + 1) * kDim; ++i) {
        joined[(s * kHeads + h) * kDim + i % kDim] +=
            weights[i / kDim] / total * v[(i / kDim * kKv + h / 2) * kDim + i % kDim];
      }
    }
  }
  const Doubles want = multiply(joined, parameter(*model, prefix + "o_proj.weight"), kHeads * kDim);
  const Tensor out = (*model->find("model.layers.0.self_attn"))(
      Tensor::from(hidden, {1, kSeq, kHidden}), Tensor::from(cos, {kSeq, kDim}), Tensor::from(sin, {kSeq, kDim}));
  expect_near(out.to_vector<double>(), want, 1e-12);
}

// transformers' Qwen3MoeSparseMoeBlock with norm_topk_prob, every token by itself.
TEST_P(BothGrains, ASparseLayerIsTheWeightedSumOfEachTokensExperts) {
  constexpr std::size_t kTokens = 7, kHidden = 6, kExperts = 4, kWide = 3;
  const auto model = random_model(tiny(DecoderFamily::kQwen3Moe));
  const std::string prefix = "model.layers.0.mlp.";
  const Doubles hidden = normals(kTokens * kHidden, 1);
  const Doubles gate_up = parameter(*model, prefix + "experts.gate_up_proj");
  const Doubles down = parameter(*model, prefix + "experts.down_proj");
  const Doubles logits = multiply(hidden, parameter(*model, prefix + "gate.weight"), kHidden);
  Doubles want(hidden.size());
  for (std::size_t t = 0; t < kTokens; ++t) {
    const auto token = hidden.begin() + static_cast<std::ptrdiff_t>(t * kHidden);
    std::multimap<double, std::size_t, std::greater<>> by_logit;
    for (std::size_t e = 0; e < kExperts; ++e) by_logit.emplace(logits[t * kExperts + e], e);
    const auto first = by_logit.begin(), second = std::next(first);
    const double share = 1 / (1 + std::exp(second->first - first->first));  // of the first among the two
    for (const auto& [expert, weight] : {std::pair(first->second, share), std::pair(second->second, 1 - share)}) {
      const auto matrix = [&](const Doubles& all, std::size_t size) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(expert * size);
        return Doubles(begin, begin + static_cast<std::ptrdiff_t>(size));
      };
      const Doubles both = multiply(Doubles(token, token + kHidden), matrix(gate_up, 2 * kWide * kHidden), kHidden);
      Doubles activated;
      for (std::size_t i = 0; i < kWide; ++i) activated.push_back(both[i] / (1 + std::exp(-both[i])) * both[kWide + i]);
      const Doubles out = multiply(activated, matrix(down, kHidden * kWide), kWide);
      for (std::size_t i = 0; i < kHidden; ++i) want[t * kHidden + i] += weight * out[i];
    }
  }
  const Tensor out = (*model->find("model.layers.0.mlp"))(Tensor::from(hidden, {1, kTokens, kHidden}));
  EXPECT_EQ(out.shape(), (Shape{1, kTokens, kHidden}));
  expect_near(out.to_vector<double>(), want, 1e-12);
}

// Central differences in fp64 with the error of order step^2 taken out (the norms of small embeddings curve strongly):
// what remains is about step^4 and 1e-16 / step.
TEST_P(BothGrains, EveryParametersGradientIsTheDerivativeOfTheLoss) {
  constexpr double kStep = 2e-5;
  for (const DecoderFamily family : {DecoderFamily::kQwen3, DecoderFamily::kQwen3Moe}) {
    const auto model = random_model(tiny(family));
    const Tensor ids = Tensor::from(std::vector<std::int32_t>{1, 7, 3, 10, 0, 7, 2, 5}, {2, 4});
    const Tensor targets = Tensor::from(std::vector<std::int32_t>{7, 3, 10, 4, 7, 2, 5, 9}, {2, 4});
    const auto loss = [&] { return ops::cross_entropy((*model)(ids), targets); };
    const auto value = [&] {
      const autograd::NoGrad no_grad;
      return loss().item();
    };
    autograd::backward(loss());
    for (auto& [path, tensor] : model->named_parameters()) {
      ASSERT_TRUE(tensor.grad().defined()) << path;
      const Doubles gradient = tensor.grad().to_vector<double>();
      const std::int64_t stride = std::max<std::int64_t>(1, tensor.numel() / 7);
      for (std::int64_t i = 0; i < tensor.numel(); i += stride) {
        double& element = tensor.data<double>()[i];
        const double here = element;
        const auto slope = [&](double step) {
          element = here + step;
          const double above = value();
          element = here - step;
          const double below = value();
          element = here;
          return (above - below) / (2 * step);
        };
        const double expected = (4 * slope(kStep) - slope(2 * kStep)) / 3;
        EXPECT_NEAR(gradient[static_cast<std::size_t>(i)], expected, 2e-9) << path << " element " << i;
      }
    }
  }
}

// A router that sends every token to experts 0 and 1: the others' gradients are there, and zero.
TEST_P(BothGrains, ExpertsWithoutTokensGetAGradientOfZeros) {
  const auto model = random_model(tiny(DecoderFamily::kQwen3Moe));
  const Tensor router = model->find("model.layers.0.mlp.gate")->own_parameters()[0]->value;
  router.fill(0);  // all probabilities are equal: the lowest indices win
  const Tensor ids = Tensor::from(std::vector<std::int32_t>{1, 7, 3, 10}, {1, 4});
  autograd::backward(ops::cross_entropy((*model)(ids), ids));
  for (const auto& slot : model->find("model.layers.0.mlp.experts")->own_parameters()) {
    const Doubles gradient = slot->value.grad().to_vector<double>();
    const std::size_t matrix = gradient.size() / 4;
    for (std::size_t e = 0; e < 4; ++e) {
      double largest = 0;
      for (std::size_t i = 0; i < matrix; ++i) largest = std::max(largest, std::abs(gradient[e * matrix + i]));
      EXPECT_EQ(largest > 0, e < 2) << slot->name << " of expert " << e;
    }
  }
}

TEST_P(BothGrains, EmbeddingsInThePlaceOfIdsGiveTheSameLogits) {
  for (const DecoderFamily family : {DecoderFamily::kQwen3, DecoderFamily::kQwen3Moe}) {
    const auto model = random_model(tiny(family));
    const Tensor ids = Tensor::from(std::vector<std::int32_t>{1, 7, 3, 10}, {1, 4});
    nn::Args args;
    args.named.emplace_back("inputs_embeds", (*model->find("model.embed_tokens"))(ids));
    EXPECT_EQ(model->call(args).tensor().to_vector<double>(), (*model)(ids).tensor().to_vector<double>());
  }
}

TEST(Qwen3Inputs, NeedIdsOrEmbeddingsAndNotBoth) {
  const test::TestRank rank;
  DecoderConfig config = tiny(DecoderFamily::kQwen3);
  config.max_position_embeddings = 4;
  const auto model = random_model(config);
  const auto refusal = [&](nn::Args args) {
    return test::message_of<ConfigError>([&] { model->call(std::move(args)); });
  };
  const auto embeddings = [](std::int64_t length) { return Tensor::zeros({1, length, 6}, DType::kF64); };
  EXPECT_EQ(refusal({}), "Qwen3Model was called with neither; give either input_ids or inputs_embeds");
  EXPECT_EQ(refusal({.positional = {Tensor::host({1, 2}, DType::kI32)}, .named = {{"inputs_embeds", embeddings(2)}}}),
            "Qwen3Model was called with both; give either input_ids or inputs_embeds");
  EXPECT_EQ(refusal({.positional = {}, .named = {{"inputs_embeds", embeddings(5)}}}),
            "a sequence of 5 tokens, but the model's max_position_embeddings is 4; use shorter sequences");
}

TEST(Qwen3MoeForward, InBf16StaysNearFp32AndHasItsType) {
  const test::TestRank rank;
  const autograd::NoGrad no_grad;
  const auto logits = [&](DType dtype) {
    const auto model = build_decoder(load_decoder_config(reference()));
    for (auto& [path, slot] : model->named_slots()) slot->value = Tensor::empty(slot->shard.global_shape, dtype);
    load_weights(*model, io::HfWeights(reference()));
    const Tensor out = (*model)(Tensor::from(std::vector<std::int32_t>{1, 70, 3, 200, 9, 33}, {1, 6}));
    EXPECT_EQ(out.dtype(), dtype);
    return out.to_vector<double>();
  };
  // Logits are of magnitude 1 and some ten roundings of 0.2 % deep; a token whose second and third expert are nearly
  // equal may change experts, which the mean forgives.
  const Doubles exact = logits(DType::kF32), rounded = logits(DType::kBF16);
  double mean = 0;
  for (std::size_t i = 0; i < exact.size(); ++i)
    mean += std::abs(exact[i] - rounded[i]) / static_cast<double>(exact.size());
  EXPECT_LT(mean, 0.02);
  EXPECT_GT(mean, 1e-4);  // it was computed in bf16
}

TEST(Qwen3MoeForward, OfADryRunHasTheShapeOfTheLogitsAndABackward) {
  device::DeviceOptions options;
  options.dry_run = true;
  RankContext context(0, 1);
  const RankScope scope(context);
  device::Device::install(context, options);
  const auto model = build_decoder(load_decoder_config(reference()));
  nn::materialize(*model);
  for (const Tensor& parameter : model->parameters()) parameter.set_requires_grad(true);
  const Tensor ids = Tensor::host({2, 12}, DType::kI32);
  const Tensor logits = (*model)(ids);
  EXPECT_EQ(logits.shape(), (Shape{2, 12, 256}));
  autograd::backward(ops::cross_entropy(logits, ids));
  for (const auto& [path, parameter] : model->named_parameters()) {
    ASSERT_TRUE(parameter.grad().defined()) << path;
    EXPECT_EQ(parameter.grad().shape(), parameter.shape()) << path;
  }
}

}  // namespace
}  // namespace loom::models
