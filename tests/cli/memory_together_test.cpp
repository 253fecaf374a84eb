// Promise: what makes a step need less memory leaves every bit of the curve and of the weights as it is, alone and in
//          any combination; a model whose state is four times the device's memory trains with offload, swap and
//          recompute, and without them is refused with changes of which the first one works.
// World:   the built program, ranks as threads.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <regex>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  std::vector<std::string> curve = {};
  std::string weights = {};
  std::string out;

  bool same_bits(const Ended& other) const { return curve == other.curve && weights == other.weights; }
};

Ended train(const ProgramFolder& folder, const Words& words) {
  std::filesystem::remove(folder.path("run.jsonl"));
  const Outcome outcome =
      folder.run(words + Words{"--metrics-path", "run.jsonl", "--save", "saved", "--save-dtype", "fp32"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  Ended ended{.out = outcome.out};
  for (const auto& line : folder.metrics("run.jsonl")) {
    for (const char* key : {"loss", "grad_norm"}) ended.curve.push_back(line.at(key).dump());
  }
  ended.weights = folder.read("saved/model.safetensors");
  std::filesystem::remove_all(folder.path("saved"));
  return ended;
}

// One way of each kind; "" stands for none of its kind.
struct Way {
  std::string yaml;
  Words flags = {};
};

const std::vector<std::vector<Way>> kKinds = {
    {{""},
     {"recompute_modules: [\"model.layers.{*}\"]\n"},
     {"recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\nrecompute_keep: selected_ops\n"},
     {"", {"--recompute-activation-function", "--recompute-norm"}}},
    {{""},
     {"activation_offload_modules: [\"model.layers.{*}\"]\n"},
     {"", {"--swap-attention", "--swap-modules", "self_attention"}}},
    {{""}, {"offload_to_cpu: true\n"}, {"", {"--optimizer", "adamw_swap", "--mem-fraction-static", "0.1"}}},
    {{""}, {"pin_memory: true\n"}},
    {{""}, {"", {"--reuse-fp32-param"}}},
    {{""}, {"", {"--memory-fragmentation", "--bind-core", "True"}}}};

// Every pair of ways of different kinds is in one of these; not those that exclude each other.
std::vector<Way> combinations() {
  std::vector<Way> all;
  for (std::size_t turn = 0; turn < 24; ++turn) {
    Way way{
        "sharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n"};
    std::size_t left = turn * 7 + turn / 4;
    for (const auto& kind : kKinds) {
      const Way& chosen = kind[left % kind.size()];
      left = left / kind.size() + turn;
      way.yaml += chosen.yaml;
      way.flags = way.flags + chosen.flags;
    }
    const bool has_host = way.yaml.find("offload") != std::string::npos;
    const bool recomputes_whole = way.yaml.find("recompute_modules") != std::string::npos;
    const bool swaps_inside = std::ranges::find(way.flags, "--swap-attention") != way.flags.end();
    if (recomputes_whole && swaps_inside) continue;  // nothing is kept inside
    if (way.yaml.find("pin_memory") != std::string::npos && !has_host) continue;
    all.push_back(std::move(way));
  }
  return all;
}

TEST(MemoryTogether, AnyCombinationHasTheBitsOfNone) {
  const ProgramFolder folder;
  folder.write(
      "plain.yaml",
      "sharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n");
  const Words two = kFourSteps + Words{"--nproc-per-node", "2"};
  const Ended plain = train(folder, with_value(two, "--fsdp2-config-path", "plain.yaml"));
  ASSERT_EQ(plain.curve.size(), 8U);
  const std::vector<Way> ways = combinations();
  ASSERT_GE(ways.size(), 14U);
  for (const Way& way : ways) {
    folder.write("way.yaml", way.yaml);
    const Ended ended = train(folder, with_value(two, "--fsdp2-config-path", "way.yaml") + way.flags);
    EXPECT_TRUE(ended.same_bits(plain)) << way.yaml << fmt::format("{}", fmt::join(way.flags, " "));
  }
}

TEST(MemoryTogether, SwappedAttentionGoesWithRecomputedMlps) {
  const ProgramFolder folder;
  const Ended plain = train(folder, kFourSteps);
  EXPECT_TRUE(train(folder, kFourSteps + Words{"--swap-attention", "--recompute-num-layers", "1"}).same_bits(plain));
  const Outcome outcome = folder.run(kFourSteps + Words{"--swap-attention", "--recompute-num-layers", "3"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--recompute-num-layers is 3, but Qwen2ForCausalLM has 2 decoder layers; use at "
                                     "most 2"));
}

// --- Four times the memory of the device

constexpr std::int64_t kDeviceMib = 96;
const Words kLarge{"train",
                   "--data-path",
                   "data",
                   "--seq-length",
                   "64",
                   "--eval-iters",
                   "0",
                   "--seed",
                   "5",
                   "--model-config",
                   "large.yaml",
                   "--train-iters",
                   "2",
                   "--lr",
                   "0.001",
                   "--use-torch-fsdp2",
                   "--fsdp2-config-path",
                   "run.yaml",
                   "--micro-batch-size",
                   "4"};
constexpr const char* kWrapped = "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\", lm_head]\n";

ProgramFolder large_folder() {
  ProgramFolder folder;
  folder.write("large.yaml",
               "model_type: qwen2\nvocab_size: 256\nhidden_size: 512\nintermediate_size: 1376\nnum_hidden_layers: 9\n"
               "num_attention_heads: 8\nnum_key_value_heads: 4\nmax_position_embeddings: 64\nrms_norm_eps: 1.0e-6\n"
               "tie_word_embeddings: false\n");
  folder.write("run.yaml", kWrapped);
  return folder;
}

std::int64_t parameters_of(const std::string& out) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(out, found, std::regex("of ([0-9]+) parameters on 1 rank"))) << out;
  return found.empty() ? 0 : std::stoll(found[1]);
}

std::int64_t peak_bytes(const ProgramFolder& folder) {
  std::int64_t peak = 0;
  for (const auto& line : folder.metrics("run.jsonl")) {
    peak = std::max(peak, line.at("peak_memory_bytes").at("total").get<std::int64_t>());
  }
  return peak;
}

TEST(FourTimesTheMemory, TrainsWithOffloadSwapAndRecompute) {
  const ProgramFolder folder = large_folder();
  const Ended plain = train(folder, kLarge);
  EXPECT_GT(16 * parameters_of(plain.out), 4 * (kDeviceMib << 20)) << "weights, gradients and two moments in fp32";
  EXPECT_GT(peak_bytes(folder), 4 * (kDeviceMib << 20));

  const std::string device = std::to_string(kDeviceMib);
  folder.write("run.yaml", std::string(kWrapped) +
                               "offload_to_cpu: true\npin_memory: true\nrecompute_modules: [\"model.layers.{*}\"]\n"
                               "use_reentrant: false\nactivation_offload_modules: [\"model.layers.{*}\"]\n");
  const Ended small = train(folder, kLarge + Words{"--device-memory", device, "--report", "memory.html"});
  EXPECT_TRUE(small.same_bits(plain));
  EXPECT_LE(peak_bytes(folder), kDeviceMib << 20);
  EXPECT_THAT(folder.read("memory.html"), HasSubstr("\"memory\""));
}

// "key: value, key: value (saves ...": keys to the file, flags to the command line.
Words apply_remedy(const ProgramFolder& folder, std::string change) {
  Words flags;
  std::string yaml = kWrapped;
  const std::regex next("^(, )?((?:--)?[a-z0-9_-]+): (\\[[^\\]]*\\]|[^,]*)");
  for (std::smatch found; std::regex_search(change, found, next); change = found.suffix()) {
    if (found.str(2).starts_with("--")) {
      flags = flags + Words{found.str(2), found.str(3)};
    } else {
      yaml += found.str(2) + ": " + found.str(3) + "\n";
    }
  }
  EXPECT_EQ(change, "");
  folder.write("run.yaml", yaml);
  return flags;
}

TEST(FourTimesTheMemory, IsRefusedWithoutThemAndTheFirstRemedyWorks) {
  const ProgramFolder folder = large_folder();
  const Words limited = kLarge + Words{"--device-memory", std::to_string(kDeviceMib)};
  const Outcome refused = folder.run(limited);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("of 96.0 MiB free; in use:\n  shard "));
  EXPECT_THAT(refused.err, Not(HasSubstr("\\n"))) << "lines, not their escapes";
  std::smatch found;
  ASSERT_TRUE(std::regex_search(refused.err, found,
                                std::regex("\n  it would fit with\n    ([^(]*) \\(saves [0-9.]+ MiB, step ")))
      << refused.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("metrics.jsonl"))) << "nothing has begun";
  const Words flags = apply_remedy(folder, std::regex_replace(found.str(1), std::regex("\n +"), " "));
  const Outcome works = folder.run(limited + flags);
  EXPECT_EQ(works.exit_code, 0) << found.str(1) << works.err;
}

// 16 bytes a parameter of ever more ranks, of which a host of the profile has eight.
TEST(FourTimesTheMemory, TheSmallestWorldSaysItsWholeNodes) {
  const ProgramFolder folder = large_folder();
  Words plan = kLarge;
  plan.front() = "plan";
  plan = plan + Words{"--fit", "world-size", "--device", "h200", "--device-memory"};
  EXPECT_THAT(folder.run(plan + Words{"1000"}).out,
              ::testing::StartsWith("the smallest world: 1 device, of one node of 8\n"));
  EXPECT_THAT(folder.run(plan + Words{"200"}).out,
              ::testing::StartsWith("the smallest world: 24 devices, 3 whole nodes of 8 (beyond one node, only whole "
                                    "nodes are tried)\n"));
}

TEST(FourTimesTheMemory, AdaptiveRecomputeChoosesForARun) {
  const ProgramFolder folder = large_folder();
  folder.write("run.yaml", std::string(kWrapped) + "offload_to_cpu: true\n");
  const Ended plain = train(folder, kLarge);
  const std::int64_t needed = peak_bytes(folder) >> 20;
  const Ended adapted = train(
      folder, kLarge + Words{"--adaptive-recompute-device-swap", "--device-memory", std::to_string(needed * 4 / 5)});
  EXPECT_TRUE(adapted.same_bits(plain));
  EXPECT_THAT(adapted.out, ContainsRegex("adaptive recompute for [0-9]+\\.00 MiB\n  mode "));
  EXPECT_LE(peak_bytes(folder), (needed * 4 / 5) << 20);
}

}  // namespace
}  // namespace loom::test
