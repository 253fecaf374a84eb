// Trains a vision-language model to caption images. The images are drawn from a seed (captioned_shapes.h); the vision
// tower is frozen and, by fsdp2_config.yaml, left out of sharding.
//   pretrain_vlm --use-torch-fsdp2 --fsdp2-config-path examples/pretrain_vlm/fsdp2_config.yaml --nproc-per-node 2
//                --seq-length 35 --micro-batch-size 8 --lr 3e-3 --train-iters 300
#include "engine/cli/pretrain.h"
#include "engine/core/error.h"
#include "engine/data/byte_batches.h"
#include "engine/tensor/ops.h"
#include "examples/pretrain_vlm/captioned_shapes.h"
#include "models/internvl/internvl.h"

using namespace loom;
using train::TrainArguments;

namespace {

// Positions of a sequence.
std::int64_t positions(const models::InternVLConfig& model) {
  return model.image_tokens() + examples::kCaptionBytes - 1;
}

// A sequence: the image's tokens, then the caption's bytes. Each position learns the next byte; image tokens are not
// scored.
data::Batch batch_of(std::span<const std::int64_t> samples, std::uint64_t seed, const models::InternVLConfig& model) {
  const std::int64_t images = model.image_tokens();
  const std::int64_t seq = positions(model);
  const std::int64_t size = model.vision.image_size;
  const auto count = static_cast<std::int64_t>(samples.size());
  const Tensor input_ids = Tensor::host({count, seq}, DType::kI32, "input_ids");
  const Tensor targets = Tensor::host({count, seq}, DType::kI32, "targets");
  std::vector<float> pixels(static_cast<std::size_t>(count * 3 * size * size));
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t sample = samples[static_cast<std::size_t>(row)];
    const std::string caption = examples::caption_text(examples::caption_of_sample(seed, sample));
    for (std::int64_t i = 0; i < seq; ++i) {
      const auto byte_at = [&](std::int64_t position) {
        return static_cast<unsigned char>(caption[static_cast<std::size_t>(position - images)]);
      };
      input_ids.data<std::int32_t>()[row * seq + i] =
          i < images ? static_cast<std::int32_t>(model.image_token_id) : byte_at(i);
      targets.data<std::int32_t>()[row * seq + i] =
          i + 1 < images ? static_cast<std::int32_t>(ops::kIgnoreIndex) : byte_at(i + 1);
    }
    examples::draw(seed, sample, size,
                   std::span(pixels).subspan(static_cast<std::size_t>(row * 3 * size * size),
                                             static_cast<std::size_t>(3 * size * size)));
  }
  const Tensor pixel_values = Tensor::from(pixels, {count, 3, size, size});
  return {{{"input_ids", input_ids}, {"targets", targets}, {"pixel_values", pixel_values}}};
}

data::ForwardResult forward_step(data::DataIterator& data_iterator, nn::Module& model) {
  const data::Batch batch = data_iterator.next();
  const auto loss_func = [targets = batch["targets"]](const nn::Value& logits) {
    return ops::cross_entropy(logits, targets);
  };
  return {model(batch["input_ids"], batch["pixel_values"]), loss_func};
}

}  // namespace

int main(int argc, char** argv) {
  std::string config_path = "examples/pretrain_vlm/model.yaml";
  const auto extra_args_provider = [&](train::ExtraArguments& flags) {
    flags.text("--config", config_path, "Shape of the model: an InternVL folder, config.json or YAML");
    flags.example(
        "--use-torch-fsdp2 --fsdp2-config-path examples/pretrain_vlm/fsdp2_config.yaml --nproc-per-node 2 \\\n"
        "    --seq-length 35 --micro-batch-size 8 --lr 3e-3 --train-iters 300");
  };
  const auto train_valid_test_datasets_provider = [&](const TrainArguments& arguments) {
    const models::InternVLConfig config = models::load_internvl_config(config_path);
    data::refuse_samples(arguments, "images with captions");
    if (arguments.seq_length != positions(config)) {
      config_error("--seq-length is {}, but an image with its caption takes {}; use that", arguments.seq_length,
                   positions(config));
    }
    const auto loader = [config](std::uint64_t seed) {
      return [config, seed](std::span<const std::int64_t> samples) { return batch_of(samples, seed, config); };
    };
    return data::DataLoaders{.train = loader(arguments.seed),
                             .valid = loader(arguments.seed + 1),
                             .about = "images of squares with captions"};
  };
  const auto model_provider = [&](const TrainArguments&) -> std::shared_ptr<nn::Module> {
    auto model = models::build_internvl(models::load_internvl_config(config_path));
    model->freeze_tower("vision_tower");
    return model;
  };
  return cli::pretrain(argc, argv,
                       {train_valid_test_datasets_provider, model_provider, forward_step, extra_args_provider});
}
