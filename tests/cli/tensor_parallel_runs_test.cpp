// Promise: a run whose ranks share matrices is the run of one rank in all that comes with training: exports to Hugging
//          Face and to Megatron's layout from any mesh are the same bytes, evaluation and samples are the same, swap
//          and recompute change no bit, every tool's file that says it trains, and the start shows the axes.
// World:   the built program; a Qwen2 and a Qwen3-MoE of two layers; 1, 2, 4 and 8 ranks.
#include <gmock/gmock.h>
#include <map>

#include "tests/cli/axes_program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kQwen2 =
    R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 256, "hidden_size": 16,
 "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false})";

constexpr const char* kQwen3Moe =
    R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 256, "hidden_size": 16,
 "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
 "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_experts": 4,
 "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
 "mlp_only_layers": [], "tie_word_embeddings": false})";

class TensorParallelRuns : public AxesProgram {
 protected:
  TensorParallelRuns()
      : AxesProgram(4, 2, {"--eval-iters", "2", "--eval-interval", "2", "--held-out-fraction", "0.1"}) {
    folder.write("qwen2/config.json", kQwen2);
    folder.write("one.yaml", kSharding);
    folder.write("tp.yaml", kSharding + "tensor_parallel_size: 2\n");
    folder.write("sp.yaml", kSharding + "tensor_parallel_size: 2\nsequence_parallel: true\n");
    folder.write("four.yaml", kSharding + "tensor_parallel_size: 4\n");
    folder.write("ring.yaml", kSharding + "tensor_parallel_size: 2\nsequence_parallel: true\nring_attention_size: 2\n");
  }

  struct Mesh {
    std::string file;  // of the sharding
    int ranks;
  };
  const std::vector<Mesh> kMeshes = {{"tp.yaml", 4}, {"sp.yaml", 4}, {"four.yaml", 4}, {"ring.yaml", 8}};

  Words on(const Mesh& mesh) const { return words(mesh.file, mesh.ranks, "qwen2/config.json"); }
  Outcome train(const Mesh& mesh, const Words& more) const {
    Outcome outcome = folder.run(Words{"train"} + on(mesh) + more);
    EXPECT_EQ(outcome.exit_code, 0) << mesh.file << " " << mesh.ranks << "\n" << outcome.err;
    return outcome;
  }
  Outcome convert(const Words& more) const {
    Outcome outcome = folder.run(Words{"convert"} + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  // Names and bytes.
  std::map<std::string, std::string> files_of(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path(name))) {
      if (!entry.is_regular_file()) continue;
      files[std::filesystem::relative(entry.path(), folder.path(name)).string()] = read_file(entry.path());
    }
    return files;
  }
};

// Each mesh loads one checkpoint and saves it after a step whose update is below the rounding of any weight.
TEST_F(TensorParallelRuns, ExportsFromAnyMeshAreTheSameBytes) {
  const Words dcp = {"--ckpt-format", "torch_dcp"};
  train({"sp.yaml", 4}, dcp + Words{"--train-iters", "3", "--save", "out"});
  const auto exported = [&](const Mesh& mesh, const std::string& name) {
    train(mesh, Words{"--train-iters", "4", "--load", "out", "--save", name, "--lr", "1e-30", "--weight-decay", "0",
                      "--override-opt_param-scheduler"} +
                    dcp);
    convert({"dcp-to-hf", "--load-dir", name, "--save-dir", name + ".hf", "--model-assets-dir", "qwen2"});
    convert({"hf-to-mcore", "--load-dir", name + ".hf", "--save-dir", name + ".mcore", "--target-tensor-parallel-size",
             "2"});
    return std::pair(files_of(name + ".hf"), files_of(name + ".mcore"));
  };
  const auto [hf, mcore] = exported({"one.yaml", 1}, "one");
  convert({"dcp-to-hf", "--load-dir", "out", "--save-dir", "first", "--model-assets-dir", "qwen2"});
  EXPECT_EQ(files_of("first").at("model.safetensors"), hf.at("model.safetensors"));
  EXPECT_EQ(mcore.size(), 3U);  // of two tensor ranks, and the tracker
  for (const Mesh& mesh : kMeshes) {
    const auto found = exported(mesh, "of_" + mesh.file);
    EXPECT_TRUE(found.first == hf) << mesh.file;
    EXPECT_TRUE(found.second == mcore) << mesh.file;
  }
  convert({"mcore-to-hf", "--load-dir", "of_four.yaml.mcore", "--save-dir", "back", "--model-assets-dir", "qwen2"});
  EXPECT_EQ(files_of("back").at("model.safetensors"), hf.at("model.safetensors"));
  // The run's own export.
  train({"one.yaml", 1}, {"--train-iters", "2", "--save", "own_one"});
  const auto own = files_of("own_one");
  for (const Mesh& mesh : kMeshes) {
    train(mesh, {"--train-iters", "2", "--save", "own_" + mesh.file});
    const auto found = files_of("own_" + mesh.file);
    EXPECT_EQ(found.at("config.json"), own.at("config.json"));
    EXPECT_EQ(found.at("model.safetensors").size(), own.at("model.safetensors").size());
  }
}

// Experts shared over axes of their own, and cut on both dims.
TEST_F(TensorParallelRuns, ExportsOfSharedExpertsAreTheSameBytes) {
  folder.write("moe/config.json", kQwen3Moe);
  const std::string experts = "moe_modules: [\"model.layers.{*}.mlp.experts\"]\nexpert_parallel_size: ";
  folder.write("ep2.yaml", folder.read("sp.yaml") + experts + "2\n");
  folder.write("ep4.yaml", folder.read("ring.yaml") + experts + "4\n");
  const auto exported = [&](const Mesh& mesh, const Words& more) {
    const std::string name = "of_" + mesh.file;
    const Outcome outcome = folder.run(
        Words{"train"} + words(mesh.file, mesh.ranks, "moe/config.json") +
        Words{"--save", name, "--override-opt_param-scheduler", "--ckpt-format", "torch_dcp", "--weight-decay", "0"} +
        more);
    EXPECT_EQ(outcome.exit_code, 0) << mesh.file << outcome.err;
    convert({"dcp-to-hf", "--load-dir", name, "--save-dir", name + ".hf", "--model-assets-dir", "moe"});
    return files_of(name + ".hf");
  };
  exported({"ep4.yaml", 8}, {"--train-iters", "2"});
  const Words same = {"--load", "of_ep4.yaml", "--train-iters", "3", "--lr", "1e-30"};
  const auto one = exported({"one.yaml", 1}, same);
  EXPECT_TRUE(one == files_of("of_ep4.yaml.hf"));
  EXPECT_TRUE(exported({"ep2.yaml", 4}, same) == one);
  EXPECT_TRUE(exported({"four.yaml", 4}, same) == one);
}

TEST_F(TensorParallelRuns, CheckpointsOfTiesAndSharedExpertsGoOnOnAnyMesh) {
  const std::string layers = "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n",
                    tensor = "tensor_parallel_size: 2\nsequence_parallel: true\n",
                    experts = "moe_modules: [\"model.layers.{*}.mlp.experts\"]\nexpert_parallel_size: ";
  folder.write("one.yaml", layers);
  folder.write("sp.yaml", layers + tensor);
  folder.write("four.yaml", layers + "tensor_parallel_size: 4\n");
  folder.write("ep4.yaml", layers + tensor + experts + "4\n");
  folder.write("ring.yaml", layers + "tensor_parallel_size: 2\nring_attention_size: 2\n" + experts + "2\n");
  std::string tied = kQwen2;
  tied.replace(tied.find("false"), 5, "true");
  folder.write("tied/config.json", tied);
  const auto go_on = [&](const std::string& model, const Mesh& first, const std::vector<Mesh>& others) {
    const Words saved = {"--train-iters",   "6", "--save",        model + ".out",
                         "--save-interval", "3", "--ckpt-format", "torch_dcp"};
    const std::vector<double> all =
        losses(model + first.file + ".jsonl", words(first.file, first.ranks, model) + saved);
    ASSERT_EQ(all.size(), 6U);
    const std::vector<double> last(all.begin() + 3, all.end());
    for (const Mesh& mesh : others) {
      SCOPED_TRACE(model + " " + mesh.file);
      expect_near(losses(fmt::format("{}.{}{}.jsonl", model, mesh.file, mesh.ranks),
                         words(mesh.file, mesh.ranks, model) +
                             Words{"--train-iters", "6", "--load", model + ".out", "--ckpt-step", "3"}),
                  last);
    }
  };
  go_on("tied/config.json", {"sp.yaml", 4}, {{"one.yaml", 1}, {"one.yaml", 2}, {"four.yaml", 4}, {"sp.yaml", 2}});
  go_on("moe.yaml", {"ep4.yaml", 8}, {{"one.yaml", 1}, {"four.yaml", 4}, {"ring.yaml", 8}, {"ep4.yaml", 4}});
}

// Prompts and texts of lengths that the ranks do not divide.
TEST_F(TensorParallelRuns, EvaluateAndSampleAsOneRank) {
  const Words sampled = {"--train-iters", "4", "--sample-bytes", "28", "--prompt", "12 times"};
  const auto run = [&](const Mesh& mesh) {
    std::filesystem::remove(folder.path("m.jsonl"));
    const Outcome outcome = train(mesh, sampled + Words{"--metrics-path", "m.jsonl"});
    std::vector<double> held_out;
    for (const auto& line : folder.metrics("m.jsonl")) {
      if (line.contains("held_out_loss")) held_out.push_back(line.at("held_out_loss"));
    }
    return std::pair(outcome.out.substr(outcome.out.find("--- sample ---")), held_out);
  };
  const auto [text, held_out] = run({"one.yaml", 1});
  ASSERT_EQ(held_out.size(), 2U);
  EXPECT_GT(text.size(), 24U + 28U);  // 32 positions: 24 new bytes
  for (const Mesh& mesh : kMeshes) {
    SCOPED_TRACE(mesh.file);
    const auto found = run(mesh);
    EXPECT_EQ(found.first, text);
    expect_near(found.second, held_out);
  }
  folder.write("only_ring.yaml", kSharding + "ring_attention_size: 2\nulysses_parallel_size: 2\n");
  EXPECT_EQ(run({"only_ring.yaml", 4}).first, text);
}

TEST_F(TensorParallelRuns, SwapAndRecomputeChangeNoBit) {
  int runs = 0;
  const auto curve = [&](const Mesh& mesh, const Words& more) {
    return losses(fmt::format("m{}.jsonl", ++runs), on(mesh) + Words{"--train-iters", "4"} + more);
  };
  for (const Mesh& mesh : {Mesh{"sp.yaml", 4}, {"four.yaml", 4}}) {
    SCOPED_TRACE(mesh.file);
    const std::vector<double> plain = curve(mesh, {});
    ASSERT_EQ(plain.size(), 4U);
    for (const Words& more :
         {Words{"--swap-attention"}, Words{"--swap-optimizer"}, Words{"--optimizer", "adamw_swap"},
          Words{"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"},
          Words{"--recompute-granularity", "selective"}, Words{"--recompute-activation-function"}}) {
      EXPECT_EQ(curve(mesh, more), plain) << more.front();
    }
    folder.write("more.yaml", folder.read(mesh.file) +
                                  "activation_offload_modules: [\"model.layers.{*}\"]\npin_memory: true\n"
                                  "recompute_modules: [\"model.layers.{*}.mlp\"]\nuse_reentrant: false\n");
    EXPECT_EQ(curve({"more.yaml", mesh.ranks}, {}), plain);
  }
}

TEST_F(TensorParallelRuns, TheStartShowsAxesAndWhatIsShardedOverThem) {
  const auto start = [&](const Mesh& mesh) { return train(mesh, {"--train-iters", "1"}).out; };
  EXPECT_THAT(start({"four.yaml", 8}),
              HasSubstr("1 x 2: shards over 2, replicates over 1\n"
                        "axis           ranks   this rank\n"
                        "data               2           0  samples of their own\n"
                        "tp                 4           0  share matrices: sums of their products travel\n"
                        "parameters                  sharded over      copies   reduced over  divided by\n"
                        "matrices                        tp 4 x 2           1              2           2\n"
                        "key/value heads                 tp 2 x 2           2       2 x tp 2           2\n"
                        "replicated                             2           4              2           2\n"));
  EXPECT_THAT(start({"ring.yaml", 8}),
              HasSubstr("data               2           0  samples of their own\n"
                        "ring               2           0  share sequences: keys and values travel\n"
                        "ulysses            1           0  share sequences: heads travel\n"
                        "tp                 2           0  share matrices: parts of sequences travel\n"
                        "parameters                  sharded over      copies   reduced over  divided by\n"
                        "matrices                        tp 2 x 4           1              4           4\n"
                        "replicated, partial                    4           2       4 x tp 2           4\n"));
  folder.write("experts.yaml",
               "sharding_size: 2\nsub_modules_to_wrap: [\"model.layers.{*}\"]\ntensor_parallel_size: 2\n"
               "expert_parallel_size: 4\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n");
  const Outcome experts = folder.run(Words{"train"} + words("experts.yaml", 8) + Words{"--train-iters", "1"});
  EXPECT_EQ(experts.exit_code, 0) << experts.err;
  EXPECT_THAT(experts.out,
              HasSubstr("data               4           0  samples of their own\n"
                        "tp                 2           0  share matrices: sums of their products travel\n"
                        "efsdp              2           0  shard the same experts\n"
                        "ep                 4           0  share a set of experts: tokens travel\n"
                        "parameters                  sharded over      copies   reduced over  divided by\n"
                        "matrices                        tp 2 x 2           2              4           4\n"
                        "replicated                             2           4              4           4\n"
                        "replicated, partial                    2           4       4 x tp 2           4\n"
                        "experts                   ep 4 x efsdp 2           1              2           4\n"));
}

TEST_F(TensorParallelRuns, CheckpointsAreReportedWithTheTensorRanks) {
  const Words saved = {"--train-iters", "1", "--save", "out", "--ckpt-format", "torch_dcp"};
  EXPECT_THAT(train({"four.yaml", 4}, saved).out,
              HasSubstr("successfully saved checkpoint from iteration       1 to out [ t 1/4, p 1/1 ]"));
  EXPECT_THAT(train({"sp.yaml", 2}, {"--train-iters", "1", "--load", "out"}).out,
              HasSubstr("successfully loaded checkpoint from out [ t 1/2, p 1/1 ] at iteration 1"));
}

TEST_F(TensorParallelRuns, EveryDialectThatSaysItTrains) {
  folder.write("llm.yaml",
               "model: {model_id: qwen2, model_name_or_path: qwen2, train_from_scratch: true}\n"
               "data: {cutoff_len: 16, data_manager_type: mg}\n"
               "parallel: {fsdp_size: 2, tp_size: 2, param_dtype: fp32, reduce_dtype: fp32}\n"
               "training: {stage: pt, output_dir: out, max_steps: 3, per_device_train_batch_size: 1, "
               "gradient_accumulation_steps: 2, lr: 1e-3}\n");
  folder.write("native.yaml",
               "parallel:\n  tensor_parallel_size: 2\n  data_parallel_size: 2\n"
               "  tp_plan: {sequence_parallel: [\"model.layers.{*}.input_layernorm\"]}\n"
               "  fsdp_plan: {apply_modules: [\"model.layers.{*}\", \"*lm_head\"]}\n"
               "model: {model_name_or_path: qwen2}\n"
               "data:\n  dataset_param: {dataset_type: huggingface, basic_parameters: {cutoff_len: 16, stage: "
               "pretrain}}\n  dataloader_param: {dataloader_mode: sampler, sampler_type: BaseRandomBatchSampler, "
               "shuffle: true, drop_last: true, pin_memory: true}\n"
               "training: {init_model_with_meta_device: true, micro_batch_size: 1, train_iters: 3, "
               "gradient_accumulation_steps: 2}\n");
  folder.write("accelerate.yaml",
               "distributed_type: FSDP\nnum_processes: 4\nparallelism_config:\n"
               "  parallelism_config_dp_shard_size: 2\n  parallelism_config_tp_size: 2\n"
               "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n");
  folder.write("deepspeed.json",
               R"({"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 2}, "train_batch_size": 4,
                   "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2})");
  const Words usual = {
      "--data-path",   "data", "--bytes-as-tokens", "--nproc-per-node", "4", "--model-config", "qwen2/config.json",
      "--train-iters", "3"};
  const auto trained = [&](const Words& dialect) {
    std::filesystem::remove(folder.path("m.jsonl"));
    const Outcome outcome = folder.run(Words{"train"} + dialect + usual + Words{"--metrics-path", "m.jsonl"});
    EXPECT_EQ(outcome.exit_code, 0) << dialect.front() << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("tp                 2           0  share matrices")) << dialect.front();
    EXPECT_EQ(folder.metrics("m.jsonl").size(), 3U) << dialect.front();
    return outcome.out;
  };
  EXPECT_THAT(trained({"llm.yaml"}), HasSubstr("sums of their products travel"));
  EXPECT_THAT(trained({"native.yaml"}), HasSubstr("parts of sequences travel"));
  trained({"accelerate.yaml", "--seq-length", "16"});
  EXPECT_THAT(trained({"deepspeed.json", "--seq-length", "16"}), HasSubstr("data               2"));
  EXPECT_THAT(
      trained({"--parallelism.tensor_parallel_degree", "2", "--training.seq_len", "16", "--training.local_batch_size",
               "1", "--training.steps", "3", "--lr_scheduler.warmup_steps", "1"}),
      HasSubstr("parts of sequences travel"));
}

TEST_F(TensorParallelRuns, WhatNeedsWholeMatricesIsRefusedFirst) {
  const Outcome muon = folder.run(Words{"train"} + on({"sp.yaml", 4}) + Words{"--optimizer", "muon"});
  EXPECT_EQ(muon.exit_code, 2);
  EXPECT_THAT(muon.err, HasSubstr("sp.yaml:3:23: tensor_parallel_size is 2, and --optimizer muon needs whole matrices; "
                                  "use adam, or write 1"));
  EXPECT_THAT(muon.out, Not(HasSubstr("shards over")));
  Words odd = on({"ring.yaml", 8});
  *(std::ranges::find(odd, "--seq-length") + 1) = "14";  // padded to 16: 8 for each rank of the ring
  EXPECT_EQ(folder.run(Words{"train"} + odd + Words{"--train-iters", "1"}).exit_code, 0);
}

}  // namespace
}  // namespace loom::test
