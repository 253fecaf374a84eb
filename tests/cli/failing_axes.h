// Training of a small Qwen3-MoE on ranks that share experts, sequences or matrices, in which rank 1 does `fail` at the
// module whose exchange its peers enter: in the second step, before its forward or its backward.
#pragma once

#include <atomic>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <string>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/rank_context.h"
#include "engine/train/rank_setup.h"
#include "engine/train/trainer.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::test {

// What ranks share.
struct Sharing {
  const char* keys;    // of the sharding file
  const char* module;  // that exchanges
  const char* axis;
  const char* in_forward;  // the first exchange, without its ranks
  const char* in_backward;
};
inline constexpr Sharing kExperts{.keys = "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n",
                                  .module = "model.layers.1.mlp.experts",
                                  .axis = "ep",
                                  .in_forward = "all_gather 'model.layers.1.mlp.experts'",
                                  .in_backward = "all_to_all 'model.layers.1.mlp.experts'"};
inline constexpr Sharing kRing{.keys = "ring_attention_size: 2\n",
                               .module = "model.layers.1.self_attn",
                               .axis = "ring",
                               .in_forward = "send_recv 'model.layers.1.self_attn keys'",
                               .in_backward = "send_recv 'model.layers.1.self_attn keys'"};
inline constexpr Sharing kTensor{.keys = "tensor_parallel_size: 2\n",
                                 .module = "model.layers.1.self_attn",
                                 .axis = "tp",
                                 .in_forward = "all_reduce 'model.layers.1.self_attn.o_proj'",
                                 .in_backward = "all_reduce 'model.layers.1.self_attn'"};
inline constexpr Sharing kSequence{.keys = "tensor_parallel_size: 2\nsequence_parallel: true\n",
                                   .module = "model.layers.1.self_attn.o_proj",
                                   .axis = "tp",
                                   .in_forward = "reduce_scatter 'model.layers.1.self_attn.o_proj'",
                                   .in_backward = "all_gather 'model.layers.1.self_attn.o_proj'"};

class FailingAxes {
 public:
  enum class Where : std::uint8_t { kForward, kBackward };

  // Writes its files into `folder`.
  FailingAxes(const Sharing& sharing, int ranks, const std::filesystem::path& folder, Where where,
              std::function<void()> fail)
      : sharing_(sharing),
        where_(where),
        fail_(std::move(fail)),
        arguments_(arguments_in(folder, sharing.keys, ranks)),
        callbacks_(cli::hub_callbacks(arguments_)),
        provide_(callbacks_.model_provider) {
    callbacks_.model_provider = [this](const train::TrainArguments& given) {
      auto model = provide_(given);
      hook(*models::sharded_module(*model).find(sharing_.module));
      return model;
    };
    inputs_.emplace(train::read_inputs(arguments_, callbacks_));
  }

  void run(RankContext& context, comm::World& world, device::ExecutorKind executor) {
    nn::RankSetup setup = train::rank_setup(arguments_);
    setup.device.executor = executor;
    nn::make_rank(context, setup);
    train::Trainer trainer(arguments_, callbacks_, *inputs_, world);
    for (int step = 0; step < 2; ++step) trainer.step();
    device::Device::current().synchronize();
  }

 private:
  static std::filesystem::path written(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  static train::TrainSections arguments_in(const std::filesystem::path& folder, const std::string& keys, int ranks) {
    train::TrainSections a;
    a.model.model_config =
        written(folder / "moe.yaml",
                "model_type: qwen3_moe\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\n"
                "num_hidden_layers: 2\nnum_attention_heads: 2\nnum_key_value_heads: 1\nhead_dim: 8\n"
                "max_position_embeddings: 32\nrms_norm_eps: 1.0e-6\nnum_experts: 4\nnum_experts_per_tok: 2\n"
                "moe_intermediate_size: 8\nnorm_topk_prob: true\ndecoder_sparse_step: 1\nmlp_only_layers: []\n"
                "tie_word_embeddings: false\n");
    a.parallel.use_torch_fsdp2 = true;
    a.parallel.fsdp2_config_path = written(folder / "sharding.yaml",
                                           "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, "
                                           "\"model.layers.{*}\", lm_head]\n" +
                                               keys);
    std::string text;
    for (int line = 0; line < 100; ++line) text += fmt::format("line {}\n", line);
    a.data.data_path = {written(folder / "data.txt", text).string()};
    a.data.seq_length = 16;
    a.data.held_out_fraction = 0;
    a.schedule.lr_decay_iters = a.schedule.train_iters;
    a.schedule.micro_batch_size = 1;
    a.schedule.global_batch_size = ranks;
    a.launch.ranks = ranks;
    return a;
  }

  void hook(nn::Module& module) {
    if (where_ == Where::kForward) {
      module.register_pre_hook([this](nn::Module&, nn::Args&) { fail_in_the_second_step(); });
      return;
    }
    module.register_post_hook([this](nn::Module&, nn::Value output) {
      output.tensor().register_hook([this](const Tensor&) {
        fail_in_the_second_step();
        return Tensor{};
      });
      return output;
    });
  }
  void fail_in_the_second_step() {
    if (RankContext::current().rank() == 1 && ++calls_ == 2) fail_();
  }

  const Sharing sharing_;
  const Where where_;
  const std::function<void()> fail_;
  std::atomic<int> calls_ = 0;
  const train::TrainSections arguments_;
  train::PretrainCallbacks callbacks_;
  const std::function<std::shared_ptr<nn::Module>(const train::TrainArguments&)> provide_;
  std::optional<train::TrainingInputs> inputs_;
};

}  // namespace loom::test
