// dropout(): how a tensor lies in the rows of a micro-batch, and the operator.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "engine/core/rng_state.h"
#include "engine/core/shape_text.h"
#include "engine/kernels/strided.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

using Ranges = std::vector<RngRows::Parts>;
using Sizes = std::vector<std::int64_t>;

std::uint64_t key_of(std::uint64_t key, std::uint64_t a, std::uint64_t b = 0) {
  const Philox4 words = philox(key, a, b);
  return std::uint64_t{words[1]} << 32 | words[0];
}

// A tensor as equal blocks, one behind another: one for each row of the micro-batch, or the whole tensor.
struct Blocks {
  std::vector<std::uint64_t> keys;  // of each
  Sizes sizes;                      // of one block: two or more
  Ranges first;                     // indices of its first dim
};

// Entries [begin, begin + count) of the ranges, one behind another.
Ranges cut_from(const Ranges& ranges, std::int64_t begin, std::int64_t count) {
  Ranges cut;
  for (const auto& [first, size] : ranges) {
    const std::int64_t skipped = std::min(begin, size), taken = std::min(count, size - skipped);
    if (taken > 0) cut.push_back({first + skipped, taken});
    begin -= skipped;
    count -= taken;
  }
  return cut;
}

// Where the tokens of this rank lie in a row, if it has `tokens` of them; none: they are no whole number of its parts.
std::optional<Ranges> places_of(const RngRows& rows, std::int64_t tokens) {
  if (rows.parts.empty()) return Ranges{{0, tokens}};
  std::int64_t parts = 0;
  for (const auto& [begin, count] : rows.parts) parts += count;
  if (tokens % parts != 0) return std::nullopt;
  Ranges places = rows.parts;
  for (auto& [begin, count] : places) {
    begin *= tokens / parts;
    count *= tokens / parts;
  }
  return places;
}

// None: the tensor does not consist of rows of the micro-batch.
std::optional<Blocks> row_by_row(const Shape& shape, const RngRows& rows, std::uint64_t call, const DropoutPart& part) {
  const auto count = static_cast<std::int64_t>(rows.numbers.size());
  Sizes sizes = shape.sizes();
  if (sizes.empty() || sizes[0] % count != 0) return std::nullopt;
  const bool is_flat = sizes[0] != count;
  if (is_flat) sizes[0] /= count;
  if (!is_flat) sizes.erase(sizes.begin());
  const bool has_tokens = is_flat || (sizes.size() > 1 && part.dim != 1);
  if (is_flat && sizes.size() == 1) sizes.push_back(1);
  while (sizes.size() < 2) sizes.insert(sizes.begin(), 1);
  std::optional<Ranges> first = has_tokens ? places_of(rows, sizes[0] * part.cuts) : Ranges{{part.begin, sizes[0]}};
  if (!first) return std::nullopt;
  if (part.cuts > 1) first = cut_from(*first, part.cut * sizes[0], sizes[0]);
  Blocks blocks{{}, std::move(sizes), *std::move(first)};
  for (const std::int64_t number : rows.numbers) {
    blocks.keys.push_back(key_of(rows.key, static_cast<std::uint64_t>(number), call));
  }
  return blocks;
}

// By the first row, and the first of the tokens that this rank has of it.
Blocks as_a_whole(const Shape& shape, const RngRows& rows, std::uint64_t call) {
  Sizes sizes = shape.sizes();
  while (sizes.size() < 2) sizes.insert(sizes.begin(), 1);
  const std::uint64_t key = key_of(rows.key, static_cast<std::uint64_t>(rows.numbers.front()), call);
  const std::int64_t token = rows.parts.empty() ? 0 : rows.parts.front().begin;
  const Ranges first{{0, sizes[0]}};
  return {{key_of(key, static_cast<std::uint64_t>(token))}, std::move(sizes), first};
}

// An element's number by its coordinates: the last two are in the number, the others in the key. It does not depend on
// sizes: a row that is padded further keeps its numbers.
void add_runs(kernels::Dropout& op, std::int64_t& row, std::uint64_t key, std::span<const std::int64_t> sizes,
              const Ranges& first) {
  for (const auto& [begin, count] : first) {
    if (sizes.size() == 2) {
      op.runs.push_back({row, key, static_cast<std::uint64_t>(begin) << 32});
      row += count;
      continue;
    }
    for (std::int64_t i = begin; i < begin + count; ++i) {
      add_runs(op, row, key_of(key, static_cast<std::uint64_t>(i)), sizes.subspan(1), {{0, sizes[1]}});
    }
  }
}

kernels::Dropout numbered(const Tensor& x, double p, const DropoutPart& part) {
  RngState& state = RngState::current();
  kernels::Dropout op{x.dtype(), x.numel(), x.numel(), p, {}};
  if (state.rows == nullptr) {
    op.runs = {{0, state.key, state.take(static_cast<std::uint64_t>(x.numel()))}};
    return op;
  }
  const std::uint64_t call = state.calls++;
  const auto in_rows = row_by_row(x.shape(), *state.rows, call, part);
  const Blocks blocks = in_rows ? *in_rows : as_a_whole(x.shape(), *state.rows, call);
  op.width = blocks.sizes.back();
  std::int64_t row = 0;
  for (const std::uint64_t key : blocks.keys) add_runs(op, row, key, blocks.sizes, blocks.first);
  if (part.dim == -1) {
    for (auto& run : op.runs) run.first += static_cast<std::uint64_t>(part.begin);
  }
  return op;
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training, const DropoutPart& part) {
  check_model(p >= 0 && p < 1, "dropout: p is {}; it needs to be at least 0 and below 1", p);
  if (!training || p == 0) return x;
  check_model(part.dim == 0 || part.dim == -1 || (part.dim == 1 && x.shape().ndim() == 4),
              "dropout: a part along dim {} of {}; it needs to be features (-1) or heads [R, H, S, S] (1)", part.dim,
              x.shape());
  const auto op = std::make_shared<const kernels::Dropout>(numbered(x, p, part));
  const auto drop = [op](std::string_view kernel, const Tensor& from) {
    Tensor to = Tensor::empty(from.shape(), from.dtype());
    launch(kernel, pass_cost(2.0 * static_cast<double>(from.numel()), {from}, {to}),
           [&] { kernels::dropout(*op, from.raw(), to.raw()); });
    return to;
  };
  Tensor y = drop("dropout", x);
  autograd::record("dropout", {x}, {}, {y}, [drop](Saved, const Grads& grads, const Needs&) -> Grads {
    return {drop("dropout_grad", grads[0])};
  });
  return y;
}

}  // namespace loom::ops
