// Gather: how a group's parameters become whole. One object per group; the layouts differ in the memory they use.
//
//   buffered   one flat buffer [N * bytes]: each rank's row is its parameters' gather inputs one after another;
//              gathered in place, then copied out into the unsharded parameters. Peak 3 U in forward: the buffer is
//              held until the next group has its parameters. Shards that need a cast are cast into one flat copy first,
//              as PyTorch does. All of it comes from the gather-copy-in stream's pool.
//   in place   each parameter is gathered straight into its unsharded storage. That memory is of the compute stream's
//              pool, so a gather begins after the compute work issued before it: gathering a group ahead needs a
//              prefetch that issues it ahead.
//   shared     ranks that share memory keep the gather output in one segment: a rank writes its own rows (once per
//              change of its shard) and reads its peers' in place. If no cast is needed the shard itself is stored
//              there and nothing is copied. A write to a shard is ordered after the peers' reads by the reduction of
//              the group's gradients, which each rank enters after its last read; that suffices for optimizers that
//              step on reduced gradients.
//
// Offload   shards on the host come to the device in the gather-copy-in stream, one non-blocking copy per parameter and
//           gather: the shard's bytes unchanged, then the cast on the device. Without a cast the in-place and shared
//           layouts copy straight to the place; a cast needs a device copy of one parameter's shard at a time. The
//           buffered layout keeps a device copy of every gather input of the group until they are in the buffer, as
//           PyTorch does. All of it is in category gather_buffer, freed when issue() returns. In the shared layout the
//           shard cannot live in the segment; it is copied there once per change.
// Custom    an AllGather of the user's, or of the process group's memory, moves one flat buffer: its group always has
//           the buffered layout.
// From      the shards over the N ranks of the shard axis, or the post-forward shards over k consecutive ones (always
//           in the rank's own memory).
// Order     issue() when the gather is issued, then finish() when it is waited for, or drop() if it is never used.
//           release() at reshard.
// Bytes     the same on the accounts of every rank, independent of the memory's owner.
// Errors    DeviceError at issue()/finish() if a buffer does not fit; CommError surfaces at finish().
// Threads   the rank's host thread; the work runs on the gather-copy-in and gather streams.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/device/device.h"
#include "sharding/custom_comm.h"
#include "sharding/fsdp/param.h"

namespace loom::sharding {

// A gather output that outlives its copy-out (see CommContext).
struct HeldGather {
  Tensor buffer;
  device::Event copied_out;
};

enum class GatherFrom : std::uint8_t { kShards, kPostForwardShards };

class Gather {
 public:
  virtual ~Gather() = default;

  // Collective over the shard group: `params` of group `path`, all with bytes. N = 1 needs no communication and only
  // casts. `comm`: null for the process group's own.
  static std::unique_ptr<Gather> create(GatherLayout layout, GatherFrom from, std::vector<Param*> params,
                                        std::shared_ptr<comm::ProcessGroup> group, device::Device& device,
                                        const std::string& path, std::shared_ptr<AllGather> comm);

  // Bytes of this rank's gather input.
  std::int64_t input_bytes() const { return input_bytes_; }

  virtual void issue() = 0;
  // Blocks the host (compute stream) until the parameters are whole. Returns the buffer to hold, if the layout has
  // one.
  virtual HeldGather finish() = 0;
  virtual void drop() = 0;
  // Frees the unsharded parameters.
  void release();

 protected:
  Gather(GatherFrom from, std::vector<Param*> params, std::shared_ptr<comm::ProcessGroup> group, device::Device& device,
         std::string path);

  // This rank's gather input of a parameter, before its cast (on the host under offload); and its bytes in the compute
  // dtype.
  const Tensor& input(const Param& param) const;
  bool input_on_host(const Param& param) const { return input(param).storage()->place() == Place::kHost; }
  std::int64_t input_bytes(const Param& param) const { return param.gather_output_bytes() / group_->size(); }
  // Work that writes `from`, cast to the parameter's compute dtype, to `to`. Owns its operands.
  static std::function<void()> copy_in(const Param& param, const Tensor& from, std::byte* to,
                                       std::shared_ptr<void> to_owner);
  // Submits the work that writes a parameter's input, cast, to `to` (null in a dry run): from the host at once, else
  // as part of the item that submit_copy_in() makes of `work`.
  void bring_in(const Param& param, std::byte* to, const std::shared_ptr<void>& to_owner,
                std::vector<std::function<void()>>& work);
  void copy_from_host(const Param& param, std::byte* to, const std::shared_ptr<void>& to_owner);
  // For memory of the compute stream's pool: pending compute work may still use its earlier contents.
  void wait_for_compute();
  void submit_copy_in(std::vector<std::function<void()>> work, std::int64_t bytes);
  device::Cost gather_cost() const;
  device::Collective collective() const;

  device::Stream& stream(device::StreamId id) { return device_.stream(id); }

  const GatherFrom from_;
  const std::vector<Param*> params_;
  const std::shared_ptr<comm::ProcessGroup> group_;  // shared with the work on the streams, which may outlive the model
  device::Device& device_;
  const std::string path_;
  std::int64_t input_bytes_ = 0;
  device::Event gathered_;
};

}  // namespace loom::sharding
