#include "tests/journeys/families.h"

namespace loom::test {
namespace {

const std::string kSource = LOOM_SOURCE_DIR;

const std::string kDims =
    "vocab_size: 2048\nhidden_size: 16\nnum_hidden_layers: 2\nnum_attention_heads: 2\nnum_key_value_heads: 1\n"
    "intermediate_size: 24\nmax_position_embeddings: 256\nrms_norm_eps: 1.0e-6\n";
const std::string kWhole = "sharding_size: auto\nsub_modules_to_wrap:\n";
const std::string kLayers = kWhole + "  - \"model.embed_tokens\"\n  - \"model.layers.{*}\"\n";
// Of an output layer tied to the embedding: both belong to the root's group.
const std::string kTiedLayers = kWhole + "  - \"model.layers.{*}\"\n";

// A decoder that learns the texts of the tokenizer tests, by the shardloom program.
Family decoder(const std::string& name, const std::string& model, const std::string& sharding) {
  return {
      .name = name,
      .program = SHARDLOOM_PROGRAM,
      .command = {"train"},
      .shape = {"--model-config", "model.yaml"},
      .weights = {"--init-from-hf-path"},
      .data = {"--tokenizer-name-or-path", kSource + "/tests/reference/sft/tokenizers/qwen2", "--data-path",
               "texts_text_document", "--split", "80,20,0", "--seq-length", "32", "--fsdp2-config-path", "fsdp2.yaml"},
      .lora_targets = {"all-linear"},
      .files = {{"model.yaml", model}, {"fsdp2.yaml", sharding}},
      .refused = {}};
}

Family rotary(const std::string& name, const std::string& model, bool tied) {
  return decoder(name, model + kDims + fmt::format("tie_word_embeddings: {}\n", tied), tied ? kTiedLayers : kLayers);
}

// With a shared expert and a layer without experts.
Family qwen2_moe() {
  Family family = rotary("qwen2_moe",
                         "model_type: qwen2_moe\nnum_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 12\n"
                         "shared_expert_intermediate_size: 16\nmlp_only_layers: [1]\n",
                         false);
  family.refused = {{"to mcore and back", "qwen2_moe"}};
  return family;
}

// With latent attention, groups of experts, a shared expert and a first layer without experts.
Family deepseek_v3() {
  Family family = decoder(
      "deepseek_v3",
      "model_type: deepseek_v3\nvocab_size: 2048\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
      "num_attention_heads: 2\nq_lora_rank: 12\nkv_lora_rank: 8\nqk_nope_head_dim: 8\nqk_rope_head_dim: 4\n"
      "v_head_dim: 8\nmax_position_embeddings: 256\nrms_norm_eps: 1.0e-6\nn_routed_experts: 4\n"
      "n_shared_experts: 1\nnum_experts_per_tok: 2\nmoe_intermediate_size: 12\nn_group: 2\ntopk_group: 1\n"
      "routed_scaling_factor: 2.5\nfirst_k_dense_replace: 1\ntie_word_embeddings: false\n",
      kLayers);
  family.refused = {{"to mcore and back", "deepseek_v3"}};
  return family;
}

Family gpt2() {
  Family family = decoder("gpt2",
                          "model_type: gpt2\nvocab_size: 2048\nn_embd: 16\nn_layer: 2\nn_head: 2\nn_positions: 256\n"
                          "tie_word_embeddings: true\nresid_pdrop: 0.0\nembd_pdrop: 0.0\nattn_pdrop: 0.0\n",
                          kWhole + "  - \"transformer.h.{*}\"\n");
  family.refused = {{"to mcore and back", "gpt2"}};
  return family;
}

Family internvl() {
  const std::string example = kSource + "/examples/pretrain_vlm/";
  return {
      .name = "internvl",
      .program = SHARDLOOM_VLM_PROGRAM,
      .command = {},
      .shape = {"--config", example + "model.yaml"},
      .weights = {"--config", example + "model.yaml", "--init-from-hf-path"},
      .data = {"--seq-length", "35", "--fsdp2-config-path", example + "fsdp2_config.yaml"},
      .lora_targets = {"q_proj", "v_proj"},
      .texts = false,
      .files = {},
      .merged_tolerance = 2e-3,
      .refused = {
          {"to mcore and back", "internvl"},
          {"sft",
           "--stage and --is-instruction-dataset are for samples for fine-tuning, and this program trains on images with captions"},
          {"dpo", "--stage and --is-instruction-dataset are for samples for fine-tuning"}}};
}

// Pictures of one colour each, and data.json about them, in the journey's folder.
std::map<std::string, std::string> conversations() {
  std::map<std::string, std::string> files;
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (int i = 0; i < 16; ++i) {
    const std::string name = fmt::format("pictures/{}.ppm", i);
    std::string& picture = files[name] = "P6\n56 56\n255\n";
    for (int pixel = 0; pixel < 56 * 56; ++pixel) {
      for (int channel = 0; channel < 3; ++channel) picture += static_cast<char>((i >> channel & 1) == 1 ? 120 : 10);
    }
    const auto turn = [](const char* role, const std::string& content) {
      return nlohmann::ordered_json{{"role", role}, {"content", content}};
    };
    nlohmann::ordered_json sample;
    sample["images"] = nlohmann::ordered_json::array({name});
    sample["messages"] = nlohmann::ordered_json::array(
        {turn("user", "<image>What is it?"), turn("assistant", fmt::format("colour {:02}", i))});
    samples.push_back(sample);
  }
  files["conversations.json"] = samples.dump();
  files["data.json"] = fmt::format(
      R"({{"dataset_param": {{"dataset_type": "huggingface",
  "basic_parameters": {{"template": "qwen2vl", "dataset_dir": ".", "dataset": "conversations.json", "val_rate": 0.25}},
  "preprocess_parameters": {{"model_name_or_path": "{}", "image_max_pixels": 12544, "image_min_pixels": 0}},
  "attr": {{"images": "images", "messages": "messages", "role_tag": "role", "content_tag": "content",
    "user_tag": "user", "assistant_tag": "assistant"}}}},
 "dataloader_param": {{"dataloader_mode": "sampler", "sampler_type": "BaseRandomBatchSampler", "shuffle": true,
  "drop_last": true, "collate_param": {{"model_name": "qwen2vl"}}}}}})",
      kSource + "/examples/qwen_vl_shapes/model");
  return files;
}

Family qwen2_vl() {
  const std::string example = kSource + "/examples/qwen_vl_shapes/";
  Family family{.name = "qwen2_vl",
                .program = SHARDLOOM_PROGRAM,
                .command = {"train"},
                .shape = {"--model-config", example + "model/config.json"},
                .weights = {"--init-from-hf-path"},
                .data = {"--mm-data", "data.json", "--fsdp2-config-path", example + "fsdp2_config.yaml"},
                .lora_targets = {"q_proj", "v_proj"},
                .texts = false,
                .files = conversations(),
                .refused = {{"to mcore and back", "qwen2_vl"},
                            {"sft", "--stage is not for --mm-data, whose file describes the data"},
                            {"dpo", "--stage is not for --mm-data, whose file describes the data"}}};
  return family;
}

// A user's own architecture in a user's own program (docs/your-own-model.md).
Family own_program() {
  const std::string example = kSource + "/examples/pretrain_custom_model/";
  return {
      .name = "own_program",
      .program = SHARDLOOM_OWN_PROGRAM,
      .command = {},
      .shape = {"--config", example + "model.yaml"},
      .weights = {"--config", example + "model.yaml", "--init-from-hf-path"},
      .data = {"--data-path", kSource + "/README.md", "--seq-length", "32", "--fsdp2-config-path",
               example + "fsdp2_config.yaml"},
      .lora_targets = {"q_kv", "o"},
      .texts = false,
      .files = {},
      .refused = {
          {"generate", "model_type is missing"},
          {"to mcore and back", "model_type is missing"},
          {"sft",
           "--stage and --is-instruction-dataset are for samples for fine-tuning, and this program trains on the bytes of files"},
          {"dpo", "--stage and --is-instruction-dataset are for samples for fine-tuning"}}};
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      rotary("qwen2", "model_type: qwen2\n", false),
      rotary("qwen2_tied", "model_type: qwen2\n", true),
      rotary("llama", "model_type: llama\n", false),
      rotary("qwen3", "model_type: qwen3\nhead_dim: 8\n", false),
      rotary("qwen3_moe",
             "model_type: qwen3_moe\nhead_dim: 8\nnum_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 12\n"
             "norm_topk_prob: true\ndecoder_sparse_step: 1\nmlp_only_layers: []\n",
             false),
      rotary("mixtral", "model_type: mixtral\nnum_local_experts: 4\nnum_experts_per_tok: 2\n", false),
      qwen2_moe(),
      deepseek_v3(),
      rotary("llama3_rope",
             "model_type: llama\nrope_scaling: {rope_type: llama3, factor: 8.0, low_freq_factor: 1.0, "
             "high_freq_factor: 4.0, original_max_position_embeddings: 16}\n",
             false),
      gpt2(),
      internvl(),
#ifdef SHARDLOOM_IMAGES
      qwen2_vl(),
#endif
      own_program(),
  };
  return all;
}

}  // namespace loom::test
