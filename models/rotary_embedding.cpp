#include "models/rotary_embedding.h"

#include <algorithm>
#include <cmath>

#include "engine/core/rank_context.h"
#include "engine/nn/functional.h"
#include "engine/tensor/ops.h"

namespace loom::models {
namespace {

// The table of `angle_function` over [rows, head_dim].
template <class F>
void fill_table(const Tensor& table, double theta, F&& angle_function) {
  if (table.raw() == nullptr) return;  // dry run
  const std::int64_t dim = table.shape()[1];
  const std::int64_t half = dim / 2;
  auto* values = table.data<float>();
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    for (std::int64_t s = 0; s < table.shape()[0]; ++s) {
      const auto value = static_cast<float>(angle_function(static_cast<double>(s) * frequency));
      values[s * dim + i] = values[s * dim + half + i] = value;
    }
  }
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(std::string type_name, std::int64_t head_dim, std::int64_t max_positions, double theta)
    : NamedModule(std::move(type_name)), head_dim_(head_dim), max_positions_(max_positions), theta_(theta) {
  register_buffer("cos", Tensor::meta({0, head_dim}, DType::kF32));
  register_buffer("sin", Tensor::meta({0, head_dim}, DType::kF32));
}

nn::Value RotaryEmbedding::forward(const nn::Args& args) {
  const Tensor& hidden = args.tensor(0);
  const std::int64_t seq = hidden.shape()[1];
  Tensor& cos = own_buffers()[0].second;
  Tensor& sin = own_buffers()[1].second;
  if (cos.shape()[0] < seq) make_tables(std::max(seq, std::min(2 * cos.shape()[0], max_positions_)));
  const bool fused = RankContext::current().slot<nn::KernelOptions>().fused_rotary_pos_emb;
  const DType dtype = fused ? DType::kF32 : hidden.dtype();
  return nn::ValueList{ops::cast(cos.rows(0, seq), dtype), ops::cast(sin.rows(0, seq), dtype)};
}

void RotaryEmbedding::make_tables(std::int64_t rows) {
  for (auto& [name, table] : own_buffers()) {
    table = Tensor::empty({rows, head_dim_}, DType::kF32, device::MemCategory::kActivation, "rotary table");
    if (name == "cos") {
      fill_table(table, theta_, [](double angle) { return std::cos(angle); });
    } else {
      fill_table(table, theta_, [](double angle) { return std::sin(angle); });
    }
  }
}

}  // namespace loom::models
