// Promise: HCCL_BUFFSIZE and NCCL_BUFFSIZE set the buffers of communicators on the devices of their library, and on no
//          others; a value that is no size is refused with its text.
// World:   the profiles of an H200, of an Ascend 910B and of a CPU; the environment of this process.
#include "engine/cli/plan_profile.h"

#include <cstdlib>
#include <gmock/gmock.h>

#include "engine/core/error.h"

namespace loom::cli {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

constexpr std::int64_t kMiB = 1 << 20;

std::string file_of(const std::string& device) { return LOOM_SOURCE_DIR "/configs/devices/" + device + ".yaml"; }

std::int64_t buffer_bytes(const std::string& device) {
  return plan_profile(file_of(device)).memory.communicator.value().buffer_bytes;
}

class PlanProfile : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"HCCL_BUFFSIZE", "NCCL_BUFFSIZE"}) ::unsetenv(name);
  }
};

TEST_F(PlanProfile, HasTheLibrarysBuffersWithoutVariables) {
  EXPECT_EQ(buffer_bytes("ascend-910b"), 200 * kMiB);
  EXPECT_EQ(buffer_bytes("h200"), 4 * kMiB);
  ::setenv("HCCL_BUFFSIZE", "", 1);
  EXPECT_EQ(buffer_bytes("ascend-910b"), 200 * kMiB);
}

TEST_F(PlanProfile, TakesTheVariableOfItsLibrary) {
  ::setenv("HCCL_BUFFSIZE", "120", 1);
  ::setenv("NCCL_BUFFSIZE", "8388608", 1);
  EXPECT_EQ(buffer_bytes("ascend-910b"), 120 * kMiB);
  EXPECT_EQ(buffer_bytes("h200"), 8 * kMiB);
  EXPECT_FALSE(plan_profile(file_of("cpu")).memory.communicator);
}

TEST_F(PlanProfile, RefusesWhatIsNoSize) {
  for (const char* value : {"20x", "0", "-1", "1.5", "1048577"}) {
    ::setenv("HCCL_BUFFSIZE", value, 1);
    EXPECT_THAT([] { plan_profile(file_of("ascend-910b")); },
                ThrowsMessage<ConfigError>(
                    StrEq(std::string("the environment variable HCCL_BUFFSIZE is ") + value +
                          ", expected the MB of a buffer, a whole number from 1 to 1048576; correct or unset it")));
    EXPECT_NO_THROW(plan_profile(file_of("h200")));
  }
  ::setenv("NCCL_BUFFSIZE", "4M", 1);
  EXPECT_THAT([] { plan_profile(file_of("h200")); },
              ThrowsMessage<ConfigError>(
                  StrEq("the environment variable NCCL_BUFFSIZE is 4M, expected the bytes of a buffer, a whole number "
                        "from 1 to 1099511627776; correct or unset it")));
}

}  // namespace
}  // namespace loom::cli
