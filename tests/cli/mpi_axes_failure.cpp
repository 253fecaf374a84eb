// Four processes that train; 0 and 1 share experts, a sequence or matrices, and rank 1 fails in the way that the
// arguments name; tests/comm/expect_failure.cmake checks how the job ends. Each process has its files in a folder below
// FOLDER.
//   mpi_axes_failure experts|ring|tensor|sequence throw|die|kill|stall FOLDER
#include <unistd.h>

#include <csignal>
#include <map>
#include <thread>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"
#include "tests/cli/failing_axes.h"

namespace {

void fail_as(const std::string& way) {
  using namespace loom;
  if (way == "throw") raise<DeviceError>("no room");
  if (way == "die") _exit(3);
  if (way == "kill") ::raise(SIGKILL);
  std::this_thread::sleep_for(std::chrono::minutes(10));
}

}  // namespace

int main_of_mpi_axes_failure(int, char** argv) {
  using namespace loom;
  const std::string shared = argv[1], way = argv[2];
  const auto rank = launch::Start::detect().rank();
  const std::filesystem::path folder = std::filesystem::path(argv[3]) / fmt::to_string(rank.value_or(0));
  std::filesystem::create_directories(folder);
  const std::map<std::string, test::Sharing> axes = {
      {"experts", test::kExperts}, {"ring", test::kRing}, {"tensor", test::kTensor}, {"sequence", test::kSequence}};
  test::FailingAxes job(axes.at(shared), 4, folder, test::FailingAxes::Where::kForward, [&] { fail_as(way); });
  const comm::CommOptions options{.timeout = way == "stall" ? std::chrono::seconds(3) : std::chrono::minutes(1)};
  launch::run_mpi_rank(options, [&](RankContext& context, comm::World& world) {
    job.run(context, world, device::ExecutorKind::kThreaded);
  });
  return 0;
}
