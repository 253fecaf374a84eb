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

namespace {

// Calls `copy(inner part, outer part)` for each run of the box `inner` in the box `outer`, which contains it.
template <class Copy>
void for_each_run(const LocalTensor& inner, const LocalTensor& outer, std::string_view what, const Copy& copy) {
  const Shape& shape = inner.value.shape();
  require(contains(outer.shard, outer.value.shape(), inner.shard, shape), "'{}': {} is not in {}", what,
          describe(inner.shard, shape), describe(outer.shard, outer.value.shape()));
  if (is_empty(shape)) return;
  const BoxRuns runs(outer.value.shape(), relative_offset(outer.shard, inner.shard), shape);
  const auto part = [](const Tensor& tensor, std::int64_t begin, std::int64_t elems) {
    return Tensor(tensor.storage(), tensor.offset_elems() + begin, {elems}, tensor.dtype());
  };
  for (std::int64_t i = 0; i < runs.count(); ++i) {
    copy(part(inner.value, i * runs.elems(), runs.elems()), part(outer.value, runs.begin(i), runs.elems()));
  }
}

}  // namespace

void copy_box(const LocalTensor& target, const LocalTensor& source, std::string_view what) {
  for_each_run(target, source, what, [](Tensor inner, const Tensor& outer) { inner.copy_from(outer); });
}

void paste_box(const LocalTensor& target, const LocalTensor& source, std::string_view what) {
  for_each_run(source, target, what, [](const Tensor& inner, Tensor outer) { outer.copy_from(inner); });
}

}  // namespace loom::nn
