#include "engine/launch/run_ranks.h"

#include <pthread.h>

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/comm/local/inprocess.h"
#include "engine/core/error.h"
#include "engine/launch/failure_text.h"

namespace loom::launch {
namespace {

// The exception of each rank, and the rank that threw first.
class Outcomes {
 public:
  explicit Outcomes(int ranks) : thrown_(static_cast<std::size_t>(ranks)) {}

  void record(int rank, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    thrown_[static_cast<std::size_t>(rank)] = error;
    if (!first_) first_ = error;
  }

  // After the join. `first_failed` is the rank the world names, whose exception may have been recorded after a peer's.
  void rethrow(int first_failed) const {
    if (first_failed >= 0 && thrown_[static_cast<std::size_t>(first_failed)]) {
      std::rethrow_exception(thrown_[static_cast<std::size_t>(first_failed)]);
    }
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::exception_ptr> thrown_;
  std::exception_ptr first_;
};

void run_rank(comm::InProcessWorld& shared, int rank, int ranks, const RankMain& main, Outcomes& outcomes) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
  const std::unique_ptr<comm::World> world = shared.view(rank);
  try {
    RankContext context(rank, ranks);
    const RankScope scope(context);
    main(context, *world);
  } catch (const std::exception& error) {
    world->fail(failure_text(error));
    outcomes.record(rank, std::current_exception());
  } catch (...) {
    world->fail("an exception of unknown type");
    outcomes.record(rank, std::current_exception());
  }
  shared.leave(rank);
}

}  // namespace

void run_ranks(int ranks, const comm::CommOptions& options, const RankMain& main) {
  comm::InProcessWorld shared(ranks, options);
  Outcomes outcomes(ranks);
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { run_rank(shared, rank, ranks, main, outcomes); });
    }
  } catch (const std::exception& error) {  // the system has no thread left
    const int rank = static_cast<int>(threads.size());
    shared.view(rank)->fail(failure_text(error));
    outcomes.record(rank, std::current_exception());
  }
  for (std::thread& thread : threads) thread.join();
  outcomes.rethrow(shared.first_failed());
}

void run(const Start& start, int ranks, const comm::CommOptions& options, const RankMain& main) {
  if (start.ranks_are_processes() && start.carrier == Carrier::kTcp) return run_tcp_rank(start.tcp, options, main);
  if (start.ranks_are_processes()) return run_mpi_rank(options, main);
  run_ranks(ranks, options, main);
}

}  // namespace loom::launch
