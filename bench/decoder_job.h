// The job that benchmarks of the trainer run: a 25 M-parameter decoder on a batch that is the same in every step.
//
// Model     Qwen2 architecture, d 512, 8 layers, sequence 512, 4 sequences a step and rank.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fmt/format.h>
#include <span>

#include "engine/core/rng.h"
#include "engine/data/byte_batches.h"
#include "engine/io/atomic_file.h"
#include "engine/train/trainer.h"
#include "models/decoder/decoder.h"

namespace loom::bench {

inline constexpr std::int64_t kSeq = 512;
inline constexpr std::int64_t kBatch = 4;
inline constexpr std::int64_t kVocab = 1536;

inline models::DecoderConfig decoder() {
  models::DecoderConfig config;
  config.family = models::DecoderFamily::kQwen2;
  config.vocab_size = kVocab;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.max_position_embeddings = kSeq;
  config.qkv_bias = true;
  return config;
}

// Token ids of a batch that is the same in every step.
inline data::Batch batch() {
  const Tensor inputs = Tensor::host({kBatch, kSeq}, DType::kI32, "inputs");
  const Tensor targets = Tensor::host({kBatch, kSeq}, DType::kI32, "targets");
  for (std::int64_t i = 0; i < kBatch * kSeq; ++i) {
    inputs.data<std::int32_t>()[i] = static_cast<std::int32_t>(philox(7, static_cast<std::uint64_t>(i))[0] % kVocab);
    targets.data<std::int32_t>()[i] = static_cast<std::int32_t>(philox(8, static_cast<std::uint64_t>(i))[0] % kVocab);
  }
  return {{{"input_ids", inputs}, {"targets", targets}}};
}

inline train::PretrainCallbacks callbacks() {
  train::PretrainCallbacks callbacks;
  callbacks.train_valid_test_datasets_provider = [](const train::TrainArguments&) {
    return data::DataLoaders{.train = [same = batch()](std::span<const std::int64_t>) { return same; }};
  };
  callbacks.model_provider = [](const train::TrainArguments&) { return models::build_decoder(decoder()); };
  callbacks.forward_step = data::next_token_step;
  return callbacks;
}

// The fsdp2_config.yaml of the sharded run.
inline std::filesystem::path sharding_file(DType compute) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("decoder_job_{}", getpid());
  std::filesystem::create_directories(folder);
  const std::string types =
      compute == DType::kF32 ? "" : fmt::format("param_dtype: {}\nreduce_dtype: fp32\n", name(compute));
  io::write_text(folder / "fsdp2_config.yaml",
                 "sharding_size: auto\nreshard_after_forward: true\n"
                 "sub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n" +
                     types);
  return folder / "fsdp2_config.yaml";
}

inline train::TrainSections arguments(int ranks, bool sharded, DType compute) {
  train::TrainSections a;
  a.launch.ranks = ranks;
  a.launch.device_executor = device::ExecutorKind::kInline;
  a.data.seq_length = kSeq;
  a.schedule.micro_batch_size = kBatch;
  a.schedule.global_batch_size = kBatch * ranks;
  a.schedule.lr = a.schedule.min_lr = 1e-4;
  a.schedule.lr_decay_style = train::LrDecayStyle::kConstant;
  a.parallel.use_torch_fsdp2 = sharded;
  if (sharded) a.parallel.fsdp2_config_path = sharding_file(compute);
  return a;
}

}  // namespace loom::bench
