// Promise: keys of gpt_args are Megatron's flags.
// World:   the table of the job's keys.
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(GptArgs, ValuesAreWordsBehindTheirFlags) {
  const Translation file = read(
      "MM_TOOL_PATH: tools.json\n"
      "lora_args:\n  lora_target_modules: q_proj,v_proj\n  lora_r: 4\n"
      "gpt_args:\n  micro_batch_size: 2\n  training:\n    lr: 1.0e-4\n    profile: false\n    load: null\n"
      "  swiglu: true\n"
      "  use_torch_fsdp2: true\n  profile_ranks: [0, 1]\n  num_workers: 4\n  log_tps: true\n"
      "model: {model_id: x, init_from_hf_path: folder}\n");
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(flag_in(file, "--micro-batch-size"), "2");
  EXPECT_EQ(flag_in(file, "--lr"), "1.0e-4");
  EXPECT_EQ(flag_in(file, "--profile"), "none");
  EXPECT_EQ(flag_in(file, "--load"), "none");
  EXPECT_EQ(flag_in(file, "--use-torch-fsdp2"), "on");
  EXPECT_EQ(flag_in(file, "--profile-ranks"), "0 1");
  EXPECT_EQ(flag_in(file, "--num-workers"), "4");
  EXPECT_EQ(flag_in(file, "--lora-target-modules"), "q_proj v_proj");
  EXPECT_EQ(flag_in(file, "--init-from-hf-path"), "folder");
}

TEST(GptArgs, EqualNamesInNestedMappingsAreRefused) {
  EXPECT_EQ(refusal("MM_TOOL_PATH: t\ngpt_args:\n  a:\n    lr: 1\n  b:\n    lr: 2\n"),
            "f.yaml:6:5: gpt_args.b.lr is given again, first at line 4; keep one");
}

TEST(GptArgs, AnUnknownKeyNamesTheNearestFlag) {
  EXPECT_EQ(refusal("MM_TOOL_PATH: t\ngpt_args:\n  micro_batch_sizes: 1\n"),
            "f.yaml:3:3: unknown key 'gpt_args.micro_batch_sizes'; did you mean micro_batch_size?");
}

}  // namespace
}  // namespace loom::dialects
