// Promise: swapped activations change the memory of a run and of its plan, and not one bit of what is computed, alone
//          and beside recompute and offload; a plan says what swap exposes; what cannot be swapped ends with status 2.
// World:   the built program; a decoder of four layers, four steps.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/support/program.h"
#include "tests/support/trace_reader.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kWrapped =
    "sharding_size: auto\nsub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n";
const std::string kOffloaded = "activation_offload_modules: [\"model.layers.{*}\"]\n";
const std::string kReentrant = "recompute_modules: [\"model.layers.{*}\"]\n";
const std::string kRecorded = kReentrant + "use_reentrant: false\n";

class SwapProgram : public ::testing::Test {
 protected:
  SwapProgram() {
    folder.write("deep.yaml",
                 "model_type: qwen2\nvocab_size: 256\nhidden_size: 32\nintermediate_size: 48\nnum_hidden_layers: 4\n"
                 "num_attention_heads: 2\nnum_key_value_heads: 1\nmax_position_embeddings: 64\nrms_norm_eps: 1.0e-6\n"
                 "tie_word_embeddings: false\n");
  }

  Words deep(const Words& words, const std::string& yaml) const {
    folder.write("swap.yaml", kWrapped + yaml);
    return with_value(with_value(words, "--model-config", "deep.yaml"), "--fsdp2-config-path", "swap.yaml");
  }
  // Loss and gradient norm of every step, as they are written, and the host's peak is in none of them.
  std::vector<std::string> curve(const std::string& yaml, const Words& more) const {
    std::filesystem::remove(folder.path("run.jsonl"));
    const Outcome outcome = folder.run(deep(kFourSteps, yaml) + more + Words{"--metrics-path", "run.jsonl"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    last = outcome;
    std::vector<std::string> values;
    for (const auto& line : folder.metrics("run.jsonl")) {
      values.push_back(line.at("loss").dump() + " " + line.at("grad_norm").dump());
    }
    EXPECT_EQ(values.size(), 4U);
    return values;
  }
  nlohmann::json plan(const std::string& yaml, const Words& more = {}) const {
    const Outcome outcome = folder.run(deep(kPlanOfFour, yaml) + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  std::string plan_text(const std::string& yaml, const Words& more = {}) const {
    Words words = deep(kPlanOfFour, yaml) + more;
    words.erase(std::find(words.begin(), words.end(), "--json"), std::next(std::find(words.begin(), words.end(), "-")));
    const Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  void expect_refused(const std::string& yaml, const Words& more, const std::string& text) const {
    const Outcome outcome = folder.run(deep(kFourSteps, yaml) + more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  }

  const ProgramFolder folder;
  mutable Outcome last;
};

// --- Bits

TEST_F(SwapProgram, LeavesTheCurveAsItIsOnOneAndTwoRanksAndBothExecutors) {
  for (const Words& ranks : {Words{"--nproc-per-node", "1"}, Words{"--nproc-per-node", "2"}}) {
    const auto unswapped = curve("", ranks);
    for (const char* executor : {"threaded", "inline"}) {
      const Words more = ranks + Words{"--device-executor", executor};
      EXPECT_EQ(curve(kOffloaded, more), unswapped);
      EXPECT_EQ(curve("", more + Words{"--swap-attention"}), unswapped);
      EXPECT_EQ(curve("", more + Words{"--swap-attention", "--swap-modules", "self_attention,mlp"}), unswapped);
    }
  }
}

TEST_F(SwapProgram, LeavesTheCurveAsItIsBesideRecomputeAndOffload) {
  const Words two{"--nproc-per-node", "2"};
  const auto unswapped = curve("", two);
  for (const std::string& recompute : {kReentrant, kRecorded}) {
    EXPECT_EQ(curve(kOffloaded + recompute, two), unswapped);
    EXPECT_EQ(curve(kOffloaded + recompute + "pin_memory: true\n", two), unswapped);
    EXPECT_EQ(curve(kOffloaded + recompute + "pin_memory: true\noffload_to_cpu: true\n", two), unswapped);
  }
  EXPECT_EQ(curve("offload_to_cpu: true\n", two + Words{"--swap-attention"}), unswapped);
}

TEST_F(SwapProgram, WorksWithoutAFile) {
  const Words alone = kTrain + Words{"--model-config", "deep.yaml", "--train-iters", "2", "--metrics-path"};
  ASSERT_EQ(folder.run(alone + Words{"plain.jsonl"}).exit_code, 0);
  const Outcome swapped = folder.run(alone + Words{"swapped.jsonl", "--swap-attention"});
  ASSERT_EQ(swapped.exit_code, 0) << swapped.err;
  for (std::size_t i : {0, 1}) {
    EXPECT_EQ(folder.metrics("swapped.jsonl")[i].at("loss"), folder.metrics("plain.jsonl")[i].at("loss"));
  }
}

TEST_F(SwapProgram, TakesLessOfTheDevice) {
  const auto activations = [&] { return folder.metrics("run.jsonl").back().at("peak_memory_bytes").at("activation"); };
  curve(kRecorded, {});
  const auto unswapped = activations().get<std::int64_t>();
  curve(kRecorded + kOffloaded, {});
  EXPECT_THAT(last.out, HasSubstr("first arguments of 4 of the modules wait in pageable host memory, the last one's "
                                  "excepted\n4 of the modules recomputed in backward, not reentrant\n"));
  EXPECT_LT(activations().get<std::int64_t>(), unswapped);
}

// --- Plans

TEST_F(SwapProgram, PlansWhatIsSwapped) {
  EXPECT_TRUE(plan("").at("swap").empty());
  const auto json = plan(kOffloaded + kRecorded + "pin_memory: true\n", {"--micro-batch-size", "4"});
  const auto& swap = json.at("swap");
  ASSERT_EQ(swap.size(), 3U);
  for (std::size_t i = 0; i < swap.size(); ++i) {
    EXPECT_EQ(swap[i].at("block"), fmt::format("model.layers.{}", i));
    EXPECT_EQ(swap[i].at("copies"), 1);
    EXPECT_EQ(swap[i].at("out_bytes"), 4 * 4 * 16 * 32);  // a layer's input of the micro-batch, in fp32
    EXPECT_GT(swap[i].at("recompute_ns"), 0);
  }
  EXPECT_EQ(json.at("memory").at("host_bytes"), 3 * 4 * 4 * 16 * 32);
}

TEST_F(SwapProgram, PlansLessMemoryForLongSequences) {
  const Words large{"--micro-batch-size", "64"};
  const auto peak = [&](const std::string& yaml, const Words& more = {}) {
    return plan(yaml, large + more).at("memory").at("peak_allocated_bytes").get<std::int64_t>();
  };
  EXPECT_LT(peak(kOffloaded + kRecorded), peak(kRecorded));
  EXPECT_LT(peak("", {"--swap-attention"}), peak(""));
}

// The same step beside a slow host link, and beside one that is faster than any.
TEST_F(SwapProgram, SaysWhereRecomputeIsCheaper) {
  const auto device = [&](const std::string& name, const std::string& rate, const std::string& latency) {
    std::string text = read_file(std::filesystem::path(LOOM_SOURCE_DIR) / "configs/devices/h200.yaml");
    for (const auto& [from, to] : {std::pair<std::string, std::string>{"52.97e9", rate},
                                   {"54.99e9", rate},
                                   {"  latency_ns: 10000\n", "  latency_ns: " + latency + "\n"}}) {
      EXPECT_NE(text.find(from), std::string::npos) << from;
      text.replace(text.find(from), from.size(), to);
    }
    folder.write(name, text);
  };
  device("slow.yaml", "5e7", "10000");
  device("fast.yaml", "1e15", "0");
  const Words large{"--micro-batch-size", "64"};
  const std::string hidden = plan_text("", large + Words{"--swap-attention", "--device", "fast.yaml"});
  EXPECT_THAT(hidden, HasSubstr("to the host and back; compute waits 0 ns for their copies\n"));
  EXPECT_THAT(hidden, Not(HasSubstr("recompute is cheaper")));
  const std::string text = plan_text("", large + Words{"--swap-attention", "--device", "slow.yaml"});
  EXPECT_THAT(text, HasSubstr("of 3 blocks, "));
  EXPECT_THAT(text, HasSubstr(" to the host and back; compute waits "));
  EXPECT_THAT(text,
              HasSubstr("recompute is cheaper than swap for 3 of 3 blocks ('model.layers.0', ...): compute waits"));
  EXPECT_THAT(text, HasSubstr("computing the same again takes"));
  EXPECT_THAT(text, HasSubstr("list them in recompute_modules instead"));
  EXPECT_THAT(plan_text("", large), Not(HasSubstr("swap")));
}

TEST_F(SwapProgram, SaysItAtTheStartOfARunWithAReport) {
  const Outcome outcome = folder.run(deep(kFourSteps, "") + Words{"--swap-attention", "--report", "r.html"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("  swap: "));
}

// Layers that are long enough: of 8 G parameters and 32 layers.
TEST_F(SwapProgram, ShowsCopiesBesideComputeInTheTrace) {
  const std::string model = std::filesystem::path(LOOM_SOURCE_DIR) / "configs/models/llama3_8b.yaml";
  folder.write("swap.yaml", kWrapped + kOffloaded + "pin_memory: true\n");
  const Words words = with_value(with_value(kPlanOfFour, "--model-config", model), "--fsdp2-config-path", "swap.yaml");
  const Outcome outcome = folder.run(with_value(words, "--seq-length", "4096") + Words{"--trace", "t.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const TraceReader trace(folder.read("t.json"));
  const auto overlaps = [&](const std::string& lane) {
    std::size_t beside = 0;
    for (const TracedSlice& copy : trace.lane(0, lane)) {
      if (copy.name.starts_with("wait for ")) continue;
      EXPECT_THAT(copy.name, HasSubstr("swap_" + lane + " model.layers."));
      for (const TracedSlice& kernel : trace.lane(0, "compute")) {
        if (kernel.start_ns < copy.end_ns && copy.start_ns < kernel.end_ns) {
          ++beside;
          break;
        }
      }
    }
    return beside;
  };
  EXPECT_EQ(overlaps("d2h"), 31U);
  EXPECT_EQ(overlaps("h2d"), 31U);
}

// --- Smart swap

TEST_F(SwapProgram, ChoosesTensorsUntilAStepFits) {
  const Words large{"--micro-batch-size", "32", "--global-batch-size", "32", "--seq-length", "64"};
  const auto unswapped = curve("", large);
  const Words smart = large + Words{"--smart-swap", "--report-device", "h200", "--smart-swap-device-size"};
  EXPECT_EQ(curve("", smart + Words{"4096"}), unswapped);
  EXPECT_THAT(last.out, HasSubstr("without swap: nothing is swapped\n"));
  const Outcome refused = folder.run(deep(kFourSteps, "") + smart + Words{"1"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--smart-swap: a step has to fit 1.0 MiB, and needs "));
  const std::string words = "tensors whose copies fit their idle time on the host; give at least ";
  ASSERT_THAT(refused.err, HasSubstr(words));
  const int least = std::stoi(refused.err.substr(refused.err.find(words) + words.size()));
  EXPECT_EQ(curve("", smart + Words{fmt::to_string(least)}), unswapped);
  EXPECT_THAT(last.out, HasSubstr(" tensors are swapped, and it needs "));
  EXPECT_THAT(last.out, HasSubstr("  model.layers.0 "));
}

TEST_F(SwapProgram, RefusesSmartSwapBesideAList) {
  expect_refused(
      kOffloaded, {"--smart-swap", "--smart-swap-device-size", "100"},
      "swap.yaml:3:1: activation_offload_modules is given beside --smart-swap, and both say what is swapped; "
      "remove one of them");
}

// --- Refusals

TEST_F(SwapProgram, RefusesWhatCannotBeSwapped) {
  expect_refused("activation_offload_modules: [\"model.blocks.{*}\"]\n", {}, "activation_offload_modules: ");
  expect_refused("activation_offload_modules: [model.layers]\n", {},
                 "swap.yaml:3:30: activation_offload_modules: 'model.layers' is a ModuleList and has no forward of its "
                 "own; wrap its items: 'model.layers.{*}'");
  expect_refused("", {"--swap-attention", "--swap-modules", "attention"},
                 "--swap-modules names attention, which 'model.layers.0' (Qwen2DecoderLayer) has not; use input_norm, "
                 "self_attention, post_attention_norm, or its children: self_attn, mlp, input_layernorm, "
                 "post_attention_layernorm");
  expect_refused(
      kReentrant, {"--swap-attention"},
      "--swap-attention swaps the tensors saved inside 'model.layers.0', which is recomputed as a whole, so that "
      "nothing inside it is kept; do not recompute it whole (recompute_modules, --recompute-granularity full), or list "
      "it in activation_offload_modules instead");
  expect_refused("", {"--swap-attention", "--lora-target-modules", "q_proj"},
                 "adapters are trained, and --swap-attention is for whole models");
}

}  // namespace
}  // namespace loom::test
