#include "engine/job/rows.h"

namespace loom::job {

namespace {
using E = models::ExpertOptions;
}

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
          text<&Job::model, &Model::model_graph>(
              "--model-graph", "FILE", "A PyTorch model that tools/record_model.py recorded, in place of the file's")
              .not_in_train()
              .not_in_users_programs(),
          text<&Job::model, &Model::model_weights>(
              "--model-weights", "DIR",
              "Plan static memory and communication of safetensors files alone; activations are unknown")
              .not_in_train()
              .not_in_users_programs()
              .by_content(),
          text<&Job::model, &Model::mm_model>(
              "--mm-model", "FILE",
              "MindSpeed-MM's model.json: a model with fresh weights, or what --init-from-hf-path must have")
              .by_content()
              .not_in_users_programs(),
          toggle<&Job::model, &Model::untie_embeddings_and_output_weights>(
              "--untie-embeddings-and-output-weights",
              "Separate the output layer from the embedding it is tied to; both start with the same weights"),
          choice<&Job::model, &Model::params_dtype>(
              "--params-dtype",
              "Dtype in which parameters, gradients and optimizer state are stored; LoRA's adapters are fp32 in any case")
              .saved(),
          toggle<&Job::model, &Model::downcast_to_bf16>(
              "--downcast-to-bf16", "Round the loaded weights to bf16 once; they stay fp32. Needs --init-from-hf-path"),
          toggle<&Job::model, &Model::init_model_with_meta_device>(
              "--init-model-with-meta-device",
              "Accepted for MindSpeed's scripts; models are always built on the meta device"),
      },
      table);
  add_under(
      "Experts",
      {
          choice<&Job::model, &Model::experts, &E::load_balancing>(
              "--moe-router-load-balancing-type",
              "Load-balancing loss of the routers: over the tokens of a micro-batch, or of each sequence")
              .saved(),
          real<&Job::model, &Model::experts, &E::aux_loss_coeff>("--moe-aux-loss-coeff", kFromZero,
                                                                 "Coefficient of that loss; 0: none")
              .saved(),
          real<&Job::model, &Model::experts, &E::z_loss_coeff>(
              "--moe-z-loss-coeff", kFromZero, "Coefficient of the routers' z-loss, which keeps their logits small")
              .saved(),
          real<&Job::model, &Model::experts, &E::capacity_factor>(
              "--moe-expert-capacity-factor", kFromZero,
              "An expert takes at most tokens * k / experts * X of a rank's micro-batch; the others are dropped. 0: no limit")
              .saved(),
          toggle<&Job::model, &Model::experts, &E::pad_expert_input_to_capacity>(
              "--moe-pad-expert-input-to-capacity", "Every expert computes as many rows as its capacity")
              .saved(),
          choice<&Job::model, &Model::experts, &E::drop_policy>(
              "--moe-token-drop-policy", "Tokens that an expert keeps: those of largest weight, or the first")
              .saved(),
          toggle<&Job::model, &Model::experts, &E::enable_expert_bias>(
              "--moe-router-enable-expert-bias",
              "After each step, correct the choices of a router with sigmoid scores towards equal loads")
              .saved(),
          real<&Job::model, &Model::experts, &E::bias_update_rate>("--moe-router-bias-update-rate", kFromZero,
                                                                   "Size of that correction")
              .saved(),
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
