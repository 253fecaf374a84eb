#include "offload/pinned_pool.h"

#include <algorithm>
#include <iterator>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/rounding.h"
#include "engine/device/pinned_bytes.h"

namespace loom::offload {
namespace {

constexpr std::size_t kAlign = device::kPieceBytes;

std::string node_text(std::optional<int> node) { return node ? fmt::format("NUMA node {}", *node) : "no certain node"; }

}  // namespace

std::optional<std::size_t> lock_share(int ranks, HostMemoryCalls& calls) {
  const std::optional<std::size_t> limit = calls.lock_limit();
  if (!limit) return std::nullopt;
  return *limit / static_cast<std::size_t>(ranks) / kPage * kPage;
}

void say_partly_pinned(std::size_t asked, std::size_t pinned, int ranks, HostMemoryCalls& calls) {
  const std::size_t limit = calls.lock_limit().value_or(0);
  const std::string of = ranks == 1 ? "" : fmt::format(", shared by {} ranks", ranks);
  calls.say_once(
      HostMemoryCalls::Concern::kPinning,
      fmt::format("host memory: pinned {} of the {} bytes requested by a rank: this process may lock {} bytes "
                  "(ulimit -l {}{}); the rest is pageable; raise ulimit -l",
                  pinned, asked, limit, limit / 1024, of));
}

PinnedPool::PinnedPool(std::size_t bytes, std::optional<int> node, int ranks_of_process, HostMemoryCalls& calls)
    : calls_(calls), memory_(round_up(bytes, kPage), {.node = node}, calls), free_{{0, memory_.bytes()}} {
  pin(ranks_of_process);
  look_at_pages();
}

void PinnedPool::pin(int ranks_of_process) {
  const std::size_t wanted = std::min(bytes(), lock_share(ranks_of_process, calls_).value_or(bytes()));
  if (wanted > 0) {
    if (const int error = calls_.lock(memory_.data(), wanted); error != 0) {
      calls_.say_once(HostMemoryCalls::Concern::kPinning,
                      fmt::format("host memory: pinning {} bytes refused ({}); they stay pageable; raise ulimit -l",
                                  wanted, std::generic_category().message(error)));
      return;
    }
  }
  pinned_bytes_ = wanted;
  if (wanted < bytes()) say_partly_pinned(bytes(), wanted, ranks_of_process, calls_);
}

// Only pages that are locked are sure to be there.
void PinnedPool::look_at_pages() {
  PageCount pages;
  if (node() && pinned_bytes_ > 0) pages = count_pages(memory_.data(), pinned_bytes_, *node(), calls_);
  log_debug("{}host memory: a pool of {} bytes, {} of them pinned, on {}; {} of {} pages looked at are there",
            rank_prefix(), bytes(), pinned_bytes_, node_text(node()), pages.on_node, pages.seen);
  if (pages.on_node * 20 >= pages.seen * 19) return;
  const device::HostTopology topology = calls_.topology();
  const device::HostNode* const found = topology.node(*node());
  calls_.say_once(
      HostMemoryCalls::Concern::kPages,
      fmt::format("host memory: of {} pages looked at, {} are on NUMA node {}, which has {} bytes free; the "
                  "others are farther from the rank's cores",
                  pages.seen, pages.on_node, *node(), found == nullptr ? 0 : found->free_bytes));
}

std::shared_ptr<std::byte> PinnedPool::take(std::size_t asked) {
  const std::size_t bytes = round_up(asked, kAlign);
  const std::lock_guard lock(mutex_);
  const auto place = std::ranges::find_if(free_, [&](const auto& range) { return range.second >= bytes; });
  if (place == free_.end()) return nullptr;
  const auto [begin, size] = *place;
  free_.erase(place);
  if (size > bytes) free_.emplace(begin + bytes, size - bytes);
  return {memory_.data() + begin,
          [self = shared_from_this(), begin, bytes](std::byte*) { self->give_back(begin, bytes); }};
}

void PinnedPool::give_back(std::size_t begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto place = free_.emplace(begin, bytes).first;
  if (const auto next = std::next(place); next != free_.end() && begin + bytes == next->first) {
    place->second += next->second;
    free_.erase(next);
  }
  if (place == free_.begin()) return;
  const auto before = std::prev(place);
  if (before->first + before->second != begin) return;
  before->second += place->second;
  free_.erase(place);
}

}  // namespace loom::offload
