// Promise: words of training that name several hosts are those of a launcher, which starts the same program on this
//          host; words of one host, of a plan, and of a process that a launcher has started are not.
#include "engine/cli/commands/several_hosts.h"

#include <filesystem>
#include <gmock/gmock.h>

namespace loom::cli {
namespace {

using ::testing::ElementsAreArray;
using Words = std::vector<std::string>;

const std::string kSelf = std::filesystem::read_symlink("/proc/self/exe");

std::optional<Words> launched(const Words& words, const launch::Start& start = {}) {
  return words_of_several_hosts(words, start);
}

TEST(SeveralHosts, AreOfTorchrun) {
  const auto words = launched({"train", "--nproc_per_node", "2", "--nnodes=2", "--lr", "1", "--node_rank", "1",
                               "--master_addr", "host0", "--master_port", "6000", "--use-torch-fsdp2"});
  ASSERT_TRUE(words);
  EXPECT_THAT(*words, ElementsAreArray({"torchrun", "--nproc_per_node", "2", "--nnodes=2", "--node_rank", "1",
                                        "--master_addr", "host0", "--master_port", "6000", kSelf.c_str(), "train",
                                        "--lr", "1", "--use-torch-fsdp2"}));
}

TEST(SeveralHosts, AreOfMsrun) {
  const auto words = launched({"train", "--worker_num", "8", "--local_worker_num=4", "--join", "True", "--lr", "1"});
  ASSERT_TRUE(words);
  EXPECT_THAT(*words, ElementsAreArray({"msrun", "--worker_num", "8", "--local_worker_num=4", "--join", "True",
                                        kSelf.c_str(), "train", "--lr", "1"}));
}

TEST(OneHost, NeedsNoLauncher) {
  EXPECT_FALSE(launched({"train", "--nproc_per_node", "2", "--nnodes", "1", "--node_rank", "0"}));
  EXPECT_FALSE(launched({"train", "--worker_num", "4", "--local_worker_num", "4"}));
  EXPECT_FALSE(launched({"plan", "--nnodes", "2"}));
  EXPECT_FALSE(launched({"train", "--nnodes", "2"}, {.processes = 4, .launcher = "torchrun"}));
  EXPECT_FALSE(launched({}));
}

}  // namespace
}  // namespace loom::cli
