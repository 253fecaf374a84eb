// Promise: the steps of bf16 parameters are those of PyTorch's fused optimizers, bit for bit: weights and state.
// World:   one rank; the steps that tests/reference/generate/optimizer_steps.py recorded.
#include <cstring>
#include <gtest/gtest.h>

#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/optim/adamw.h"
#include "engine/nn/optim/sgd.h"
#include "engine/nn/optim/swapped_adamw.h"
#include "sharding/memory.h"
#include "tests/support/one_rank.h"

namespace loom::train {
namespace {

using Bits = std::vector<std::uint16_t>;
using MakeOptimizer = std::function<std::unique_ptr<nn::Optimizer>(nn::ParameterGroups)>;

Bits bits_of(const Tensor& tensor) {
  Bits bits(static_cast<std::size_t>(tensor.numel()));
  const Tensor copy = Tensor::host(tensor.shape(), tensor.dtype(), "copy");
  copy.copy_from(tensor);
  std::memcpy(bits.data(), copy.raw(), bits.size() * sizeof(bits[0]));
  return bits;
}

// One file of them.
class Recorded {
 public:
  explicit Recorded(const std::string& name)
      : file_(std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/optim/bf16_steps" / (name + ".safetensors")) {}

  double number(const std::string& name) const { return std::stod(file_.metadata().at(name)); }
  std::int64_t steps() const { return file_.at("grad").shape[0]; }
  Bits row(const std::string& name, std::int64_t row) const { return bits(file_.rows(name, row, row + 1)); }
  Bits start() const { return bits(file_.at("start").bytes); }

 private:
  static Bits bits(std::span<const std::byte> bytes) {
    Bits found(bytes.size() / sizeof(Bits::value_type));
    std::memcpy(found.data(), bytes.data(), bytes.size());
    return found;
  }

  const io::SafetensorsFile file_;
};

Tensor on_device(const Bits& bits) {
  const Shape shape{static_cast<std::int64_t>(bits.size())};
  const Tensor host = Tensor::host(shape, DType::kBF16, "recorded");
  std::memcpy(host.raw(), bits.data(), bits.size() * sizeof(bits[0]));
  const Tensor made = Tensor::empty(shape, DType::kBF16, sharding::kShard, "recorded");
  made.copy_from(host);
  return made;
}

void expect_recorded_steps(const Recorded& recorded, const MakeOptimizer& make) {
  test::OneRank rank;
  const Tensor weight = on_device(recorded.start()).set_requires_grad(true);
  nn::ParameterGroups groups(1);
  groups.front().parameters.push_back({"weight", weight, nn::ShardSpec::whole(weight.shape())});
  const auto optimizer = make(std::move(groups));
  for (std::int64_t step = 0; step < recorded.steps(); ++step) {
    weight.set_grad(on_device(recorded.row("grad", step)));
    optimizer->step();
    EXPECT_EQ(bits_of(weight), recorded.row("weight", step)) << step;
    const nn::OptimizerState state = optimizer->state_dict();
    for (const auto& [name, value] : state.parameters.at("weight")) {
      const auto* tensor = std::get_if<nn::LocalTensor>(&value);
      if (tensor == nullptr) continue;
      EXPECT_EQ(tensor->value.dtype(), DType::kBF16) << name;
      EXPECT_EQ(bits_of(tensor->value), recorded.row(name, step)) << name << " " << step;
    }
  }
}

TEST(StepsInBf16, OfAdamWAreThoseOfPyTorch) {
  const std::pair<const char*, nn::AdamWOptions> cases[] = {
      {"adamw", {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}},
      {"adamw_small_beta1", {.lr = 1e-3, .beta1 = 0.2, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0}}};
  for (const auto& [name, options] : cases) {
    const Recorded recorded(name);
    ASSERT_EQ(recorded.number("lr"), options.lr);
    ASSERT_EQ(recorded.number("eps"), options.eps);
    expect_recorded_steps(
        recorded, [&](nn::ParameterGroups groups) { return std::make_unique<nn::AdamW>(std::move(groups), options); });
    for (const int slices : {1, 3}) {
      expect_recorded_steps(recorded, [&](nn::ParameterGroups groups) {
        return std::make_unique<nn::SwappedAdamW>(std::move(groups), options, nn::SlicesByCount{slices});
      });
    }
  }
}

TEST(StepsInBf16, OfSgdAreThoseOfPyTorch) {
  const std::pair<const char*, nn::SgdOptions> cases[] = {
      {"sgd_momentum", {.lr = 1e-2, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.1}},
      {"sgd_nesterov", {.lr = 1e-2, .momentum = 0.9, .nesterov = true}}};
  for (const auto& [name, options] : cases) {
    const Recorded recorded(name);
    ASSERT_EQ(recorded.number("momentum"), options.momentum);
    expect_recorded_steps(
        recorded, [&](nn::ParameterGroups groups) { return std::make_unique<nn::Sgd>(std::move(groups), options); });
  }
}

}  // namespace
}  // namespace loom::train
