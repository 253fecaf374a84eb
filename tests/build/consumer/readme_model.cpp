#include <shardloom/shardloom.h>

using namespace loom;

struct ByteModel final : nn::Module, models::FSDP2Mixin {
  nn::Child<nn::Embedding> tokens{register_module("tokens", std::make_shared<nn::Embedding>(256, 64, 0.02))};
  nn::Child<nn::Linear> up{register_module("up", std::make_shared<nn::Linear>(64, 256, true, 0.02))};
  nn::Child<nn::Linear> down{register_module("down", std::make_shared<nn::Linear>(256, 64, true, 0.02))};
  nn::Child<nn::Linear> head{register_module("head", std::make_shared<nn::Linear>(64, 256, false, 0.02))};

  std::string_view type_name() const override { return "ByteModel"; }
  nn::Value forward(const nn::Args& args) override {
    const Tensor x = tokens(args.tensor(0));  // [batch, sequence] to [batch, sequence, 64]
    return head(x + down(ops::gelu(up(x), ops::Gelu::kTanh)));
  }
};

int main(int argc, char** argv) {
  const auto model = [](const train::TrainArguments&) { return std::make_shared<ByteModel>(); };
  return cli::pretrain(argc, argv, {data::byte_data_loaders, model, data::next_token_step});
}
