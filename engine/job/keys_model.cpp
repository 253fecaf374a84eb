#include "engine/job/rows.h"

namespace loom::job {

void add_model_keys(std::vector<Key>& table) {
  add_under(
      "Model",
      {
          text<&Job::model, &Model::model_config>(
              "--model-config", "FILE",
              "Architecture of a model with fresh weights: a file, or a name in configs/models")
              .is_common()
              .not_in_users_programs()
              .by_content(),
          text<&Job::model, &Model::init_from_hf_path>("--init-from-hf-path", "DIR",
                                                       "Model to start from: config.json and safetensors")
              .is_common()
              .by_content(),
          toggle<&Job::model, &Model::untie_embeddings_and_output_weights>(
              "--untie-embeddings-and-output-weights",
              "Separate the output layer from the embedding it is tied to; both start with the same weights"),
          toggle<&Job::model, &Model::downcast_to_bf16>(
              "--downcast-to-bf16", "Round the loaded weights to bf16 once; they stay fp32. Needs --init-from-hf-path"),
          toggle<&Job::model, &Model::init_model_with_meta_device>(
              "--init-model-with-meta-device",
              "Accepted for MindSpeed's scripts; models are always built on the meta device"),
      },
      table);
  add_under(
      "Adapters and frozen modules",
      {
          texts<&Job::model, &Model::lora, &models::LoraFlags::target_modules>(
              "--lora-target-modules", "NAME",
              "Linear modules that get a LoRA adapter, the rest frozen: names, paths with {*}, a regex, all-linear, or Megatron's linear_qkv linear_proj linear_fc1 linear_fc2")
              .saved(),
          whole<&Job::model, &Model::lora, &models::LoraFlags::r>("--lora-r", 1, "Rank of the adapters (16)").saved(),
          real<&Job::model, &Model::lora, &models::LoraFlags::alpha>("--lora-alpha", kAboveZero,
                                                                     "Scale of the adapters: alpha / r (32)")
              .saved(),
          real<&Job::model, &Model::lora, &models::LoraFlags::dropout>("--lora-dropout", kBelowOne,
                                                                       "Dropout of the adapters' input (0)")
              .saved(),
          toggle<&Job::model, &Model::lora, &models::LoraFlags::use_rslora>("--use-rslora",
                                                                            "Scale the adapters by alpha / sqrt(r)")
              .saved(),
          texts<&Job::model, &Model::lora, &models::LoraFlags::modules_to_save>(
              "--lora-modules-to-save", "NAME", "Modules that are trained in full and saved with the adapters")
              .saved(),
          text<&Job::model, &Model::lora, &models::LoraFlags::load>(
              "--lora-load", "DIR",
              "Adapters to start from, as peft saves them; rank, alpha and targets come from the folder")
              .by_content(),
          texts<&Job::model, &Model::freeze>("--freeze", "PATTERN",
                                             "Modules that are not trained, as in sub_modules_to_wrap of the file")
              .saved(),
      },
      table);
}

}  // namespace loom::job
