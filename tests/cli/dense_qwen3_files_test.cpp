// Promise: MindSpeed-LLM's published files for dense Qwen3 are planned at their own size and train five steps on a
//          shrunken config.json, unchanged but for the overrides of their scripts and the data of `preprocess`.
// World:   the built program; the files' keys, the shapes of the published models, two ranks.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const std::string kTokenizer = LOOM_SOURCE_DIR "/tests/reference/sft/tokenizers/qwen2/";

struct DenseQwen3 {
  std::string name;
  int hidden_size, intermediate_size, layers, heads, groups;
  bool tied;
  int fsdp_size;
  std::int64_t parameters;
};

// Shapes of the published configurations; head_dim is 128 and the vocabulary 151936 in all.
const DenseQwen3 kFiles[] = {
    {"0.6b", 1024, 3072, 28, 16, 8, true, 8, 596049920},    {"1.7b", 2048, 6144, 28, 16, 8, true, 8, 1720574976},
    {"4b", 2560, 9728, 36, 32, 8, true, 8, 4022468096},     {"8b", 4096, 12288, 36, 32, 8, false, 8, 8190735360},
    {"14b", 5120, 17408, 40, 40, 8, false, 8, 14768307200}, {"32b", 5120, 25600, 64, 64, 8, false, 16, 32762123264}};

std::string configuration(const DenseQwen3& model, int head_dim, int vocabulary) {
  return nlohmann::json({{"model_type", "qwen3"},
                         {"architectures", {"Qwen3ForCausalLM"}},
                         {"vocab_size", vocabulary},
                         {"hidden_size", model.hidden_size},
                         {"intermediate_size", model.intermediate_size},
                         {"num_hidden_layers", model.layers},
                         {"num_attention_heads", model.heads},
                         {"num_key_value_heads", model.groups},
                         {"head_dim", head_dim},
                         {"max_position_embeddings", 40960},
                         {"rms_norm_eps", 1e-6},
                         {"rope_theta", 1e6},
                         {"tie_word_embeddings", model.tied}})
      .dump();
}

// `from_scratch`: the scripts' checkpoints are not here.
std::string file_of(const DenseQwen3& model, const std::string& folder) {
  return "model:\n  model_id: qwen3\n  model_name_or_path: " + folder +
         "\n  trust_remote_code: false\n  train_from_scratch: true\n"
         "data:\n  dataset: {\"file_name\": \"alpaca.parquet\"}\n  template: qwen3\n  cutoff_len: 4096\n  packing: true\n"
         "  overwrite_cache: true\n  preprocessing_num_workers: 16\nparallel:\n  fsdp_size: " +
         std::to_string(model.fsdp_size) +
         "\n  tp_size: 1\n  ep_size: 1\n  cp_size: 1\n  fsdp_modules:\n"
         "    - model.layers.{*}\n    - model.embed_tokens\n    - lm_head\n  num_to_forward_prefetch: 1\n  num_to_backward_prefetch: 1\n  recompute: true\n  recompute_modules:\n"
         "    - model.layers.{*}\ntraining:\n  output_dir: ./out\n  per_device_train_batch_size: 1\n"
         "  gradient_accumulation_steps: 2\n  max_steps: 2000\n  lr: 1.25e-6\n  weight_decay: 1e-1\n  stage: sft\n"
         "  optimizer: adamw\n  logging_steps: 1\n  lr_scheduler_type: cosine\n  warmup_ratio: 0.01\n"
         "optimization:\n  use_fused_rmsnorm: true\n  use_fused_rotary_pos_emb: true\n  use_flash_attn: true\n";
}

// Embedding and output layer are groups of their own in the files; in a tied model they are one parameter.
Outcome run(const ProgramFolder& folder, const DenseQwen3& model, const Words& words) {
  if (!model.tied) return folder.run(words);
  const Outcome tied = folder.run(words);
  EXPECT_EQ(tied.exit_code, 2) << model.name;
  EXPECT_THAT(tied.err, HasSubstr("are one parameter; a tie must stay inside one group"));
  return folder.run(words + Words{"--untie-embeddings-and-output-weights"});
}

TEST(DenseQwen3Files, PlanAtTheirOwnSize) {
  const ProgramFolder folder;
  for (const DenseQwen3& model : kFiles) {
    folder.write(model.name + "/config.json", configuration(model, 128, 151936));
    folder.write("file.yaml", file_of(model, model.name));
    const Outcome outcome =
        run(folder, model,
            {"plan", "file.yaml", "--world-size", std::to_string(model.fsdp_size), "--device", "h200", "--json", "-"});
    ASSERT_EQ(outcome.exit_code, 0) << model.name << outcome.err;
    const auto plan = nlohmann::json::parse(outcome.out);
    const std::int64_t output_layer = model.tied ? std::int64_t{151936} * model.hidden_size : 0;
    EXPECT_EQ(plan.at("parameters"), model.parameters + output_layer) << model.name;
    EXPECT_EQ(plan.at("seq_length"), 4096) << model.name;
    EXPECT_EQ(plan.at("micro_batches"), 2) << model.name;
  }
}

TEST(DenseQwen3Files, TrainFiveStepsOnAShrunkenModel) {
  const ProgramFolder folder;
  const Outcome made =
      folder.run({"preprocess", "--tokenizer-name-or-path", kTokenizer, "--input",
                  LOOM_SOURCE_DIR "/tests/reference/sft/inputs/alpaca.jsonl", "--handler-name",
                  "AlpacaStyleInstructionHandler", "--prompt-type", "qwen", "--output-prefix", "alpaca"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (DenseQwen3 model : kFiles) {
    model.hidden_size = 16, model.intermediate_size = 24, model.layers = 2;
    model.heads = 2, model.groups = 1;
    model.fsdp_size = 2;
    folder.write(model.name + "/config.json", configuration(model, 8, 2048));
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy_file(kTokenizer + file, folder.path(model.name + "/" + file));
    }
    folder.write("file.yaml", file_of(model, model.name));
    const Outcome outcome = run(folder, model,
                                {"train", "file.yaml", "--training.max_steps", "5", "--data.cutoff_len", "256",
                                 "--data-path", "alpaca", "--nproc-per-node", "2", "--metrics-path", "m.jsonl"});
    ASSERT_EQ(outcome.exit_code, 0) << model.name << outcome.err;
    EXPECT_EQ(folder.metrics("m.jsonl").size(), 5U) << model.name;
    for (const char* name : {"out", "m.jsonl"}) std::filesystem::remove_all(folder.path(name));
  }
}

}  // namespace
}  // namespace loom::test
