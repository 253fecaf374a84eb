// Operators of vision towers and of models that mix images and text.
//
// Letters  N images, C channels, H x W pixels of an image, h x w patches; B batch, S sequence, D dim.
// Places   results live on the current rank's device; token ids and pixels may be host tensors.
// Moves    each of these but resize_bicubic() only moves elements: results and gradients are exact in every dtype, and
//          the gradient of an element that was used once is one element, so no order of summation exists. (The gradient
//          of a token that precedes every sequence is a sum over the batch, in the fixed order of sums over rows.)
// Dry run  shapes, accounts and costs; properties of token ids (the count of image tokens) are not checked.
// Errors   InvariantError naming operator and shapes; ConfigError where noted.
// Source   torch.nn.Conv2d with kernel = stride, InternVL's pixel_shuffle, Tensor.masked_scatter, upsample_bicubic2d.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::ops {

// pixels [N,C,H,W] -> patches [N, h*w, C*patch_height*patch_width], rows in reading order, each row laid out as the
// rows of a convolution's weight [out, C, patch_height, patch_width]: the convolution is linear() on them.
// Precondition: patches tile the image.
Tensor unfold_patches(const Tensor& pixels, std::int64_t patch_height, std::int64_t patch_width);

// token [..., D] with D elements, x [B,S,D] -> [B, S + 1, D]: the token before every sequence.
Tensor prepend_token(const Tensor& token, const Tensor& x);

// Positions [begin, begin + length) of x [B,S,...], a copy.
Tensor slice_sequence(const Tensor& x, std::int64_t begin, std::int64_t length);

// x [N,h,w,D] -> [N, h/factor, w/factor, D*factor*factor]: squares of factor x factor neighbours become one row, the
// neighbour along dim 1 outermost. Precondition: factor divides h and w.
Tensor pixel_shuffle(const Tensor& x, std::int64_t factor);

// x [h,w,D] -> [height,width,D]: torch.nn.functional.interpolate(mode="bicubic", align_corners=False, antialias=False).
// Weights and sums are fp32 (fp64 for fp64), in a fixed order; rounded once. ModelError for an empty grid.
Tensor resize_bicubic(const Tensor& x, std::int64_t height, std::int64_t width);

// x [rows,...] in another order: group i of `group` neighbouring rows is group order[i] of x. ModelError unless `order`
// is a permutation of all groups.
Tensor reorder_rows(const Tensor& x, const std::vector<std::int64_t>& order, std::int64_t group = 1);

// x [B,S,D] with the positions where ids [B,S] is `id` replaced by rows [..., D], one after another in reading order.
// Throws ConfigError with both numbers when there are not as many rows as such positions.
Tensor masked_scatter(const Tensor& x, const Tensor& ids, std::int64_t id, const Tensor& rows);
// How often `id` occurs in ids; 0 in a dry run.
std::int64_t count_ids(const Tensor& ids, std::int64_t id);

}  // namespace loom::ops
