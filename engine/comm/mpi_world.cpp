#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>

#include "engine/comm/launch.h"
#include "engine/comm/mpi.h"
#include "engine/comm/mpi_group.h"
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

namespace {

// Tells the peers and the reader, then ends the job.
[[noreturn]] void end_in_failure(mpi::MpiTransport& transport, const std::string& message) {
  transport.fail(message);
  const bool says_who = message.starts_with("[rank ");
  std::fputs((says_who ? message + "\n" : fmt::format("[rank {}] {}\n", transport.rank(), message)).c_str(), stderr);
  std::fflush(nullptr);
  transport.abort_job();
}

}  // namespace

void run_mpi_rank(const CommOptions& options, const RankMain& main) {
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // the few blocking calls at start and end must not hold a core
  const auto transport = std::make_shared<mpi::MpiTransport>(options.timeout);
  try {
    mpi::MpiWorld world(transport);
    {
      RankContext context(transport->rank(), transport->size());
      const RankScope scope(context);
      main(context, world);
    }
    world.end();
  } catch (const std::exception& error) {
    end_in_failure(*transport, error.what());
  } catch (...) {
    end_in_failure(*transport, "an exception of unknown type");
  }
}

}  // namespace loom::comm
