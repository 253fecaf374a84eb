// Promise: a function of sources PER_PROCESSOR goes to the compilation for the level in use; inline functions and
//          static variables of a level are its own; SHARDLOOM_PROCESSOR is one of two levels.
// World:   no ranks; processor_probe.cpp in its three compilations, as LOOM_NATIVE=OFF makes them.
#include "engine/core/processor_level.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/kernels/products/processor_probe.h"
#include "tests/support/files.h"

extern "C" int loom_processor_level;

namespace loom {
namespace {

class Levels : public ::testing::Test {
 protected:
  ~Levels() override { use(found_); }
  static void use(ProcessorLevel level) { loom_processor_level = static_cast<int>(level); }

 private:
  const ProcessorLevel found_ = processor_level();
};

TEST_F(Levels, GetTheirOwnCompilation) {
  use(ProcessorLevel::kV3);
  EXPECT_EQ(test::vector_bytes_of_level(), 32);
  EXPECT_FALSE(test::level_has_bf16());
  use(ProcessorLevel::kAvx512);
  EXPECT_EQ(test::vector_bytes_of_level(), 64);
  EXPECT_FALSE(test::level_has_bf16());
  use(ProcessorLevel::kAvx512Bf16);
  EXPECT_EQ(test::vector_bytes_of_level(), 64);
  EXPECT_TRUE(test::level_has_bf16());
}

TEST_F(Levels, HaveStaticVariablesOfTheirOwn) {
  for (const auto level : {ProcessorLevel::kV3, ProcessorLevel::kAvx512, ProcessorLevel::kAvx512Bf16}) {
    use(level);
    EXPECT_EQ(test::next_of_level(), 1);
    EXPECT_EQ(test::next_of_level(), 2);
  }
}

TEST(ProcessorVariable, IsOneOfTwoLevels) {
  for (const char* value : {"x86-64-v3", "x86-64-v4"}) {
    setenv("SHARDLOOM_PROCESSOR", value, 1);
    EXPECT_NO_THROW(check_processor_variable());
  }
  setenv("SHARDLOOM_PROCESSOR", "avx512", 1);
  EXPECT_EQ(test::message_of<ConfigError>([] { check_processor_variable(); }),
            "SHARDLOOM_PROCESSOR is avx512; write x86-64-v3 or x86-64-v4, or unset it");
  unsetenv("SHARDLOOM_PROCESSOR");
  EXPECT_NO_THROW(check_processor_variable());
}

}  // namespace
}  // namespace loom
