// Trains an architecture of its own on the bytes of files; docs/your-own-model.md explains it.
//   pretrain_custom_model --data-path FILES --use-torch-fsdp2 --nproc-per-node 2
//                         --fsdp2-config-path examples/pretrain_custom_model/fsdp2_config.yaml
#include <cmath>
#include <numeric>

#include "engine/cli/pretrain.h"
#include "engine/data/byte_batches.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "models/hf/transformers_model.h"
#include "sharding/fully_shard.h"

using namespace loom;

// x + attention(norm(x)) + mlp(norm(x)): both at once, behind one norm. Queries of H heads share one key and value.
class ParallelBlock final : public nn::Module {
 public:
  ParallelBlock(std::int64_t hidden, std::int64_t heads)
      : heads_(heads),
        norm_(register_module("norm", std::make_shared<nn::RMSNorm>(hidden, 1e-6))),
        q_kv_(register_module("q_kv", std::make_shared<nn::Linear>(hidden, hidden + 2 * hidden / heads, false, 0.02))),
        o_(register_module("o", std::make_shared<nn::Linear>(hidden, hidden, false, 0.02))),
        up_(register_module("up", std::make_shared<nn::Linear>(hidden, 4 * hidden, true, 0.02))),
        down_(register_module("down", std::make_shared<nn::Linear>(4 * hidden, hidden, true, 0.02))) {}
  std::string_view type_name() const override { return "ParallelBlock"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor& x = args.tensor(0);  // [batch, sequence, hidden]
    const Tensor normed = norm_(x);
    const Tensor mlp = down_(ops::gelu(up_(normed), ops::Gelu::kTanh));
    return ops::add(ops::add(x, attend(normed)), mlp);
  }

 private:
  Tensor attend(const Tensor& x) {
    const std::int64_t batch = x.shape()[0], sequence = x.shape()[1], hidden = x.shape()[2], dim = hidden / heads_;
    const std::vector<Tensor> q_k_v = ops::split_last(q_kv_(x), {hidden, dim, dim});
    const auto split = [&](int i, std::int64_t n) { return ops::reshape(q_k_v[i], {batch, sequence, n, dim}); };
    const Tensor y = ops::attention(split(0, heads_), split(1, 1), split(2, 1), 1 / std::sqrt(dim));
    return o_(ops::reshape(y, x.shape()));
  }

  const std::int64_t heads_;
  nn::Child<nn::RMSNorm> norm_;
  nn::Child<nn::Linear> q_kv_, o_, up_, down_;
};

class ParallelDecoder final : public nn::Module, public models::FSDP2Mixin {
 public:
  explicit ParallelDecoder(const models::ConfigReader& config)
      : hidden_(config.count("hidden_size")),
        tokens_(register_module("tokens", std::make_shared<nn::Embedding>(config.count("vocab_size"), hidden_, 0.02))),
        positions_(register_module("positions",
                                   std::make_shared<nn::Embedding>(config.count("max_positions"), hidden_, 0.02))),
        blocks_(register_module("blocks", std::make_shared<nn::ModuleList>())),
        norm_(register_module("norm", std::make_shared<nn::RMSNorm>(hidden_, 1e-6))),
        head_(register_module("head", std::make_shared<nn::Linear>(hidden_, config.count("vocab_size"), false, 0.02))) {
    const std::int64_t heads = config.count("num_heads");
    if (hidden_ % heads != 0) config.reject("hidden_size", "it must be a multiple of num_heads ({})", heads);
    for (std::int64_t i = 0; i < config.count("num_blocks"); ++i) {
      blocks_.append(std::make_shared<ParallelBlock>(hidden_, heads));
    }
  }
  std::string_view type_name() const override { return "ParallelDecoder"; }

  void freeze(const models::ConfigReader& config) override {
    if (config.flag("freeze_positions", false)) models::freeze_modules(*this, {"positions"});
  }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor& input_ids = args.tensor(0);  // [batch, sequence]
    const Tensor places = Tensor::host({input_ids.shape()[1]}, DType::kI32, "places");
    std::iota(places.data<std::int32_t>(), places.data<std::int32_t>() + places.numel(), 0);
    Tensor hidden = ops::add(tokens_(input_ids), positions_(places));
    for (std::size_t i = 0; i < blocks_.size(); ++i) hidden = blocks_[i](hidden);
    return head_(norm_(hidden));
  }

  void _fully_shard(const sharding::FullyShardOptions& fsdp2_kwargs, const sharding::Fsdp2Config& config) override {
    models::set_recompute_modules_to_wrap(*this, {"blocks.{*}"}, config.use_reentrant, config.recompute_keep);
    sharding::FullyShardOptions kept = fsdp2_kwargs;  // backward begins with these two: they stay gathered
    kept.reshard_after_forward = false;
    sharding::fully_shard({&*norm_, &*head_}, kept);
    models::set_fullyshard_modules_to_wrap(*this, {"tokens", "blocks.{*}"}, fsdp2_kwargs);
    models::set_modules_to_prefetch(*this, {"blocks.{*}"}, config.num_to_forward_prefetch,
                                    config.num_to_backward_prefetch);
  }

 private:
  const std::int64_t hidden_;
  nn::Child<nn::Embedding> tokens_, positions_;
  nn::ModuleList& blocks_;
  nn::Child<nn::RMSNorm> norm_;
  nn::Child<nn::Linear> head_;
};

const models::RegisterModel kParallelDecoder({"parallel_decoder"}, [](const models::ConfigReader& config) {
  return std::make_shared<ParallelDecoder>(config);
});

int main(int argc, char** argv) {
  std::string config_path = "examples/pretrain_custom_model/model.yaml";
  const auto model_provider = [&](const train::TrainArguments&) {
    return std::make_shared<models::TransformersModel>(config_path);
  };
  const auto forward_step = [](data::DataIterator& data_iterator, nn::Module& model) -> data::ForwardResult {
    const data::Batch batch = data_iterator.next();
    const auto loss_func = [targets = batch["targets"]](const nn::Value& y) { return ops::cross_entropy(y, targets); };
    return {model(batch["input_ids"]), loss_func};
  };
  const auto extra_args_provider = [&](train::ExtraArguments& flags) {
    flags.text("--config", config_path, "Shape of the model");
  };
  return cli::pretrain(argc, argv, {data::byte_data_loaders, model_provider, forward_step, extra_args_provider});
}
