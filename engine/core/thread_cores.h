// ThreadCores: on which cores of the machine the threads of a rank run. A slot of its RankContext.
//
// Lists    numbers of cores as the kernel counts them, ascending. An empty list binds nothing: the thread keeps the
//          cores it inherited.
// Threads  set by the rank's host thread before it makes the rank's device and compute pool; read by the threads that
//          work for the rank when they begin.
// Bits     do not depend on cores: work is cut by shape alone (parallel.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loom {

class RankContext;

enum class ThreadRole : std::uint8_t { kHost, kStream, kCompute };

struct ThreadCores {
  std::vector<int> host;     // of the rank's host thread, which runs the compute stream too
  std::vector<int> streams;  // of the workers behind the other streams
  std::vector<int> compute;  // of the compute pool's threads, without the host thread

  const std::vector<int>& of(ThreadRole role) const;
};

// Binds the calling thread to `cores`; does nothing for an empty list. DeviceError where the system refuses: the cores,
// its reason, and the cores that the thread may use.
void bind_this_thread(const std::vector<int>& cores);
// Binds it to the cores of its role in the rank.
void bind_this_thread(RankContext& context, ThreadRole role);

// Cores that the calling thread may use now, ascending.
std::vector<int> cores_of_this_thread();

// "0-3,8": ascending cores as ranges.
std::string core_ranges(const std::vector<int>& cores);

}  // namespace loom
