// Promise: a plan of a folder's headers has the static bytes, the groups and the collectives of the plan of the same
//          model with its configuration; what it cannot know is refused or said to be unknown.
// World:   a tiny Qwen3 whose folder the test writes, on four ranks.
#include "engine/plan/weights_plan.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "models/hub/model_hub.h"
#include "sharding/memory.h"
#include "tests/support/documented_keys.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rows that four ranks do not divide, and twelve layers, so that names do not stand in the order of layers.
constexpr const char* kConfig = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 259,
  "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 12, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 10, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": TIED})";

std::filesystem::path write_folder(bool tied) {
  const auto folder = test::fresh_folder() / "model";
  std::string config = kConfig;
  config.replace(config.find("TIED"), 4, tied ? "true" : "false");
  test::write_file(folder / "config.json", config);
  const auto model = models::ModelHub::global().build(folder / "config.json");
  std::vector<io::TensorToWrite> tensors;
  for (const auto& [name, tensor] : model->named_parameters()) {
    const auto bytes = static_cast<std::size_t>(tensor.nbytes());
    tensors.push_back({name, tensor.dtype(), tensor.shape(),
                       [bytes](const io::ByteSink& sink) { sink(std::vector<std::byte>(bytes)); }});
  }
  io::write_safetensors(folder / "model.safetensors", std::move(tensors));
  return folder;
}

// A tied parameter belongs to the root: its two modules are in no other group.
train::TrainSections job(const std::string& yaml, bool tied = false) {
  train::TrainSections a = arguments();
  a.model.model_config.reset();
  a.parallel.fsdp2_config_path = test::write_file(
      std::filesystem::path(::testing::TempDir()) / "weights_plan_fsdp2.yaml",
      fmt::format("{}sub_modules_to_wrap: [{}\"model.layers.{{*}}\"]\nparam_dtype: bf16\nreduce_dtype: fp32\n", yaml,
                  tied ? "" : "model.embed_tokens, "));
  return a;
}

std::int64_t at_optimizer(const device::Recording& recording, device::MemCategory category) {
  for (std::size_t i = 0; i < recording.entries.size(); ++i) {
    const device::Entry& entry = recording.entries[i];
    if (entry.kind != device::EntryKind::kPhase || recording.text(entry.name) != "optimizer") continue;
    const auto later =
        std::ranges::upper_bound(recording.memory, static_cast<std::int64_t>(i), {}, &device::MemorySample::entries);
    return (later - 1)->by_category[category];
  }
  ADD_FAILURE() << "no optimizer";
  return 0;
}

using GroupRow = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
std::set<GroupRow> rows(const std::vector<observe::GroupSum>& groups) {
  std::set<GroupRow> rows;
  for (const auto& g : groups) rows.insert({g.group, g.gathers, g.gathered_bytes, g.reductions, g.reduced_bytes});
  return rows;
}

using CollectiveRow = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;
std::vector<CollectiveRow> rows(const std::vector<CommunicationEstimate>& kinds) {
  std::vector<CollectiveRow> rows;
  for (const auto& k : kinds) rows.push_back({k.collective, k.ranks, k.count, k.received_bytes});
  return rows;
}

class WeightsOf : public ::testing::TestWithParam<std::tuple<bool, const char*>> {};

TEST_P(WeightsOf, AFolderAreAsTheConfigurationsPlanHasThem) {
  const auto& [tied, yaml] = GetParam();
  const auto folder = write_folder(tied);
  train::TrainSections by_config = job(yaml, tied), by_weights = job(yaml, tied);
  by_config.model.model_config = folder / "config.json";
  by_weights.model.model_weights = folder;
  const auto device = profile();
  const StepEstimate wanted = estimate_step(by_config, cli::hub_callbacks(by_config), device);
  const WeightsPlan plan = plan_weights(by_weights, device);
  EXPECT_EQ(plan.parameters, wanted.parameters);
  EXPECT_EQ(plan.mode, wanted.mode);
  const device::Recording& recording = wanted.run().recording;
  EXPECT_EQ(plan.shard_bytes, at_optimizer(recording, sharding::kShard));
  EXPECT_EQ(plan.gradient_bytes, at_optimizer(recording, device::MemCategory::kGradient));
  EXPECT_EQ(plan.optimizer_state_bytes, at_optimizer(recording, device::MemCategory::kOptimizerState));
  EXPECT_GT(plan.gradient_bytes, 0);
  EXPECT_EQ(rows(plan.groups), rows(observe::groups_of_step(recording, wanted.run().times).groups));
  EXPECT_EQ(rows(plan.communication), rows(wanted.communication));
  EXPECT_EQ(plan.volume, wanted.volume);
  EXPECT_THAT(plan.warnings, ::testing::IsEmpty());  // of kernels that hide nothing: there are none
}

INSTANTIATE_TEST_SUITE_P(
    Qwen3, WeightsOf,
    ::testing::Combine(::testing::Bool(),
                       ::testing::Values("sharding_size: auto\n", "sharding_size: 2\n",
                                         "sharding_size: auto\nreshard_after_forward: false\n",
                                         "sharding_size: auto\nsync_each_batch: false\n",
                                         "sharding_size: auto\nrecompute_modules: [\"model.layers.{*}\"]\n"
                                         "use_reentrant: false\nnum_to_forward_prefetch: 1\n")));

TEST(WeightsPlan, SaysThatActivationsAreUnknown) {
  train::TrainSections a = job("sharding_size: auto\n");
  a.model.model_weights = write_folder(false);
  const WeightsPlan plan = plan_weights(a, profile(1));
  EXPECT_TRUE(to_json(plan)["memory"]["activation_bytes"].is_null());
  EXPECT_THAT(to_text(plan), HasSubstr("activations: unknown, and so are peaks and the time of the step"));
  EXPECT_THAT(to_text(plan), HasSubstr("DOES NOT FIT: static memory"));
}

TEST(WeightsPlan, HasItsKeysInTheDocument) {
  WeightsPlan plan;
  plan.groups.resize(1);
  plan.communication.resize(1);
  plan.volume.resize(1);
  std::set<std::string> keys;
  test::add_keys(to_json(plan), "", {}, keys);
  EXPECT_THAT(test::documented_keys(kSource / "docs/outputs.md", "## plan --model-weights --json"),
              ::testing::ContainerEq(keys));
}

TEST(WeightsPlan, RefusesWhatNeedsTheCodeOfModules) {
  train::TrainSections a = job("sharding_size: 2\ntensor_parallel_size: 2\n");
  a.model.model_weights = write_folder(false);
  EXPECT_THAT(test::message_of<ConfigError>([&] { plan_weights(a, profile()); }),
              HasSubstr("fsdp2.yaml: tensor_parallel_size is 2, and --model-weights does not know the code of the "
                        "modules; use 1, or --model-config"));
  a = job("sharding_size: auto\n");
  a.model.model_weights = test::fresh_folder();
  EXPECT_THAT(test::message_of<ConfigError>([&] { plan_weights(a, profile()); }), HasSubstr("model.safetensors"));
}

void write_names(const std::filesystem::path& folder, const std::vector<std::string>& names, DType dtype) {
  std::vector<io::TensorToWrite> tensors;
  static const std::vector<std::byte> bytes(64);
  for (const auto& name : names) {
    tensors.push_back({name, dtype, {8}, std::span(bytes).first(8 * static_cast<std::size_t>(element_bytes(dtype)))});
  }
  std::filesystem::create_directories(folder);
  io::write_safetensors(folder / "model.safetensors", std::move(tensors));
}

TEST(WeightsPlan, RefusesNamesThatAreNoTree) {
  const auto refusal = [](const std::vector<std::string>& names, DType dtype = DType::kF32) {
    train::TrainSections a = job("sharding_size: auto\n");
    a.model.model_weights = test::fresh_folder() / "names";
    write_names(*a.model.model_weights, names, dtype);
    return test::message_of<ConfigError>([&] { plan_weights(a, profile()); });
  };
  EXPECT_THAT(refusal({"a..b"}), HasSubstr("the tensor 'a..b' has a part without a name"));
  EXPECT_THAT(refusal({"a", "a.b"}), HasSubstr("the tensor 'a.b' is below another tensor"));
  EXPECT_THAT(refusal({"steps"}, DType::kI64), HasSubstr("no tensor of its files is of a floating type"));
  std::string deep = "x";
  for (int i = 0; i < 65; ++i) deep += ".x";
  EXPECT_THAT(refusal({deep}), HasSubstr("is more than 64 modules deep"));
}

}  // namespace
}  // namespace loom::plan
