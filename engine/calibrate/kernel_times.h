// Measured kernels: the JSON that bench/peers/measure_kernel_times.py writes (docs/calibration.md).
//
// File     a list of objects, at most kMostRows. Each has `op`, its sizes, `ms` (above 0, at most an hour), and may
//          have `dtype` (bf16 or fp16; bf16 unless given), `tflops` and `gbps`, which are commentary:
//            matmul_nt, matmul_nn_dx, matmul_tn_dw      M, N, K: y [M, N] = x [M, K] . weight^T and its two gradients
//            sdpa_causal_fwd, sdpa_causal_bwd           B, H, KV, T, D: batch, heads, key and value heads, tokens,
//                                                       head_dim
//            copy_bf16, cast_bf16_fp32                  n: elements
//            h2d_pinned, d2h_pinned, h2d_pageable,
//            d2h_pageable                               n: bytes
// Time     between two events around the one kernel on an idle device.
// Errors   ConfigError "FILE: kernels[3].M is -1; use ...": unknown, repeated and missing keys, wrong types, sizes out
//          of range.
// Threads  safe from any number of threads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/cost.h"
#include "engine/virtual_time/time_model.h"

namespace loom::calibrate {

inline constexpr std::size_t kMostRows = 10'000;

struct KernelTime {
  std::string label;   // "matmul_nt M 2048 N 4096 K 4096"
  std::string kernel;  // the engine's name: "linear", "attention_grad", "cast"
  device::Cost cost;
  double measured_ns = 0;

  // What the two events enclose: the device is idle, so the kernel begins when the host has dispatched it.
  double predicted_ns(const virtual_time::TimeModel& model) const;
};

std::vector<KernelTime> read_kernel_times(const std::filesystem::path& path);
// Messages call the text `file_name`.
std::vector<KernelTime> parse_kernel_times(std::string_view text, std::string_view file_name);

}  // namespace loom::calibrate
