// Promise: Megatron's own recompute flags are refused beside a fsdp2_config.yaml, and say what takes their place.
#include "engine/train/recompute_flags.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

sharding::Fsdp2Config config_of(const std::string& text) { return sharding::parse_fsdp2_config(text, "f.yaml"); }

TEST(MegatronsRecomputeFlags, AreRefusedWithTheirReplacement) {
  const std::vector<std::string> flags{"--recompute-granularity", "--recompute-method"};
  EXPECT_EQ(test::message_of<ConfigError>([&] { refuse_recompute_flags(flags, nullptr); }),
            "--recompute-granularity is not used here; list recompute_modules in a file for --use-torch-fsdp2 "
            "--fsdp2-config-path FILE");
  const auto without = config_of("sharding_size: auto\n");
  EXPECT_EQ(test::message_of<ConfigError>([&] { refuse_recompute_flags(flags, &without); }),
            "--recompute-granularity is not used with FSDP2; list recompute_modules in f.yaml");
  const auto with = config_of("sharding_size: auto\nrecompute_modules: ['layers.{*}']\n");
  EXPECT_EQ(test::message_of<ConfigError>([&] { refuse_recompute_flags(flags, &with); }),
            "f.yaml:2:1: recompute_modules is given beside --recompute-granularity; remove the flag: the file says "
            "what is recomputed");
}

TEST(MegatronsRecomputeFlags, MayBeAbsent) {
  refuse_recompute_flags({}, nullptr);
  const auto config = config_of("recompute_modules: ['layers.{*}']\n");
  EXPECT_NO_THROW(refuse_recompute_flags({}, &config));
}

}  // namespace
}  // namespace loom::train
