// ErrorReport: what one error text of a run says, as it says it.
//
// Kinds    out of memory (PyTorch and torch_npu, devices and host), a collective that timed out and the state of its
//          watchdog (NCCL), what gloo and its checks report, an error of HCCL.
// Figures  of memory are printed with two decimals: a ByteFigure has half of the last digit as its error.
// Ranks    `rank` of a watchdog's text is the rank in its process group. Speaker has the ranks of the log's line.
// Absent   what a text does not say is empty.
// Threads  values.
#pragma once

#include <compare>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/explain/traceback.h"

namespace loom::explain {

struct ByteFigure {
  std::int64_t bytes = 0;
  std::int64_t error_bytes = 0;  // at most so far from the exact value; 0: exact

  std::int64_t least() const { return bytes - error_bytes; }
  std::int64_t most() const { return bytes + error_bytes; }
  auto operator<=>(const ByteFigure&) const = default;
};

struct ProcessMemory {
  std::int64_t pid = 0;
  ByteFigure in_use;

  auto operator<=>(const ProcessMemory&) const = default;
};

struct OutOfMemory {
  std::string platform;                            // "CUDA", "HIP", "NPU", "CPU"
  std::string device;                              // "GPU 0"; empty: the host
  std::optional<ByteFigure> tried;                 // the segment requested from the driver; none: "more than 1EB".
                                                   // CPU: the bytes of the allocation
  std::optional<ByteFigure> total;                 // of the device
  std::optional<ByteFigure> free;                  // of the device
  std::optional<ByteFigure> allowed;               // to the process, where its share is limited
  std::vector<ProcessMemory> processes;            // others that the text lists, or this one by its number
  std::optional<ByteFigure> in_use;                // by this process, beyond PyTorch too
  std::optional<ByteFigure> allocated;             // by PyTorch
  std::optional<ByteFigure> active;                // of torch_npu
  std::optional<ByteFigure> private_pools;         // of graphs, in `allocated`
  std::optional<ByteFigure> reserved_unallocated;  // since 2.0
  std::optional<ByteFigure> reserved;              // before 2.0, and torch_npu

  auto operator<=>(const OutOfMemory&) const = default;
};

struct NcclTimeout {
  std::int64_t rank = 0;
  std::string group;  // "1", "0(default_pg)"; empty: the text has none
  std::int64_t seq = 0;
  std::string op;  // "_REDUCE_SCATTER_BASE"
  std::optional<std::int64_t> numel_in;
  std::optional<std::int64_t> numel_out;
  std::int64_t timeout_ms = 0;
  std::int64_t ran_ms = 0;

  auto operator<=>(const NcclTimeout&) const = default;
};

struct NcclState {
  std::int64_t rank = 0;
  std::string group;
  std::optional<std::int64_t> at;  // the collective that the watchdog reports
  std::int64_t last_enqueued = 0;
  std::int64_t last_completed = 0;

  auto operator<=>(const NcclState&) const = default;
};

// A collective as TORCH_DISTRIBUTED_DEBUG=DETAIL writes it before it runs. Its numbers begin at 0.
struct FingerPrint {
  std::int64_t seq = 0;
  std::string op;                     // "_ALLGATHER_BASE"
  std::optional<std::int64_t> numel;  // of the input, if it is one tensor

  auto operator<=>(const FingerPrint&) const = default;
};

// Two ranks that run different collectives under one number. PyTorch 2.11 reads the other's print with its own number
// of tensors: where these differ, the text has another number and type for it, which are noise and left out.
struct CollectiveMismatch {
  std::int64_t rank = 0;
  FingerPrint own;
  std::int64_t other_rank = 0;
  std::optional<FingerPrint> other;

  auto operator<=>(const CollectiveMismatch&) const = default;
};

// The barrier before a collective, which TORCH_DISTRIBUTED_DEBUG=DETAIL adds, has failed.
struct BarrierFailure {
  std::optional<std::int64_t> rank;       // that reports it; none: only the line's prefix says so
  std::vector<std::int64_t> missing;      // ranks that did not reach it
  std::int64_t timeout_ms = 0;            // 0: not in the text
  std::optional<FingerPrint> collective;  // that was to run

  auto operator<=>(const BarrierFailure&) const = default;
};

// What gloo itself reports; it names no collective.
struct GlooError {
  bool timed_out = false;       // else the connection was closed by the peer
  std::int64_t timeout_ms = 0;  // 0: not in the text
  std::string text;

  auto operator<=>(const GlooError&) const = default;
};

struct HcclError {
  std::string code;  // "EI0002": a wait timed out; "EI0006": a connection did; "ERR02200": the call that failed
  std::string text;  // behind the code
  std::optional<std::int64_t> pid;
  std::optional<std::int64_t> rank;  // RankID
  std::string remote_rank;           // as written
  std::string tag;
  std::optional<std::int64_t> rank_size;

  auto operator<=>(const HcclError&) const = default;
};

// Whose line it is, from the prefix that a launcher wrote.
struct Speaker {
  std::optional<std::int64_t> rank;        // "[rank3]:", "[1,3]<stderr>:", "3: "
  std::optional<std::int64_t> local_rank;  // "[default3]:"

  auto operator<=>(const Speaker&) const = default;
};

struct ErrorReport {
  std::int64_t line = 0;  // of the log, from 1 on
  Speaker speaker;
  std::variant<OutOfMemory, NcclTimeout, NcclState, CollectiveMismatch, BarrierFailure, GlooError, HcclError> what;
  Traceback traceback = {};  // that stands before it

  auto operator<=>(const ErrorReport&) const = default;
};

// "oom", "nccl_timeout", "nccl_state", "gloo_mismatch", "gloo_barrier", "gloo_timeout", "gloo_closed", "hccl_timeout",
// "hccl_connect", "hccl_error".
std::string_view kind_of(const ErrorReport& report);
// {"kind", "line", "global_rank", "local_rank", "fields": {...}}: bytes, milliseconds, counts; what is absent has no
// key.
nlohmann::ordered_json to_json(const ErrorReport& report);

}  // namespace loom::explain
