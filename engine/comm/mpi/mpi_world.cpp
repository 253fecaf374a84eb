#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "engine/comm/mpi/mpi.h"
#include "engine/comm/mpi/mpi_group.h"
#include "engine/core/error.h"

namespace loom::comm {
namespace mpi {
namespace {

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

MpiWorld::MpiWorld(std::shared_ptr<MpiTransport> transport)
    : transport_(std::move(transport)),
      seen_(std::make_shared<SeenCalls>()),
      everyone_(std::make_shared<MpiGroup>(transport_, seen_, 0, transport_->rank(), first_ranks(transport_->size()),
                                           "world")) {}

std::shared_ptr<ProcessGroup> MpiWorld::group(std::span<const int> ranks, std::string name) {
  everyone_->agree(Channel::kHost, Call::group(ranks, name, size()));
  const int index = ++groups_made_;
  const auto found = std::find(ranks.begin(), ranks.end(), rank());
  if (found == ranks.end()) return nullptr;
  return std::make_shared<MpiGroup>(transport_, seen_, index, static_cast<int>(found - ranks.begin()),
                                    std::vector<int>(ranks.begin(), ranks.end()), std::move(name));
}

void MpiWorld::end() { everyone_->barrier(Channel::kHost, "end of the run"); }

}  // namespace mpi

}  // namespace loom::comm
