// Promise: a configuration file of another tool is planned and trained, its dialect named in the first line;
//          `config` shows it and writes another dialect that plans alike; what is refused is named in one run.
// World:   the built program; a decoder of two layers, two ranks.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class DialectProgram : public ::testing::Test {
 protected:
  DialectProgram() {
    folder.write("qwen3/config.json",
                 R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 256, "hidden_size": 16,
 "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
 "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false})");
    folder.write("llm.yaml",
                 "model:\n  model_id: qwen3\n  model_name_or_path: qwen3\n  train_from_scratch: true\n"
                 "data:\n  cutoff_len: 16\n  data_manager_type: mg\n"
                 "parallel:\n  fsdp_size: 2\n  fsdp_modules: [\"model.layers.{*}\", model.embed_tokens, lm_head]\n"
                 "  recompute: true\n"
                 "training:\n  stage: pt\n  output_dir: out\n  max_steps: 2000\n  per_device_train_batch_size: 2\n"
                 "  lr: 1e-3\n");
    folder.write(
        "native.yaml",
        "parallel:\n  fsdp_plan: {apply_modules: [\"model.layers.{*}\", \"*lm_head\"], param_dtype: bf16}\n"
        "model: {model_name_or_path: qwen3}\n"
        "data:\n  dataset_param: {dataset_type: huggingface, basic_parameters: {cutoff_len: 16, stage: pretrain}}\n"
        "training: {init_model_with_meta_device: true, micro_batch_size: 2, train_iters: 3, "
        "gradient_accumulation_steps: 2}\n");
    folder.write("accelerate.yaml",
                 "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\n"
                 "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                 "  fsdp_activation_checkpointing: true\n");
  }

  nlohmann::json plan(const Words& words) const {
    const Outcome outcome = folder.run(Words{"plan"} + words + Words{"--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }

  ProgramFolder folder;
};

TEST_F(DialectProgram, AFileOfMindSpeedLlmTrainsFiveStepsWithItsOverride) {
  const Outcome outcome = folder.run({"train", "llm.yaml", "--training.max_steps", "5", "--data-path", "data",
                                      "--bytes-as-tokens", "--nproc-per-node", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("llm.yaml: MindSpeed-LLM (train_fsdp2.py)\n"));
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 5U);
}

TEST_F(DialectProgram, EveryDialectTrainsAndWritesItsReport) {
  folder.write(
      "hooks.yaml",
      "parallel:\n  fsdp_plan: {apply_modules: [lm_head, \"model.layers.{*}.self_attn\", "
      "\"model.layers.{*}.mlp\"], hook_modules: [\"model.layers.{*}\"], num_to_forward_prefetch: 1, "
      "pregather: true}\n"
      "model: {model_name_or_path: qwen3, skip_flash_attn_recompute: true}\n"
      "data:\n  dataset_param: {dataset_type: huggingface, basic_parameters: {cutoff_len: 16, stage: pretrain}}\n"
      "  dataloader_param: {dataloader_mode: sampler, sampler_type: BaseRandomBatchSampler, shuffle: true, "
      "drop_last: true, pin_memory: true}\n"
      "features: {recompute: true, recompute_plan: {apply_modules: [\"model.layers.{*}\"]}, "
      "loss_cfg: {loss_type: per_sample_loss}}\n"
      "training: {init_model_with_meta_device: true, micro_batch_size: 2, train_iters: 3, "
      "no_decay_params: [bias], lr_scaling_plan: [{match: \"model.embed\", scale: 0.1}]}\n");
  const Words usual = {"--data-path",
                       "data",
                       "--bytes-as-tokens",
                       "--nproc-per-node",
                       "2",
                       "--report",
                       "r.html",
                       "--train-iters",
                       "3",
                       "--model-config",
                       "qwen3"};
  const Words of_titan = {"--training.steps",
                          "3",
                          "--lr_scheduler.warmup_steps",
                          "1",
                          "--training.max_context_length",
                          "16",
                          "--training.num_tokens_per_microbatch_per_dp_rank",
                          "32",
                          "--parallelism.fsdp_reshard_after_forward",
                          "always"};
  for (const Words& words : {Words{"hooks.yaml"}, Words{"accelerate.yaml", "--seq-length", "16"}, of_titan}) {
    for (const char* name : {"r.html", "m.jsonl"}) std::filesystem::remove_all(folder.path(name));
    const Outcome outcome =
        folder.run(Words{"train"} + words + usual + Words{"--metrics-path", std::string("m.jsonl")});
    EXPECT_EQ(outcome.exit_code, 0) << words.front() << "\n" << outcome.err;
    EXPECT_EQ(folder.metrics(std::string("m.jsonl")).size(), 3U) << words.front();
    EXPECT_TRUE(std::filesystem::exists(folder.path("r.html"))) << words.front();
  }
}

// The file that a run writes beside its outputs is a configuration in its turn, whatever said the sharding.
TEST_F(DialectProgram, ARunIsRepeatedFromItsEffectiveConfiguration) {
  const Words usual = {"--data-path",
                       "data",
                       "--bytes-as-tokens",
                       "--train-iters",
                       "3",
                       "--model-config",
                       "qwen3",
                       "--nproc-per-node",
                       "2",
                       "--seq-length",
                       "16"};
  const Words of_titan = {
      "--parallelism.fsdp_reshard_after_forward", "never", "--training.steps", "3", "--lr_scheduler.warmup_steps", "1"};
  for (const Words& words :
       {of_titan, Words{"accelerate.yaml"}, Words{"--use-torch-fsdp2", "--fsdp2-config-path", "fsdp2.yaml"}}) {
    for (const char* name : {"first", "again"}) std::filesystem::remove_all(folder.path(name));
    const Outcome first = folder.run(Words{"train"} + words + usual + Words{"--save", "first"});
    ASSERT_EQ(first.exit_code, 0) << first.err;
    const Outcome again = folder.run(
        {"train", "first/effective_config.yaml", "--save", "again", "--metrics-path", "again/metrics.jsonl"});
    ASSERT_EQ(again.exit_code, 0) << words.front() << "\n" << again.err;
    const auto last = [&](const std::string& file) { return folder.metrics(file).back().at("loss").get<double>(); };
    EXPECT_EQ(last("first/metrics.jsonl"), last("again/metrics.jsonl")) << words.front();
  }
}

TEST_F(DialectProgram, MegatronsFlagsTrainAModelWithExpertsAndScaledPositions) {
  const Words words = {"--num-layers",
                       "2",
                       "--hidden-size",
                       "16",
                       "--num-attention-heads",
                       "2",
                       "--kv-channels",
                       "8",
                       "--vocab-size",
                       "256",
                       "--ffn-hidden-size",
                       "24",
                       "--normalization",
                       "RMSNorm",
                       "--position-embedding-type",
                       "rope",
                       "--swiglu",
                       "--disable-bias-linear",
                       "--attention-dropout",
                       "0",
                       "--hidden-dropout",
                       "0",
                       "--qk-layernorm",
                       "--num-experts",
                       "4",
                       "--moe-ffn-hidden-size",
                       "8",
                       "--moe-layer-freq",
                       "[0]*1+[1]*1",
                       "--use-rope-scaling",
                       "--rope-scaling-factor",
                       "2",
                       "--original-max-position-embeddings",
                       "16",
                       "--seq-length",
                       "32",
                       "--data-path",
                       "data",
                       "--bytes-as-tokens",
                       "--train-iters",
                       "2",
                       "--save",
                       "moe"};
  const Outcome outcome = folder.run(Words{"train"} + words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Qwen3MoeForCausalLM of "));
  const Outcome beside = folder.run(Words{"plan"} + words + Words{"--model-config", "moe/config.json"});
  EXPECT_EQ(beside.exit_code, 0) << beside.err;
}

TEST_F(DialectProgram, MegatronsOwnFlagsTrainAModelThatIsExportedAndResumed) {
  const Words model = {"--num-layers",
                       "2",
                       "--hidden-size",
                       "16",
                       "--num-attention-heads",
                       "2",
                       "--seq-length",
                       "16",
                       "--max-position-embeddings",
                       "16",
                       "--vocab-size",
                       "256",
                       "--micro-batch-size",
                       "2",
                       "--lr",
                       "1e-3",
                       "--lr-decay-style",
                       "cosine",
                       "--min-lr",
                       "1e-5",
                       "--clip-grad",
                       "1.0",
                       "--distributed-backend",
                       "nccl",
                       "--data-path",
                       "data",
                       "--bytes-as-tokens",
                       "--nproc-per-node",
                       "1"};
  const Words steps = {"--lr-decay-iters", "4", "--save", "out", "--save-interval", "2", "--ckpt-format", "torch_dcp"};
  Outcome outcome = folder.run(Words{"train"} + model + steps + Words{"--train-iters", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("GPT2LMHeadModel of "));
  outcome = folder.run(Words{"train"} + model + steps + Words{"--train-iters", "4", "--load", "out"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  outcome = folder.run(Words{"train"} + model + Words{"--train-iters", "2", "--save", "hf", "--ckpt-format", "hf"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  outcome = folder.run({"generate", "hf", "--prompt", "a", "--max-new-tokens", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  // The flags beside the configuration that they made.
  outcome = folder.run(Words{"plan"} + model + Words{"--model-config", "hf/config.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// examples/pretrain_gpt_distributed.sh of Megatron-LM, shrunk: its model, its flags, and no sharding.
TEST_F(DialectProgram, MegatronsExampleIsAdaptedPlannedAndTrained) {
  folder.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  folder.write("example.sh",
               "GPUS_PER_NODE=2\nDISTRIBUTED_ARGS=\"\n    --nproc_per_node $GPUS_PER_NODE \\\n    --nnodes 1 \\\n"
               "    --node_rank 0\n\"\nGPT_ARGS=\"\n    --num-layers 2 --hidden-size 16 --num-attention-heads 2 "
               "--seq-length 16 --max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 8 --lr 0.00015 "
               "--train-iters 3 --lr-decay-iters 3 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 "
               "--lr-warmup-fraction .01 --clip-grad 1.0 --fp16 --padded-vocab-size 256\n\"\nDATA_ARGS=\"\n"
               "    --data-path data --bytes-as-tokens --vocab-file vocab.json --merge-file merges.txt\n\"\n"
               "torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS $DATA_ARGS --log-interval 100 --save-interval 3 "
               "--eval-interval 1000 --eval-iters 1 --distributed-backend nccl --save out --load out\n");
  const Outcome adapted = folder.run({"adapt", "example.sh"});
  EXPECT_EQ(adapted.exit_code, 0) << adapted.err;
  folder.write("here.sh", "shardloom() { " SHARDLOOM_PROGRAM " \"$@\"; }\n" + adapted.out);
  const Outcome run = folder.run_command({"bash", "here.sh"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("no --fsdp2-config-path: every rank has all parameters, as with Megatron's DDP "
                                 "(sharding_size: 1, param_dtype: fp16)\n"));
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 3U);
  const Outcome plan = folder.run({"plan",
                                   "--num-layers",
                                   "24",
                                   "--hidden-size",
                                   "1024",
                                   "--num-attention-heads",
                                   "16",
                                   "--seq-length",
                                   "1024",
                                   "--max-position-embeddings",
                                   "1024",
                                   "--micro-batch-size",
                                   "8",
                                   "--global-batch-size",
                                   "64",
                                   "--fp16",
                                   "--vocab-file",
                                   "vocab.json",
                                   "--merge-file",
                                   "merges.txt",
                                   "--nproc-per-node",
                                   "8"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("GPT2LMHeadModel"));
}

TEST_F(DialectProgram, AnAdaptedScriptTrains) {
  folder.write(
      "run.sh",
      "source /nowhere/set_env.sh\nNPUS_PER_NODE=2\nDISTRIBUTED_ARGS=\"\n    --nproc_per_node $NPUS_PER_NODE \\\n"
      "    --nnodes 1 \\\n    --node_rank 0\n\"\ntorchrun $DISTRIBUTED_ARGS train_fsdp2.py \\\n  llm.yaml \\\n"
      "  --training.max_steps 2 --data-path data --bytes-as-tokens \\\n  --distributed-backend nccl\n");
  const Outcome adapted = folder.run({"adapt", "run.sh"});
  EXPECT_EQ(adapted.exit_code, 0) << adapted.err;
  EXPECT_THAT(adapted.err, HasSubstr("run.sh:8: torchrun is shardloom train llm.yaml\n"));
  folder.write("here.sh", "shardloom() { " SHARDLOOM_PROGRAM " \"$@\"; }\n" + adapted.out);
  const Outcome run = folder.run_command({"bash", "here.sh"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 2U);
}

TEST_F(DialectProgram, APlanIsThatOfTheFlatFile) {
  const std::pair<std::string, Words> files[] = {
      {"llm.yaml", {}},
      {"native.yaml", {}},
      {"accelerate.yaml", {"--model-config", "qwen3/config.json", "--seq-length", "16"}}};
  for (const auto& [file, flags] : files) {
    const Words more = flags + Words{"--world-size", "2"};
    const Outcome flat = folder.run(Words{"config", file} + more + Words{"--to", "flat"});
    ASSERT_EQ(flat.exit_code, 0) << flat.err;
    EXPECT_THAT(flat.out, Not(HasSubstr("# not said"))) << flat.out;
    folder.write("flat.yaml", flat.out);
    nlohmann::json own = plan(Words{file} + more), other = plan({"flat.yaml", "--world-size", "2"});
    own.erase("planning_seconds"), other.erase("planning_seconds");
    EXPECT_EQ(own, other) << flat.out;
  }
}

TEST_F(DialectProgram, AFileStandsWhereTheShardingFileStands) {
  const Outcome outcome =
      folder.run({"plan", "--use-torch-fsdp2", "--fsdp2-config-path", "native.yaml", "--world-size", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("native.yaml: MindSpeed-MM (six sections)\n"));
}

TEST_F(DialectProgram, MachinesTimesRanksArePlanned) {
  EXPECT_EQ(plan({"native.yaml", "--nnodes", "2", "--nproc-per-node", "8"}),
            plan({"native.yaml", "--world-size", "16"}));
}

TEST_F(DialectProgram, ConfigShowsWhereValuesComeFrom) {
  const Outcome outcome =
      folder.run({"config", "native.yaml", "--training.lr", "1e-4", "--clip-grad", "2", "--world-size", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("native.yaml: MindSpeed-MM (six sections)\nranks: 2\n"
                                      "model: Qwen3ForCausalLM\n"));
  EXPECT_THAT(outcome.out, HasSubstr("--lr 1e-4"));
  EXPECT_THAT(outcome.out, HasSubstr("command line training.lr"));
  EXPECT_THAT(outcome.out, HasSubstr("--global-batch-size 8"));
  EXPECT_THAT(outcome.out, HasSubstr("default of MindSpeed-MM (six sections)"));
  EXPECT_THAT(outcome.out, HasSubstr("--clip-grad 2"));
}

TEST_F(DialectProgram, AClassThatIsNotBuiltIsShownAndNotTrained) {
  folder.write("other.yaml", "model: {model_id: ltx2, model_name_or_path: ltx}\ntools: {}\n");
  const Outcome shown = folder.run({"config", "other.yaml"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("model: ltx2 (not built)"));
  const Outcome planned = folder.run({"plan", "other.yaml", "--world-size", "2"});
  EXPECT_EQ(planned.exit_code, 2);
  EXPECT_THAT(planned.err, HasSubstr("other.yaml: the model is ltx2, which is not built"));
}

TEST_F(DialectProgram, RefusedKeysAreNamedInOneRun) {
  folder.write("bad.yaml", "parallel: {context_parallel_size: 2}\ntraining:\n  lrr: 1\n  save_steps: 5\ntools: {}\n");
  const Outcome shown = folder.run({"config", "bad.yaml"});
  EXPECT_EQ(shown.exit_code, 1);
  for (const char* line : {"bad.yaml: 3 keys are refused:", "bad.yaml:1:35: parallel.context_parallel_size is 2",
                           "bad.yaml:3:3: unknown key 'training.lrr'; did you mean training.lr?",
                           "bad.yaml:4:15: training.save_steps is 5"}) {
    EXPECT_THAT(shown.out, HasSubstr(line));
    EXPECT_THAT(folder.run({"train", "bad.yaml"}).err, HasSubstr(line));
  }
}

TEST_F(DialectProgram, LintEndsWithStatusOneAtAnError) {
  folder.write("bad.yaml", "sharding_size: 3\n");
  const Outcome good = folder.run({"lint", "llm.yaml", "accelerate.yaml", "--model-config", "qwen3/config.json"});
  EXPECT_EQ(good.exit_code, 0) << good.out;
  const Outcome text = folder.run({"lint", "llm.yaml", "bad.yaml", "--world-size", "2"});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.out,
              HasSubstr("bad.yaml:1:16: error: sharding_size is 3, but 2 ranks are running; use 1, 2 or auto (all "
                        "ranks) [size-does-not-fit]\n"));
  const Outcome json = folder.run({"lint", "bad.yaml", "--world-size", "2", "--format", "json"});
  EXPECT_EQ(nlohmann::json::parse(json.out).at(0).at("line"), 1);
  const auto sarif =
      nlohmann::json::parse(folder.run({"lint", "bad.yaml", "--world-size", "2", "--format", "sarif"}).out);
  EXPECT_EQ(sarif.at("version"), "2.1.0");
  EXPECT_EQ(sarif.at("runs").at(0).at("results").at(0).at("ruleId"), "size-does-not-fit");
  const Outcome schema = folder.run({"config", "--schema", "native"});
  EXPECT_EQ(nlohmann::json::parse(schema.out).at("title"), "MindSpeed-MM (six sections)");
}

TEST_F(DialectProgram, LintPlansAFileOfAKnownModel) {
  std::string model = folder.read("qwen3/config.json");
  model.replace(model.find("_embeddings\": false"), 19, "_embeddings\": true");
  folder.write("tied/config.json", model);
  folder.write("ties.yaml", "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, lm_head]\n");
  const Words tied = {"lint", "ties.yaml", "--model-config", "tied/config.json"};
  Outcome outcome = folder.run(tied);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("ties.yaml:2:22: error: "));
  EXPECT_THAT(outcome.out, HasSubstr("are one parameter; a tie must stay inside one group"));
  EXPECT_THAT(outcome.out, HasSubstr("[job-refused]"));
  folder.write("good.yaml",
               "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\nnum_to_forward_prefetch: 1\n");
  outcome = folder.run({"lint", "good.yaml", "--model-config", "model.yaml", "--world-size", "2", "--device", "h200"});
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  outcome = folder.run({"lint", "good.yaml", "--model-config", "llama3_70b", "--device", "h200"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("good.yaml: error: "));
  EXPECT_THAT(outcome.out, HasSubstr("[does-not-fit]"));
}

TEST_F(DialectProgram, GptArgsAreFlagsAndWordsBehindTheFileWin) {
  folder.write("gpt.yaml",
               "MM_TOOL_PATH: t\ngpt_args:\n  micro_batch_size: 2\n  train_iters: 9\n  seq_length: 16\n"
               "  use_torch_fsdp2: true\n"
               "  fsdp2_config_path: fsdp2.yaml\n  num_workers: 4\n  log_tps: true\n");
  const Outcome outcome = folder.run({"train", "gpt.yaml", "--train-iters", "2", "--model-config", "model.yaml",
                                      "--data-path", "data", "--distributed-backend", "nccl", "--eval-iters", "0"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(folder.metrics("metrics.jsonl").size(), 2U);
  EXPECT_THAT(outcome.err, HasSubstr("without effect here: --num-workers 4"));
}

}  // namespace
}  // namespace loom::test
