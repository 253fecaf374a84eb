// Promise: a decoder's logits depend on the tokens so far and on nothing else: not on the grain beyond rounding, not on
//          the type of the ids, not on later tokens; a dry run has their shape.
// World:   the reference models (vocabulary 256, logits of magnitude 1), tokens 7 i mod 256, batch 2, sequence 12.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "tests/models/test_rank.h"

namespace loom::models {
namespace {

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kSeq = 12;

std::vector<std::int64_t> tokens() {
  std::vector<std::int64_t> ids(kBatch * kSeq);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(7 * i % 256);
  return ids;
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = difference <= worst ? worst : difference;
  }
  return worst;
}

class DecoderForward : public ::testing::TestWithParam<const char*> {
 protected:
  static std::filesystem::path folder() {
    return std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits" / GetParam();
  }

  // The logits of `ids`, computed with parameters of type `dtype`.
  std::vector<float> logits(const std::vector<std::int64_t>& ids, DType dtype = DType::kF32,
                            DType id_dtype = DType::kI64) {
    const autograd::NoGrad no_grad;
    const auto model = build_decoder(load_decoder_config(folder()));
    for (auto& [path, slot] : model->named_slots()) slot->value = Tensor::empty(slot->shard.global_shape, dtype);
    if (load_decoder_config(folder()).tie_word_embeddings) {
      model->find("lm_head")->own_parameters()[0]->value = model->find("transformer.wte")->own_parameters()[0]->value;
    }
    load_weights(*model, io::HfWeights(folder()));
    const Tensor result = (*model)(Tensor::from(ids, {kBatch, kSeq}, id_dtype));
    EXPECT_EQ(result.dtype(), dtype);
    return result.to_vector<float>();
  }
  void use(const nn::KernelOptions& options) { rank_.context.slot<nn::KernelOptions>() = options; }

  test::TestRank rank_;
};
INSTANTIATE_TEST_SUITE_P(Families, DecoderForward, ::testing::Values("qwen2", "llama", "gpt2"));

TEST_P(DecoderForward, IsTheSameInBothGrainsUpToRounding) {
  const auto fast = logits(tokens());
  use(nn::KernelOptions::pytorch());
  EXPECT_LT(worst_difference(fast, logits(tokens())), 5e-6);
}

// bf16 keeps 8 bits: 2^-9 = 0.2 % relative rounding a step; logits are of magnitude 1 and some ten roundings deep.
TEST_P(DecoderForward, InBf16StaysNearFp32InBothGrains) {
  const auto exact = logits(tokens());
  const auto fast = logits(tokens(), DType::kBF16);
  use(nn::KernelOptions::pytorch());
  const auto pytorch = logits(tokens(), DType::kBF16);
  EXPECT_LT(worst_difference(exact, fast), 0.05);
  EXPECT_LT(worst_difference(exact, pytorch), 0.05);
  EXPECT_GT(worst_difference(exact, fast), 1e-4);  // it was computed in bf16
}

TEST_P(DecoderForward, TakesIdsOfBothIntegerTypes) {
  EXPECT_EQ(logits(tokens(), DType::kF32, DType::kI32), logits(tokens(), DType::kF32, DType::kI64));
}

TEST_P(DecoderForward, SeesNoLaterToken) {
  const auto before = logits(tokens());
  std::vector<std::int64_t> changed = tokens();
  changed[8] = 200;  // sequence 0, position 8
  const auto after = logits(changed);
  constexpr std::ptrdiff_t kVocab = 256;
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 8 * kVocab, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + 8 * kVocab, before.begin() + 9 * kVocab, after.begin() + 8 * kVocab));
  EXPECT_FALSE(std::equal(before.begin() + 11 * kVocab, before.begin() + 12 * kVocab, after.begin() + 11 * kVocab));
  EXPECT_TRUE(std::equal(before.begin() + kSeq * kVocab, before.end(), after.begin() + kSeq * kVocab));
}

// Two rows of segments 5 + 7 and 12; each alone, from position 0 on.
TEST_P(DecoderForward, PackedSegmentsHaveTheLogitsThatTheyHaveAlone) {
  for (const nn::KernelOptions& grain : {nn::KernelOptions::fast(), nn::KernelOptions::pytorch()}) {
    use(grain);
    const autograd::NoGrad no_grad;
    const auto model = build_decoder(load_decoder_config(folder()));
    nn::materialize(*model);
    load_weights(*model, io::HfWeights(folder()));
    std::vector<std::int32_t> positions;
    for (const int length : {5, 7, 12}) {
      for (int i = 0; i < length; ++i) positions.push_back(i);
    }
    nn::Args args;
    args.positional.emplace_back(Tensor::from(tokens(), {kBatch, kSeq}, DType::kI32));
    args.named.emplace_back("position_ids", Tensor::from(positions, {kBatch, kSeq}));
    const nn::ValueList ends{nn::Value(std::int64_t{5}), nn::Value(std::int64_t{12}), nn::Value(std::int64_t{24})};
    args.named.emplace_back("actual_seq_len", nn::Value(ends));
    const auto packed = model->call(args).tensor().to_vector<float>();
    std::vector<float> alone;
    std::ptrdiff_t begin = 0;
    for (const std::ptrdiff_t length : {5, 7, 12}) {
      const auto all = tokens();
      const std::vector<std::int64_t> ids(all.begin() + begin, all.begin() + begin + length);
      const auto part = (*model)(Tensor::from(ids, {1, length}, DType::kI32)).tensor().to_vector<float>();
      alone.insert(alone.end(), part.begin(), part.end());
      begin += length;
    }
    EXPECT_LT(worst_difference(packed, alone), 2e-6);
  }
}

TEST_P(DecoderForward, OfADryRunHasTheShapeOfTheLogits) {
  device::DeviceOptions options;
  options.dry_run = true;
  RankContext context(0, 1);
  const RankScope scope(context);
  device::Device::install(context, options);
  const auto model = build_decoder(load_decoder_config(folder()));
  nn::materialize(*model);
  const Tensor result = (*model)(Tensor::host({kBatch, kSeq}, DType::kI32));
  EXPECT_EQ(result.shape(), (Shape{kBatch, kSeq, 256}));
  EXPECT_EQ(result.raw(), nullptr);
}

}  // namespace
}  // namespace loom::models
