// Promise: what the device's memory holds may be changed - pools by life, bf16 copies inside fp32 weights, a few rows
//          at a time - and the curve stays.
// World:   the built program; the tiny model of the folder.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr const char* kBf16 =
    "sharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\n"
    "sub_modules_to_wrap: [\"model.layers.{*}\", \"lm_head\"]\n";

std::vector<std::string> curve(const ProgramFolder& folder, const Words& words) {
  std::filesystem::remove(folder.path("run.jsonl"));
  const Outcome outcome = folder.run(words + Words{"--metrics-path", "run.jsonl"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::string> lines;
  for (const auto& line : folder.metrics("run.jsonl")) {
    for (const char* key : {"loss", "grad_norm", "held_out_loss"}) {
      if (line.contains(key)) lines.push_back(line.at(key).dump());
    }
  }
  return lines;
}

TEST(ReuseFp32Param, TrainsWithTheSameBits) {
  const ProgramFolder folder;
  folder.write("bf16.yaml", kBf16);
  folder.write("offload.yaml", std::string(kBf16) + "offload_to_cpu: true\n");
  for (const char* file : {"bf16.yaml", "offload.yaml"}) {
    for (const char* kernels : {"fast", "pytorch"}) {
      for (const char* ranks : {"1", "2"}) {
        const Words run = with_value(kFourSteps, "--fsdp2-config-path", file) +
                          Words{"--kernels", kernels, "--nproc-per-node", ranks};
        const auto expected = curve(folder, run + Words{"--save", "plain", "--save-dtype", "fp32"});
        EXPECT_GE(expected.size(), 8U);
        EXPECT_EQ(curve(folder, run + Words{"--save", "reused", "--save-dtype", "fp32", "--reuse-fp32-param"}),
                  expected)
            << file << kernels << ranks;
        EXPECT_TRUE(folder.read("reused/model.safetensors") == folder.read("plain/model.safetensors"));
        std::filesystem::remove_all(folder.path("plain"));
        std::filesystem::remove_all(folder.path("reused"));
      }
    }
  }
}

TEST(ReuseFp32Param, GoesThroughCheckpointsOfRunsWithoutIt) {
  const ProgramFolder folder;
  folder.write("bf16.yaml", kBf16);
  const Words run = with_value(kFourSteps, "--fsdp2-config-path", "bf16.yaml") +
                    Words{"--nproc-per-node", "2", "--ckpt-format", "torch_dcp", "--save-interval", "2"};
  const auto whole = curve(folder, run + Words{"--save", "plain"});
  curve(folder, run + Words{"--save", "first", "--reuse-fp32-param", "--exit-interval", "2"});
  const auto later = curve(folder, run + Words{"--load", "first", "--save", "second"});
  ASSERT_GE(whole.size(), later.size());
  EXPECT_EQ(later, std::vector(whole.end() - static_cast<std::ptrdiff_t>(later.size()), whole.end()));
  curve(folder, run + Words{"--save", "third", "--exit-interval", "2"});
  EXPECT_EQ(curve(folder, run + Words{"--load", "third", "--save", "fourth", "--reuse-fp32-param"}), later);
}

// Two ranks. The pytorch layout casts a group's shards into a buffer beside that of the gather: at most those of the
// root, 257 x 16 elements (embedding and last norm) in two shards, 2 bytes each, in blocks of 512.
TEST(ReuseFp32Param, SavesTheBufferOfCasts) {
  const ProgramFolder folder;
  folder.write("bf16.yaml", kBf16);
  const auto peak = [&](const Words& more) {
    std::filesystem::remove(folder.path("run.jsonl"));
    const Outcome outcome = folder.run(with_value(kFourSteps, "--fsdp2-config-path", "bf16.yaml") +
                                       Words{"--nproc-per-node", "2", "--kernels", "pytorch"} + more +
                                       Words{"--metrics-path", "run.jsonl"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return folder.metrics("run.jsonl")[2].at("peak_memory_bytes").at("gather_buffer").get<std::int64_t>();
  };
  EXPECT_EQ(peak({}) - peak({"--reuse-fp32-param"}), (257 * 16 / 2 * 2 + 511) / 512 * 512);
}

TEST(ReuseFp32Param, IsRefusedWithoutBf16) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kFourSteps + Words{"--reuse-fp32-param"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("fsdp2.yaml: param_dtype is null, and --reuse-fp32-param keeps bf16 copies; use "
                                     "bf16, or remove the flag"));
  const Outcome no_file = folder.run(kTrain + Words{"--model-config", "model.yaml", "--reuse-fp32-param"});
  EXPECT_EQ(no_file.exit_code, 2);
  EXPECT_THAT(no_file.err, HasSubstr("give --use-torch-fsdp2 --fsdp2-config-path FILE with param_dtype: bf16"));
}

TEST(MemoryFragmentation, PoolsByLifeChangeNoBitsAndAreShown) {
  const ProgramFolder folder;
  const auto expected = curve(folder, kFourSteps);
  EXPECT_EQ(curve(folder, kFourSteps + Words{"--memory-fragmentation"}), expected);
  const Outcome outcome = folder.run(kFourSteps + Words{"--memory-fragmentation"});
  EXPECT_THAT(outcome.out,
              HasSubstr("pool, MiB           reserved   allocated        free  largest free  fragmentation"));
  EXPECT_THAT(outcome.out, ContainsRegex("\n  static +2.00 +0\\.[0-9]+ "));
  const auto plan = plan_of_four(folder, {"--memory-fragmentation"});
  EXPECT_EQ(plan.at("memory").at("pools")[0].at("pool"), "static");
  EXPECT_EQ(plan_of_four(folder, {}).at("memory").at("pools")[0].at("pool"), "compute");
}

TEST(ChunkMbs, KeepsTheCurveAndTheGathersOfAStep) {
  const ProgramFolder folder;
  const std::string file = folder.read("fsdp2.yaml");
  folder.write("recompute.yaml", file + "recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\n");
  folder.write("chunked.yaml",
               folder.read("recompute.yaml") + "chunk_mbs_modules: [\"model.layers.{*}\"]\nchunk_mbs: 1\n");
  const auto losses = [&](const char* name) {
    std::filesystem::remove(folder.path("run.jsonl"));
    const Outcome outcome = folder.run(with_value(kFourSteps, "--fsdp2-config-path", name) +
                                       Words{"--metrics-path", "run.jsonl", "--nproc-per-node", "2"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<double> found;
    for (const auto& line : folder.metrics("run.jsonl")) found.push_back(line.at("loss").get<double>());
    return found;
  };
  const std::vector<double> whole = losses("recompute.yaml"), chunked = losses("chunked.yaml");
  ASSERT_EQ(chunked.size(), 4U);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(chunked[i], whole[i], 2e-6);

  std::string wide = folder.read("model.yaml");
  const std::string_view narrow = "intermediate_size: 24";
  folder.write("wide.yaml", wide.replace(wide.find(narrow), narrow.size(), "intermediate_size: 2048"));
  const auto plan = [&](const char* name) {
    const Words words = with_value(kPlanOfFour, "--model-config", "wide.yaml");
    const Outcome outcome =
        folder.run(with_value(words, "--fsdp2-config-path", name) + Words{"--micro-batch-size", "64"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const auto all_at_once = plan("recompute.yaml"), by_row = plan("chunked.yaml");
  EXPECT_EQ(by_row.at("communication"), all_at_once.at("communication"));
  EXPECT_LT(by_row.at("memory").at("phases")[1].at("peak_allocated_bytes").get<std::int64_t>(),
            all_at_once.at("memory").at("phases")[1].at("peak_allocated_bytes").get<std::int64_t>());
}

TEST(ChunkMbs, KeysAreChecked) {
  const ProgramFolder folder;
  const std::string file = folder.read("fsdp2.yaml");
  const auto refusal = [&](const std::string& keys, int status = 2) {
    folder.write("wrong.yaml", file + keys);
    const Outcome outcome = folder.run(with_value(kFourSteps, "--fsdp2-config-path", "wrong.yaml"));
    EXPECT_EQ(outcome.exit_code, status) << keys;
    return outcome.err;
  };
  EXPECT_THAT(refusal("chunk_mbs: 0\n"),
              HasSubstr("wrong.yaml:3:12: chunk_mbs is 0; use a whole number of at least 1"));
  EXPECT_THAT(refusal("chunk_arg_indexs: [-1]\n"),
              HasSubstr("use a list of whole numbers of at least 0, as in [0, 1]"));
  EXPECT_THAT(refusal("chunk_kwarg_names: mask\n"), HasSubstr("use a list of names, as in [attention_mask]"));
  EXPECT_THAT(refusal("chunk_mbs_modules: [\"model.layers\"]\n"), HasSubstr("has no forward of its own"));
  EXPECT_THAT(refusal("chunk_mbs_modules: [\"model.layers.{*}\"]\nchunk_arg_indexs: [7]\n", 1),
              HasSubstr("chunk_mbs of 'model.layers.0': chunk_arg_indexs names argument 7, and it was called with 3"));
}

}  // namespace
}  // namespace loom::test
