#include "models/decoder/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/nn/functional.h"
#include "engine/tensor/ops.h"

namespace loom::models {
namespace {

using AngleFunction = double (*)(double);
double cosine(double angle) { return std::cos(angle); }
double sine(double angle) { return std::sin(angle); }

// The table of `function` at the positions 0, 1, ..., rows - 1: [rows, head_dim]. Frequencies and angles are rounded to
// fp32 where Hugging Face's rotary embedding has them as tensors.
Tensor make_table(std::int64_t rows, const Rotary& rotary, std::int64_t frequency_length, AngleFunction function) {
  const std::int64_t dim = rotary.head_dim;
  const Tensor table = Tensor::empty({rows, dim}, DType::kF32, device::MemCategory::kActivation, "rotary table");
  const device::Cost cost{.flops = static_cast<double>(table.numel()), .written_bytes = table.nbytes()};
  device::Device::current().launch("rotary_table", cost, [&] {
    const std::int64_t half = dim / 2;
    const std::vector<float> frequencies = rotary_frequencies(rotary, frequency_length);
    const auto factor = static_cast<float>(attention_factor(rotary));
    auto* values = table.data<float>();
    for (std::int64_t i = 0; i < half; ++i) {
      for (std::int64_t s = 0; s < rows; ++s) {
        const float angle = static_cast<float>(s) * frequencies[static_cast<std::size_t>(i)];
        const float value = factor * static_cast<float>(function(static_cast<double>(angle)));
        values[s * dim + i] = values[s * dim + half + i] = value;
      }
    }
  });
  return table;
}

// Each frequency at its axis's position.
void take_by_axes(const Tensor& table, const Tensor& position_ids, const std::vector<int>& axes, const Tensor& taken) {
  const std::int64_t tokens = position_ids.numel() / 3, dim = table.shape()[1], half = dim / 2;
  const auto* positions = position_ids.data<std::int32_t>();
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t i = 0; i < half; ++i) {
      const std::int64_t position = positions[axes[static_cast<std::size_t>(i)] * tokens + token];
      float* to = taken.data<float>() + token * dim + i;
      to[0] = to[half] = table.data<float>()[position * dim + i];
    }
  }
}

// The rows of `table` at these positions: [B, S, head_dim].
Tensor rows_at(const Tensor& table, const Tensor& position_ids, const RotaryScaling& scaling) {
  const Shape& s = position_ids.shape();
  const std::int64_t dim = table.shape()[1];
  const Tensor taken =
      Tensor::empty({s[-2], s[-1], dim}, DType::kF32, device::MemCategory::kActivation, "rotary table of positions");
  const device::Cost cost{.read_bytes = taken.nbytes() + position_ids.nbytes(), .written_bytes = taken.nbytes()};
  device::Device::current().launch("rotary_rows", cost, [&] {
    if (s.ndim() == 3) return take_by_axes(table, position_ids, mrope_axes(scaling), taken);
    const auto* positions = position_ids.data<std::int32_t>();
    for (std::int64_t i = 0; i < position_ids.numel(); ++i) {
      std::copy_n(table.data<float>() + positions[i] * dim, dim, taken.data<float>() + i * dim);
    }
  });
  return taken;
}

// The rows that a table needs for these positions, each below `limit`; `limit` in a dry run.
std::int64_t rows_needed(const Tensor& position_ids, std::int64_t limit) {
  const std::int64_t seq = position_ids.shape()[-1];
  const auto* positions = static_cast<const std::int32_t*>(position_ids.raw());
  if (positions == nullptr) return limit;
  std::int64_t highest = 0;
  for (std::int64_t i = 0; i < position_ids.numel(); ++i) {
    const std::int64_t position = positions[i];
    check_model(position >= 0 && position < limit, "position_ids has {} at [{}, {}]; allowed are 0 to {}", position,
                i / seq, i % seq, limit - 1);
    highest = std::max(highest, position);
  }
  return highest + 1;
}

void check_position_ids(const Tensor& position_ids, const Tensor& hidden, const RotaryScaling& scaling) {
  const Shape expected{hidden.shape()[0], hidden.shape()[1]}, by_axes{3, expected[0], expected[1]};
  const bool fits =
      position_ids.shape() == expected || (!scaling.mrope_section.empty() && position_ids.shape() == by_axes);
  check_model(position_ids.dtype() == DType::kI32 && fits, "position_ids is {} {}; int32 {} is needed{}",
              name(position_ids.dtype()), to_string(position_ids.shape()), to_string(expected),
              scaling.mrope_section.empty() ? "" : ", or " + to_string(by_axes));
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(std::string type_name, const Rotary& rotary)
    : NamedModule(std::move(type_name)), rotary_(rotary) {
  register_buffer("cos", Tensor::meta({0, rotary.head_dim}, DType::kF32));
  register_buffer("sin", Tensor::meta({0, rotary.head_dim}, DType::kF32));
}

std::pair<Tensor, Tensor> RotaryEmbedding::make_tables(std::int64_t rows) const {
  return {make_table(rows, rotary_, frequency_length_, cosine), make_table(rows, rotary_, frequency_length_, sine)};
}

nn::Value RotaryEmbedding::forward(const nn::Args& args) {
  const Tensor& hidden = args.tensor(0);
  const std::int64_t seq = hidden.shape()[1];
  const bool has_positions = args.positional.size() > 1 && !args.positional[1].is_none();
  std::int64_t needed = seq, length = seq;
  if (has_positions) {
    check_position_ids(args.tensor(1), hidden, rotary_.scaling);
    const bool limited = args.positional.size() > 2;
    length = rows_needed(args.tensor(1), limited ? args.positional[2].number() : seq);
    if (args.positional.size() > 3) length = args.positional[3].number();
    // Tables of pictures have a row for each token, so that a plan, which knows no positions, has as many.
    if (args.tensor(1).shape().ndim() == 3) length = args.tensor(1).raw() == nullptr ? seq : std::max(length, seq);
    if (limited) needed = length;
  }
  const std::int64_t before = std::exchange(frequency_length_, frequency_length(rotary_, frequency_length_, length));
  const auto wanted = [&](const Tensor& table) {
    return has_positions ? rows_at(table, args.tensor(1), rotary_.scaling) : table.rows(0, seq);
  };
  if (!RankContext::current().slot<nn::KernelOptions>().fused_rotary_pos_emb) {
    const auto [cos, sin] = make_tables(needed);
    return nn::ValueList{ops::cast(wanted(cos), hidden.dtype()), ops::cast(wanted(sin), hidden.dtype())};
  }
  Tensor& cos = own_buffers()[0].value;
  Tensor& sin = own_buffers()[1].value;
  if (cos.shape()[0] < needed || before != frequency_length_) {
    const std::int64_t rows = std::max(needed, std::min(2 * cos.shape()[0], rotary_.max_position_embeddings));
    std::tie(cos, sin) = make_tables(rows);
  }
  return nn::ValueList{wanted(cos), wanted(sin)};
}

}  // namespace loom::models
