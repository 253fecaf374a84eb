// Rows of tests/reference/memory/h200_kernel_times.json: single kernels between two events on an idle device, as the
// engine would launch them.
//
// Letters  as the file has them: a product's y [M, N] = x [M, K] . weight^T; T sequence, H heads, KV key and value
//          heads, D head_dim; n elements of a copy, bytes of a host-link copy.
#pragma once

#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/virtual_time/time_model.h"

namespace loom::test {

struct KernelRow {
  std::string label;   // "matmul_nt 2048x4096x4096"
  std::string kernel;  // the engine's name
  device::Cost cost;
  double measured_ns = 0;

  // What the two events enclose: the device is idle, so the kernel begins when the host has dispatched it.
  double predicted_ns(const virtual_time::TimeModel& model) const {
    return static_cast<double>(virtual_time::TimeModel::dispatch_ns(model.profile().launch, cost) +
                               model.work_ns(kernel, cost));
  }
};

inline void read_product(const nlohmann::json& row, KernelRow& result) {
  const std::int64_t m = row.at("M"), n = row.at("N"), k = row.at("K");
  const std::string op = row.at("op");
  device::Cost& cost = result.cost;
  cost.unit = device::Unit::kMatrix;
  cost.dtype = DType::kBF16;
  cost.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (op == "matmul_nt") {
    result.kernel = "linear";
    cost.m = m, cost.n = n, cost.k = k;
  } else if (op == "matmul_nn_dx") {
    result.kernel = "linear_dx";
    cost.m = m, cost.n = k, cost.k = n;
  } else {
    result.kernel = "linear_dw";
    cost.m = n, cost.n = k, cost.k = m;
  }
  cost.read_bytes = 2 * (cost.m * cost.k + cost.k * cost.n);
  cost.written_bytes = 2 * cost.m * cost.n;
  result.label = fmt::format("{} M {} N {} K {}", op, m, n, k);
}

inline void read_attention(const nlohmann::json& row, KernelRow& result) {
  const std::int64_t b = row.at("B"), h = row.at("H"), kv = row.at("KV"), t = row.at("T"), d = row.at("D");
  const bool backward = row.at("op") == "sdpa_causal_bwd";
  device::Cost& cost = result.cost;
  cost.unit = device::Unit::kAttention;
  cost.dtype = DType::kBF16;
  cost.batch = b * h, cost.m = t, cost.n = t, cost.k = d;
  cost.flops = (backward ? 5.0 : 2.0) * static_cast<double>(b * h * t) * static_cast<double>(t * d);
  const std::int64_t q_bytes = 2 * b * h * t * d, kv_bytes = 2 * b * kv * t * d, lse_bytes = 4 * b * h * t;
  cost.read_bytes = backward ? 3 * q_bytes + 2 * kv_bytes + lse_bytes : q_bytes + 2 * kv_bytes;
  cost.written_bytes = backward ? q_bytes + 2 * kv_bytes : q_bytes + lse_bytes;
  result.kernel = backward ? "attention_grad" : "attention";
  cost.work = backward ? device::WorkKind::kAttentionBackward : device::WorkKind::kAttention;
  result.label = fmt::format("{} B {} H {} KV {} T {} D {}", std::string(row.at("op")), b, h, kv, t, d);
}

inline void read_copy(const nlohmann::json& row, KernelRow& result) {
  const std::string op = row.at("op");
  const std::int64_t n = row.at("n");
  device::Cost& cost = result.cost;
  result.label = fmt::format("{} n {}", op, n);
  if (op == "copy_bf16" || op == "cast_bf16_fp32") {
    const bool cast = op == "cast_bf16_fp32";
    result.kernel = cast ? "cast" : "copy";
    cost.unit = device::Unit::kCopy;
    cost.read_bytes = 2 * n, cost.written_bytes = (cast ? 4 : 2) * n;
    return;
  }
  result.kernel = op.substr(0, 3);
  cost.unit = device::Unit::kHostLink;
  cost.work = op.starts_with("d2h") ? device::WorkKind::kD2H : device::WorkKind::kH2D;
  cost.read_bytes = cost.written_bytes = n;
  cost.pinned = op.ends_with("_pinned");
}

inline std::vector<KernelRow> read_kernel_rows(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<KernelRow> rows;
  for (const auto& row : nlohmann::json::parse(file)) {
    KernelRow& result = rows.emplace_back();
    result.measured_ns = row.at("ms").get<double>() * 1e6;
    const std::string op = row.at("op");
    if (op.starts_with("matmul")) {
      read_product(row, result);
    } else if (op.starts_with("sdpa")) {
      read_attention(row, result);
    } else {
      read_copy(row, result);
    }
  }
  return rows;
}

}  // namespace loom::test
