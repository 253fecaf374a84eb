// A training program as the migration guide has it: the model with its three bases, data with two inputs, its own loss.
#include <shardloom/shardloom.h>

using namespace loom;

namespace {

constexpr std::int64_t kVocab = 16, kWidth = 8, kSequence = 6, kPixels = 12;

class ColourVlm final : public models::MultiModalModule, public models::FSDP2Mixin, public models::WeightInitMixin {
 public:
  ColourVlm()
      : MultiModalModule("ColourVlm"),
        eye_(register_module("eye", std::make_shared<nn::Linear>(kPixels, kSequence * kWidth, false, 0.02))),
        tokens_(register_module("tokens", std::make_shared<nn::Embedding>(kVocab, kWidth, 0.02))),
        head_(register_module("head", std::make_shared<nn::Linear>(kWidth, kVocab, false, 0.02))) {
    register_tower({"vision_tower", {"eye"}});
  }
  std::string config_json() const override { return R"({"model_type": "colour_vlm"})"; }

 protected:
  void _fully_shard(const sharding::FullyShardOptions& fsdp2_kwargs, const sharding::Fsdp2Config&) override {
    models::set_fullyshard_modules_to_wrap(*this, {"eye", "tokens"}, fsdp2_kwargs);
  }
  nn::Value forward_multimodal(const Tensor& input_ids, const Tensor* pixel_values) override {
    const Tensor words = tokens_(input_ids);
    if (pixel_values == nullptr) return head_(words);
    const Tensor image = ops::reshape(eye_(*pixel_values), words.shape());
    return head_(words + image);
  }

 private:
  nn::Child<nn::Linear> eye_;
  nn::Child<nn::Embedding> tokens_;
  nn::Child<nn::Linear> head_;
};

data::Batch batch_of(std::span<const std::int64_t> samples) {
  const auto rows = static_cast<std::int64_t>(samples.size());
  const Tensor ids = Tensor::host({rows, kSequence}, DType::kI32, "input_ids");
  const Tensor targets = Tensor::host({rows, kSequence}, DType::kI32, "targets");
  const Tensor pixels = Tensor::host({rows, kPixels}, DType::kF32, "pixel_values");
  for (std::int64_t i = 0; i < rows * kSequence; ++i) {
    const auto colour = static_cast<std::int32_t>(samples[static_cast<std::size_t>(i / kSequence)] % kVocab);
    ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % kVocab);
    targets.data<std::int32_t>()[i] = colour;
  }
  for (std::int64_t i = 0; i < rows * kPixels; ++i) {
    pixels.data<float>()[i] =
        static_cast<float>(samples[static_cast<std::size_t>(i / kPixels)] % kVocab == i % kPixels);
  }
  return {{{"input_ids", ids}, {"pixel_values", pixels}, {"targets", targets}}};
}

}  // namespace

int main(int argc, char** argv) {
  const auto datasets = [](const train::TrainArguments&) {
    return data::DataLoaders{.train = batch_of, .about = "colours"};
  };
  const auto model = [](const train::TrainArguments&) { return std::make_shared<ColourVlm>(); };
  const auto forward_step = [](data::DataIterator& data_iterator, nn::Module& vlm) -> data::ForwardResult {
    const data::Batch batch = data_iterator.next();
    const auto loss_func = [targets = batch["targets"]](const nn::Value& logits) {
      return data::Loss(ops::cross_entropy(logits, targets), {{"images", 1.0}});
    };
    return {vlm(batch["input_ids"], batch["pixel_values"]), loss_func};
  };
  return cli::pretrain(argc, argv, {datasets, model, forward_step});
}
