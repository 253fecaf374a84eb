#include "engine/calibrate/kernel_times.h"

#include <fmt/format.h>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"

namespace loom::calibrate {
namespace {

using config::Section;
using config::Value;
using device::Cost;
using device::Unit;
using Keys = std::vector<std::string_view>;

// Bytes and FLOPs of a kernel stay within 64 bits and a double.
constexpr std::int64_t kMostOfAProduct = 1 << 24;  // of M, N, K
constexpr std::int64_t kMostRowsOfABatch = 1 << 10;
constexpr std::int64_t kMostHeads = 1 << 12;
constexpr std::int64_t kMostTokens = 1 << 24;
constexpr std::int64_t kMostHeadDim = 1 << 12;
constexpr std::int64_t kMostElements = std::int64_t{1} << 50;
constexpr double kNsOfAMs = 1e6;
constexpr double kMostMs = 3600e3;

std::int64_t size(const Section& row, std::string_view key, std::int64_t most) {
  const Value& value = row[key];
  const auto number = value.whole();
  if (!number || *number < 1 || *number > most) value.refuse(fmt::format("a whole number from 1 to {}", most));
  return *number;
}

double milliseconds(const Value& value) {
  const auto number = value.number();
  if (!number || !(*number > 0 && *number <= kMostMs)) value.refuse("a time above 0 ms and of an hour at most");
  return *number;
}

DType dtype_of(const Section& row) {
  const Value* value = row.given("dtype");
  if (value == nullptr) return DType::kBF16;
  const auto dtype = value->is_scalar() ? parse_dtype(value->scalar()) : std::nullopt;
  if (dtype != DType::kBF16 && dtype != DType::kF16) value->refuse("bf16 or fp16");
  return *dtype;
}

void read_product(const Section& row, std::string_view op, KernelTime& time) {
  const std::int64_t m = size(row, "M", kMostOfAProduct), n = size(row, "N", kMostOfAProduct),
                     k = size(row, "K", kMostOfAProduct);
  Cost& cost = time.cost;
  cost.unit = Unit::kMatrix;
  cost.dtype = dtype_of(row);
  cost.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (op == "matmul_nt") {
    time.kernel = "linear";
    cost.m = m, cost.n = n, cost.k = k;
  } else if (op == "matmul_nn_dx") {
    time.kernel = "linear_dx";
    cost.m = m, cost.n = k, cost.k = n;
  } else {
    time.kernel = "linear_dw";
    cost.m = n, cost.n = k, cost.k = m;
  }
  cost.read_bytes = 2 * (cost.m * cost.k + cost.k * cost.n);
  cost.written_bytes = 2 * cost.m * cost.n;
  time.label = fmt::format("{} M {} N {} K {}", op, m, n, k);
}

void read_attention(const Section& row, std::string_view op, KernelTime& time) {
  const std::int64_t b = size(row, "B", kMostRowsOfABatch), h = size(row, "H", kMostHeads),
                     kv = size(row, "KV", kMostHeads), t = size(row, "T", kMostTokens),
                     d = size(row, "D", kMostHeadDim);
  if (h % kv != 0) row["KV"].refuse(fmt::format("a divisor of H, {}", h));
  const bool backward = op == "sdpa_causal_bwd";
  Cost& cost = time.cost;
  cost.unit = Unit::kAttention;
  cost.dtype = dtype_of(row);
  cost.batch = b * h, cost.m = t, cost.n = t, cost.k = d;
  cost.flops = (backward ? 5.0 : 2.0) * static_cast<double>(b * h * t) * static_cast<double>(t * d);
  const std::int64_t q_bytes = 2 * b * h * t * d, kv_bytes = 2 * b * kv * t * d, lse_bytes = 4 * b * h * t;
  cost.read_bytes = backward ? 3 * q_bytes + 2 * kv_bytes + lse_bytes : q_bytes + 2 * kv_bytes;
  cost.written_bytes = backward ? q_bytes + 2 * kv_bytes : q_bytes + lse_bytes;
  time.kernel = backward ? "attention_grad" : "attention";
  cost.work = backward ? device::WorkKind::kAttentionBackward : device::WorkKind::kAttention;
  time.label = fmt::format("{} B {} H {} KV {} T {} D {}", op, b, h, kv, t, d);
}

void read_copy(const Section& row, std::string_view op, KernelTime& time) {
  const std::int64_t n = size(row, "n", kMostElements);
  const bool cast = op == "cast_bf16_fp32";
  time.kernel = cast ? "cast" : "copy";
  time.cost.unit = Unit::kCopy;
  time.cost.read_bytes = 2 * n, time.cost.written_bytes = (cast ? 4 : 2) * n;
  time.label = fmt::format("{} n {}", op, n);
}

void read_host_copy(const Section& row, std::string_view op, KernelTime& time) {
  const std::int64_t n = size(row, "n", kMostElements);
  time.kernel = op.substr(0, 3);
  time.cost.unit = Unit::kHostLink;
  time.cost.work = op.starts_with("d2h") ? device::WorkKind::kD2H : device::WorkKind::kH2D;
  time.cost.read_bytes = time.cost.written_bytes = n;
  time.cost.pinned = op.ends_with("_pinned");
  time.label = fmt::format("{} n {}", op, n);
}

struct Op {
  std::string_view name;
  Keys sizes;
  void (*read)(const Section& row, std::string_view op, KernelTime& time);
};

const std::vector<Op>& ops() {
  static const std::vector<Op> kOps{{"matmul_nt", {"M", "N", "K"}, read_product},
                                    {"matmul_nn_dx", {"M", "N", "K"}, read_product},
                                    {"matmul_tn_dw", {"M", "N", "K"}, read_product},
                                    {"sdpa_causal_fwd", {"B", "H", "KV", "T", "D"}, read_attention},
                                    {"sdpa_causal_bwd", {"B", "H", "KV", "T", "D"}, read_attention},
                                    {"copy_bf16", {"n"}, read_copy},
                                    {"cast_bf16_fp32", {"n"}, read_copy},
                                    {"h2d_pinned", {"n"}, read_host_copy},
                                    {"d2h_pinned", {"n"}, read_host_copy},
                                    {"h2d_pageable", {"n"}, read_host_copy},
                                    {"d2h_pageable", {"n"}, read_host_copy}};
  return kOps;
}

const Op& op_of(const Value& row) {
  if (!row.is_mapping()) row.refuse("an object, as {\"op\": \"matmul_nt\", \"M\": 2048, ...}");
  const Value* op = row.find("op");
  if (op == nullptr) config_error("{}: {} has no op; name the kernel that was measured", row.where(), row.path());
  std::vector<std::string_view> names;
  for (const Op& known : ops()) {
    if (op->is_scalar() && op->scalar() == known.name) return known;
    names.push_back(known.name);
  }
  op->refuse(fmt::format("one of {}", fmt::join(names, ", ")));
}

KernelTime read_row(const Value& value) {
  const Op& op = op_of(value);
  Keys required = op.sizes;
  required.insert(required.end(), {"op", "ms"});
  const Keys optional{"dtype", "tflops", "gbps"};
  const Section row(
      value,
      {.required = required, .optional = optional, .document = "a measured kernel", .advice = "a time is of one size"});
  KernelTime time;
  op.read(row, op.name, time);
  time.measured_ns = milliseconds(row["ms"]) * kNsOfAMs;
  return time;
}

}  // namespace

double KernelTime::predicted_ns(const virtual_time::TimeModel& model) const {
  return static_cast<double>(virtual_time::TimeModel::dispatch_ns(model.profile().launch, cost) +
                             model.work_ns(kernel, cost));
}

std::vector<KernelTime> read_kernel_times(const std::filesystem::path& path) {
  return parse_kernel_times(config::read_text(path, "an existing file of measured kernels (docs/calibration.md)"),
                            path.string());
}

std::vector<KernelTime> parse_kernel_times(std::string_view text, std::string_view file_name) {
  // The reader of documents takes an object.
  const Value document = config::parse_json(fmt::format("{{\"kernels\": {}\n}}", text), file_name);
  const Value* rows = document.find("kernels");
  if (document.items().size() != 1 || rows == nullptr || !rows->is_list() || rows->items().empty()) {
    config_error("{}: the file is no list of measured kernels; write [{{\"op\": ...}}, ...]", file_name);
  }
  if (rows->items().size() > kMostRows) {
    config_error("{}: the file has {} kernels; use at most {}", file_name, rows->items().size(), kMostRows);
  }
  std::vector<KernelTime> times;
  for (const Value& row : rows->items()) times.push_back(read_row(row));
  return times;
}

}  // namespace loom::calibrate
