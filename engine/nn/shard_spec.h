// ShardSpec: the part of a whole parameter that a rank's tensor holds.
//
// Box      the tensor holds elements [offset[d], offset[d] + shape[d]) of every dim d of the whole, row-major; its
//          shape is the tensor's own. Rows, columns, experts and cuts on several dims are boxes alike. A rank without
//          elements has an empty box, which may begin at the end of a dim.
// Joined   a dim of a joined matrix (q, k and v in one) that ranks cut has the ranks' parts one after another, each
//          with its part of every matrix; files have one matrix after another. Boxes of both orders never mix:
//          functions that meet files go by file_parts() and fill_parts().
// Use      to draw first values (init.h), to read files, to assemble and cut whole parameters; a distributed
//          checkpoint writes it beside the bytes.
// Errors   InvariantError for a box that is not inside the whole.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/box.h"
#include "engine/tensor/tensor.h"

namespace loom::nn {

struct ShardSpec {
  // Of `matrices` that are joined along `dim`, each of `ranks` ranks has an equal part; both together divide the dim.
  struct Joined {
    int dim = 0;
    std::int64_t matrices = 1;
    std::int64_t ranks = 1;

    bool operator==(const Joined&) const = default;
  };

  Shape global_shape;
  Offset offset;  // one a dim
  std::optional<Joined> joined = {};

  // The whole parameter, and rows [begin, ...) of it.
  static ShardSpec whole(const Shape& shape);
  static ShardSpec rows_from(const Shape& global_shape, std::int64_t begin);

  bool operator==(const ShardSpec&) const = default;
};

// The part of a whole tensor that a rank has.
struct LocalTensor {
  Tensor value;
  ShardSpec shard;

  bool is_whole() const { return value.shape() == shard.global_shape && !shard.joined; }
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

// The boxes of the whole, as files have it, that a tensor of this shape consists of, and where each begins in it.
struct FileBox {
  Offset offset;
  Shape shape;
  Offset in_tensor;
};
std::vector<FileBox> file_boxes(const ShardSpec& shard, const Shape& shape);

// What `local` holds, in the order of files: `local` itself, or copies of its boxes where matrices are joined.
std::vector<LocalTensor> file_parts(const LocalTensor& local, std::string_view what);
// Writes `local`: `fill` writes each box of it, in the order of files.
void fill_parts(const LocalTensor& local, std::string_view what, const std::function<void(const LocalTensor&)>& fill);

}  // namespace loom::nn
