// Param: one parameter of a group, and its tensors.
//
// Cut       on shard_dim(), 0 unless the options say another; rows are those of that dim.
// Tensors   sharded: this rank's rows, a leaf, the optimizer's view; a view of the padded shard of c rows.
//           gather input: the padded shard in the compute dtype. gather output: N of them in rank order; cut on dim 0
//           it is the parameter, on another dim put_together() makes it of them.
//           unsharded: the whole parameter in the compute dtype, a leaf made once whose storage is allocated and
//           released; its rows are the first D of N * c. post-forward shard: between forward and backward, an equal
//           part of the N * c rows, in the compute dtype, on each of k consecutive ranks.
// States    Sharded <-> Unsharded: to_sharded(), to_unsharded() put the tensor into every slot that holds the parameter
//           (ties stay ties). While the group keeps post-forward shards the slots hold the sharded tensor.
// Offload   with a CpuOffloadPolicy the padded shard is in host memory, and so is the sharded tensor's gradient;
//           gathered tensors are on the device.
// Split     split_shard() keeps an fp32 shard that is gathered in bf16 as residuals and bf16 values in its own memory
//           (kernels/split_fp32.h) until join_shard(): the gather input is then the bf16 half, and nothing is cast.
//           The sharded tensor may not be read in between.
// Meta      a parameter without bytes remains so when sharded; materialize_shard() allocates only this rank's rows.
// Errors    InvariantError for a parameter without dims: fully_shard() refuses it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/fsdp/chunk.h"
#include "sharding/policy.h"

namespace loom::sharding {

// Every place that holds one parameter; the first names it. Paths start at the module that was wrapped.
struct ParamHome {
  std::string wrapped_type;
  std::vector<nn::ParamSlot*> slots;
  std::vector<std::string> paths;
};

class Param {
 public:
  // Cuts the parameter and puts the shard into the slots. Values are taken from this rank's own copy.
  Param(ParamHome home, const FullyShardOptions& options);

  const std::string& path() const { return home_.paths.front(); }
  const ParamHome& home() const { return home_; }
  // Shape of the box that the group gathers: the whole parameter, or the rank's part of it before the cut.
  const Shape& shape() const { return shape_; }
  const nn::ShardSpec& gathered_box() const { return gathered_box_; }
  // This rank's rows of that box.
  const nn::ShardSpec& shard_box() const { return shard_box_; }
  const Chunk& chunk() const { return chunk_; }
  int shard_dim() const { return shard_dim_; }
  ChunkRuns chunk_runs() const;
  DType original_dtype() const { return original_dtype_; }
  // The dtype of gathers and computation.
  DType compute_dtype() const { return compute_dtype_; }
  // The dtype set for its reduction; none: the gradient's.
  std::optional<DType> reduce_dtype() const { return reduce_dtype_; }
  bool requires_grad() const { return sharded_.requires_grad(); }
  const std::optional<CpuOffloadPolicy>& cpu_offload() const { return cpu_offload_; }
  std::int64_t padded_shard_elems() const { return padded_shard_.numel(); }
  std::int64_t shard_elems() const { return sharded_.numel(); }
  // Bytes of the shard, on each of the N ranks.
  std::int64_t gather_input_bytes() const;
  // All N gather inputs: the unsharded parameter with its padding.
  std::int64_t gather_output_bytes() const { return unsharded_.storage()->bytes(); }

  const Tensor& sharded() const { return sharded_; }
  const Tensor& padded_shard() const { return padded_shard_; }
  // This rank's input to a gather: the padded shard, or its bf16 half.
  const Tensor& gather_source() const { return is_split() ? upper_half_ : padded_shard_; }
  const Tensor& unsharded() const { return unsharded_; }

  // From now on, an operator that reads the sharded tensor in the forward of some module is refused (ConfigError).
  void guard_shard(const std::string& group_path);

  // Gives a meta shard bytes, zero-padded. Does nothing if it has bytes.
  void materialize_shard();
  // Moves the padded shard's bytes into memory that is shared with peers; values are kept. Tensors of the shard remain
  // the same objects (an optimizer's and a state dict's references follow); addresses from Tensor::raw() do not.
  // Precondition: it is on the device.
  void rehome_shard(device::DeviceMemory& device, const std::shared_ptr<std::byte>& memory);

  // Whether the shard can be split: fp32, and gathered in bf16.
  bool splits() const { return original_dtype_ == DType::kF32 && compute_dtype_ == DType::kBF16; }
  bool is_split() const { return upper_half_.defined(); }
  // Splits where the shard is: on the device, or by the CPU. Precondition: splits(), and it has bytes or runs dry.
  void split_shard();
  void join_shard();

  // Copies part `rank` of `ranks` of the unsharded bytes; they stay until drop_post_forward_shard().
  void keep_post_forward_shard(int rank, int ranks);
  void drop_post_forward_shard() { post_forward_shard_ = {}; }
  const Tensor& post_forward_shard() const { return post_forward_shard_; }

  // Writes rank `rank`'s gather input into `whole`, the bytes of the parameter in the compute dtype.
  void put_together(const std::byte* input, int rank, int ranks, std::byte* whole) const;

  void to_sharded();
  void to_unsharded();
  // Frees the unsharded bytes.
  void free_unsharded() { unsharded_.storage()->release(); }

  // --- gradients of the unsharded parameter ---
  // Adds `.grad` to the accumulator, if both exist.
  void fold_grad_into_accumulator();
  // Makes `.grad` the accumulator in the reduce dtype, if that is set and differs.
  void move_grad_to_accumulator();
  // The accumulator, else `.grad`, cleared here; undefined if there is none.
  Tensor take_unsharded_grad();

  // Offload: blocks the host until the shard's gradient has arrived.
  void wait_for_shard_grad() const;

 private:
  // Allocates bytes where the shard is.
  Tensor beside_shard(std::int64_t bytes, device::MemCategory category, std::string_view what) const;
  void rewrite_shard(std::string_view kernel, const std::function<void()>& work);
  void put_into_slots(const Tensor& tensor, const nn::ShardSpec& box, nn::SlotHolds holds);

  ParamHome home_;
  Shape shape_;
  int shard_dim_;
  Chunk chunk_;
  nn::ShardSpec gathered_box_;
  nn::ShardSpec shard_box_;
  DType original_dtype_;
  DType compute_dtype_;
  std::optional<DType> reduce_dtype_;
  std::optional<CpuOffloadPolicy> cpu_offload_;
  Tensor padded_shard_;
  Tensor sharded_;
  Tensor upper_half_;  // for a split shard
  Tensor ties_;        // the marks of split_fp32(), made at the first split
  Tensor unsharded_;
  Tensor post_forward_shard_;
  Tensor accumulated_grad_;
};

}  // namespace loom::sharding
