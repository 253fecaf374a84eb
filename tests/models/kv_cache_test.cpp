// Promise: a decoder that reads with a cache gives the logits that it gives without, whatever the pieces and the
//          padding; what does not fit is refused.
// World:   decoders of two layers of every family, in both kernel grains; one rank.
#include "models/decoder/kv_cache.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/decoding.h"
#include "models/decoder/decoder.h"
#include "models/internvl/internvl.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using Tokens = std::vector<std::int32_t>;
using Logits = std::vector<float>;
constexpr std::int64_t kVocab = 48;

DecoderConfig tiny(DecoderFamily family) {
  DecoderConfig config;
  config.family = family;
  config.vocab_size = kVocab;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = family == DecoderFamily::kGpt2 ? 4 : 2;
  config.head_dim = 6;
  config.max_position_embeddings = 24;
  config.initializer_range = 0.3;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = family == DecoderFamily::kGpt2;
  config.qk_norm = family == DecoderFamily::kQwen3 || family == DecoderFamily::kQwen3Moe;
  if (family == DecoderFamily::kQwen3Moe) {
    config.moe = MoeConfig{.num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 8};
  }
  return config;
}

std::shared_ptr<nn::Module> built(const DecoderConfig& config) {
  auto model = build_decoder(config);
  nn::materialize(*model);
  nn::init_weights(*model, 5);
  return model;
}

Tokens tokens(std::int64_t count, std::int32_t first = 3) {
  Tokens made;
  for (std::int64_t i = 0; i < count; ++i) made.push_back(static_cast<std::int32_t>((first + 7 * i) % kVocab));
  return made;
}

Tensor one_row(const Tokens& row) { return Tensor::from(row, {1, std::ssize(row)}); }

// Logits of every position.
Logits whole(nn::Module& model, const Tokens& row) { return model(one_row(row)).tensor().to_vector<float>(); }

double worst(const Logits& a, const Logits& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return worst;
}

class KvCacheTest : public ::testing::TestWithParam<DecoderFamily> {
 protected:
  const DecoderConfig config_ = tiny(GetParam());
  test::TestRank rank_;
  autograd::NoGrad no_grad_;
};

TEST_P(KvCacheTest, PiecesGiveTheLogitsOfOneCallInBothGrains) {
  const auto model = built(config_);
  const Tokens row = tokens(20);
  for (const nn::KernelOptions& grain : {nn::KernelOptions::fast(), nn::KernelOptions::pytorch()}) {
    rank_.context.slot<nn::KernelOptions>() = grain;
    for (const bool decoding : {false, true}) {
      KvCache cache(kv_cache_shape(config_), 1, 20);
      Logits pieces;
      std::int64_t first = 0;
      for (const std::int64_t size : {1, 6, 1, 1, 9, 2}) {
        std::optional<ops::DecodingScope> scope;
        if (decoding) scope.emplace();
        const Tokens piece(row.begin() + first, row.begin() + first + size);
        const Logits some =
            model->call({{one_row(piece)}, {{"past_key_values", cache.to_value()}}}).tensor().to_vector<float>();
        pieces.insert(pieces.end(), some.begin(), some.end());
        first += size;
      }
      EXPECT_LE(worst(pieces, whole(*model, row)), 1e-5);
      EXPECT_EQ(cache.length(0), 20);
    }
  }
}

TEST_P(KvCacheTest, RowsBesidePaddingHaveTheLogitsThatTheyHaveAlone) {
  const auto model = built(config_);
  const std::vector<Tokens> rows{tokens(7), tokens(2, 11), tokens(5, 30)};
  const ops::DecodingScope decoding;
  for (const bool left : {true, false}) {
    KvCache cache(kv_cache_shape(config_), 3, 10);
    const Tensor ids = Tensor::host({3, 7}, DType::kI32), mask = Tensor::host({3, 7}, DType::kI32);
    for (std::int64_t b = 0; b < 3; ++b) {
      const Tokens& row = rows[static_cast<std::size_t>(b)];
      const std::int64_t first = left ? 7 - std::ssize(row) : 0;
      for (std::int64_t s = 0; s < 7; ++s) {
        const bool is_token = s >= first && s < first + std::ssize(row);
        ids.data<std::int32_t>()[b * 7 + s] = is_token ? row[static_cast<std::size_t>(s - first)] : 9;
        mask.data<std::int32_t>()[b * 7 + s] = is_token ? 1 : 0;
      }
    }
    const Tensor prompt =
        model->call({{ids}, {{"past_key_values", cache.to_value()}, {"attention_mask", mask}, {"logits_to_keep", 1}}});
    const Tensor next = model->call({{Tensor::from(Tokens{1, 2, 3}, {3, 1})}, {{"past_key_values", cache.to_value()}}});
    for (std::int64_t b = 0; b < 3; ++b) {
      Tokens row = rows[static_cast<std::size_t>(b)];
      const auto last = [&](const Tensor& logits) { return logits.view({3, kVocab}).rows(b, 1).to_vector<float>(); };
      const auto alone = [&] {
        const Logits all = whole(*model, row);
        return Logits(all.end() - kVocab, all.end());
      };
      EXPECT_LE(worst(last(prompt), alone()), 1e-5) << b;
      row.push_back(static_cast<std::int32_t>(b + 1));
      EXPECT_LE(worst(last(next), alone()), 1e-5) << b;
    }
  }
}

TEST_P(KvCacheTest, RowsAreCopiedReorderedCutAndGivenRoom) {
  const auto model = built(config_);
  KvCache cache(kv_cache_shape(config_), 2, 6);
  const auto read = [&](const Tokens& ids, std::int64_t batch) {
    return model
        ->call({{Tensor::from(ids, {batch, std::ssize(ids) / batch})},
                {{"past_key_values", cache.to_value()}, {"logits_to_keep", 1}}})
        .tensor()
        .to_vector<float>();
  };
  read({1, 2, 3, 4, 5, 6}, 2);
  cache.select_rows(std::vector<std::int64_t>{1, 0, 1});
  EXPECT_EQ(cache.batch(), 3);
  cache.reserve(7);
  EXPECT_EQ(cache.capacity(), 12);
  cache.truncate(2, 2);
  const Logits three = read({7, 7, 7}, 3);
  const auto last = [&](const Tokens& row) {
    const Logits all = whole(*model, row);
    return Logits(all.end() - kVocab, all.end());
  };
  const auto row = [&](std::int64_t b) { return Logits(three.begin() + b * kVocab, three.begin() + (b + 1) * kVocab); };
  EXPECT_LE(worst(row(0), last({4, 5, 6, 7})), 1e-5);
  EXPECT_LE(worst(row(1), last({1, 2, 3, 7})), 1e-5);
  EXPECT_LE(worst(row(2), last({4, 5, 7})), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Families, KvCacheTest,
                         ::testing::Values(DecoderFamily::kQwen2, DecoderFamily::kLlama, DecoderFamily::kQwen3,
                                           DecoderFamily::kQwen3Moe, DecoderFamily::kGpt2),
                         [](const auto& family) { return std::string(model_type(family.param)); });

// --- What is refused

class KvCacheRefusal : public ::testing::Test {
 protected:
  std::string refusal(const Tensor& ids, nn::ValueDict named) {
    return test::message_of<Error>([&] { model_->call({{ids}, std::move(named)}); });
  }
  const DecoderConfig config_ = tiny(DecoderFamily::kQwen2);
  test::TestRank rank_;
  autograd::NoGrad no_grad_;
  std::shared_ptr<nn::Module> model_ = built(config_);
};

TEST_F(KvCacheRefusal, SaysWhatDoesNotFit) {
  using ::testing::HasSubstr;
  KvCache cache(kv_cache_shape(config_), 1, 4);
  const Tensor five = one_row(tokens(5));
  EXPECT_THAT(
      refusal(five, {{"past_key_values", cache.to_value()}}),
      HasSubstr("past_key_values has room for 4 tokens, but row 0 has 0 and 5 more come; call reserve(5) before"));
  EXPECT_EQ(cache.length(0), 0);
  cache.reserve(30);
  EXPECT_THAT(refusal(one_row(tokens(24)), {{"past_key_values", cache.to_value()}, {"logits_to_keep", 2}}),
              HasSubstr("logits_to_keep is 2; 0 keeps all, 1 each row's last"));
  model_->call({{one_row(tokens(20))}, {{"past_key_values", cache.to_value()}}});
  EXPECT_THAT(
      refusal(five, {{"past_key_values", cache.to_value()}}),
      HasSubstr("row 0 has 20 tokens and 5 more come, but the model's max_position_embeddings is 24; use shorter "
                "sequences"));
  EXPECT_THAT(refusal(Tensor::from(tokens(4), {2, 2}), {{"past_key_values", cache.to_value()}}),
              HasSubstr("past_key_values has 1 rows, the input 2; they need as many"));
  EXPECT_THAT(refusal(five, {{"attention_mask", five}}),
              HasSubstr("attention_mask is given without past_key_values; padding is left out with a cache only"));
  cache.truncate(0, 0);
  EXPECT_THAT(
      refusal(five, {{"past_key_values", cache.to_value()}, {"attention_mask", one_row({1, 0, 1, 1, 0})}}),
      HasSubstr("attention_mask of row 0 is neither 0 before or behind 1 alone; padding goes before or behind a "
                "row's tokens"));
  KvCache other({.layers = 3, .kv_heads = 2, .head_dim = 6}, 1, 8);
  EXPECT_THAT(refusal(five, {{"past_key_values", other.to_value()}}),
              HasSubstr("past_key_values has 3 layers, the model 2; make the cache of this model's kv_cache_shape()"));
  KvCache half(kv_cache_shape(config_), 1, 8, DType::kBF16);
  EXPECT_THAT(refusal(five, {{"past_key_values", half.to_value()}}), HasSubstr("in the keys' dtype"));
  nn::Value cast = cache.to_value().map_tensors(
      [](const Tensor& t) { return is_floating(t.dtype()) ? Tensor::zeros(t.shape(), DType::kBF16) : t; });
  EXPECT_THAT(
      refusal(five, {{"past_key_values", cast}}),
      HasSubstr("past_key_values was made in fp32, but mixed precision computes in bf16 and would fill a copy of "
                "it; make the cache in bf16"));
}

TEST_F(KvCacheRefusal, IsRecordedForNoBackward) {
  KvCache cache(kv_cache_shape(config_), 1, 8);
  for (const Tensor& parameter : model_->parameters()) parameter.set_requires_grad(true);
  const autograd::GradMode on(true);
  EXPECT_THAT(
      refusal(one_row(tokens(2)), {{"past_key_values", cache.to_value()}}),
      ::testing::HasSubstr("with a cache of keys nothing is recorded for backward; call the model under NoGrad, or "
                           "without past_key_values"));
}

}  // namespace
}  // namespace loom::models
