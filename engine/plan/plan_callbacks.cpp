#include "engine/plan/plan_callbacks.h"

#include "engine/data/byte_batches.h"
#include "models/hub/model_hub.h"

namespace loom::plan {
namespace {

data::Batch token_batch(const train::TrainArguments& arguments) {
  const Shape shape{arguments.micro_batch_size, arguments.seq_length};
  const Tensor ids = Tensor::empty(shape, DType::kI32, device::MemCategory::kActivation, "input_ids");
  const Tensor targets = Tensor::empty(shape, DType::kI32, device::MemCategory::kActivation, "targets");
  return {{{"input_ids", ids}, {"targets", targets}}};
}

}  // namespace

train::PretrainCallbacks plan_callbacks(const train::TrainArguments& arguments) {
  const std::filesystem::path config =
      arguments.init_from_hf_path ? *arguments.init_from_hf_path : *arguments.model_config;
  train::PretrainCallbacks callbacks;
  callbacks.train_valid_test_datasets_provider = [](const train::TrainArguments& asked) {
    return data::DataLoaders{.train = [&asked](std::span<const std::int64_t>) { return token_batch(asked); }};
  };
  callbacks.model_provider = [config](const train::TrainArguments&) {
    return models::ModelHub::global().build(config);
  };
  callbacks.forward_step = data::next_token_step;
  return callbacks;
}

}  // namespace loom::plan
