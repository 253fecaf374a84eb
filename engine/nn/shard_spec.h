// ShardSpec: the part of a whole parameter that a rank's tensor holds.
//
// Box      the tensor holds elements [offset[d], offset[d] + shape[d]) of every dim d of the whole, row-major; its
//          shape is the tensor's own. Rows, columns, experts and cuts on several dims are boxes alike. A rank without
//          elements has an empty box, which may begin at the end of a dim.
// Use      to draw first values (init.h), to read files, to assemble and cut whole parameters; a distributed
//          checkpoint writes it beside the bytes.
// Errors   InvariantError for a box that is not inside the whole.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/box.h"
#include "engine/tensor/tensor.h"

namespace loom::nn {

struct ShardSpec {
  Shape global_shape;
  Offset offset;  // one a dim

  // The whole parameter, and rows [begin, ...) of it.
  static ShardSpec whole(const Shape& shape);
  static ShardSpec rows_from(const Shape& global_shape, std::int64_t begin);

  bool operator==(const ShardSpec&) const = default;
};

// The part of a whole tensor that a rank has.
struct LocalTensor {
  Tensor value;
  ShardSpec shard;

  bool is_whole() const { return value.shape() == shard.global_shape; }
};

// "[2, 3] at (0, 4) of [8, 12]"
std::string describe(const ShardSpec& shard, const Shape& shape);

// True when every element of the box `inner`, of shape `inner_shape`, is in the box `outer` of the same whole.
bool contains(const ShardSpec& outer, const Shape& outer_shape, const ShardSpec& inner, const Shape& inner_shape);

// Writes all of `target` from `source`, converted to its dtype. `what` is named in messages.
//
// Throws   InvariantError unless source's box contains target's.
void copy_box(const LocalTensor& target, const LocalTensor& source, std::string_view what);
// Writes all of `source` into `target`, whose box contains it; the rest of `target` keeps its values.
void paste_box(const LocalTensor& target, const LocalTensor& source, std::string_view what);

}  // namespace loom::nn
