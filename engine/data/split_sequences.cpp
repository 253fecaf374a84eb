#include "engine/data/split_sequences.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/core/rounding.h"
#include "engine/data/token_batches.h"
#include "engine/tensor/ops.h"

namespace loom::data {
namespace {

struct Split {
  std::int64_t length;  // of a row
  std::int64_t padded;
  std::vector<dist::TokenRange> ranges;

  Split(std::int64_t row_length, const dist::ContextDegrees& degrees, int rank, int unit)
      : length(row_length),
        padded(round_up(row_length, dist::length_unit(degrees) * unit)),
        ranges(dist::token_ranges(padded, degrees, rank)) {}

  std::int64_t own() const {
    std::int64_t count = 0;
    for (const dist::TokenRange& range : ranges) count += range.end - range.begin;
    return count;
  }
};

// This rank's part of rows of `value(row, position)`; positions of the padding are `length` and more.
template <class T, class ValueAt>
Tensor split_rows(const Split& split, std::int64_t rows, DType dtype, bool has_values, const char* name,
                  const ValueAt& value) {
  const Shape shape{rows, split.own()};
  if (!has_values) return Tensor::meta(shape, dtype, name);
  const Tensor part = Tensor::host(shape, dtype, name);
  T* to = part.data<T>();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const dist::TokenRange& range : split.ranges) {
      for (std::int64_t at = range.begin; at < range.end; ++at) *to++ = value(row, at);
    }
  }
  return part;
}

template <class T>
Tensor split_ids(const Split& split, const Tensor& ids, const char* name, T padding) {
  const T* from = ids.is_meta() ? nullptr : ids.data<T>();
  return split_rows<T>(
      split, ids.shape()[0], ids.dtype(), from != nullptr, name,
      [&](std::int64_t row, std::int64_t at) { return at < split.length ? from[row * split.length + at] : padding; });
}

Tensor split_tensor(const Split& split, const Tensor& x, const Shape& shape, const char* name, std::int64_t padding) {
  check_model(
      x.shape() == shape && (x.dtype() == DType::kI32 || x.dtype() == DType::kI64),
      "ranks share sequences, and '{}' of the batch is {} {}; whole numbers of the shape of input_ids {} can be "
      "split",
      name, loom::name(x.dtype()), to_string(x.shape()), to_string(shape));
  if (x.dtype() == DType::kI64) return split_ids<std::int64_t>(split, x, name, padding);
  return split_ids<std::int32_t>(split, x, name, static_cast<std::int32_t>(padding));
}

nn::Value padded_ends(const Split& split, const nn::ValueList& ends) {
  nn::ValueList moved;
  for (const nn::Value& end : ends) {
    const std::int64_t at = end.number(), row = (at - 1) / split.length;
    const std::int64_t extra = at == (row + 1) * split.length ? split.padded - split.length : 0;
    moved.emplace_back(row * split.padded + at - row * split.length + extra);
  }
  return moved;
}

// Padding has the last position.
Tensor positions_of(const Split& split, const Tensor& ids) {
  return split_rows<std::int32_t>(
      split, ids.shape()[0], DType::kI32, !ids.is_meta(), "position_ids",
      [&](std::int64_t, std::int64_t at) { return static_cast<std::int32_t>(std::min(at, split.length - 1)); });
}

}  // namespace

Batch split_batch(const Batch& batch, const dist::ContextDegrees& degrees, int rank, int unit) {
  const Tensor& ids = batch["input_ids"];
  check_model(ids.shape().ndim() == 2, "input_ids {}; ranks share rows of tokens: give [batch, sequence]",
              to_string(ids.shape()));
  const Split split(ids.shape()[1], degrees, rank, unit);
  if (degrees.ranks() == 1 && split.padded == split.length) return batch;
  Batch part;
  for (const auto& [name, value] : batch.values) {
    if (name == "input_ids" || name == "position_ids") {
      part.values.emplace_back(name, split_tensor(split, value.tensor(), ids.shape(), name.c_str(), 0));
    } else if (name == "targets") {
      part.values.emplace_back(name, split_tensor(split, value.tensor(), ids.shape(), name.c_str(), ops::kIgnoreIndex));
    } else if (name == "actual_seq_len") {
      part.values.emplace_back(name, padded_ends(split, value.list()));
    } else {
      model_error(
          "ranks share sequences, which splits input_ids, targets and position_ids; the batch also has '{}': remove it, "
          "or train without context and sequence parallelism",
          name);
    }
  }
  const double all = batch.find("targets").is_none() ? 0 : count_targets(batch).loss_weight();
  part.share = all == 0 ? 1.0 / degrees.ranks() : count_targets(part).loss_weight() / all;
  if (batch.find("position_ids").is_none()) part.values.emplace_back("position_ids", positions_of(split, ids));
  return part;
}

DataLoaders split_sequences(DataLoaders loaders, const dist::ContextDegrees& degrees,
                            std::function<int(int rank)> place, int unit) {
  for (DataLoader* loader : {&loaders.train, &loaders.valid, &loaders.test}) {
    if (!*loader) continue;
    *loader = [whole = std::move(*loader), degrees, place, unit](std::span<const std::int64_t> samples) {
      return split_batch(whole(samples), degrees, place(RankContext::current().rank()), unit);
    };
  }
  if (degrees.ranks() > 1 && !loaders.count_tokens) loaders.count_tokens = count_targets;
  return loaders;
}

}  // namespace loom::data
