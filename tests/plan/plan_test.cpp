// Promise: a plan is what a run does - the same events, bytes and virtual time - at any size; it says what does not fit
//          and what would help.
#include <algorithm>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <regex>

#include "engine/cli/hub_callbacks.h"
#include "engine/cli/words/arguments.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/layers.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/plan_search.h"
#include "engine/tensor/ops.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/resolve.h"
#include "models/hub/model_hub.h"
#include "models/internvl/internvl.h"
#include "sharding/streams.h"
#include "tests/plan/plan_and_run.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The plan of one command line and the run of another.
void expect_same(const train::TrainSections& planned_as, const train::TrainSections& trained_as) {
  expect_same(estimate_step(planned_as, cli::hub_callbacks(planned_as), profile()),
              run_fourth_step(trained_as, cli::hub_callbacks(trained_as)));
}

class PlanAndRun : public ::testing::TestWithParam<const char*> {};

TEST_P(PlanAndRun, HaveTheSameEventsBytesAndVirtualTime) {
  train::TrainSections a = arguments(GetParam());
  a.data.seq_length = 16;
  expect_same(a, a);
}

// The command line of a user, once behind `train` and once behind `plan`.
void expect_same_words(const std::string& model, const std::string& wrapped, const std::vector<std::string>& more) {
  const std::filesystem::path folder = test::fresh_folder();
  const std::string model_file = test::write_file(folder / "model.yaml", model);
  const std::string fsdp2 =
      test::write_file(folder / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [" + wrapped + "]\n");
  std::vector<std::string> words{"shardloom",
                                 "train",
                                 "--model-config",
                                 model_file,
                                 "--data-path",
                                 kSource / "LICENSE",
                                 "--use-torch-fsdp2",
                                 "--fsdp2-config-path",
                                 fsdp2,
                                 "--nproc-per-node",
                                 "4",
                                 "--seq-length",
                                 "16"};
  words.insert(words.end(), more.begin(), more.end());
  const auto parsed = [&] {
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    return cli::parse_arguments(static_cast<int>(argv.size()), argv.data());
  };
  const auto trained = std::get<job::Job>(parsed());
  words[1] = "plan";
  const auto planned = std::get<cli::PlanArguments>(parsed()).train;
  expect_same(planned, trained);
}

void expect_same_command(const std::string& model, const std::string& wrapped) {
  expect_same_words(model, wrapped, {});
  expect_same_words(model, wrapped, {"--kernels", "pytorch"});
}

std::string llama(int layers) {
  return fmt::format(
      "model_type: llama\nvocab_size: 300\nhidden_size: 32\nintermediate_size: 64\nnum_hidden_layers: {}\n"
      "num_attention_heads: 4\nnum_key_value_heads: 2\nmax_position_embeddings: 64\nrms_norm_eps: 1.0e-6\n"
      "tie_word_embeddings: false\n",
      layers);
}

TEST(TrainAndPlan, OfOneCommandLineAgreeForADecoder) {
  expect_same_command(llama(2), "model.embed_tokens, \"model.layers.{*}\", lm_head");
}

TEST(TrainAndPlan, OfOneCommandLineAgreeForEveryKindOfRecompute) {
  const std::string model = llama(4);
  const std::string wrapped = "model.embed_tokens, \"model.layers.{*}\", lm_head";
  const std::vector<std::string> full{"--recompute-granularity", "full", "--recompute-num-layers", "2",
                                      "--recompute-method"};
  const auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  for (const char* kernels : {"fast", "pytorch"}) {
    const std::vector<std::string> grain{"--kernels", kernels};
    expect_same_words(model, wrapped, with(with(full, {"uniform"}), grain));
    expect_same_words(model, wrapped,
                      with(with(full, {"block", "--recompute-activation-function", "--recompute-norm",
                                       "--recompute-norm-num-layers", "1"}),
                           grain));
    expect_same_words(model, wrapped, with({"--recompute-activations", "--recompute-norm"}, grain));
    expect_same_words(model,
                      wrapped +
                          "]\nrecompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\n"
                          "recompute_every: 2\nrecompute_keep: selected_ops\nignored_modules: [",
                      grain);
  }
}

// Every expert gets every token: a run is as balanced as a plan.
constexpr const char* kMoeOfAllExperts =
    "model_type: qwen3_moe\nvocab_size: 300\nhidden_size: 32\nintermediate_size: 64\nnum_hidden_layers: 2\n"
    "num_attention_heads: 4\nnum_key_value_heads: 2\nhead_dim: 8\nmax_position_embeddings: 64\nrms_norm_eps: 1.0e-6\n"
    "num_experts: 4\nnum_experts_per_tok: 4\nmoe_intermediate_size: 16\nnorm_topk_prob: true\n"
    "decoder_sparse_step: 1\nmlp_only_layers: []\ntie_word_embeddings: false\n";

// tp 2 x dp_shard 2.
TEST(TrainAndPlan, OfOneCommandLineAgreeForSharedMatrices) {
  const std::string wrapped = "model.embed_tokens, \"model.layers.{*}\", lm_head]\ntensor_parallel_size: 2\n";
  for (const std::string& model : {llama(2), std::string(kMoeOfAllExperts)}) {
    for (const char* keys :
         {"", "sequence_parallel: true\n", "loss_parallel: false\n",
          "sequence_parallel: true\nrecompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\n"}) {
      SCOPED_TRACE(keys);
      expect_same_command(model, wrapped + keys + "ignored_modules: [");
    }
  }
}

// tp 2 x dp_shard 2, of which ep 2 share experts.
TEST(TrainAndPlan, OfOneCommandLineAgreeForSharedMatricesBesideSharedExperts) {
  for (const char* keys : {"", "sequence_parallel: true\n", "moe_token_dispatcher_type: allgather\n"}) {
    SCOPED_TRACE(keys);
    expect_same_command(kMoeOfAllExperts,
                        fmt::format("model.embed_tokens, \"model.layers.{{*}}\", lm_head]\ntensor_parallel_size: 2\n{}"
                                    "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{{*}}.mlp.experts\"]\n"
                                    "ignored_modules: [",
                                    keys));
  }
}

constexpr const char* kSmallGpt2 =
    "model_type: gpt2\nvocab_size: 300\nn_embd: 32\nn_layer: 2\nn_head: 4\nn_positions: 64\n"
    "tie_word_embeddings: false\n";

TEST(TrainAndPlan, OfOneCommandLineAgreeForSwappedMoments) {
  expect_same_words(kSmallGpt2, "\"transformer.h.{*}\"", {"--optimizer", "adamw_swap"});
  expect_same_words(kSmallGpt2, "\"transformer.h.{*}\"", {"--swap-optimizer", "--swap-optimizer-times", "5"});
}

TEST(TrainAndPlan, OfOneCommandLineAgreeForAnOptimizerOnTheHost) {
  const std::string wrapped = "\"transformer.h.{*}\"]\noffload_to_cpu: true\npin_memory: true\nignored_modules: [";
  expect_same_words(kSmallGpt2, wrapped, {});
  expect_same_words(kSmallGpt2, wrapped, {"--clip-grad", "0", "--no-check-for-nan-in-loss-and-grad"});
  expect_same_words(kSmallGpt2, wrapped, {"--kernels", "pytorch"});
}

TEST(TrainAndPlan, OfOneCommandLineAgreeForParametersInBf16) {
  const std::string wrapped = "model.embed_tokens, \"model.layers.{*}\", lm_head";
  const std::string reduced = wrapped + "]\nparam_dtype: bf16\nreduce_dtype: fp32\nignored_modules: [";
  for (const std::string& keys : {wrapped, reduced}) {
    expect_same_words(llama(2), keys, {"--params-dtype", "bf16"});
    expect_same_words(llama(2), keys, {"--params-dtype", "bf16", "--kernels", "pytorch"});
    expect_same_words(llama(2), keys, {"--params-dtype", "bf16", "--lora-target-modules", "q_proj", "v_proj"});
  }
}

TEST(TrainAndPlan, OfOneCommandLineAgreeForATiedGpt2) {
  expect_same_command(
      "model_type: gpt2\nvocab_size: 300\nn_embd: 32\nn_layer: 2\nn_head: 4\nn_positions: 64\n"
      "tie_word_embeddings: true\n",
      "\"transformer.h.{*}\"");
}

TEST(TrainAndPlan, OfOneCommandLineAgreeForInternVL) {
  expect_same_command(test::read_file(kSource / "examples/pretrain_vlm/model.yaml"),
                      "\"model.vision_tower.encoder.layer.{*}\", \"model.language_model.layers.{*}\"");
}

TEST(TrainAndPlan, OfOneCommandLineAgreeForSwappedActivations) {
  const std::string model = llama(4);
  const std::string layers = "\"model.layers.{*}\"";
  expect_same_words(model, layers, {"--swap-attention"});
  expect_same_words(model, layers, {"--swap-attention", "--recompute-norm", "--recompute-activation-function"});
  for (const char* kind : {"use_reentrant: true", "use_reentrant: false\npin_memory: true"}) {
    expect_same_words(
        model,
        fmt::format("{}]\n{}\nrecompute_modules: [{}]\nactivation_offload_modules: [{}", layers, kind, layers, layers),
        {});
  }
}

// Captions of images: a second input beside the tokens, of values that a plan has not, and a loss of the program's own.
train::PretrainCallbacks captions(const std::filesystem::path& model_file) {
  constexpr std::int64_t kImageTokens = 4, kTokens = 12, kSize = 32;
  train::PretrainCallbacks calls;
  calls.model_provider = [model_file](const train::TrainArguments&) {
    return models::build_internvl(models::load_internvl_config(model_file));
  };
  calls.train_valid_test_datasets_provider = [](const train::TrainArguments&) {
    return data::DataLoaders{.train = [](std::span<const std::int64_t> samples) {
      const auto count = static_cast<std::int64_t>(samples.size());
      const Tensor ids = Tensor::host({count, kTokens}, DType::kI32, "input_ids");
      for (std::int64_t i = 0; i < ids.numel(); ++i) {
        ids.data<std::int32_t>()[i] = i % kTokens < kImageTokens ? 250 : static_cast<std::int32_t>(i % 200);
      }
      const std::vector<float> pixels(static_cast<std::size_t>(count * 3 * kSize * kSize), 0.25F);
      return data::Batch{{{"input_ids", ids}, {"pixel_values", Tensor::from(pixels, {count, 3, kSize, kSize})}}};
    }};
  };
  calls.forward_step = [](data::DataIterator& iterator, nn::Module& model) {
    const data::Batch batch = iterator.next();
    return data::ForwardResult{model(batch["input_ids"], batch["pixel_values"]), [](const nn::Value& logits) {
                                 const Tensor loss = ops::mean(ops::tanh(logits.tensor()));
                                 return data::Loss(loss, {{"twice", 2.0 * loss.item()}});
                               }};
  };
  return calls;
}

TEST(TrainAndPlan, AgreeForAProgramsOwnLossOfTwoInputs) {
  train::TrainSections a = arguments();
  const std::filesystem::path folder = test::fresh_folder();
  a.parallel.fsdp2_config_path = test::write_file(folder / "fsdp2.yaml",
                                                  "sharding_size: auto\nnum_to_forward_prefetch: 1\n"
                                                  "sub_modules_to_wrap: [\"model.vision_tower.encoder.layer.{*}\", "
                                                  "\"model.language_model.layers.{*}\"]\n");
  const train::PretrainCallbacks calls = captions(kSource / "examples/pretrain_vlm/model.yaml");
  for (const train::KernelSet kernels : {train::KernelSet::kFast, train::KernelSet::kPytorch}) {
    a.kernels.set = kernels;
    a.kernels.fused = kernels == train::KernelSet::kFast ? nn::KernelOptions::fast() : nn::KernelOptions::pytorch();
    expect_same(estimate_step(a, calls, profile()), run_fourth_step(a, calls));
  }
}

bool copies_gathers_out(const device::Recording& recording) {
  return std::ranges::any_of(recording.entries,
                             [](const auto& entry) { return entry.cost.work == sharding::kGatherCopyOut; });
}

TEST(TrainAndPlan, AgreeInTheGatherLayoutThatTheKernelsDoNotGive) {
  for (const train::KernelSet kernels : {train::KernelSet::kFast, train::KernelSet::kPytorch}) {
    const bool fast = kernels == train::KernelSet::kFast;
    train::TrainSections a = arguments();
    a.kernels.set = kernels;
    a.kernels.fused = fast ? nn::KernelOptions::fast() : nn::KernelOptions::pytorch();
    const train::PretrainCallbacks calls = cli::hub_callbacks(a);
    EXPECT_EQ(copies_gathers_out(run_fourth_step(a, calls).recordings[0]), !fast);
    a.parallel.gather_layout = fast ? sharding::GatherLayout::kBuffered : sharding::GatherLayout::kFast;
    const RealRun run = run_fourth_step(a, calls);
    EXPECT_EQ(copies_gathers_out(run.recordings[0]), fast);
    expect_same(estimate_step(a, calls, profile()), run);
  }
}

class Twin final : public nn::Module {
 public:
  explicit Twin(std::int64_t hidden) {
    register_module("embed", std::make_shared<nn::Embedding>(300, hidden, 0.02));
    register_module("head", std::make_shared<nn::Linear>(hidden, 300, false, 0.02));
  }
  std::string_view type_name() const override { return "Twin"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return (*find("head"))((*find("embed"))(args.tensor(0))); }
};

const models::RegisterModel kTwin({"twin"}, [](const models::ConfigReader& config) {
  return std::make_shared<Twin>(config.count("hidden_size"));
});

TEST(TrainAndPlan, OfOneCommandLineAgreeForAModelThatAProgramRegistered) {
  expect_same_command("model_id: twin\nhidden_size: 32\n", "embed, head");
}

INSTANTIATE_TEST_SUITE_P(Configurations, PlanAndRun,
                         ::testing::Values("quickstart.yaml", "full_shard.yaml", "zero2.yaml", "offload.yaml"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(Plan, SaysTheSameInTextAndJson) {
  const train::TrainSections a = arguments();
  const StepEstimate plan = estimate_step(a, cli::hub_callbacks(a), profile());
  const nlohmann::ordered_json json = to_json(plan);
  EXPECT_EQ(json["world_size"], kRanks);
  EXPECT_EQ(json["mode"], "1 x 4: shards over 4, replicates over 1");
  EXPECT_EQ(json["parameters"], 5939456);
  EXPECT_EQ(json["trained_parameters"], 5939456);
  EXPECT_EQ(json["memory"]["reserved_bytes"], plan.memory.reserved_bytes);
  EXPECT_EQ(json["time"]["step_ns"], plan.time.step_ns);
  std::vector<std::string> phases;
  for (const auto& phase : json["memory"]["phases"]) phases.push_back(phase["phase"]);
  EXPECT_THAT(phases, ElementsAre("forward", "backward", "optimizer"));
  const std::string text = to_text(plan);
  EXPECT_THAT(text, StartsWith("Qwen2ForCausalLM of 5.939 M parameters on 4 x h200, micro-batch 2 x 2 of 64 tokens\n"
                               "1 x 4: shards over 4, replicates over 1\n"
                               "all parameters are trained\n"));
  EXPECT_THAT(text, HasSubstr(fmt::format("\nstep {}; ", time_text(plan.time.step_ns))));
}

// Per step and rank: each of the ten groups is gathered twice a micro-batch (forward, backward) and reduced once.
TEST(Plan, CountsCommunicationByFormula) {
  const train::TrainSections a = arguments();
  const StepEstimate plan = estimate_step(a, cli::hub_callbacks(a), profile());
  const std::int64_t groups = 8 + 3;  // layers; embedding, head, root
  ASSERT_EQ(plan.communication.size(), 2u);
  const CommunicationEstimate &gathers = plan.communication[0], &reductions = plan.communication[1];
  EXPECT_EQ(gathers.collective, "all_gather");
  EXPECT_EQ(gathers.count, 2 * 2 * groups);
  EXPECT_EQ(gathers.received_bytes, 2 * 2 * plan.parameters * 4 * 3 / 4);
  EXPECT_EQ(reductions.collective, "reduce_scatter");
  EXPECT_EQ(reductions.count, 2 * groups);
  EXPECT_EQ(reductions.received_bytes, 2 * plan.parameters * 4 * 3 / 4);
  EXPECT_EQ(gathers.link, "node");
}

// A text whose long lines go on indented by eight, each in one line again.
std::string unwrapped(const std::string& text) { return std::regex_replace(text, std::regex("\n {8}"), " "); }

TEST(Plan, OfAStepThatDoesNotFitNamesPhaseAndGroupAndTheCheapestRemedies) {
  train::TrainSections a = arguments();
  a.schedule.micro_batch_size = 8;
  a.schedule.global_batch_size = 8 * kRanks;
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile small = profile(200 * kMiB);
  const CheckedEstimate checked = PlanSearch(a, calls, small).check();
  ASSERT_TRUE(checked.out_of_memory.has_value());
  EXPECT_THAT(*checked.out_of_memory,
              StartsWith("out of memory in forward, at group 'lm_head': [rank 0] tensor needs "));
  EXPECT_THAT(*checked.out_of_memory, HasSubstr("of 200.0 MiB free; in use:\n  shard "));
  EXPECT_FALSE(checked.plan.memory.fits);
  EXPECT_GT(checked.plan.memory.reserved_bytes, 200 * kMiB);
  ASSERT_FALSE(checked.remedies.empty());
  EXPECT_LE(checked.remedies.size(), 3u);
  std::vector<std::string> changes;
  for (const Remedy& remedy : checked.remedies) {
    changes.push_back(remedy.change);
    EXPECT_GT(remedy.saved_bytes, 0);
    EXPECT_THAT(unwrapped(to_text(checked)), HasSubstr("  " + remedy.change + " (saves "));
  }
  EXPECT_THAT(changes, ::testing::Contains("recompute_modules: [\"model.layers.{*}\"], use_reentrant: false"));
  EXPECT_EQ(to_json(checked)["remedies"].size(), checked.remedies.size());
}

TEST(Plan, SaysWhenNoChangeOfTheFileWouldMakeItFit) {
  train::TrainSections a = arguments();
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = kRanks;
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile tiny = profile(70 * kMiB);  // 64 of them are the matrix workspace
  const CheckedEstimate checked = PlanSearch(a, calls, tiny).check();
  EXPECT_THAT(checked.out_of_memory.value_or(""), StartsWith("out of memory in "));
  EXPECT_TRUE(checked.remedies.empty());
  EXPECT_THAT(to_text(checked), HasSubstr("\n  no change of the file, nor two or three together, would make it fit\n"));
  EXPECT_THAT([&] { PlanSearch(a, calls, tiny).largest_micro_batch(); },
              ::testing::ThrowsMessage<ConfigError>(
                  "a micro-batch of 1 does not fit on 4 x h200; plan without --fit to see what would help"));
}

// A model whose forward looks at what it computed.
class Peeking final : public nn::Module {
 public:
  Peeking() { register_module("embed", std::make_shared<nn::Embedding>(256, 256, 0.5)); }
  std::string_view type_name() const override { return "Peeking"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor logits = (*find("embed"))(args.tensor(0));
    return logits.to_vector<float>()[0] > 0 ? logits : ops::scale(logits, 2.0);
  }
};

TEST(Plan, RefusesAModelWhoseForwardNeedsValues) {
  train::TrainSections a = arguments();
  a.parallel.use_torch_fsdp2 = false;
  a.launch.ranks = 1;
  a.schedule.global_batch_size = a.schedule.micro_batch_size;
  train::PretrainCallbacks calls = cli::hub_callbacks(a);
  calls.model_provider = [](const train::TrainArguments&) { return std::make_shared<Peeking>(); };
  EXPECT_THAT([&] { estimate_step(a, calls, profile()); },
              ::testing::ThrowsMessage<ConfigError>(
                  "the forward of Peeking reads values (to_vector() of a tensor fp32 [2, 64, 256]), and a plan "
                  "computes none; decide from shapes there, or run it with shardloom train"));
}

// A model whose forward writes with a pointer to what it computed.
class Poking final : public nn::Module {
 public:
  Poking() { register_module("embed", std::make_shared<nn::Embedding>(256, 256, 0.5)); }
  std::string_view type_name() const override { return "Poking"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor logits = (*find("embed"))(args.tensor(0));
    logits.data<float>()[0] = 1;
    return logits;
  }
};

std::string refusal_of(const train::TrainSections& arguments, const train::PretrainCallbacks& calls) {
  return test::message_of<ConfigError>([&] { estimate_step(arguments, calls, profile()); });
}

TEST(Plan, RefusesAPointerToBytesThatAreNotThere) {
  train::TrainSections a = arguments();
  a.parallel.use_torch_fsdp2 = false;
  a.launch.ranks = 1;
  a.schedule.global_batch_size = a.schedule.micro_batch_size;
  train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const train::PretrainCallbacks ours = calls;
  calls.model_provider = [](const train::TrainArguments&) { return std::make_shared<Poking>(); };
  EXPECT_EQ(
      refusal_of(a, calls),
      "the forward of Poking reads values (data() of a tensor fp32 [2, 64, 256]), and a plan computes none; decide "
      "from shapes there, or run it with shardloom train");
  calls = ours;
  calls.forward_step = [&](data::DataIterator& data, nn::Module& model) {
    data::ForwardResult result = ours.forward_step(data, model);
    result.output.tensor().data<float>()[0] = 1;
    return result;
  };
  EXPECT_EQ(refusal_of(a, calls).substr(0, 42), "the program reads values (data() of a tens");
}

}  // namespace
}  // namespace loom::plan
