// Promise: what the machine can give is the least of what the kernel and the process's cgroups say, and a job that
//          keeps more than that is refused with both numbers before anything is taken.
// World:   folders that look like /proc and /sys; this machine.
#include "offload/available_memory.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::offload {
namespace {

class FakeRoot {
 public:
  FakeRoot() { write("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    800 kB\n"); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_ / path).parent_path());
    test::write_file(folder_ / path, text);
  }
  void remove(const std::string& path) const { std::filesystem::remove(folder_ / path); }
  std::optional<AvailableMemory> read() const { return available_memory(folder_); }

 private:
  const std::filesystem::path folder_ = test::fresh_folder();
};

TEST(AvailableMemory, IsWhatTheKernelSaysWithoutALimit) {
  const FakeRoot root;
  EXPECT_EQ(root.read()->bytes, 800 * 1024);
  EXPECT_EQ(root.read()->source, "MemAvailable of /proc/meminfo");
}

TEST(AvailableMemory, IsNotKnownWhereTheKernelDoesNotSay) {
  const FakeRoot root;
  root.remove("proc/meminfo");
  EXPECT_FALSE(root.read().has_value());
}

TEST(AvailableMemory, IsWithinTheLimitOfACgroupOfVersion2AndOfThoseAroundIt) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/user/job\n");
  root.write("sys/fs/cgroup/user/job/memory.max", "max\n");
  root.write("sys/fs/cgroup/user/job/memory.current", "1000\n");
  root.write("sys/fs/cgroup/user/memory.max", "5000\n");
  root.write("sys/fs/cgroup/user/memory.current", "3000\n");
  root.write("sys/fs/cgroup/user/memory.stat", "anon 1\ninactive_file 500\n");
  EXPECT_EQ(root.read()->bytes, 5000 - (3000 - 500));
  EXPECT_EQ(root.read()->source, "memory.max of cgroup /user is 5000");
}

TEST(AvailableMemory, IsWithinTheLimitOfACgroupOfVersion1) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "9:pids:/\n4:cpu,memory:/job\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n");
  root.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "6000\n");
  EXPECT_EQ(root.read()->bytes, 0);  // over its limit for a moment
  EXPECT_EQ(root.read()->source, "memory.limit_in_bytes of cgroup /job is 4096");
}

// In a container the path of /proc may begin above what is mounted.
TEST(AvailableMemory, IsWithinTheLimitOfTheMountWhereThePathIsNotThere) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/docker/0123\n");
  root.write("sys/fs/cgroup/memory.max", "700\n");
  root.write("sys/fs/cgroup/memory.current", "100\n");
  EXPECT_EQ(root.read()->bytes, 600);
}

TEST(AvailableMemory, OfThisMachineIsKnown) {
  const auto available = available_memory();
  ASSERT_TRUE(available.has_value());
  EXPECT_GT(available->bytes, 1 << 20);
}

TEST(HostMemoryCheck, TakesWhatFitsToTheByte) {
  EXPECT_NO_THROW(check_host_memory(250, 4, {1000, "MemAvailable of /proc/meminfo"}));
  EXPECT_THROW(check_host_memory(251, 4, {1000, "MemAvailable of /proc/meminfo"}), DeviceError);
}

TEST(HostMemoryCheck, SaysWhatIsNeededAndWhatIsThere) {
  EXPECT_EQ(test::message_of<DeviceError>([] {
              check_host_memory(4000, 2, {7999, "memory.max of cgroup /job is 9000"});
            }),
            "host memory: the 2 ranks of this machine keep 4000 bytes each on the host (shards, gradients, optimizer "
            "state), 8000 in all, and 7999 are available (memory.max of cgroup /job is 9000); use fewer ranks on this "
            "machine, more machines or a smaller model, or keep less on the host (offload_to_cpu: false)");
}

}  // namespace
}  // namespace loom::offload
