// Promise: what the standard library throws reaches users in words that name the file or the flag and the next step;
//          the engine's own errors stay as they are.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <new>
#include <system_error>
#include <thread>

#include "engine/core/error.h"
#include "engine/launch/error_file.h"
#include "engine/launch/failure_text.h"
#include "engine/launch/run_ranks.h"
#include "engine/launch/stack.h"

namespace loom::launch {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNoMemory =
    "the machine has no memory left for the request; use fewer ranks (--nproc-per-node), a smaller "
    "--micro-batch-size or --seq-length, or a smaller model";

TEST(FailureText, OfTheEngineIsItsOwn) { EXPECT_EQ(failure_text(ConfigError("f.yaml: no")), "f.yaml: no"); }

TEST(FailureText, OfMemoryNamesTheFlags) {
  EXPECT_EQ(failure_text(std::bad_alloc()), kNoMemory);
  EXPECT_EQ(failure_text(std::length_error("vector::_M_default_append")), kNoMemory);
}

TEST(FailureText, OfThreadsNamesTheFlagAndTheLimit) {
  EXPECT_EQ(failure_text(std::system_error(EAGAIN, std::generic_category())),
            "the system starts no further thread (Resource temporarily unavailable); use fewer ranks "
            "(--nproc-per-node) or --compute-threads, or allow more threads (ulimit -u)");
}

TEST(FailureText, OfFilesNamesTheFile) {
  const std::filesystem::filesystem_error error("cannot create directories", "a\nb",
                                                std::make_error_code(std::errc::permission_denied));
  EXPECT_EQ(failure_text(error), "a\\nb: Permission denied; check the path, and that it can be read and written");
}

TEST(FailureText, ReachesThePeersOfARankWithoutMemory) {
  std::string told;
  EXPECT_THROW(run_ranks(2, {std::chrono::seconds(60)},
                         [&](RankContext& context, comm::World& world) {
                           if (context.rank() == 0) throw std::bad_alloc();
                           try {
                             char own = 0, all[2];
                             const comm::GatherPart part{&own, all, 1};
                             world.everyone()->all_gather(comm::kHostLane, {&part, 1}, "test");
                           } catch (const CommError& error) {
                             told = error.what();
                             throw;
                           }
                         }),
               std::bad_alloc);
  EXPECT_THAT(told, HasSubstr("the machine has no memory left"));
}

TEST(ErrorFile, IsWhatTorchrunReads) {
  const std::string path = ::testing::TempDir() + "error.json";
  ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  write_error_file("[rank 1] \"no\" room");
  ::setenv("TORCHELASTIC_ERROR_FILE", "/nowhere/error.json", 1);
  write_error_file("lost");
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  write_error_file("lost");
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text,
              ::testing::MatchesRegex(
                  R"(\{"message":\{"extraInfo":\{"timestamp":"[0-9]+"\},"message":"\[rank 1\] \\"no\\" room"\}\})"));
}

TEST(LargeStack, PassesResultsAndExceptionsOn) {
  EXPECT_EQ(run_on_large_stack([] { return 3; }), 3);
  EXPECT_THROW(run_on_large_stack([]() -> int { throw ConfigError("no"); }), ConfigError);
}

}  // namespace
}  // namespace loom::launch
