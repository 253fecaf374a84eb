// The collectives of one group, if a user provides them (set_custom_all_gather, set_custom_reduce_scatter), and the
// memory that they move.
//
// Buffers   allocate() gives the memory of every buffer, operator() moves it. It is freed (its last owner
//           ends) when the collective's result has been copied to its destination: a gather buffer after its
//           copy-out, the input and output of a reduction when that is over. The device's account counts the requested
//           bytes, in their usual category.
// Threads   allocate() on the rank's host thread, when the collective is issued; operator() on the thread of the
//           stream, later. In a dry run neither is called.
// Ranks     all ranks of the group must provide the same: they meet in operator(). Use kGatherLane,
//           kReduceScatterLane (lanes.h) of the group passed in, or groups of your own.
// One rank  N = 1 moves and allocates nothing.
// Errors    an exception of operator() poisons its stream and surfaces at the host's next wait. If allocate() returns
//           less than requested, or memory not aligned to 64 bytes, that is a DeviceError naming the group and both
//           numbers.
// Source    PyTorch FSDP2, _fsdp_api.py: AllGather, ReduceScatter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/comm/process_group.h"
#include "engine/core/dtype.h"
#include "engine/device/device.h"
#include "engine/tensor/tensor.h"

namespace loom::sharding {

enum class CommBufferUse : std::uint8_t { kGatherOutput, kReduceInput, kReduceOutput };

struct CommBuffer {
  std::shared_ptr<std::byte> memory;
  std::size_t bytes = 0;  // at least the requested size
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual CommBuffer allocate(CommBufferUse use, std::size_t bytes) = 0;
};

class AllGather : public Comm {
 public:
  // Every member's `bytes` at `input` go to output + rank * bytes on every member; `input` is the own place in
  // `output`. Returns when the output is complete.
  virtual void operator()(void* output, const void* input, std::size_t bytes, comm::ProcessGroup& group,
                          std::string_view tag) = 0;
};

class ReduceScatter : public Comm {
 public:
  // input [group.size() * elems], output [elems]: output = op over the members of their input's row group.rank().
  virtual void operator()(void* output, const void* input, std::int64_t elems, DType dtype, comm::ReduceOp op,
                          comm::ProcessGroup& group, std::string_view tag) = 0;
};

// A flat buffer of a collective on the account of `device`: from `comm`, or, if that is null or in a dry run, from
// the device itself. `what` names it in errors ("gather of 'layers.3'").
Tensor comm_buffer(Comm* comm, CommBufferUse use, std::int64_t elems, DType dtype, device::MemCategory category,
                   const std::string& what);

// The largest buffers that a group requests.
struct CommBufferSizes {
  std::size_t gather_output = 0;
  std::size_t reduce_input = 0;
  std::size_t reduce_output = 0;
};

// The process group's own collectives, in the process group's own memory: this rank's part of a segment that all
// members address. Two buffers of each use, taken in turn.
struct GroupComm {
  std::shared_ptr<AllGather> all_gather;
  std::shared_ptr<ReduceScatter> reduce_scatter;
};

// Collective over `group`. Throws ConfigError on every member if they share no memory. `path` names the group of
// parameters.
GroupComm comm_in_group_memory(comm::ProcessGroup& group, const CommBufferSizes& sizes, const std::string& path);

}  // namespace loom::sharding
