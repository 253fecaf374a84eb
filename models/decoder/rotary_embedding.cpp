#include "models/decoder/rotary_embedding.h"

#include <algorithm>
#include <cmath>

#include "engine/core/rank_context.h"
#include "engine/nn/functional.h"
#include "engine/tensor/ops.h"

namespace loom::models {
namespace {

using AngleFunction = double (*)(double);
double cosine(double angle) { return std::cos(angle); }
double sine(double angle) { return std::sin(angle); }

// The table of `function` over [rows, head_dim].
Tensor make_table(std::int64_t rows, std::int64_t dim, double theta, AngleFunction function) {
  const Tensor table = Tensor::empty({rows, dim}, DType::kF32, device::MemCategory::kActivation, "rotary table");
  const device::Cost cost{.flops = static_cast<double>(table.numel()), .written_bytes = table.nbytes()};
  device::Device::current().launch("rotary_table", cost, [&] {
    const std::int64_t half = dim / 2;
    auto* values = table.data<float>();
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      for (std::int64_t s = 0; s < rows; ++s) {
        const auto value = static_cast<float>(function(static_cast<double>(s) * frequency));
        values[s * dim + i] = values[s * dim + half + i] = value;
      }
    }
  });
  return table;
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
  if (!RankContext::current().slot<nn::KernelOptions>().fused_rotary_pos_emb) {
    const Tensor cos = make_table(seq, head_dim_, theta_, cosine);
    const Tensor sin = make_table(seq, head_dim_, theta_, sine);
    return nn::ValueList{ops::cast(cos, hidden.dtype()), ops::cast(sin, hidden.dtype())};
  }
  Tensor& cos = own_buffers()[0].value;
  Tensor& sin = own_buffers()[1].value;
  if (cos.shape()[0] < seq) {
    const std::int64_t rows = std::max(seq, std::min(2 * cos.shape()[0], max_positions_));
    cos = make_table(rows, head_dim_, theta_, cosine);
    sin = make_table(rows, head_dim_, theta_, sine);
  }
  return nn::ValueList{cos.rows(0, seq), sin.rows(0, seq)};
}

}  // namespace loom::models
