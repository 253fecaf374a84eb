#include "engine/nn/init.h"

#include <unordered_map>
#include <unordered_set>

#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/rounding.h"
#include "engine/kernels/fused.h"

namespace loom::nn {
namespace {

constexpr std::int64_t kTile = 1 << 14;

// `tensor` is a box of the whole, in these runs.
void draw(const Tensor& tensor, const BoxRuns& runs, std::uint64_t key, double std) {
  const std::int64_t elems = tensor.numel();
  const std::int64_t size = element_bytes(tensor.dtype());
  auto* bytes = static_cast<std::byte*>(tensor.raw());
  parallel_for(ceil_div(elems, kTile), [&](std::int64_t tile) {
    const std::int64_t begin = tile * kTile;
    const std::int64_t count = std::min(kTile, elems - begin);
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count;) {  // one run, or its part in the tile, after another
      const std::int64_t in_run = (begin + i) % runs.elems();
      const std::int64_t first = runs.begin((begin + i) / runs.elems()) + in_run;
      const std::int64_t end = std::min(count, i + runs.elems() - in_run);
      normals_at(key, static_cast<std::uint64_t>(first),
                 std::span(values).subspan(static_cast<std::size_t>(i), static_cast<std::size_t>(end - i)));
      i = end;
    }
    for (double& value : values) value *= std;
    kernels::cast(count, DType::kF64, values.data(), tensor.dtype(), bytes + begin * size);
  });
}

}  // namespace

void materialize(Module& root) {
  std::unordered_map<const void*, Tensor> made;
  std::vector<Tensor> originals;  // keeps identities apart while slots change
  for (auto& [path, slot] : root.named_slots()) {
    if (!slot->value.is_meta()) continue;
    const Tensor original = slot->value;
    originals.push_back(original);
    Tensor& replacement = made[original.id()];
    if (!replacement.defined()) {
      replacement = Tensor::empty(original.shape(), original.dtype(), device::MemCategory::kParameter, path);
      replacement.set_requires_grad(original.requires_grad());
    }
    slot->value = replacement;
  }
  for (auto& [path, module] : root.named_modules()) {
    for (auto& [name, buffer, persistent] : module->own_buffers()) {
      if (!buffer.is_meta()) continue;
      const auto make = persistent ? Tensor::zeros : Tensor::empty;
      buffer = make(buffer.shape(), buffer.dtype(), device::MemCategory::kParameter, join_path(path, name));
    }
  }
}

void write_normal(const ParamSlot& slot, std::string_view path, std::uint64_t seed, double std) {
  if (slot.value.raw() != nullptr) {  // not in a dry run
    fill_parts(slot.local(), path, [&](const LocalTensor& box) {
      draw(box.value, {box.shard.global_shape, box.shard.offset, box.value.shape()}, stream_key(seed, path), std);
    });
  }
  slot.value.storage()->bump_version();
}

void init_weights(Module& root, std::uint64_t seed, const KeptValues& kept) {
  std::unordered_set<const void*> seen = kept;
  for (auto& [path, slot] : root.named_slots()) {
    if (!seen.insert(slot->value.id()).second) continue;
    switch (slot->init.kind) {
      case Init::Kind::kOnes:
        slot->value.fill(1);
        break;
      case Init::Kind::kZeros:
        slot->value.fill(0);
        break;
      case Init::Kind::kConstant:
        slot->value.fill(slot->init.value);
        break;
      case Init::Kind::kNormal:
        write_normal(*slot, path, seed, slot->init.std);
    }
  }
}

}  // namespace loom::nn
