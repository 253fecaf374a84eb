#include "sharding/fsdp/param.h"

#include <algorithm>
#include <cstring>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/kernels/split_fp32.h"
#include "engine/nn/call_stack.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "sharding/memory.h"

namespace loom::sharding {
namespace {

using device::MemCategory;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 47;  // as of a tensor (engine/tensor/factories.cpp)

Shape with_rows(const Shape& shape, int dim, std::int64_t rows) {
  Shape result = shape;
  result[dim] = rows;
  return result;
}

// A tensor whose storage has no bytes yet. It has `storage_rows` rows of `row_elems` elements.
Tensor released(const Shape& shape, std::int64_t storage_rows, std::int64_t row_elems, DType dtype,
                MemCategory category, std::string what, const std::optional<CpuOffloadPolicy>& offload = std::nullopt) {
  const auto bytes = checked_multiply(storage_rows, row_elems * element_bytes(dtype));
  check_model(bytes && *bytes <= kMostBytes,
              "{} padded to {} rows, as many on every rank, takes more than 128 TiB; shard over fewer ranks "
              "(sharding_size)",
              what, storage_rows);
  auto storage = std::make_shared<Storage>(offload ? Place::kHost : Place::kDevice, &device::Device::current(), *bytes,
                                           category, std::move(what), offload && offload->pin_memory);
  return {std::move(storage), 0, shape, dtype};
}

void zero_rows_from(const Tensor& tensor, std::int64_t row) {
  if (tensor.raw() == nullptr) return;
  const std::int64_t row_bytes = tensor.shape().row_elems() * element_bytes(tensor.dtype());
  std::memset(static_cast<std::byte*>(tensor.raw()) + row * row_bytes, 0,
              static_cast<std::size_t>((tensor.shape()[0] - row) * row_bytes));
}

// The shard in an operator: between steps these are this rank's rows; in a forward they were taken for the whole.
class ShardedUse final : public autograd::UseGuard {
 public:
  ShardedUse(const std::string& group_path, const std::string& path)
      : group_(group_path), path_(nn::join_path(group_path, path)) {}

  void check(std::string_view op) const override {
    const auto running = nn::running_module();
    if (!running) return;
    const std::string at = fmt::format(
        "parameter '{}' was read by {} in the forward of {}, where this rank has its rows only", path_, op, *running);
    if (group_.empty()) config_error("{}: it is whole while the forward of the root runs; call the root", at);
    config_error(
        "{}: it is whole while the forward of '{}' runs; use it there and return the result, or leave '{}' unwrapped, "
        "so "
        "that the group above owns it",
        at, group_, group_);
  }

 private:
  const std::string group_;
  const std::string path_;
};

}  // namespace

Param::Param(ParamHome home, const FullyShardOptions& options)
    : home_(std::move(home)), cpu_offload_(options.cpu_offload) {
  const comm::Axis& shard = options.axes.shard;
  const MixedPrecisionPolicy& policy = options.policy;
  const Tensor original = home_.slots.front()->value;
  shape_ = original.shape();
  require(shape_.ndim() > 0, "parameter '{}' without dims reached the cut", path());
  shard_dim_ = options.shard_dim ? options.shard_dim(path(), shape_) : 0;
  require(shard_dim_ >= 0 && shard_dim_ < shape_.ndim(), "parameter '{}' {} reached a cut on dim {}", path(),
          to_string(shape_), shard_dim_);
  const std::int64_t row_elems = shape_.numel() / std::max<std::int64_t>(1, shape_[shard_dim_]);
  original_dtype_ = original.dtype();
  const bool castable = is_floating(original_dtype_);
  compute_dtype_ = castable ? policy.param_dtype.value_or(original_dtype_) : original_dtype_;
  if (policy.reduce_dtype && policy.reduce_dtype != policy.param_dtype) reduce_dtype_ = policy.reduce_dtype;
  chunk_ = chunk_of(shape_[shard_dim_], shard.rank(), shard.size());
  require(shard_dim_ == 0 || chunk_.padded_rows * shard.size() == shape_[shard_dim_],
          "parameter '{}' {} reached an uneven cut on dim {} over {} ranks", path(), to_string(shape_), shard_dim_,
          shard.size());
  gathered_box_ = home_.slots.front()->shard;
  shard_box_ = gathered_box_;
  shard_box_.offset[static_cast<std::size_t>(shard_dim_)] += chunk_.row_begin;

  const std::string& what = home_.paths.front();
  padded_shard_ = released(with_rows(shape_, shard_dim_, chunk_.padded_rows), chunk_.padded_rows, row_elems,
                           original_dtype_, kShard, what + " (sharded)", cpu_offload_);
  sharded_ = padded_shard_.rows(0, shard_dim_ == 0 ? chunk_.rows : shape_[0]);
  sharded_.set_requires_grad(original.requires_grad());
  unsharded_ = released(shape_, chunk_.padded_rows * shard.size(), row_elems, compute_dtype_, MemCategory::kParameter,
                        what + " (unsharded)");
  if (!original.is_meta()) {
    materialize_shard();
    nn::copy_box({sharded_, shard_box_}, {original, gathered_box_}, path());
  }
  to_sharded();
}

std::int64_t Param::gather_input_bytes() const { return padded_shard_elems() * element_bytes(compute_dtype_); }

void Param::guard_shard(const std::string& group_path) {
  sharded_.meta_data().guard = std::make_shared<ShardedUse>(group_path, path());
}

void Param::materialize_shard() {
  if (padded_shard_.storage()->allocated()) return;
  padded_shard_.storage()->allocate();
  if (shard_dim_ == 0) zero_rows_from(padded_shard_, chunk_.rows);
}

ChunkRuns Param::chunk_runs() const {
  std::int64_t runs = 1;
  for (int dim = 0; dim < shard_dim_; ++dim) runs *= shape_[dim];
  return {runs, padded_shard_elems() / std::max<std::int64_t>(1, runs)};
}

void Param::put_together(const std::byte* input, int rank, int ranks, std::byte* whole) const {
  const ChunkRuns chunks = chunk_runs();
  const std::int64_t bytes = chunks.run_elems * element_bytes(compute_dtype_);
  for (std::int64_t run = 0; run < chunks.runs; ++run) {
    std::memcpy(whole + (run * ranks + rank) * bytes, input + run * bytes, static_cast<std::size_t>(bytes));
  }
}

void Param::rehome_shard(device::DeviceMemory& device, const std::shared_ptr<std::byte>& memory) {
  require(!cpu_offload_, "the shard of '{}' is on the host and was to move into device memory", path());
  if (padded_shard_.storage()->data() != nullptr) {
    std::memcpy(memory.get(), padded_shard_.raw(), static_cast<std::size_t>(padded_shard_.nbytes()));
  }
  // The accounts see the shard leave before it comes: it takes its own place there again.
  padded_shard_.storage()->release();
  padded_shard_.storage()->adopt(device.adopt(memory, padded_shard_.nbytes(), kShard, path()));
}

void Param::split_shard() {
  require(splits() && !is_split(), "the shard of '{}' cannot be split, or is split already", path());
  const std::int64_t elems = padded_shard_elems();
  if (!ties_.defined()) ties_ = beside_shard(kernels::tie_bytes(elems), MemCategory::kOptimizerState, "split marks");
  const Tensor scratch = beside_shard(2 * elems, MemCategory::kTemporary, "split");
  rewrite_shard("split_fp32", [&] {
    kernels::split_fp32(padded_shard_.raw(), elems, static_cast<std::uint8_t*>(ties_.raw()), scratch.raw());
  });
  upper_half_ = {padded_shard_.storage(), elems, padded_shard_.shape(), DType::kBF16};
}

void Param::join_shard() {
  require(is_split(), "the shard of '{}' is not split", path());
  upper_half_ = {};
  const std::int64_t elems = padded_shard_elems();
  const Tensor scratch = beside_shard(2 * elems, MemCategory::kTemporary, "join");
  rewrite_shard("join_fp32", [&] {
    kernels::join_fp32(padded_shard_.raw(), elems, static_cast<const std::uint8_t*>(ties_.raw()), scratch.raw());
  });
}

Tensor Param::beside_shard(std::int64_t bytes, MemCategory category, std::string_view what) const {
  const std::string text = fmt::format("{} of '{}'", what, path());
  if (padded_shard_.storage()->place() == Place::kHost) return Tensor::host({bytes}, DType::kU8, text);
  return Tensor::empty({bytes}, DType::kU8, category, text);
}

void Param::rewrite_shard(std::string_view kernel, const std::function<void()>& work) {
  device::Device& device = device::Device::current();
  const std::int64_t bytes = padded_shard_.nbytes() + ties_.nbytes();
  const device::Cost cost{.read_bytes = bytes, .written_bytes = bytes};
  if (padded_shard_.storage()->place() == Place::kHost) {
    device.run_on_host(kernel, cost, work);
  } else {
    device.launch(kernel, cost, work);
  }
  padded_shard_.storage()->bump_version();
}

void Param::keep_post_forward_shard(int rank, int ranks) {
  const std::int64_t bytes = gather_output_bytes() / ranks;
  const auto size = element_bytes(compute_dtype_);
  post_forward_shard_ =
      Tensor::empty({bytes / size}, compute_dtype_, MemCategory::kParameter, path() + " (post-forward shard)");
  device::Device::current().launch("post_forward_shard", {0, bytes, bytes}, [&] {
    std::memcpy(post_forward_shard_.raw(), unsharded_.storage()->data() + rank * bytes,
                static_cast<std::size_t>(bytes));
  });
}

void Param::to_sharded() { put_into_slots(sharded_, shard_box_, nn::SlotHolds::kShard); }

void Param::to_unsharded() {
  unsharded_.set_requires_grad(sharded_.requires_grad());
  put_into_slots(unsharded_, gathered_box_, nn::SlotHolds::kGathered);
}

void Param::put_into_slots(const Tensor& tensor, const nn::ShardSpec& box, nn::SlotHolds holds) {
  for (nn::ParamSlot* slot : home_.slots) {
    slot->value = tensor;
    slot->shard = box;
    slot->holds = holds;
  }
}

void Param::fold_grad_into_accumulator() {
  const Tensor grad = unsharded_.grad();
  if (!accumulated_grad_.defined() || !grad.defined()) return;
  const autograd::NoGrad no_grad;
  accumulated_grad_ = ops::add(accumulated_grad_, ops::cast(grad, accumulated_grad_.dtype()));
  accumulated_grad_.storage()->recategorize(MemCategory::kGradient);
  unsharded_.set_grad({});
}

void Param::move_grad_to_accumulator() {
  const Tensor grad = unsharded_.grad();
  if (!reduce_dtype_ || !grad.defined() || grad.dtype() == *reduce_dtype_) return;
  const autograd::NoGrad no_grad;
  accumulated_grad_ = ops::cast(grad, *reduce_dtype_);
  accumulated_grad_.storage()->recategorize(MemCategory::kGradient);
  unsharded_.set_grad({});
}

void Param::wait_for_shard_grad() const {
  if (const Tensor grad = sharded_.grad(); grad.defined()) grad.storage()->wait_ready();
}

Tensor Param::take_unsharded_grad() {
  Tensor grad = accumulated_grad_.defined() ? accumulated_grad_ : unsharded_.grad();
  accumulated_grad_ = {};
  unsharded_.set_grad({});
  return grad;
}

}  // namespace loom::sharding
