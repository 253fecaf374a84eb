// Promise: a build without MPI says so, and what to do, when a launcher starts it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"

namespace loom::comm {
namespace {

TEST(ABuildWithoutMpi, SaysWhatToDo) {
  EXPECT_THAT([] { launch::run_mpi_rank({}, [](RankContext&, World&) {}); },
              testing::ThrowsMessage<ConfigError>("this build has no MPI; configure with -DLOOM_MPI=ON to run "
                                                  "processes as ranks, or start the ranks as threads with "
                                                  "--nproc-per-node"));
}

}  // namespace
}  // namespace loom::comm
