// One line of a log as an ErrorReport. Private to engine/explain but for its tests and its fuzz target.
//
// Texts    out_of_memory_text.cpp: PyTorch since 2.0, before 2.0, torch_npu, the host's allocator. nccl_text.cpp: the
//          watchdog of ProcessGroupNCCL. gloo_text.cpp: gloo, and the checks that TORCH_DISTRIBUTED_DEBUG=DETAIL adds.
//          hccl_text.cpp: EI codes of HCCL, and ERR codes of torch_npu.
// Place    a text may begin anywhere in a line: launchers, timestamps and Python's class names stand before it.
// Time     linear in the line.
// Threads  any.
#pragma once

#include <optional>
#include <string_view>

#include "engine/explain/error_report.h"

namespace loom::explain {

std::optional<OutOfMemory> read_out_of_memory(std::string_view line);
std::optional<NcclTimeout> read_nccl_timeout(std::string_view line);
std::optional<NcclState> read_nccl_state(std::string_view line);
std::optional<CollectiveMismatch> read_mismatch(std::string_view line);
std::optional<BarrierFailure> read_barrier_failure(std::string_view line);
std::optional<GlooError> read_gloo_error(std::string_view line);
std::optional<HcclError> read_hccl_error(std::string_view line);

// Whose line it is, from what stands in its first 256 bytes.
Speaker read_speaker(std::string_view line);

// The report in a line; none: it is another text.
std::optional<ErrorReport> read_error(std::string_view line, std::int64_t number);

}  // namespace loom::explain
