// Promise: every pair of features that change the memory of a step, on every family: two steps have the losses and
//          gradient norms of a run without them, and a plan of the same words keeps as many bytes on the host; or run
//          and plan refuse the pair for one of the reasons that kReasons has.
// World:   two ranks as threads of this process; models of four layers. A feature or a family joins by a row.
#include <algorithm>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <sstream>

#include "engine/cli/commands/plan_command.h"
#include "engine/cli/hub_callbacks.h"
#include "engine/cli/pretrain.h"
#include "engine/cli/words/arguments.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/data/byte_batches.h"
#include "engine/nn/functional.h"
#include "tests/support/files.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

constexpr std::int64_t kLength = 16;  // tokens of a sequence

// --- The rows

struct Family {
  std::string name;
  std::string config;  // of --model-config
  Words layers = {"model.layers.{*}"};
  bool images = false;
  bool drops = false;  // dropout: rows that run apart draw other numbers
};

const std::string kSizes =
    "vocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 4\nnum_attention_heads: 2\n"
    "num_key_value_heads: 1\nmax_position_embeddings: 16\n";

const std::vector<Family> kFamilies = {
    {"Qwen2", "model_type: qwen2\ntie_word_embeddings: false\n" + kSizes},
    {"Qwen2Tied", "model_type: qwen2\ntie_word_embeddings: true\n" + kSizes},
    {"Llama", "model_type: llama\n" + kSizes},
    {"Qwen3", "model_type: qwen3\nhead_dim: 8\n" + kSizes},
    {"Qwen3Moe",
     "model_type: qwen3_moe\nhead_dim: 8\nnum_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 12\n"
     "mlp_only_layers: [1]\n" +
         kSizes},
    {"Qwen2Moe",
     "model_type: qwen2_moe\nnum_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 12\n"
     "shared_expert_intermediate_size: 12\nmlp_only_layers: [1]\n" +
         kSizes},
    {"Gpt2Dropout",
     "model_type: gpt2\nvocab_size: 256\nn_layer: 4\nn_embd: 16\nn_head: 2\nn_positions: 16\n"
     "attn_pdrop: 0.1\nembd_pdrop: 0.1\nresid_pdrop: 0.1\n",
     {"transformer.h.{*}"},
     false,
     true},
    {"Gpt2",
     "model_type: gpt2\nvocab_size: 256\nn_layer: 4\nn_embd: 16\nn_head: 2\nn_positions: 16\n"
     "attn_pdrop: 0.0\nembd_pdrop: 0.0\nresid_pdrop: 0.0\n",
     {"transformer.h.{*}"}},
    {"InternVL",
     R"({"model_type": "internvl", "image_token_id": 250, "downsample_ratio": 0.5, "image_seq_length": 1,
      "vision_config": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
                        "image_size": 8, "patch_size": 4, "layer_norm_eps": 1e-6},
      "text_config": {"model_type": "qwen2", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24,
                      "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
                      "max_position_embeddings": 16}})",
     {"model.vision_tower.encoder.layer.{*}", "model.language_model.layers.{*}"},
     true}};

struct Feature {
  std::string name;
  std::string yaml = {};  // LAYERS stands for the family's layers
  Words flags = {};
  // What it changes besides memory: the job, so that runs are compared with one that has it too; or the order of sums.
  enum Changes : std::uint8_t { kNothing, kJob, kSums } changes = kNothing;
  bool resets = false;  // samples of several documents, with positions and a mask of their own
};

const std::vector<Feature> kFeatures = {
    {"modules reentrant", "recompute_modules: LAYERS\nuse_reentrant: true\n"},
    {"modules", "recompute_modules: LAYERS\nuse_reentrant: false\n"},
    {"modules keep", "recompute_modules: LAYERS\nuse_reentrant: false\n", {"--recompute-keep", "selected_ops"}},
    {"modules every", "recompute_modules: LAYERS\nuse_reentrant: false\n", {"--recompute-every", "2"}},
    {"block", {}, {"--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "1"}},
    {"uniform",
     {},
     {"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "2"}},
    {"core attention", {}, {"--recompute-activations"}},
    {"activation function", {}, {"--recompute-activation-function"}},
    {"norm", {}, {"--recompute-norm"}},
    {"experts", {}, {"--moe-layer-recompute"}},
    {"swap attention", {}, {"--swap-attention"}},
    {"swap mlp", {}, {"--swap-attention", "--swap-modules", "self_attention,mlp"}},
    {"swap attention, mlps again", {}, {"--swap-attention", "--recompute-num-layers", "1"}},
    {"offloaded inputs", "activation_offload_modules: LAYERS\n"},
    {"smart swap", {}, {"--smart-swap", "--smart-swap-device-size", "128"}},
    {"adaptive", {}, {"--adaptive-recompute-device-swap", "--adaptive-recompute-device-size", "128"}},
    {"device memory", {}, {"--device-memory", "256"}},
    {"fragmentation", {}, {"--memory-fragmentation"}},
    {"chunked loss", {}, {"--loss-chunk-size", "5"}, Feature::kSums},
    {"chunked batch", "chunk_mbs_modules: LAYERS\nchunk_mbs: 1\n", {}, Feature::kSums},
    {"offload", "offload_to_cpu: true\n"},
    {"offload pinned", "offload_to_cpu: true\npin_memory: true\n", {"--overlap-cpu-optimizer-d2h-h2d"}},
    {"bf16 in fp32", "param_dtype: bf16\nreduce_dtype: fp32\n", {"--reuse-fp32-param"}, Feature::kJob},
    {"adamw_swap", {}, {"--optimizer", "adamw_swap", "--mem-fraction-static", "0.1"}},
    {"swap optimizer", {}, {"--swap-optimizer"}},
    {"resets", {}, {}, Feature::kJob, true}};

const Words kReasons = {
    "recompute_modules is given beside --",
    "--recompute-granularity full, and --recompute-activations asks for selective",
    "--recompute-method is uniform, which recomputes every layer, and --",
    "that is not recomputed whole has experts; remove it",
    "which is recomputed as a whole, so that nothing inside it is kept",
    "are both given, and both say what is swapped; remove one of them",
    "activation_offload_modules is given beside --smart-swap, and both say what is swapped; remove one of them",
    "are both given, and the first chooses what is recomputed and swapped; remove one of them",
    "is in host memory (offload_to_cpu), and its moments are there already",
    "are both given, and both lay out fp32 state; remove one",
    ".mlp' was requested twice; each module can be recomputed once",
    "--swap-optimizer moves the state of --optimizer adam, and --optimizer is adamw_swap",
    "InternVLForConditionalGeneration was called with targets, which it does not take; of named arguments it takes "
    "pixel_values, attention_mask; remove --loss-chunk-size",
    "InternVLForConditionalGeneration was called with position_ids, which it does not take; of named arguments it "
    "takes pixel_values, attention_mask; remove --reset-position-ids or --neat-pack"};

// --- A pair

using Chosen = std::vector<const Feature*>;

Words keys_of(const Feature& feature) {
  Words keys;
  std::istringstream lines(feature.yaml);
  for (std::string line; std::getline(lines, line);) keys.push_back(line.substr(0, line.find(':')));
  for (const std::string& word : feature.flags) {
    if (word.starts_with("--")) keys.push_back(word);
  }
  return keys;
}

Feature::Changes changes_of(const Feature& feature, const Family& family) {
  return family.drops && feature.name == "chunked batch" ? Feature::kJob : feature.changes;
}

// Two that give one key are no pair.
bool are_a_pair(const Feature& a, const Feature& b) {
  const Words of_a = keys_of(a), of_b = keys_of(b);
  return std::ranges::find_first_of(of_a, of_b) == of_a.end();
}

std::string name_of(const Chosen& chosen) {
  Words names;
  for (const Feature* feature : chosen) names.push_back(feature->name);
  return fmt::format("{}", fmt::join(names, " + "));
}

// --- A job

struct Ended {
  std::vector<double> figures = {};  // loss and gradient norm of each step
  std::int64_t host_bytes = 0;
  std::string refusal = {};  // then nothing else

  bool trained() const { return refusal.empty(); }
};

data::Batch batch_of(std::span<const std::int64_t> samples, bool images, bool resets) {
  const auto rows = static_cast<std::int64_t>(samples.size());
  const Tensor ids = Tensor::host({rows, kLength}, DType::kI32, "input_ids");
  const Tensor targets = Tensor::host({rows, kLength}, DType::kI32, "targets");
  const Tensor positions = Tensor::host({rows, kLength}, DType::kI32, "position_ids");
  nn::ValueList ends;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t sample = samples[static_cast<std::size_t>(row)], cut = 3 + sample % 7;
    for (std::int64_t i = 0; i < kLength; ++i) {
      const std::int64_t at = row * kLength + i;
      ids.data<std::int32_t>()[at] =
          images && i == 0 ? 250 : static_cast<std::int32_t>((17 * sample + 5 * i * i + 3) % 240);
      targets.data<std::int32_t>()[at] = static_cast<std::int32_t>((17 * sample + 5 * (i + 1) * (i + 1) + 3) % 240);
      positions.data<std::int32_t>()[at] = static_cast<std::int32_t>(i < cut ? i : i - cut);
    }
    ends.emplace_back(row * kLength + cut);
    ends.emplace_back((row + 1) * kLength);
  }
  data::Batch batch{{{"input_ids", ids}, {"targets", targets}}};
  if (resets) {
    batch.values.emplace_back("position_ids", positions);
    batch.values.emplace_back("actual_seq_len", std::move(ends));
  }
  if (images) {
    std::vector<float> pixels(static_cast<std::size_t>(rows * 3 * 8 * 8));
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(i % 13) / 13;
    batch.values.emplace_back("pixel_values", Tensor::from(pixels, {rows, 3, 8, 8}));
  }
  return batch;
}

// The batch's images go with its ids; without the flag of a chunked loss, which belongs to models of text.
data::ForwardResult step_with_images(data::DataIterator& data, nn::Module& model) {
  if (data.loss_chunk_size() > 0) return data::next_token_step(data, model);
  const data::Batch batch = data.next();
  if (!batch.find("position_ids").is_none()) return {data::call_with_ids(model, batch), {}};
  return {model(batch["input_ids"], batch["pixel_values"]), [targets = batch["targets"]](const nn::Value& logits) {
            return nn::functional::cross_entropy(logits, targets);
          }};
}

class Matrix : public ::testing::TestWithParam<Family> {
 protected:
  Matrix() {
    logger().set_level(spdlog::level::off);
    test::write_file(folder_ / "model.json", GetParam().config);
    test::write_file(folder_ / "model.yaml", GetParam().config);
    test::write_file(folder_ / "text.txt", std::string(4096, 'a'));
  }
  ~Matrix() override { logger().set_level(spdlog::level::info); }

  Ended run(const Chosen& chosen) {
    return job(chosen, [&](const Words& words) {
      const std::filesystem::path metrics = folder_ / fmt::format("{}.jsonl", ++runs_);
      const auto arguments = parsed<job::Job>(
          Words{"train", "--nproc-per-node", "2", "--compute-threads", "1", "--metrics-path", metrics.string()}, words);
      std::ostringstream out;
      pretrain(arguments, callbacks(arguments, chosen), out);
      Ended ended;
      std::istringstream lines(test::read_file(metrics));
      for (std::string line; std::getline(lines, line);) {
        const auto step = nlohmann::json::parse(line);
        for (const char* key : {"loss", "grad_norm"}) ended.figures.push_back(step.at(key).get<double>());
        ended.host_bytes = step.at("peak_host_memory_bytes");
      }
      EXPECT_EQ(ended.figures.size(), 4U) << name_of(chosen);
      return ended;
    });
  }

  Ended plan(const Chosen& chosen) {
    return job(chosen, [&](const Words& words) {
      // The default device has a long profile: reading it is a sixth of a plan.
      const auto arguments =
          parsed<PlanArguments>(Words{"plan", "--world-size", "2", "--device", "h100", "--json", "-"}, words);
      std::ostringstream out;
      EXPECT_EQ(run_plan(arguments, callbacks(arguments.train, chosen), out), 0) << out.str();
      return Ended{.host_bytes = nlohmann::json::parse(out.str()).at("memory").at("host_bytes")};
    });
  }

 private:
  template <class Arguments>
  Arguments parsed(const Words& command, const Words& words) const {
    std::vector<const char*> argv{"shardloom"};
    for (const Words* part : {&command, &words}) {
      for (const std::string& word : *part) argv.push_back(word.c_str());
    }
    const launch::Start context{.cores = 2, .processes = 0, .local_processes = 0};
    return std::get<Arguments>(parse_arguments(static_cast<int>(argv.size()), argv.data(), context));
  }

  train::PretrainCallbacks callbacks(const train::TrainSections& arguments, const Chosen& chosen) const {
    const bool resets = std::ranges::any_of(chosen, &Feature::resets);
    train::PretrainCallbacks calls = hub_callbacks(arguments);
    calls.train_valid_test_datasets_provider = [images = GetParam().images, resets](const train::TrainArguments&) {
      return data::DataLoaders{
          .train = [=](std::span<const std::int64_t> samples) { return batch_of(samples, images, resets); }};
    };
    if (GetParam().images) calls.forward_step = step_with_images;
    return calls;
  }

  // What `start` makes of the words that train these features, or how it refuses them.
  template <class Start>
  Ended job(const Chosen& chosen, const Start& start) {
    const Family& family = GetParam();
    const std::string layers = fmt::format("[\"{}\"]", fmt::join(family.layers, "\", \""));
    std::string yaml = "sharding_size: auto\nsub_modules_to_wrap: LAYERS\n";
    Words words{"--data-path",
                (folder_ / "text.txt").string(),
                "--model-config",
                (folder_ / (family.config.front() == '{' ? "model.json" : "model.yaml")).string(),
                "--use-torch-fsdp2",
                "--fsdp2-config-path",
                yaml_path().string(),
                "--seq-length",
                "16",
                "--micro-batch-size",
                "2",
                "--global-batch-size",
                "4",
                "--train-iters",
                "2",
                "--lr",
                "0.01",
                "--eval-iters",
                "0",
                "--distributed-timeout-minutes",
                "1"};
    for (const Feature* feature : chosen) {
      yaml += feature->yaml;
      words.insert(words.end(), feature->flags.begin(), feature->flags.end());
    }
    for (std::size_t at; (at = yaml.find("LAYERS")) != std::string::npos;) yaml.replace(at, 6, layers);
    test::write_file(yaml_path(), yaml);
    try {
      return start(words);
    } catch (const ConfigError& error) {
      return {.refusal = error.what()};
    } catch (const std::exception& error) {
      ADD_FAILURE() << name_of(chosen) << ": ended by an error that is no refusal: " << error.what();
      return {.refusal = error.what()};
    }
  }
  std::filesystem::path yaml_path() const { return folder_ / "fsdp2.yaml"; }

  const std::filesystem::path folder_ = test::fresh_folder();
  int runs_ = 0;
};

void expect_a_reason(const std::string& refusal, const std::string& pair) {
  const auto says = [&](const std::string& reason) { return refusal.find(reason) != std::string::npos; };
  EXPECT_TRUE(std::ranges::any_of(kReasons, says)) << pair << ": " << refusal;
}

void expect_figures(const Ended& ended, const Ended& reference, bool exact, const std::string& pair) {
  if (exact) {
    EXPECT_EQ(ended.figures, reference.figures) << pair;
    return;
  }
  const double tolerance = pair.find("bf16") == std::string::npos ? 2e-6 : 1.0 / 256;
  ASSERT_EQ(ended.figures.size(), reference.figures.size()) << pair;
  for (std::size_t i = 0; i < ended.figures.size(); ++i) {
    EXPECT_NEAR(ended.figures[i], reference.figures[i], tolerance * (i % 2 == 0 ? 1 : 5)) << pair << " figure " << i;
  }
}

TEST_P(Matrix, EveryPairTrainsAsWithoutOrIsRefused) {
  std::map<std::string, Ended> references;
  const auto reference = [&](const Chosen& chosen) -> const Ended& {
    const auto [at, is_new] = references.try_emplace(name_of(chosen));
    if (is_new) at->second = run(chosen);
    return at->second;
  };
  for (std::size_t a = 0; a < kFeatures.size(); ++a) {
    for (std::size_t b = a; b < kFeatures.size(); ++b) {
      if (a != b && !are_a_pair(kFeatures[a], kFeatures[b])) continue;
      Chosen pair{&kFeatures[a]}, job, alike;
      if (a != b) pair.push_back(&kFeatures[b]);
      for (const Feature* feature : pair) {
        const Feature::Changes changes = changes_of(*feature, GetParam());
        if (changes == Feature::kJob) job.push_back(feature);
        if (changes != Feature::kNothing) alike.push_back(feature);
      }
      const std::string name = name_of(pair);
      const Ended ended = run(pair), planned = plan(pair);
      EXPECT_EQ(ended.trained(), planned.trained())
          << name << "\nrun:  " << ended.refusal << "\nplan: " << planned.refusal;
      if (!ended.trained()) {
        expect_a_reason(ended.refusal, name);
        continue;
      }
      // Adaptive recompute chooses by the device's profile, of which a run and a plan have their own.
      if (name.find("adaptive") == std::string::npos) {
        EXPECT_EQ(ended.host_bytes, planned.host_bytes) << name;
      }
      const bool is_own_reference = alike.size() == pair.size();
      expect_figures(ended, reference(is_own_reference ? job : alike), !is_own_reference || job == pair, name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Matrix, ::testing::ValuesIn(kFamilies),
                         [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace loom::cli
