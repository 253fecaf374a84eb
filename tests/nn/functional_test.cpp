// Promise: the rank's KernelOptions choose the grain of each operator, one by one.
#include "engine/nn/functional.h"

#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "tests/support/issued.h"
#include "tests/tensor/tensors.h"

namespace loom::nn {
namespace {

using ::testing::Contains;
using ::testing::Not;

class KernelChoice : public ::testing::Test {
 protected:
  // The kernels that ran.
  std::vector<std::string> kernels(const KernelOptions& options) {
    rank.context().slot<KernelOptions>() = options;
    const device::Recorder recorder(rank.device());
    const Tensor x = Tensor::zeros({1, 2, 2, 4}, DType::kF32), table = Tensor::zeros({2, 4}, DType::kF32);
    functional::rms_norm(x, Tensor::zeros({4}, DType::kF32), 1e-6);
    functional::swiglu(x, x);
    functional::rope(x, table, table);
    functional::attention(x, x, x, 0.5);
    functional::gelu(x, ops::Gelu::kTanh);
    std::vector<std::string> found;
    for (const test::Issued& entry : test::issued(recorder.recording())) found.push_back(entry.name);
    return found;
  }

  test::OneRank rank;
};

TEST_F(KernelChoice, TheFastGrainIsTheDefault) {
  EXPECT_THAT(kernels({}), ::testing::ElementsAre("rms_norm", "swiglu", "rope", "attention", "gelu"));
}

TEST_F(KernelChoice, ThePytorchGrainHasNoFusedKernel) {
  const auto found = kernels(KernelOptions::pytorch());
  for (const char* fused : {"rms_norm", "swiglu", "rope", "attention", "gelu"})
    EXPECT_THAT(found, Not(Contains(fused)));
  for (const char* piece : {"rsqrt", "silu", "rotate_half", "softmax", "cube"}) EXPECT_THAT(found, Contains(piece));
}

TEST_F(KernelChoice, EachFlagTurnsItsOwnOperator) {
  KernelOptions options;
  options.fused_swiglu = false;
  options.flash_attn = false;
  const auto found = kernels(options);
  EXPECT_THAT(found, Contains("rms_norm"));
  EXPECT_THAT(found, Contains("rope"));
  EXPECT_THAT(found, Contains("silu"));
  EXPECT_THAT(found, Contains("softmax"));
}

}  // namespace
}  // namespace loom::nn
