#include "engine/tensor/ops/vision.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/core/shape_text.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/tiles.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

std::byte* at(const Tensor& x, std::int64_t element) {
  return static_cast<std::byte*>(x.raw()) + element * element_bytes(x.dtype());
}

void copy_elements(const Tensor& from, std::int64_t first, const Tensor& to, std::int64_t to_first,
                   std::int64_t count) {
  std::memcpy(at(to, to_first), at(from, first), count * element_bytes(to.dtype()));
}

// A tensor is cut into runs of `run` neighbours: run i of `to` is run source(i) of `from`; inverse: the other way.
template <class Source>
void permute_runs(const Tensor& from, const Tensor& to, std::int64_t run, bool inverse, Source source) {
  if (run == 0) return;
  kernels::for_pieces(to.numel() / run, kernels::rows_of_tile(run), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = begin; i < begin + count; ++i) {
      const std::int64_t other = source(i);
      copy_elements(from, (inverse ? i : other) * run, to, (inverse ? other : i) * run, run);
    }
  });
}

// A recorded bijection of runs.
template <class Source>
Tensor permuted(std::string_view name, std::string_view grad_name, const Tensor& x, const Shape& shape,
                std::int64_t run, Source source) {
  Tensor y = Tensor::empty(shape, x.dtype());
  launch(name, pass_cost(0, {x}, {y}), [&] { permute_runs(x, y, run, false, source); });
  autograd::record(name, {x}, {}, {y}, [=, shape = x.shape()](Saved, const Grads& grads, const Needs&) -> Grads {
    Tensor dx = Tensor::empty(shape, grads[0].dtype());
    launch(grad_name, pass_cost(0, {grads[0]}, {dx}), [&] { permute_runs(grads[0], dx, run, true, source); });
    return {dx};
  });
  return y;
}

}  // namespace

Tensor unfold_patches(const Tensor& pixels, std::int64_t patch_height, std::int64_t patch_width) {
  const Shape s = pixels.shape();
  check_model(
      s.ndim() == 4 && patch_height > 0 && patch_width > 0 && s[2] % patch_height == 0 && s[3] % patch_width == 0,
      "unfold_patches: pixels {} in patches of {} x {}; pixels are [images, channels, height, width], in whole patches",
      s, patch_height, patch_width);
  const std::int64_t channels = s[1], height = s[2], h = s[2] / patch_height, w = s[3] / patch_width;
  // A run is one row of pixels of one patch: (n, i, j, c, y) of the result, (n, c, i, y, j) of the image.
  const auto source = [=](std::int64_t run) {
    const std::int64_t y = run % patch_height;
    const std::int64_t c = run / patch_height % channels;
    const std::int64_t j = run / (patch_height * channels) % w;
    const std::int64_t i = run / (patch_height * channels * w) % h;
    const std::int64_t n = run / (patch_height * channels * w * h);
    return ((n * channels + c) * height + i * patch_height + y) * w + j;
  };
  return permuted("unfold_patches", "unfold_patches_grad", pixels, {s[0], h * w, channels * patch_height * patch_width},
                  patch_width, source);
}

Tensor pixel_shuffle(const Tensor& x, std::int64_t factor) {
  const Shape s = x.shape();
  check_model(s.ndim() == 4 && factor > 0 && s[1] % factor == 0 && s[2] % factor == 0,
              "pixel_shuffle: {} by a factor of {}; dims 1 and 2 of 4 need to be multiples of it", s, factor);
  const std::int64_t h = s[1] / factor, w = s[2] / factor, rows = s[1];
  // A run is `factor` neighbours along dim 2: (n, i, j, di) of the result, (n, i, di, j) of the argument.
  const auto source = [=](std::int64_t run) {
    const std::int64_t di = run % factor;
    const std::int64_t j = run / factor % w;
    const std::int64_t i = run / (factor * w) % h;
    const std::int64_t n = run / (factor * w * h);
    return (n * rows + i * factor + di) * w + j;
  };
  return permuted("pixel_shuffle", "pixel_shuffle_grad", x, {s[0], h, w, s[3] * factor * factor}, factor * s[3],
                  source);
}

Tensor reorder_rows(const Tensor& x, const std::vector<std::int64_t>& order, std::int64_t group) {
  const Shape s = x.shape();
  std::vector<char> seen(order.size(), 0);
  const bool is_permutation = std::ranges::all_of(order, [&](std::int64_t i) {
    return i >= 0 && i < std::ssize(order) && std::exchange(seen[static_cast<std::size_t>(i)], 1) == 0;
  });
  check_model(s.ndim() >= 1 && group > 0 && std::ssize(order) * group == s[0] && is_permutation,
              "reorder_rows: {} in {} groups of {} rows; the order is a permutation of all groups", s, order.size(),
              group);
  const std::int64_t run = group * s.row_elems();
  return permuted("reorder_rows", "reorder_rows_grad", x, s, run,
                  [order](std::int64_t i) { return order[static_cast<std::size_t>(i)]; });
}

Tensor slice_sequence(const Tensor& x, std::int64_t begin, std::int64_t length) {
  const Shape s = x.shape();
  check_model(s.ndim() >= 2 && begin >= 0 && length >= 0 && begin + length <= s[1],
              "slice_sequence: positions [{}, {}) of {}; they need to lie within dim 1", begin, begin + length, s);
  Shape part = s;
  part[1] = length;
  const std::int64_t row = s[1] == 0 ? 0 : s.row_elems() / s[1];
  Tensor y = Tensor::empty(part, x.dtype());
  launch("slice_sequence", pass_cost(0, {y}, {y}), [&] {
    for (std::int64_t b = 0; b < s[0]; ++b)
      copy_elements(x, (b * s[1] + begin) * row, y, b * length * row, length * row);
  });
  autograd::record("slice_sequence", {x}, {}, {y}, [=](Saved, const Grads& grads, const Needs&) -> Grads {
    Tensor dx = Tensor::zeros(s, grads[0].dtype());
    launch("slice_sequence_grad", pass_cost(0, {grads[0]}, {grads[0]}), [&] {
      for (std::int64_t b = 0; b < s[0]; ++b)
        copy_elements(grads[0], b * length * row, dx, (b * s[1] + begin) * row, length * row);
    });
    return {dx};
  });
  return y;
}

Tensor prepend_token(const Tensor& token, const Tensor& x) {
  const Shape s = x.shape();
  check_model(s.ndim() == 3 && token.numel() == s[2] && token.dtype() == x.dtype(),
              "prepend_token: {} {} before {} {}; one token of the last of 3 dims is needed, in the same dtype",
              name(token.dtype()), token.shape(), name(x.dtype()), s);
  const std::int64_t row = s[2], length = s[1];
  Tensor y = Tensor::empty({s[0], length + 1, row}, x.dtype());
  launch("prepend_token", pass_cost(0, {token, x}, {y}), [&] {
    for (std::int64_t b = 0; b < s[0]; ++b) {
      copy_elements(token, 0, y, b * (length + 1) * row, row);
      copy_elements(x, b * length * row, y, (b * (length + 1) + 1) * row, length * row);
    }
  });
  autograd::record("prepend_token", {token, x}, {}, {y},
                   [=, token_shape = token.shape()](Saved, const Grads& grads, const Needs& needs) -> Grads {
                     const autograd::NoGrad no_grad;
                     Grads result(2);
                     if (needs[0]) result[0] = sum_to(slice_sequence(grads[0], 0, 1), {row}).view(token_shape);
                     if (needs[1]) result[1] = slice_sequence(grads[0], 1, length);
                     return result;
                   });
  return y;
}

namespace {

// The positions where `ids` is `id`, in reading order.
std::vector<std::int64_t> positions_of(const Tensor& ids, std::int64_t id) {
  std::vector<std::int64_t> positions;
  kernels::visit_index_dtype("masked_scatter", ids.dtype(), [&]<class I>() {
    const I* values = ids.data<I>();
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      if (static_cast<std::int64_t>(values[i]) == id) positions.push_back(i);
    }
  });
  return positions;
}

void check_count(std::size_t positions, std::int64_t rows, std::int64_t id) {
  if (static_cast<std::int64_t>(positions) == rows) return;
  config_error(
      "image tokens and image features do not match: input_ids hold {} tokens with id {}, the images give {} features; "
      "write one image token for each feature of an image",
      positions, id, rows);
}

}  // namespace

std::int64_t count_ids(const Tensor& ids, std::int64_t id) {
  std::int64_t count = 0;
  launch("count_ids", pass_cost(0, {ids}, {}),
         [&] { count = static_cast<std::int64_t>(positions_of(ids, id).size()); });
  return count;
}

Tensor masked_scatter(const Tensor& x, const Tensor& ids, std::int64_t id, const Tensor& rows) {
  const Shape s = x.shape();
  check_model(s.ndim() == 3 && ids.numel() == s[0] * s[1] && rows.shape().ndim() >= 1 && rows.shape()[-1] == s[2] &&
                  rows.dtype() == x.dtype(),
              "masked_scatter: {} {} with ids {} and rows {} {}; [batch, sequence, dim] with an id for each position "
              "and rows of dim are needed, in one dtype",
              name(x.dtype()), s, ids.shape(), name(rows.dtype()), rows.shape());
  const std::int64_t dim = s[2];
  Tensor y = Tensor::empty(s, x.dtype());
  launch("masked_scatter", pass_cost(0, {ids, x, rows}, {y}), [&] {
    const std::vector<std::int64_t> positions = positions_of(ids, id);
    check_count(positions.size(), row_count(rows), id);
    copy_elements(x, 0, y, 0, x.numel());
    for (std::size_t i = 0; i < positions.size(); ++i)
      copy_elements(rows, static_cast<std::int64_t>(i) * dim, y, positions[i] * dim, dim);
  });
  autograd::record("masked_scatter", {x, rows}, {ids}, {y},
                   [=, rows_shape = rows.shape()](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
                     const Tensor &ids = saved[0], &dy = grads[0];
                     Grads result(2);
                     if (needs[0]) result[0] = Tensor::empty(dy.shape(), dy.dtype());
                     if (needs[1]) result[1] = Tensor::empty(rows_shape, dy.dtype());
                     launch("masked_scatter_grad", pass_cost(0, {ids, dy}, {result[0], result[1]}), [&] {
                       const std::vector<std::int64_t> positions = positions_of(ids, id);
                       if (needs[0]) copy_elements(dy, 0, result[0], 0, dy.numel());
                       for (std::size_t i = 0; i < positions.size(); ++i) {
                         const std::int64_t row = static_cast<std::int64_t>(i) * dim;
                         if (needs[0])
                           std::memset(at(result[0], positions[i] * dim), 0, dim * element_bytes(dy.dtype()));
                         if (needs[1]) copy_elements(dy, positions[i] * dim, result[1], row, dim);
                       }
                     });
                     return result;
                   });
  return y;
}

}  // namespace loom::ops
