// Trains the model of a Hugging Face folder on the bytes of files:
//   pretrain_transformers --init-from-hf-path DIR --data-path FILES...   from the folder's weights
//   pretrain_transformers --config DIR --data-path FILES...              from fresh weights, by its config.json alone
#include "engine/cli/pretrain.h"
#include "engine/core/error.h"
#include "engine/data/byte_batches.h"
#include "engine/tensor/ops.h"
#include "models/hf/folder_files.h"
#include "models/hf/transformers_model.h"

using namespace loom;
using train::TrainArguments;

int main(int argc, char** argv) {
  std::string config;
  const auto extra_args_provider = [&](train::ExtraArguments& flags) {
    flags.text("--config", config, "Folder or file of a config.json; fresh weights");
    flags.example(
        "--init-from-hf-path DIR --data-path FILES --nproc-per-node 2 \\\n"
        "    --use-torch-fsdp2 --fsdp2-config-path examples/pretrain_transformers/fsdp2_config.yaml");
  };

  const auto model_provider = [&](const TrainArguments& arguments) -> std::shared_ptr<nn::Module> {
    if (config.empty() != arguments.init_from_hf_path.has_value()) {
      config_error("give one of --init-from-hf-path DIR (its weights) and --config DIR (fresh ones)");
    }
    // Weights are read by the loop: each rank its own rows.
    const models::TransformersOptions without_weights{.init_model_with_meta_device = true};
    return std::make_shared<models::TransformersModel>(arguments.init_from_hf_path.value_or(config), without_weights);
  };

  const auto datasets_provider = [&](const TrainArguments& arguments) {
    const std::filesystem::path folder = arguments.init_from_hf_path.value_or(config);
    models::refuse_unread_tokenizer(folder, arguments.bytes_as_tokens, "the data");
    return data::byte_data_loaders(arguments);
  };

  const auto forward_step = [](data::DataIterator& data_iterator, nn::Module& model) -> data::ForwardResult {
    const data::Batch batch = data_iterator.next();
    const auto loss_func = [targets = batch["targets"]](const nn::Value& logits) {
      return ops::cross_entropy(logits, targets);
    };
    return {model(batch["input_ids"]), loss_func};
  };

  return cli::pretrain(argc, argv, {datasets_provider, model_provider, forward_step, extra_args_provider});
}
