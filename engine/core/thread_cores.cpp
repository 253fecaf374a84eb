#include "engine/core/thread_cores.h"

#include <sched.h>

#include <cerrno>
#include <fmt/format.h>
#include <memory>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"

namespace loom {
namespace {

constexpr int kMostCores = 1 << 16;

// A mask of the kernel's, as large as the machine needs.
class CoreMask {
 public:
  explicit CoreMask(int cores) : cores_(cores), bytes_(CPU_ALLOC_SIZE(cores)), mask_(CPU_ALLOC(cores)) {
    CPU_ZERO_S(bytes_, mask_);
  }
  ~CoreMask() { CPU_FREE(mask_); }
  CoreMask(const CoreMask&) = delete;
  CoreMask& operator=(const CoreMask&) = delete;

  int cores() const { return cores_; }
  std::size_t bytes() const { return bytes_; }
  cpu_set_t* get() const { return mask_; }
  void add(int core) { CPU_SET_S(static_cast<std::size_t>(core), bytes_, mask_); }
  bool has(int core) const { return CPU_ISSET_S(static_cast<std::size_t>(core), bytes_, mask_) != 0; }

 private:
  const int cores_;
  const std::size_t bytes_;
  cpu_set_t* const mask_;
};

}  // namespace

const std::vector<int>& ThreadCores::of(ThreadRole role) const {
  if (role == ThreadRole::kHost) return host;
  return role == ThreadRole::kStream ? streams : compute;
}

void bind_this_thread(const std::vector<int>& cores) {
  if (cores.empty()) return;
  CoreMask mask(std::max(cores.back() + 1, CPU_SETSIZE));
  for (const int core : cores) mask.add(core);
  if (sched_setaffinity(0, mask.bytes(), mask.get()) == 0) return;
  raise<DeviceError>("the system refuses to bind a thread to cores {} ({}); it may use {}; bind to some of these",
                     core_ranges(cores), std::generic_category().message(errno), core_ranges(cores_of_this_thread()));
}

void bind_this_thread(RankContext& context, ThreadRole role) { bind_this_thread(context.slot<ThreadCores>().of(role)); }

std::vector<int> cores_of_this_thread() {
  std::vector<int> cores;
  for (int size = CPU_SETSIZE; size <= kMostCores; size *= 2) {  // EINVAL: the machine has more cores than the mask
    CoreMask mask(size);
    if (sched_getaffinity(0, mask.bytes(), mask.get()) != 0) continue;
    for (int core = 0; core < mask.cores(); ++core) {
      if (mask.has(core)) cores.push_back(core);
    }
    break;
  }
  return cores;
}

std::string core_ranges(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t first = 0; first < cores.size();) {
    std::size_t last = first;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += first == last ? fmt::to_string(cores[first]) : fmt::format("{}-{}", cores[first], cores[last]);
    first = last + 1;
  }
  return text.empty() ? "none" : text;
}

}  // namespace loom
