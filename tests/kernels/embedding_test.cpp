// Promise: embedding_forward copies rows by id; embedding_backward adds them back in id order and rounds once.
#include <gtest/gtest.h>

#include "engine/kernels/fused.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

constexpr std::int64_t kVocab = 2000;
constexpr std::int64_t kDim = 37;

std::vector<std::int64_t> some_ids(std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(i % 5 == 0 ? 11 : (i * 7919) % kVocab);
  return ids;
}

TEST(Embedding, ForwardCopiesRowsById) {
  for (DType dtype : kFloats) {
    const Buffer table = normal_buffer(dtype, kVocab * kDim, 1);
    const auto ids = some_ids(4000);
    Buffer out(dtype, ids.size() * kDim);
    embedding_forward({dtype, 4000, kVocab, kDim, DType::kI64}, ids.data(), table.data(), out.data());
    const Doubles rows = table.values(), got = out.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], rows[static_cast<std::size_t>(ids[i / kDim]) * kDim + i % kDim]);
    }
  }
}

TEST(Embedding, BackwardAddsInIdOrderAndRoundsOnce) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto ids = some_ids(4000);
    const Buffer dout = normal_buffer(dtype, 4000 * kDim, 2);
    Buffer dtable = normal_buffer(dtype, kVocab * kDim, 3);  // overwritten, not added to
    embedding_backward({dtype, 4000, kVocab, kDim, DType::kI64}, ids.data(), dout.data(), dtable.data());
    std::vector<float> sums(kVocab * kDim);
    const Doubles values = dout.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      sums[static_cast<std::size_t>(ids[i / kDim]) * kDim + i % kDim] += static_cast<float>(values[i]);
    }
    EXPECT_EQ(dtable.bytes(), Buffer(dtype, Doubles(sums.begin(), sums.end())).bytes()) << name(dtype);
  }
}

TEST(Embedding, BackwardIsTheTransposeOfForward) {
  const auto ids = some_ids(100);
  const Buffer table = normal_buffer(DType::kF64, kVocab * kDim, 1);
  const Buffer dout = normal_buffer(DType::kF64, 100 * kDim, 2);
  Buffer out(DType::kF64, 100 * kDim), dtable(DType::kF64, kVocab * kDim);
  embedding_forward({DType::kF64, 100, kVocab, kDim, DType::kI64}, ids.data(), table.data(), out.data());
  embedding_backward({DType::kF64, 100, kVocab, kDim, DType::kI64}, ids.data(), dout.data(), dtable.data());
  EXPECT_NEAR(dot(out.values(), dout.values()), dot(table.values(), dtable.values()), 1e-10);
}

// A table of padding and of 700 ids, and one behind all ids.
TEST(Embedding, OfSomeRowsGivesThoseAndZeros) {
  const auto ids = some_ids(4000);
  for (DType dtype : kFloats) {
    const Embedding whole{dtype, 4000, kVocab, kDim, DType::kI64};
    const Buffer table = normal_buffer(dtype, kVocab * kDim, 1), dout = normal_buffer(dtype, 4000 * kDim, 2);
    Buffer dtable(dtype, kVocab * kDim);
    embedding_backward(whole, ids.data(), dout.data(), dtable.data());
    const Doubles rows = table.values(), gradients = dtable.values();
    for (const std::int64_t first : {0, 1300, 2000}) {
      Embedding op = whole;
      op.first = first;
      op.rows = 750;
      Doubles own(750 * kDim), want(own.size());
      for (std::size_t i = 0; i < own.size() && first * kDim + i < rows.size(); ++i) {
        own[i] = rows[first * kDim + i];
        want[i] = gradients[first * kDim + i];
      }
      Buffer out = dout, dpart(dtype, own.size());
      embedding_forward(op, ids.data(), Buffer(dtype, own).data(), out.data());
      embedding_backward(op, ids.data(), dout.data(), dpart.data());
      EXPECT_EQ(dpart.values(), want) << name(dtype) << " from " << first;
      const Doubles got = out.values();
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::int64_t id = ids[i / kDim];
        const bool has = id >= first && id < first + 750;
        ASSERT_EQ(got[i], has ? rows[static_cast<std::size_t>(id) * kDim + i % kDim] : 0);
      }
    }
  }
}

TEST(Embedding, WithoutIdsTheGradientIsZero) {
  Buffer dtable = normal_buffer(DType::kBF16, 10 * kDim, 3);
  embedding_forward({DType::kBF16, 0, 10, kDim, DType::kI32}, nullptr, nullptr, nullptr);
  embedding_backward({DType::kBF16, 0, 10, kDim, DType::kI32}, nullptr, nullptr, dtable.data());
  EXPECT_EQ(dtable.values(), Doubles(10 * kDim, 0.0));
}

TEST(Embedding, NamesAnIdOutsideTheVocabulary) {
  const std::vector<std::int32_t> ids{0, 5, -1};
  Buffer buffer(DType::kF32, 30);
  const std::string want =
      "embedding: id -1 at position 2 is outside the vocabulary [0, 10); the tokenizer and the model's vocab_size do "
      "not fit";
  EXPECT_EQ(error_text<ConfigError>([&] {
              embedding_forward({DType::kF32, 3, 10, 1, DType::kI32}, ids.data(), buffer.data(), buffer.data());
            }),
            want);
  EXPECT_EQ(error_text<ConfigError>([&] {
              embedding_backward({DType::kF32, 3, 10, 1, DType::kI32}, ids.data(), buffer.data(), buffer.data());
            }),
            want);
  EXPECT_EQ(error_text<ModelError>([&] {
              embedding_forward({DType::kF32, 3, 10, 1, DType::kI16}, ids.data(), buffer.data(), buffer.data());
            }),
            "embedding_forward takes indices of int32 or int64, got int16; cast it");
}

}  // namespace
}  // namespace loom::kernels::testing
