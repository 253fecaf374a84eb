// Promise: the text of a plan has at most 100 columns, says first whether the step fits and how fast it is, and shows
//          bytes, times and parameters in units that fit their size.
// World:   shardloom plan of a model of 70 thousand parameters, of the quick start's, of 7 and of 70 billion, on 1 to
//          4096 devices: with remedies, searches, sweeps, swap and adaptive recompute.
#include <gmock/gmock.h>
#include <regex>
#include <sstream>

#include "engine/cli/exit_status.h"
#include "engine/cli/program.h"
#include "engine/core/wrapped.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

constexpr const char* kTiny =
    "model_type: qwen2\nvocab_size: 2048\nhidden_size: 16\nnum_hidden_layers: 2\nnum_attention_heads: 2\n"
    "num_key_value_heads: 1\nintermediate_size: 24\nmax_position_embeddings: 256\nrms_norm_eps: 1.0e-6\n";

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Planned {
  int status;
  std::string text;
};

// What the program prints, of which every line has its columns.
Planned planned(const Words& words) {
  std::vector<const char*> argv{"shardloom", "plan"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  const int status = cli::program_main(static_cast<int>(argv.size()), argv.data());
  const std::string text = ::testing::internal::GetCapturedStdout();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), kTextColumns) << line;
  return {status, text};
}

Words tiny() {
  return {"--model-config", test::write_file(test::fresh_folder() / "tiny.yaml", kTiny),
          "--device",       "h200",
          "--seq-length",   "32"};
}

Words sharded(const std::string& model, const std::string& world, const std::string& file = "full_shard") {
  return {"--model-config",
          kSource / "configs/models" / (model + ".yaml"),
          "--use-torch-fsdp2",
          "--fsdp2-config-path",
          kSource / "configs/fsdp2" / (file + ".yaml"),
          "--world-size",
          world,
          "--device",
          "h200"};
}

TEST(PlanText, OfATinyModelHasUnitsOfItsSize) {
  const Planned plan = planned(tiny());
  EXPECT_EQ(plan.status, 0);
  EXPECT_THAT(plan.text, StartsWith("Qwen2ForCausalLM of 69.520 K parameters on 1 x h200, "));
  EXPECT_THAT(plan.text, ContainsRegex("\nfits: peak reserved [1-9][0-9.]* MiB of 139.57 GiB, peak allocated [1-9]"));
  EXPECT_THAT(plan.text, ContainsRegex("\nstep [1-9][0-9.]* ms; [1-9][0-9]* tokens/s per device, "));
  EXPECT_THAT(plan.text, AllOf(HasSubstr("\nmemory, MiB "), HasSubstr("MFU <0.1 %"), HasSubstr("\ntime, ms: ")));
  planned(tiny() + Words{"--fit", "micro-batch"});
  EXPECT_EQ(planned(tiny() + Words{"--device-memory", "1"}).status, cli::kExitDoesNotFit);
}

TEST(PlanText, SaysFirstWhatAUserAsksFor) {
  const std::string text = planned(sharded("qwen2.5_7b", "8") + Words{"--seq-length", "4096"}).text;
  const std::regex order(
      "Qwen2ForCausalLM of 7\\.616 G parameters on 8 x h200, [^\n]*\n[^\n]*\nall parameters are trained\n\n"
      "fits: peak reserved [0-9.]+ GiB of 138.90 GiB, peak allocated [0-9.]+ GiB \\(in backward\\)\n"
      "allocator expandable_segments:False \\(PyTorch's default\\); with True: peak reserved [0-9.]+ GiB\n"
      "outside the allocator 1\\.50 GiB: context 848\\.00 MiB, 1 communicator 688\\.00 MiB[^\n]*\n    [^\n]*GiB\n"
      "step [0-9.]+ ms; [0-9]+ tokens/s per device, [0-9]+ in all; MFU [0-9.]+ %, HFU [0-9.]+ %\n\n"
      "memory, GiB  [^]*\n\ncommunication of a step [^]*GiB    ms alone\n[^]*\n\ntime, ms: step [^]*");
  EXPECT_TRUE(std::regex_match(text, order)) << text;
}

TEST(PlanText, OfTheQuickStartAndItsTroublesHasItsColumns) {
  const Words quickstart = sharded("quickstart", "8", "quickstart") + Words{"--seq-length", "64"};
  EXPECT_THAT(planned(quickstart).text, AllOf(HasSubstr(" of 5.939 M parameters "), Not(HasSubstr("memory, GiB"))));
  const Words sweep = quickstart + Words{"--micro-batch-size", "1", "--sweep"};
  EXPECT_THAT(planned(sweep + Words{"--device-memory", "400"}).text,
              ContainsRegex(" step m?s +[GM]iB flushes MFU %  change\n"));
  EXPECT_EQ(planned(quickstart + Words{"--device-memory", "80"}).status, cli::kExitDoesNotFit);
  EXPECT_THAT(planned(sweep + Words{"--device-memory", "65"}).text,
              AllOf(StartsWith("0 of 16 meshes fit, "), ::testing::EndsWith("\n0 configurations fit\n")));
  planned(quickstart + Words{"--memory-fragmentation"});
  planned(quickstart + Words{"--lora-target-modules", "all-linear"});
  const Words large = quickstart + Words{"--micro-batch-size", "64"};
  planned(large + Words{"--adaptive-recompute-device-swap", "--device-memory", "600"});
}

TEST(PlanText, OfSwapHasItsColumns) {
  const Words words = sharded("llama3_8b", "16");
  EXPECT_THAT(planned(words + Words{"--swap-attention"}).text,
              AllOf(HasSubstr("\na host keeps "), HasSubstr(" blocks, ")));
  EXPECT_THAT(planned(words + Words{"--seq-length", "4096", "--smart-swap", "--device-memory", "26000"}).text,
              ContainsRegex("\n\nsmart swap: a step has to fit 25.39 GiB [^\n]*\n[^\n]*\n  module "));
  EXPECT_THAT(planned(sharded("llama3_8b", "64") +
                      Words{"--seq-length", "8192", "--micro-batch-size", "4", "--adaptive-recompute-device-swap"})
                  .text,
              ContainsRegex("\n\nadaptive recompute for 138.90 GiB\n  mode +modules +saves GiB +costs ms  which"));
}

TEST(PlanText, Of70BillionParametersHasItsColumns) {
  const Planned large = planned(sharded("llama3_70b", "4096") + Words{"--seq-length", "8192"});
  EXPECT_EQ(large.status, cli::kExitDoesNotFit);
  EXPECT_THAT(large.text, AllOf(HasSubstr("\nDOES NOT FIT: peak reserved "), HasSubstr("\n  it would fit with\n"),
                                ContainsRegex("\nstep [0-9.]+ s; "), HasSubstr("\ntime, s: ")));
  const Words sweep{"--seq-length", "4096", "--micro-batch-size", "1", "--sweep"};
  EXPECT_EQ(planned(sharded("llama3_70b", "64") + sweep).status, 0);
  Words any_world = sharded("llama3_70b", "1");
  any_world.erase(std::ranges::find(any_world, "--world-size"), std::ranges::find(any_world, "--device"));
  EXPECT_THAT(planned(any_world + Words{"--seq-length", "4096", "--fit", "world-size"}).text,
              StartsWith("the smallest world: "));
}

TEST(PlanText, OfAnotherToolsFileHasItsColumns) {
  const std::filesystem::path file = test::write_file(
      test::fresh_folder() / "accelerate.yaml",
      "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: FSDP\ndowncast_bf16: 'no'\n"
      "enable_cpu_affinity: false\nfsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_transformer_layer_cls_to_wrap: Qwen2DecoderLayer\n  fsdp_cpu_ram_efficient_loading: true\n"
      "machine_rank: 0\nmain_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
      "rdzv_backend: static\nsame_network: true\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: false\n");
  const std::string text =
      planned({file, "--model-config", "quickstart", "--device", "h200", "--seq-length", "64"}).text;
  EXPECT_THAT(text, ContainsRegex("\nwithout effect here: [^\n]*,\n    "));
}

// A host of 1 GB that each of its devices fills.
TEST(PlanText, OfAHostThatIsTooSmallSaysSoFirst) {
  std::string profile = test::read_file(kSource / "configs/devices/h200.yaml");
  profile = std::regex_replace(profile, std::regex("memory_bytes: 2199023255552"), "memory_bytes: 1000000000");
  const Words words = sharded("llama3_8b", "16", "offload");
  const Planned plan =
      planned(words + Words{"--device", test::write_file(test::fresh_folder() / "device.yaml", profile)});
  EXPECT_EQ(plan.status, cli::kExitDoesNotFit);
  EXPECT_THAT(plan.text, AllOf(HasSubstr("\nDOES NOT FIT the host: "), HasSubstr(" devices: DOES NOT FIT\n")));
}

}  // namespace
}  // namespace loom::plan
