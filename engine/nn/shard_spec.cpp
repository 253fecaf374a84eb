#include "engine/nn/shard_spec.h"

#include <algorithm>
#include <utility>

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
  if (outer.global_shape != inner.global_shape || outer.joined != inner.joined) return false;
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
  if (target.shard.joined && !source.shard.joined) {
    fill_parts(target, what, [&](const LocalTensor& part) { copy_box(part, source, what); });
    return;
  }
  for_each_run(target, source, what, [](Tensor inner, const Tensor& outer) { inner.copy_from(outer); });
}

void paste_box(const LocalTensor& target, const LocalTensor& source, std::string_view what) {
  if (source.shard.joined && !target.shard.joined) {
    for (const LocalTensor& part : file_parts(source, what)) paste_box(target, part, what);
    return;
  }
  for_each_run(source, target, what, [](const Tensor& inner, Tensor outer) { outer.copy_from(inner); });
}

std::vector<FileBox> file_boxes(const ShardSpec& shard, const Shape& shape) {
  if (!shard.joined) return {{shard.offset, shape, Offset(shard.offset.size(), 0)}};
  const auto [dim, matrices, ranks] = *shard.joined;
  const auto d = static_cast<std::size_t>(dim);
  const std::int64_t part = shard.global_shape[dim] / (matrices * ranks);  // of one matrix, on one rank
  std::vector<FileBox> boxes;
  for (std::int64_t i = 0; i < shape[dim];) {
    const std::int64_t at = shard.offset[d] + i, in_part = at % part, matrix = at / part % matrices;
    FileBox box{shard.offset, shape, Offset(shard.offset.size(), 0)};
    box.shape[dim] = std::min(part - in_part, shape[dim] - i);
    box.offset[d] = (matrix * ranks + at / (part * matrices)) * part + in_part;
    box.in_tensor[d] = i;
    i += box.shape[dim];
    boxes.push_back(std::move(box));
  }
  return boxes;
}

namespace {

// A new tensor for a box, and its place in `local` alone.
std::pair<LocalTensor, LocalTensor> beside(const LocalTensor& local, const FileBox& box, std::string_view what) {
  const Tensor copy = local.value.is_meta() ? Tensor::meta(box.shape, local.value.dtype(), std::string(what))
                                            : Tensor::host(box.shape, local.value.dtype(), std::string(what));
  return {{copy, {local.shard.global_shape, box.offset}}, {copy, {local.value.shape(), box.in_tensor}}};
}

LocalTensor by_itself(const LocalTensor& local) { return {local.value, ShardSpec::whole(local.value.shape())}; }

}  // namespace

std::vector<LocalTensor> file_parts(const LocalTensor& local, std::string_view what) {
  if (!local.shard.joined) return {local};
  std::vector<LocalTensor> parts;
  for (const FileBox& box : file_boxes(local.shard, local.value.shape())) {
    const auto [part, place] = beside(local, box, what);
    copy_box(place, by_itself(local), what);
    parts.push_back(part);
  }
  return parts;
}

void fill_parts(const LocalTensor& local, std::string_view what, const std::function<void(const LocalTensor&)>& fill) {
  if (!local.shard.joined) {
    fill(local);
    return;
  }
  for (const FileBox& box : file_boxes(local.shard, local.value.shape())) {
    const auto [part, place] = beside(local, box, what);
    fill(part);
    paste_box(by_itself(local), place, what);
  }
}

}  // namespace loom::nn
