#include "engine/nn/shard_spec.h"

#include "engine/core/error.h"

namespace loom::nn {
namespace {

// Where the box `inner` begins, counted from the beginning of `outer`.
Offset relative_offset(const ShardSpec& outer, const ShardSpec& inner) {
  Offset offset = inner.offset;
  for (std::size_t d = 0; d < offset.size(); ++d) offset[d] -= outer.offset[d];
  return offset;
}

bool is_empty(const Shape& shape) { return shape.numel() == 0; }

}  // namespace

ShardSpec ShardSpec::whole(const Shape& shape) { return {shape, Offset(static_cast<std::size_t>(shape.ndim()), 0)}; }

ShardSpec ShardSpec::rows_from(const Shape& global_shape, std::int64_t begin) {
  ShardSpec spec = whole(global_shape);
  spec.offset.at(0) = begin;
  return spec;
}

std::string describe(const ShardSpec& shard, const Shape& shape) {
  return fmt::format("{} of {}", describe_box(shard.offset, shape), to_string(shard.global_shape));
}

bool contains(const ShardSpec& outer, const Shape& outer_shape, const ShardSpec& inner, const Shape& inner_shape) {
  if (outer.global_shape != inner.global_shape) return false;
  if (!box_fits(outer.global_shape, outer.offset, outer_shape)) return false;
  if (!box_fits(inner.global_shape, inner.offset, inner_shape)) return false;
  return is_empty(inner_shape) || box_fits(outer_shape, relative_offset(outer, inner), inner_shape);
}

void copy_box(const LocalTensor& target, const LocalTensor& source, std::string_view what) {
  const Shape& shape = target.value.shape();
  require(contains(source.shard, source.value.shape(), target.shard, shape), "'{}': {} is not in {}", what,
          describe(target.shard, shape), describe(source.shard, source.value.shape()));
  if (is_empty(shape)) return;
  const BoxRuns runs(source.value.shape(), relative_offset(source.shard, target.shard), shape);
  const auto part = [](const Tensor& tensor, std::int64_t begin, std::int64_t elems) {
    return Tensor(tensor.storage(), tensor.offset_elems() + begin, {elems}, tensor.dtype());
  };
  for (std::int64_t i = 0; i < runs.count(); ++i) {
    part(target.value, i * runs.elems(), runs.elems()).copy_from(part(source.value, runs.begin(i), runs.elems()));
  }
}

}  // namespace loom::nn
