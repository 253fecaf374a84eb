// Promise: parameters stored in another dtype are the same parameters otherwise - ties, requires_grad and first values,
//          rounded; buffers keep their dtype, and parameters with bytes keep theirs.
#include "engine/nn/stored_dtype.h"

#include <gtest/gtest.h>

#include "engine/nn/init.h"
#include "engine/nn/layers.h"
#include "tests/support/one_rank.h"

namespace loom::nn {
namespace {

class Tied final : public Module {
 public:
  Tied() : embed_(register_module("embed", std::make_shared<Embedding>(8, 4, 0.5))) {
    register_tied("head", *embed_->own_parameters().front());
    register_parameter("frozen", {3}, Init::ones()).value.set_requires_grad(false);
    register_parameter("exact", {3}, Init::zeros(), DType::kF64);
    register_buffer("table", Tensor::meta({2}, DType::kF32), /*persistent=*/true);
  }
  std::string_view type_name() const override { return "Tied"; }

 protected:
  Value forward(const Args&) override { return {}; }

 private:
  Child<Embedding> embed_;
};

TEST(StoredDtype, IsOfEveryFp32ParameterAndOfNothingElse) {
  test::OneRank rank;
  Tied model, plain;
  store_parameters_in(model, DType::kBF16);
  const auto slots = model.named_slots();
  ASSERT_EQ(slots.size(), 4u);
  EXPECT_EQ(slots[0].first, "head");
  EXPECT_EQ(slots[0].second->value.dtype(), DType::kBF16);
  EXPECT_TRUE(slots[0].second->value.requires_grad());
  EXPECT_TRUE(slots[0].second->value.is_same(slots[3].second->value));
  EXPECT_EQ(slots[1].second->value.dtype(), DType::kBF16);
  EXPECT_FALSE(slots[1].second->value.requires_grad());
  EXPECT_EQ(slots[2].second->value.dtype(), DType::kF64);
  EXPECT_EQ(model.own_buffers().front().value.dtype(), DType::kF32);
  for (Tied* made : {&model, &plain}) {
    materialize(*made);
    init_weights(*made, 7);
  }
  const std::vector<float> drawn = plain.named_slots()[0].second->value.to_vector<float>();
  const std::vector<float> stored = model.named_slots()[0].second->value.to_vector<float>();
  for (std::size_t i = 0; i < drawn.size(); ++i) EXPECT_EQ(stored[i], static_cast<float>(bf16(drawn[i]))) << i;
}

TEST(StoredDtype, LeavesParametersWithBytesAlone) {
  test::OneRank rank;
  Tied model;
  materialize(model);
  store_parameters_in(model, DType::kBF16);
  EXPECT_EQ(model.named_slots()[0].second->value.dtype(), DType::kF32);
}

}  // namespace
}  // namespace loom::nn
