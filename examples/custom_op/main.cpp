// Trains a model that calls an operator of a library, on the bytes of files; docs/custom-operators.md explains it.
//   pretrain_custom_op --custom-op-library scaled_gelu.so --data-path FILES
//   pretrain_custom_op plan --custom-op-library scaled_gelu.so --data-path FILES --device ascend-910b
#include "engine/cli/pretrain.h"
#include "engine/custom_op/custom_op.h"
#include "engine/data/byte_batches.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"

using namespace loom;

// The next byte from the last one: embedding, one hidden layer with the operator, head.
class ByteModel final : public nn::Module {
 public:
  explicit ByteModel(double scale)
      : scale_(scale),
        tokens_(register_module("tokens", std::make_shared<nn::Embedding>(kBytes, kHidden, 0.02))),
        up_(register_module("up", std::make_shared<nn::Linear>(kHidden, 4 * kHidden, true, 0.02))),
        head_(register_module("head", std::make_shared<nn::Linear>(4 * kHidden, kBytes, false, 0.02))) {}
  std::string_view type_name() const override { return "ByteModel"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    return head_(custom::custom_op("scaled_gelu", {up_(tokens_(args.tensor(0)))}, {scale_}).front());
  }

 private:
  static constexpr std::int64_t kBytes = 256, kHidden = 64;
  const double scale_;
  nn::Child<nn::Embedding> tokens_;
  nn::Child<nn::Linear> up_, head_;
};

int main(int argc, char** argv) {
  double scale = 1.7;
  const auto model_provider = [&](const train::TrainArguments&) { return std::make_shared<ByteModel>(scale); };
  const auto forward_step = [](data::DataIterator& data_iterator, nn::Module& model) -> data::ForwardResult {
    const data::Batch batch = data_iterator.next();
    const auto loss_func = [targets = batch["targets"]](const nn::Value& y) { return ops::cross_entropy(y, targets); };
    return {model(batch["input_ids"]), loss_func};
  };
  const auto extra_args_provider = [&](train::ExtraArguments& flags) {
    flags.real("--gelu-scale", scale, "Factor of scaled_gelu");
  };
  return cli::pretrain(argc, argv, {data::byte_data_loaders, model_provider, forward_step, extra_args_provider});
}
