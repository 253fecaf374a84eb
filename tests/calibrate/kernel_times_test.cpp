// Promise: a file of measured kernels is read whole or refused with file, place, value and what is allowed.
// World:   one row at a time; tests/reference/memory/h200_kernel_times.json.
#include "engine/calibrate/kernel_times.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"

namespace loom::calibrate {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StrEq;

KernelTime row(const std::string& text) { return parse_kernel_times("[" + text + "]", "times.json").front(); }

std::string refusal(const std::string& text) {
  try {
    parse_kernel_times(text, "times.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "taken: " << text;
  return {};
}

TEST(KernelTimes, AProductAndItsGradientsAreTheEnginesKernels) {
  const KernelTime forward = row(R"({"op": "matmul_nt", "M": 8, "N": 4, "K": 2, "ms": 0.5, "tflops": 1.0})");
  EXPECT_EQ(forward.kernel, "linear");
  EXPECT_EQ(forward.label, "matmul_nt M 8 N 4 K 2");
  EXPECT_EQ(forward.measured_ns, 500'000);
  EXPECT_EQ(forward.cost.flops, 2.0 * 8 * 4 * 2);
  EXPECT_EQ(forward.cost.read_bytes, 2 * (8 * 2 + 2 * 4));
  EXPECT_EQ(forward.cost.written_bytes, 2 * 8 * 4);
  const KernelTime dx = row(R"({"op": "matmul_nn_dx", "M": 8, "N": 4, "K": 2, "ms": 1})");
  EXPECT_EQ(dx.kernel, "linear_dx");
  EXPECT_EQ(dx.cost.n, 2);
  EXPECT_EQ(dx.cost.k, 4);
  const KernelTime dw = row(R"({"op": "matmul_tn_dw", "M": 8, "N": 4, "K": 2, "ms": 1, "dtype": "fp16"})");
  EXPECT_EQ(dw.kernel, "linear_dw");
  EXPECT_EQ(dw.cost.m, 4);
  EXPECT_EQ(dw.cost.k, 8);
  EXPECT_EQ(dw.cost.dtype, DType::kF16);
}

TEST(KernelTimes, AttentionAndCopiesHaveTheirBytes) {
  const KernelTime back = row(R"({"op": "sdpa_causal_bwd", "B": 1, "H": 4, "KV": 2, "T": 8, "D": 2, "ms": 1})");
  EXPECT_EQ(back.kernel, "attention_grad");
  EXPECT_EQ(back.cost.flops, 5.0 * 4 * 8 * 8 * 2);
  EXPECT_EQ(back.cost.read_bytes, 3 * 2 * 4 * 8 * 2 + 2 * 2 * 2 * 8 * 2 + 4 * 4 * 8);
  EXPECT_EQ(row(R"({"op": "cast_bf16_fp32", "n": 10, "ms": 1})").cost.written_bytes, 40);
  const KernelTime pageable = row(R"({"op": "d2h_pageable", "n": 10, "ms": 1})");
  EXPECT_EQ(pageable.cost.work, device::WorkKind::kD2H);
  EXPECT_FALSE(pageable.cost.pinned);
}

TEST(KernelTimes, TheReferenceIsRead) {
  const auto path = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/memory/h200_kernel_times.json";
  EXPECT_THAT(read_kernel_times(path), SizeIs(120));
}

TEST(KernelTimes, AWrongRowIsRefusedWithItsPlace) {
  const std::string good = R"({"op": "copy_bf16", "n": 1, "ms": 1})";
  EXPECT_THAT(refusal("[" + good + R"(, {"op": "copy_bf16", "n": 0, "ms": 1}])"),
              StrEq("times.json: kernels[1].n is 0; use a whole number from 1 to 1125899906842624"));
  EXPECT_THAT(refusal(R"([{"op": "matmul_nt", "M": 1.5, "N": 1, "K": 1, "ms": 1}])"),
              StrEq("times.json: kernels[0].M is 1.5; use a whole number from 1 to 16777216"));
  EXPECT_THAT(refusal(R"([{"op": "copy_bf16", "n": 1, "ms": -1}])"),
              StrEq("times.json: kernels[0].ms is -1; use a time above 0 ms and of an hour at most"));
  EXPECT_THAT(refusal(R"([{"op": "copy_bf16", "n": 1, "ms": "fast"}])"), HasSubstr("kernels[0].ms is \"fast\"; use a"));
  EXPECT_THAT(refusal(R"([{"op": "conv", "n": 1, "ms": 1}])"),
              HasSubstr("kernels[0].op is \"conv\"; use one of matmul_nt"));
  EXPECT_THAT(refusal(R"([{"n": 1, "ms": 1}])"), HasSubstr("kernels[0] has no op; name the kernel"));
  EXPECT_THAT(refusal(R"([{"op": "copy_bf16", "ms": 1}])"), HasSubstr("n"));
  EXPECT_THAT(refusal(R"([{"op": "copy_bf16", "n": 1, "ms": 1, "M": 2}])"), HasSubstr("M"));
  EXPECT_THAT(refusal(R"([{"op": "copy_bf16", "n": 1, "n": 2, "ms": 1}])"), HasSubstr("n"));
  EXPECT_THAT(refusal(R"([{"op": "sdpa_causal_fwd", "B": 1, "H": 4, "KV": 3, "T": 8, "D": 2, "ms": 1}])"),
              StrEq("times.json: kernels[0].KV is 3; use a divisor of H, 4"));
  EXPECT_THAT(refusal(R"([{"op": "matmul_nt", "M": 1, "N": 1, "K": 1, "ms": 1, "dtype": "fp32"}])"),
              HasSubstr("kernels[0].dtype is \"fp32\"; use bf16 or fp16"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("kernels[0] is 1; use an object"));
}

TEST(KernelTimes, AFileThatIsNoListIsRefused) {
  for (const char* text : {"{}", "[]", "3", "[], \"more\": []"}) {
    EXPECT_THAT(refusal(text),
                StrEq("times.json: the file is no list of measured kernels; write [{\"op\": ...}, ...]"));
  }
  EXPECT_THAT(refusal("[{"), HasSubstr("times.json"));
  std::string many = "[";
  for (std::size_t i = 0; i <= kMostRows; ++i) many += R"({"op":"copy_bf16","n":1,"ms":1},)";
  many.back() = ']';
  EXPECT_THAT(refusal(many), StrEq("times.json: the file has 10001 kernels; use at most 10000"));
}

}  // namespace
}  // namespace loom::calibrate
