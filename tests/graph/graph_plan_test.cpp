// Plans of recorded PyTorch models beside plans of the models that are built here.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/plan/plan_search.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

const std::filesystem::path kGraphs = kSource / "tests/reference/graphs";

struct Case {
  std::string name;
  std::vector<std::string> layers;  // lists of modules, each a group
  std::string yaml = {};
  bool has_same_kernels = true;  // false: dropout of scores is composed here, and inside of PyTorch's attention
  std::vector<std::int64_t> image_size = {};  // of one picture a sequence; empty: text
  std::string others = {};                    // further patterns: with all of the root's modules, it is freed too

  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name << ": " << one.yaml; }
};

class GraphPlan : public ::testing::TestWithParam<Case> {
 protected:
  train::TrainSections job() const {
    train::TrainSections a = arguments();
    a.model.model_config.reset();
    a.data.data_path.clear();
    const std::string yaml = fmt::format(
        "sharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\nsub_modules_to_wrap: [\"{}.{{*}}\"{}]\n{}",
        fmt::join(GetParam().layers, ".{*}\", \""), GetParam().others, GetParam().yaml);
    test::write_file(folder_ / "fsdp2.yaml", yaml);
    a.parallel.fsdp2_config_path = folder_ / "fsdp2.yaml";
    a.data.seq_length = 128;
    a.kernels.fused.flash_attn = true;  // one node of the recording; all else is composed, as PyTorch runs it
    return a;
  }
  train::TrainSections recorded() const {
    train::TrainSections a = job();
    a.model.model_graph = kGraphs / GetParam().name / "graph.json.gz";
    return a;
  }
  train::TrainSections built() const {
    train::TrainSections a = job();
    a.model.model_config = kGraphs / GetParam().name / "config.json";
    a.data.image_size = GetParam().image_size;
    a.objective.loss_in_model = true;  // as in the recording
    return a;
  }
  static StepEstimate plan(const train::TrainSections& a) { return estimate_step(a, cli::hub_callbacks(a), profile()); }

  const std::filesystem::path folder_ = test::fresh_folder();
};

// Collectives and marks of the groups, in the host's order.
std::vector<std::string> events_of(const device::Recording& recording) {
  std::vector<std::string> events;
  recording.visit(
      [&](const device::Entry& entry) {
        if (entry.kind != device::EntryKind::kCollective) return;
        events.push_back(
            fmt::format("{} {} {}", recording.text(entry.name), recording.text(entry.subject), entry.bytes));
      },
      [&](const device::Mark& mark) {
        events.push_back(fmt::format("{} {}", mark.kind.token(), recording.text(mark.subject)));
      });
  return events;
}

TEST_P(GraphPlan, IsThatOfTheModelBuiltHere) {
  const StepEstimate recorded_plan = plan(recorded()), built_plan = plan(built());
  EXPECT_EQ(recorded_plan.parameters, built_plan.parameters);
  EXPECT_EQ(events_of(recorded_plan.run().recording), events_of(built_plan.run().recording));
  if (!GetParam().has_same_kernels) return;
  const auto peak = static_cast<double>(built_plan.memory.peak_allocated_bytes);
  EXPECT_NEAR(static_cast<double>(recorded_plan.memory.peak_allocated_bytes), peak, 0.01 * peak);
  EXPECT_NEAR(recorded_plan.throughput.model_flops, built_plan.throughput.model_flops,
              0.01 * built_plan.throughput.model_flops);
}

TEST_P(GraphPlan, IsTheSameTwice) {
  const StepEstimate one = plan(recorded()), other = plan(recorded());
  EXPECT_EQ(one.time.step_ns, other.time.step_ns);
  EXPECT_EQ(one.memory.peak_reserved_bytes, other.memory.peak_reserved_bytes);
}

const std::vector<std::string> kInternVL = {"model.vision_tower.encoder.layer", "model.language_model.layers"};
constexpr const char* kInternVLRecompute =
    "recompute_modules: [\"model.vision_tower.encoder.layer.{*}\", \"model.language_model.layers.{*}\"]\n";

constexpr const char* kReshard = "reshard_after_forward: true\n";
constexpr const char* kEnds = ", \"model.embed_tokens\", \"lm_head\"";

INSTANTIATE_TEST_SUITE_P(
    Models, GraphPlan,
    ::testing::Values(Case{"tiny_qwen3", {"model.layers"}},
                      Case{"tiny_qwen3", {"model.layers"}, "recompute_modules: [\"model.layers.{*}\"]\n"},
                      Case{"tiny_qwen3", {"model.layers"}, kReshard, true, {}, kEnds},
                      Case{"tiny_llama", {"model.layers"}, kReshard, true, {}, kEnds},
                      Case{"tiny_gpt2", {"transformer.h"}, "", false}, Case{"tiny_gpt2_plain", {"transformer.h"}},
                      Case{"tiny_gpt2_plain", {"transformer.h"}, kReshard}, Case{"tiny_llama", {"model.layers"}},
                      Case{"tiny_internvl", kInternVL, "", true, {64}},
                      Case{"tiny_internvl", kInternVL, kInternVLRecompute, true, {64}}),
    [](const auto& info) { return fmt::format("{}_{}", info.param.name, info.index); });

class GraphJob : public GraphPlan {};
INSTANTIATE_TEST_SUITE_P(Models, GraphJob, ::testing::Values(Case{"tiny_qwen3", {"model.layers"}}));

TEST_P(GraphJob, SizesOfTheJobScaleTheRecording) {
  train::TrainSections a = recorded();
  const StepEstimate small = plan(a);
  a.data.seq_length = 512;
  a.schedule.micro_batch_size = 4;
  a.schedule.global_batch_size = 2 * kRanks * a.schedule.micro_batch_size;
  const StepEstimate large = plan(a);
  EXPECT_EQ(large.throughput.tokens, 8 * small.throughput.tokens);
  EXPECT_GT(large.throughput.model_flops, 8 * small.throughput.model_flops);
  a.schedule.micro_batch_size = 1;
  EXPECT_THROW(plan(a), ConfigError);
}

// Memory at every phase, collectives and times to the nanosecond.
void expect_same(const StepEstimate& one, const StepEstimate& other) {
  EXPECT_EQ(one.trained_parameters, other.trained_parameters);
  EXPECT_EQ(one.time.step_ns, other.time.step_ns);
  EXPECT_EQ(one.memory.peak_allocated_bytes, other.memory.peak_allocated_bytes);
  EXPECT_EQ(one.memory.peak_reserved_bytes, other.memory.peak_reserved_bytes);
  EXPECT_EQ(one.memory.steady_allocated_bytes, other.memory.steady_allocated_bytes);
  EXPECT_EQ(one.throughput.model_flops, other.throughput.model_flops);
}

// The recording holds micro-batches of two and more: none of one is tried.
TEST_P(GraphJob, ASearchKeepsToTheMicroBatchesOfTheRecording) {
  train::TrainSections a = recorded();
  a.memory.device_memory_mib = 1;
  const CheckedEstimate checked = PlanSearch(a, cli::hub_callbacks(a), profile(), {}).check();
  EXPECT_TRUE(checked.out_of_memory);
  const train::PretrainCallbacks callbacks = cli::hub_callbacks(a);
  EXPECT_EQ(ChoicePlans(a, callbacks, profile(), {})
                .micro_batch_sizes(ChoicePlans(a, callbacks, profile(), {}).base())
                .front(),
            2);
}

TEST_P(GraphJob, ALossInChunksIsSaidToHaveNoEffect) {
  train::TrainSections a = recorded();
  a.objective.loss_chunk_size = 64;
  EXPECT_THAT(plan(a).warnings,
              ::testing::Contains(::testing::HasSubstr(
                  "--loss-chunk-size 64 does not act on a recording, whose loss is as it was recorded")));
}

TEST_P(GraphJob, FrozenModulesAreThoseOfARecordingThatHasThem) {
  train::TrainSections whole = recorded(), frozen = recorded();
  whole.model.freeze = {"model.layers.0"};
  frozen.model.model_graph = kGraphs / "tiny_qwen3/frozen.json.gz";
  expect_same(plan(whole), plan(frozen));
}

TEST_P(GraphJob, AdaptersAreThoseOfPeft) {
  train::TrainSections base = recorded(), peft = recorded();
  base.model.lora.target_modules = {"q_proj", "v_proj"};
  const StepEstimate ours = plan(base);
  peft.model.model_graph = kGraphs / "tiny_qwen3/adapted.json.gz";
  test::write_file(folder_ / "peft.yaml",
                   "sharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\n"
                   "sub_modules_to_wrap: [\"base_model.model.model.layers.{*}\"]\n");
  peft.parallel.fsdp2_config_path = folder_ / "peft.yaml";
  expect_same(ours, plan(peft));
}

TEST_P(GraphJob, AdaptersAreThoseOfTheModelBuiltHere) {
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"q_proj", "v_proj"}, {"all-linear"}, {"model.layers.{*}.mlp.down_proj"}}) {
    train::TrainSections of_recording = recorded(), of_model = built();
    of_recording.model.lora.target_modules = of_model.model.lora.target_modules = targets;
    of_recording.model.lora.dropout = of_model.model.lora.dropout = 0.1;
    const StepEstimate one = plan(of_recording), other = plan(of_model);
    EXPECT_EQ(one.trained_parameters, other.trained_parameters);
    EXPECT_EQ(events_of(one.run().recording), events_of(other.run().recording));
    const auto peak = static_cast<double>(other.memory.peak_allocated_bytes);
    EXPECT_NEAR(static_cast<double>(one.memory.peak_allocated_bytes), peak, 0.01 * peak);
  }
}

TEST_P(GraphJob, FrozenModulesHaveNoGradients) {
  train::TrainSections a = recorded();
  const StepEstimate whole = plan(a);
  a.model.freeze = {"model.layers.0"};
  const StepEstimate frozen = plan(a);
  EXPECT_LT(frozen.trained_parameters, whole.trained_parameters);
  EXPECT_LT(frozen.time.step_ns, whole.time.step_ns);
  EXPECT_LT(frozen.memory.steady_allocated_bytes, whole.memory.steady_allocated_bytes);
}

}  // namespace
}  // namespace loom::plan
