// Promise: the command line means what Megatron's means, what is left out is filled in, and what does not fit is
//          refused in one line that names flag, value and what to write.
// World:   a machine of 8 cores; no file is opened.
#include "engine/cli/words/arguments.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sstream>

#include "engine/core/error.h"
#include "tests/cli/parsed.h"
#include "tests/support/files.h"

namespace loom::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

Words with_model_and_data(const Words& more) {
  Words words = {"train", "--model-config", "m.yaml", "--data-path", "d.txt"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

job::Job train(const Words& more, const launch::Start& context = kEightCores) {
  return std::get<job::Job>(parsed(with_model_and_data(more), context));
}

// --- train

TEST(ProgramArguments, WhatIsLeftOutIsFilledIn) {
  const job::Job a = train({});
  EXPECT_EQ(a.model.model_config, "m.yaml");
  EXPECT_EQ(a.model.init_from_hf_path, std::nullopt);
  EXPECT_THAT(a.data.data_path, ElementsAre("d.txt"));
  EXPECT_EQ(a.data.seq_length, 128);
  EXPECT_EQ(a.schedule.micro_batch_size, 1);
  EXPECT_EQ(a.schedule.global_batch_size, 1);
  EXPECT_EQ(a.schedule.train_iters, 100);
  EXPECT_EQ(a.schedule.lr, 3e-4);
  EXPECT_EQ(a.schedule.min_lr, 0);
  EXPECT_EQ(a.schedule.lr_decay_style, train::LrDecayStyle::kLinear);
  EXPECT_EQ(a.schedule.lr_decay_iters, 100);
  EXPECT_EQ(a.schedule.lr_warmup_iters, 0);
  EXPECT_EQ(a.schedule.weight_decay, 0.01);
  EXPECT_EQ(a.optimizer.clip_grad, 1.0);
  EXPECT_EQ(a.optimizer.adam_beta1, 0.9);
  EXPECT_EQ(a.optimizer.adam_beta2, 0.999);
  EXPECT_EQ(a.optimizer.adam_eps, 1e-8);
  EXPECT_FALSE(a.parallel.use_torch_fsdp2);
  EXPECT_EQ(a.parallel.fsdp2_config_path, std::nullopt);
  EXPECT_EQ(a.launch.ranks, 1);
  EXPECT_EQ(a.launch.compute_threads, 8);
  EXPECT_EQ(a.launch.device_executor, device::ExecutorKind::kThreaded);
  EXPECT_EQ(a.kernels.set, train::KernelSet::kFast);
  EXPECT_EQ(a.launch.distributed_timeout_minutes, 10);
  EXPECT_EQ(a.data.seed, 1234u);
  EXPECT_EQ(a.checkpoint.save, std::nullopt);
  EXPECT_EQ(a.log.metrics_path, "metrics.jsonl");
  EXPECT_EQ(a.log.log_interval, 10);
  EXPECT_EQ(a.schedule.eval_interval, 100);
  EXPECT_EQ(a.schedule.eval_iters, 10);
  EXPECT_EQ(a.data.held_out_fraction, 0.05);
  EXPECT_EQ(a.sample.sample_bytes, 0);
  EXPECT_EQ(a.sample.prompt, "");
}

TEST(ProgramArguments, EveryFlagIsRead) {
  const job::Job a = std::get<job::Job>(parsed({"train",
                                                "--init-from-hf-path",
                                                "qwen",
                                                "--data-path",
                                                "a.txt",
                                                "b.txt",
                                                "--micro-batch-size",
                                                "2",
                                                "--global-batch-size",
                                                "16",
                                                "--seq-length",
                                                "64",
                                                "--train-iters",
                                                "50",
                                                "--lr",
                                                "1e-3",
                                                "--min-lr=1e-5",
                                                "--lr-decay-style",
                                                "cosine",
                                                "--lr-decay-iters",
                                                "40",
                                                "--lr-warmup-iters",
                                                "5",
                                                "--weight-decay",
                                                "0.1",
                                                "--clip-grad",
                                                "0",
                                                "--adam-beta1",
                                                "0.8",
                                                "--adam-beta2",
                                                "0.95",
                                                "--adam-eps",
                                                "1e-6",
                                                "--seed",
                                                "7",
                                                "--log-interval",
                                                "1",
                                                "--save-interval",
                                                "10",
                                                "--exit-interval",
                                                "30",
                                                "--exit-duration-in-mins",
                                                "1.5",
                                                "--exit-signal-handler",
                                                "--eval-interval",
                                                "25",
                                                "--eval-iters",
                                                "3",
                                                "--use-torch-fsdp2",
                                                "--fsdp2-config-path",
                                                "f.yaml",
                                                "--save",
                                                "out",
                                                "--nproc-per-node",
                                                "4",
                                                "--compute-threads",
                                                "1",
                                                "--device-executor",
                                                "inline",
                                                "--kernel-grain",
                                                "pytorch",
                                                "--use-flash-attn",
                                                "--print-schedule",
                                                "--distributed-timeout-minutes",
                                                "3",
                                                "--held-out-fraction",
                                                "0.1",
                                                "--sample-bytes",
                                                "80",
                                                "--prompt",
                                                "Once upon"}));
  EXPECT_EQ(a.model.init_from_hf_path, "qwen");
  EXPECT_THAT(a.data.data_path, ElementsAre("a.txt", "b.txt"));
  EXPECT_EQ(a.schedule.micro_batch_size, 2);
  EXPECT_EQ(a.schedule.global_batch_size, 16);
  EXPECT_EQ(a.data.seq_length, 64);
  EXPECT_EQ(a.schedule.train_iters, 50);
  EXPECT_EQ(a.schedule.lr, 1e-3);
  EXPECT_EQ(a.schedule.min_lr, 1e-5);
  EXPECT_EQ(a.schedule.lr_decay_style, train::LrDecayStyle::kCosine);
  EXPECT_EQ(a.schedule.lr_decay_iters, 40);
  EXPECT_EQ(a.schedule.lr_warmup_iters, 5);
  EXPECT_EQ(a.schedule.weight_decay, 0.1);
  EXPECT_EQ(a.optimizer.clip_grad, 0);
  EXPECT_EQ(a.optimizer.adam_beta1, 0.8);
  EXPECT_EQ(a.optimizer.adam_beta2, 0.95);
  EXPECT_EQ(a.optimizer.adam_eps, 1e-6);
  EXPECT_EQ(a.data.seed, 7u);
  EXPECT_EQ(a.log.log_interval, 1);
  EXPECT_EQ(a.schedule.save_interval, 10);
  EXPECT_EQ(a.schedule.exit_interval, 30);
  EXPECT_EQ(a.schedule.exit_duration_in_mins, 1.5);
  EXPECT_TRUE(a.schedule.exit_signal_handler);
  EXPECT_EQ(a.schedule.eval_interval, 25);
  EXPECT_EQ(a.schedule.eval_iters, 3);
  EXPECT_TRUE(a.parallel.use_torch_fsdp2);
  EXPECT_EQ(a.parallel.fsdp2_config_path, "f.yaml");
  EXPECT_EQ(a.checkpoint.save, "out");
  EXPECT_EQ(a.log.metrics_path, std::filesystem::path("out/metrics.jsonl"));
  EXPECT_EQ(a.launch.ranks, 4);
  EXPECT_EQ(a.launch.compute_threads, 1);
  EXPECT_EQ(a.launch.device_executor, device::ExecutorKind::kInline);
  EXPECT_EQ(a.kernels.set, train::KernelSet::kPytorch);
  EXPECT_TRUE(a.kernels.fused.flash_attn);
  EXPECT_TRUE(a.report.print_schedule);
  EXPECT_FALSE(a.kernels.fused.fused_rmsnorm);
  EXPECT_EQ(a.launch.distributed_timeout_minutes, 3);
  EXPECT_EQ(a.data.held_out_fraction, 0.1);
  EXPECT_EQ(a.sample.sample_bytes, 80);
  EXPECT_EQ(a.sample.prompt, "Once upon");
}

TEST(ProgramArguments, ASnapshotIsExplainedBesideAJob) {
  const auto explained = std::get<ExplainArguments>(parsed(
      {"explain", "--snapshot", "s.pickle", "--model-config", "m.yaml", "--world-size", "4", "--json", "e.json"}));
  EXPECT_EQ(explained.snapshot, "s.pickle");
  EXPECT_EQ(explained.json, "e.json");
  EXPECT_EQ(explained.job->train.launch.ranks, 4);
  EXPECT_EQ(
      test::message_of<ConfigError>([] {
        parsed({"explain", "--snapshot", "s.pickle"});
      }),
      "--snapshot is explained beside the plan of the run's job, and no job is given; add its words, as shardloom "
      "plan takes them: a configuration file, --world-size, --model-config");
  EXPECT_EQ(
      test::message_of<ConfigError>([] {
        parsed({"explain", "--snapshot", "s.pickle", "--model-config", "m.yaml", "--memory-snapshot", "t.pickle"});
      }),
      "explain plans the step of the run's job alone, and --memory-snapshot is of shardloom plan; remove it");
}

TEST(ProgramArguments, AReportIsWrittenWhereAsked) {
  EXPECT_EQ(train({}).report.path, std::nullopt);
  const job::Job a = train({"--report", "r.html", "--report-device", "h200"});
  EXPECT_EQ(a.report.path, "r.html");
  EXPECT_EQ(a.report.device, "h200");
  EXPECT_THAT(a.report.command_line, ElementsAre("train", "--model-config", "m.yaml", "--data-path", "d.txt",
                                                 "--report", "r.html", "--report-device", "h200"));
  EXPECT_EQ(train({"--report", "r.html"}).report.device, "cpu");
  const auto plan = std::get<PlanArguments>(parsed({"plan", "--model-config", "m.yaml", "--report", "p.html"}));
  EXPECT_EQ(plan.train.report.path, "p.html");
}

PlanArguments plan(const Words& more) {
  Words words = {"plan", "--model-config", "m.yaml"};
  words.insert(words.end(), more.begin(), more.end());
  return std::get<PlanArguments>(parsed(words));
}

TEST(Lora, FlagsAreThoseOfMegatron) {
  const job::Job off = train({});
  EXPECT_FALSE(off.model.lora.on());
  const job::Job on =
      train({"--lora-target-modules", "linear_qkv", "linear_proj", "--lora-r", "8", "--lora-alpha", "16",
             "--lora-dropout", "0.1", "--use-rslora", "--lora-modules-to-save", "lm_head", "--lora-ckpt-filter",
             "--lora-fusion", "--freeze", "model.embed_tokens", "model.layers.{0-3}"});
  EXPECT_TRUE(on.model.lora.on());
  EXPECT_THAT(on.model.lora.target_modules, ElementsAre("linear_qkv", "linear_proj"));
  EXPECT_EQ(on.model.lora.r, 8);
  EXPECT_EQ(on.model.lora.alpha, 16.0);
  EXPECT_EQ(on.model.lora.dropout, 0.1);
  EXPECT_TRUE(on.model.lora.use_rslora);
  EXPECT_THAT(on.model.lora.modules_to_save, ElementsAre("lm_head"));
  EXPECT_THAT(on.model.freeze, ElementsAre("model.embed_tokens", "model.layers.{0-3}"));
  EXPECT_THAT(on.written.without_effect, UnorderedElementsAre("--lora-ckpt-filter", "--lora-fusion"));
  EXPECT_EQ(train({"--lora-load", "tuned"}).model.lora.load, "tuned");
}

TEST(Lora, FlagsThatDoNotFitAreRefused) {
  EXPECT_EQ(refusal(with_model_and_data({"--lora-r", "8"})),
            "--lora-r is given, but the model has no adapters; add --lora-target-modules NAME ... or --lora-load DIR, "
            "or remove it");
  EXPECT_EQ(refusal(with_model_and_data({"--lora-load", "tuned", "--lora-target-modules", "q_proj"})),
            "--lora-load is tuned, whose configuration has the modules, and --lora-target-modules is given too; "
            "remove one of them");
  EXPECT_EQ(refusal(with_model_and_data({"--lora-target-modules", "q_proj", "--lora-r", "0"})),
            "--lora-r is 0; use a whole number of at least 1");
  EXPECT_EQ(refusal(with_model_and_data({"--lora-target-modules", "q_proj", "--lora-dropout", "1"})),
            "--lora-dropout is 1; use a number from 0 to below 1");
  EXPECT_THAT(refusal(with_model_and_data({"--qlora"})), HasSubstr("--qlora stores the base in 4 bits"));
}

std::string plan_refusal(const Words& more) {
  Words words = {"plan", "--model-config", "m.yaml"};
  words.insert(words.end(), more.begin(), more.end());
  return refusal(words);
}

TEST(PlanArguments, ASearchKeepsTheBatchesThatAreGiven) {
  EXPECT_EQ(plan({"--sweep"}).micro_batch_size, std::nullopt);
  EXPECT_EQ(plan({"--sweep"}).global_batch_size, std::nullopt);
  const PlanArguments a =
      plan({"--sweep", "--world-size", "4", "--micro-batch-size", "3", "--global-batch-size", "24"});
  EXPECT_EQ(a.micro_batch_size, 3);
  EXPECT_EQ(a.global_batch_size, 24);
  EXPECT_EQ(plan({"--fit", "world-size", "--global-batch-size", "24"}).global_batch_size, 24);
}

TEST(PlanArguments, WhatASearchLooksForIsNotGivenBesideIt) {
  EXPECT_EQ(plan_refusal({"--fit", "micro-batch", "--micro-batch-size", "4"}),
            "--fit micro-batch searches the micro-batch, but --micro-batch-size is 4; remove one of them");
  EXPECT_EQ(plan_refusal({"--fit", "world-size", "--world-size", "16"}),
            "--fit world-size searches the number of devices, but --world-size is 16; remove one of them");
  EXPECT_EQ(plan_refusal({"--fit", "world-size", "--nproc-per-node", "8"}),
            "--fit world-size searches the number of devices, but --nproc-per-node is 8; remove one of them");
  EXPECT_EQ(plan_refusal({"--fit", "seq-length", "--seq-length", "64"}),
            "--fit seq-length searches the sequence, but --seq-length is 64; remove one of them");
  EXPECT_EQ(plan_refusal({"--memory-snapshot", "s.pickle", "--sweep"}),
            "--memory-snapshot and --sweep are both given, but a snapshot is of one plan; remove one of them, or write "
            "the file of a plan with what the search chose");
  EXPECT_EQ(plan_refusal({"--fit", "world-size", "--sweep"}),
            "--sweep and --fit are both given, and each is a search of its own; remove one of them");
}

TEST(PlanArguments, Fp8IsOfAPlanAlone) {
  const PlanArguments a = plan({"--fp8-recipe", "rowwise", "--fp8-param-gather"});
  EXPECT_EQ(a.fp8_recipe, "rowwise");
  EXPECT_TRUE(a.fp8_param_gather);
  EXPECT_EQ(plan({}).fp8_recipe, std::nullopt);
  EXPECT_EQ(plan_refusal({"--fp8-recipe", "mxfp8"}), "--fp8-recipe is mxfp8; use tensorwise, rowwise, delayed");
  EXPECT_EQ(plan_refusal({"--fp8-param-gather"}),
            "--fp8-param-gather is given without --fp8-recipe; add --fp8-recipe tensorwise, or remove it");
  EXPECT_EQ(plan_refusal({"--sweep", "--fp8-recipe", "rowwise", "--write-config", "f.yaml"}),
            "--write-config is f.yaml, but --fp8-recipe rowwise plans products in FP8, which training does not have; "
            "remove one of them");
  EXPECT_EQ(refusal(with_model_and_data({"--fp8-recipe", "rowwise"})),
            "--fp8-recipe multiplies in FP8, which is planned and not computed; give it to plan, or remove it");
  EXPECT_EQ(refusal(with_model_and_data({"--fp8-format", "hybrid"})),
            "--fp8-format multiplies in FP8, which is planned and not computed; plan with --fp8-recipe tensorwise, or "
            "remove it");
}

TEST(PlanArguments, TheWorldIsWholeLaunches) {
  EXPECT_EQ(plan({"--world-size", "16", "--nproc-per-node", "8"}).train.launch.ranks, 16);
  EXPECT_EQ(plan({"--nproc-per-node", "8"}).train.launch.ranks, 8);
  EXPECT_EQ(plan_refusal({"--world-size", "12", "--nproc-per-node", "8"}),
            "--world-size is 12, which is no multiple of --nproc-per-node 8; use 16, or leave out one of them");
}

TEST(ProgramArguments, TheGuidesDistributedBackendsAreAccepted) {
  EXPECT_EQ(train({}).launch.distributed_backend, "nccl");
  for (const char* backend : {"nccl", "gloo", "npu:hccl,cpu:gloo"}) {
    EXPECT_EQ(train({"--distributed-backend", backend}).launch.distributed_backend, backend);
  }
  EXPECT_EQ(refusal(with_model_and_data({"--distributed-backend", "glo"})),
            "--distributed-backend is glo; use nccl, gloo, npu:hccl,cpu:gloo (did you mean gloo?)");
}

TEST(ProgramArguments, TheGlobalBatchDefaultsToOneMicroBatchARank) {
  EXPECT_EQ(train({"--nproc-per-node", "4", "--micro-batch-size", "3"}).schedule.global_batch_size, 12);
}

TEST(ProgramArguments, RanksShareTheCores) {
  EXPECT_EQ(train({"--nproc-per-node", "2"}).launch.compute_threads, 4);
  EXPECT_EQ(train({"--nproc_per_node", "3"}).launch.compute_threads, 2);
  EXPECT_EQ(train({"--nproc-per-node", "16"}).launch.compute_threads, 1);
}

TEST(ProgramArguments, AnMpiLauncherSetsTheRanks) {
  const launch::Start two_nodes{.cores = 8, .processes = 8, .local_processes = 4};
  const job::Job a = train({}, two_nodes);
  EXPECT_EQ(a.launch.ranks, 8);
  EXPECT_EQ(a.launch.compute_threads, 2);
  EXPECT_EQ(a.schedule.global_batch_size, 8);
}

TEST(ProgramArguments, TheFastGrainFusesEverything) {
  const job::Job fast = train({});
  EXPECT_TRUE(fast.kernels.fused.fused_rmsnorm && fast.kernels.fused.fused_swiglu &&
              fast.kernels.fused.fused_rotary_pos_emb && fast.kernels.fused.flash_attn);
  const job::Job composed = train({"--kernel-grain", "pytorch", "--use-fused-swiglu"});
  EXPECT_TRUE(composed.kernels.fused.fused_swiglu);
  EXPECT_FALSE(composed.kernels.fused.fused_rmsnorm || composed.kernels.fused.fused_rotary_pos_emb ||
               composed.kernels.fused.flash_attn);
}

TEST(ProgramArguments, TheMetricsPathMayBeAnywhere) {
  EXPECT_EQ(train({"--save", "out", "--metrics-path", "m/run1.jsonl"}).log.metrics_path, "m/run1.jsonl");
}

TEST(ProgramArguments, DecayMayBeLongerThanTheTraining) {
  EXPECT_EQ(train({"--lr-decay-iters", "1000", "--lr-warmup-iters", "99"}).schedule.lr_decay_iters, 1000);
}

// --- Schedules and the loss scale

TEST(Schedules, AreConstantInWeightDecayAndHaveNoScaleUnlessAsked) {
  const job::Job a = train({});
  EXPECT_EQ(a.schedule.lr_wsd_decay_style, train::WsdDecayStyle::kExponential);
  EXPECT_EQ(a.schedule.weight_decay_incr_style, train::WeightDecayIncrStyle::kConstant);
  EXPECT_EQ(a.schedule.start_weight_decay, std::nullopt);
  EXPECT_EQ(a.schedule.lr_warmup_fraction, std::nullopt);
  EXPECT_EQ(a.schedule.lr_warmup_init, 0);
  EXPECT_EQ(a.schedule.train_samples, 0);
  EXPECT_THAT(a.schedule.iterations_to_skip, ElementsAre());
  EXPECT_FALSE(a.optimizer.fp16 || a.schedule.override_opt_param_scheduler ||
               a.schedule.use_checkpoint_opt_param_scheduler);
  EXPECT_EQ(a.optimizer.loss_scale.constant, std::nullopt);
  EXPECT_EQ(a.optimizer.loss_scale.initial, 4294967296.0);
  EXPECT_EQ(a.optimizer.loss_scale.minimum, 1.0);
  EXPECT_EQ(a.optimizer.loss_scale.window, 1000);
  EXPECT_EQ(a.optimizer.loss_scale.hysteresis, 2);
}

TEST(Schedules, OfIterationsAreRead) {
  const job::Job a = train({"--train-iters",
                            "50",
                            "--lr-decay-style",
                            "WSD",
                            "--lr-wsd-decay-style",
                            "minus_sqrt",
                            "--lr-wsd-decay-iters",
                            "10",
                            "--lr-warmup-fraction",
                            "0.1",
                            "--lr-warmup-init",
                            "1e-5",
                            "--weight-decay-incr-style",
                            "cosine",
                            "--start-weight-decay",
                            "0.01",
                            "--end-weight-decay",
                            "0.1",
                            "--override-opt_param-scheduler",
                            "--iterations-to-skip",
                            "7",
                            "3",
                            "7"});
  EXPECT_EQ(a.schedule.lr_decay_style, train::LrDecayStyle::kWsd);
  EXPECT_EQ(a.schedule.lr_wsd_decay_style, train::WsdDecayStyle::kMinusSqrt);
  EXPECT_EQ(a.schedule.lr_wsd_decay_iters, 10);
  EXPECT_EQ(a.schedule.lr_decay_iters, 50);
  EXPECT_EQ(a.schedule.lr_warmup_fraction, 0.1);
  EXPECT_EQ(a.schedule.lr_warmup_init, 1e-5);
  EXPECT_EQ(a.schedule.weight_decay_incr_style, train::WeightDecayIncrStyle::kCosine);
  EXPECT_EQ(a.schedule.start_weight_decay, 0.01);
  EXPECT_EQ(a.schedule.end_weight_decay, 0.1);
  EXPECT_TRUE(a.schedule.override_opt_param_scheduler);
  EXPECT_TRUE(train({"--use-checkpoint-opt_param-scheduler"}).schedule.use_checkpoint_opt_param_scheduler);
  EXPECT_THAT(a.schedule.iterations_to_skip, ElementsAre(3, 7));
  EXPECT_THAT(a.written.without_effect, ElementsAre());
}

TEST(Schedules, OfSamplesAreRead) {
  const job::Job a = train({"--train-samples", "1003", "--global-batch-size", "10", "--lr-decay-style", "WSD",
                            "--lr-wsd-decay-samples", "300", "--lr-warmup-samples", "90"});
  EXPECT_EQ(a.schedule.train_samples, 1003);
  EXPECT_EQ(a.schedule.train_iters, 100);  // whole batches
  EXPECT_EQ(a.schedule.lr_decay_samples, 1003);
  EXPECT_EQ(a.schedule.lr_wsd_decay_samples, 300);
  EXPECT_EQ(a.schedule.lr_warmup_samples, 90);
  EXPECT_EQ(train({"--train-samples", "100", "--lr-decay-samples", "70"}).schedule.lr_decay_samples, 70);
}

TEST(Schedules, WhatMegatronPassesOverIsNamed) {
  EXPECT_THAT(train({"--lr-warmup-init", "1e-5"}).written.without_effect, ElementsAre("--lr-warmup-init 1e-05"));
  EXPECT_THAT(train({"--weight-decay", "0.3", "--weight-decay-incr-style", "linear", "--start-weight-decay", "0",
                     "--end-weight-decay", "0.1"})
                  .written.without_effect,
              ElementsAre("--weight-decay 0.3"));
  EXPECT_THAT(train({"--initial-loss-scale", "65536", "--loss-scale", "8"}).written.without_effect,
              ElementsAre("--loss-scale 8", "--initial-loss-scale 65536"));
}

TEST(Schedules, APlanSkipsNoIteration) {
  EXPECT_THAT(plan({"--iterations-to-skip", "1", "2"}).train.schedule.iterations_to_skip, ElementsAre());
}

TEST(LossScale, IsRead) {
  const std::vector<std::string> fp16{"--use-torch-fsdp2", "--fsdp2-config-path", "full_shard", "--fp16"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = fp16;
    words.insert(words.end(), more.begin(), more.end());
    return train(words);
  };
  const job::Job a = with(
      {"--initial-loss-scale", "65536", "--min-loss-scale", "4", "--loss-scale-window", "500", "--hysteresis", "3"});
  EXPECT_TRUE(a.optimizer.fp16);
  EXPECT_EQ(a.optimizer.loss_scale.initial, 65536);
  EXPECT_EQ(a.optimizer.loss_scale.minimum, 4);
  EXPECT_EQ(a.optimizer.loss_scale.window, 500);
  EXPECT_EQ(a.optimizer.loss_scale.hysteresis, 3);
  EXPECT_THAT(a.written.without_effect, ElementsAre());
  const job::Job constant = with({"--loss-scale", "128", "--hysteresis", "3"});
  EXPECT_EQ(constant.optimizer.loss_scale.constant, 128);
  EXPECT_THAT(constant.written.without_effect, ElementsAre("--hysteresis 3"));
}

// --- Launch scripts of Megatron, MindSpeed, torchrun and msrun

TEST(LaunchScripts, TheGuidesFlagsForFsdp2AreRead) {
  const job::Job a = train({"--use-torch-fsdp2", "--fsdp2-config-path", "f.yaml", "--ckpt-format", "torch_dcp",
                            "--untie-embeddings-and-output-weights", "--distributed-backend", "npu:hccl,cpu:gloo",
                            "--init-model-with-meta-device"});
  EXPECT_TRUE(a.parallel.use_torch_fsdp2 && a.model.untie_embeddings_and_output_weights &&
              a.model.init_model_with_meta_device);
  EXPECT_EQ(a.checkpoint.ckpt_format, train::CheckpointFormat::kTorchDcp);
  EXPECT_FALSE(a.model.downcast_to_bf16);
  EXPECT_EQ(train({"--ckpt-format", "torch_dist"}).checkpoint.ckpt_format, train::CheckpointFormat::kTorchDist);
  EXPECT_EQ(train({}).checkpoint.ckpt_format, train::CheckpointFormat::kHf);
}

TEST(LaunchScripts, DowncastGoesWithLoadedWeights) {
  const job::Job a =
      std::get<job::Job>(parsed({"train", "--init-from-hf-path", "q", "--data-path", "d", "--downcast-to-bf16"}));
  EXPECT_TRUE(a.model.downcast_to_bf16);
}

TEST(LaunchScripts, UnderscoresMayStandForDashes) {
  const job::Job a = train({"--nproc_per_node=2", "--seq_length", "9", "--use_torch_fsdp2", "--fsdp2_config_path",
                            "my_fsdp2.yaml", "--save", "my_folder"});
  EXPECT_EQ(a.launch.ranks, 2);
  EXPECT_EQ(a.data.seq_length, 9);
  EXPECT_EQ(a.parallel.fsdp2_config_path, "my_fsdp2.yaml");
  EXPECT_EQ(a.checkpoint.save, "my_folder");
}

TEST(LaunchScripts, WhatOneMachineNeedsNotIsAccepted) {
  const job::Job torchrun = train({"--nproc_per_node", "4", "--nnodes", "1", "--node_rank", "0", "--master_addr",
                                   "localhost", "--master_port", "6000"});
  EXPECT_EQ(torchrun.launch.ranks, 4);
  const job::Job msrun =
      train({"--local_worker_num", "4", "--worker_num", "4", "--master_addr", "127.0.0.1", "--join", "True"});
  EXPECT_EQ(msrun.launch.ranks, 4);
  const job::Job megatron =
      train({"--tensor-model-parallel-size", "1", "--pipeline-model-parallel-size", "1", "--context-parallel-size=1",
             "--expert-model-parallel-size", "1", "--no-gradient-accumulation-fusion", "--lr", "0.5"});
  EXPECT_EQ(megatron.schedule.lr, 0.5);
}

// --- A program of pretrain()

ParsedProgram parsed_program(const Words& words, const std::function<void(train::ExtraArguments&)>& extra = {}) {
  std::vector<const char*> argv = {"build/bin/my_pretrain"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_program_arguments(static_cast<int>(argv.size()), argv.data(), extra, kEightCores);
}

std::string program_refusal(const Words& words, const std::function<void(train::ExtraArguments&)>& extra = {}) {
  return test::message_of<ConfigError>([&] { parsed_program(words, extra); });
}

TEST(ProgramArguments, NeedNoModelAndNoData) {
  const auto a = std::get<job::Job>(parsed_program({"--train-iters", "7", "--nproc-per-node", "2"}));
  EXPECT_EQ(a.schedule.train_iters, 7);
  EXPECT_EQ(a.launch.ranks, 2);
  EXPECT_THAT(a.data.data_path, ::testing::IsEmpty());
}

TEST(ProgramArguments, OwnFlagsComeBeforeThoseOfLaunchScripts) {
  std::int64_t layers = 2;
  bool swiglu = false;
  const auto extra = [&](train::ExtraArguments& flags) {
    flags.whole("--num-layers", layers, 1, "Blocks");
    flags.toggle("--swiglu", swiglu, "Gated blocks");
  };
  const auto a = std::get<job::Job>(parsed_program({"--num-layers", "5", "--swiglu", "--hidden-size", "8"}, extra));
  EXPECT_EQ(layers, 5);
  EXPECT_TRUE(swiglu);
  EXPECT_THAT(a.written.without_effect, ElementsAre("--hidden-size 8"));
}

TEST(ProgramArguments, HaveTheProgramsOwnFlags) {
  std::int64_t size = 32;
  double ratio = 0.5;
  std::string name = "none";
  bool flip = false;
  const auto extra = [&](train::ExtraArguments& flags) {
    flags.group("Images");
    flags.whole("--image-size", size, 1, "Pixels of a side");
    flags.real("--mask-ratio", ratio, "Share that is masked");
    flags.text("--tower", name, "Name of the tower");
    flags.toggle("--flip", flip, "Mirror images");
    flags.example("--image-size 64 --flip");
  };
  const auto arguments = std::get<job::Job>(
      parsed_program({"--image-size", "64", "--mask_ratio", "0.25", "--tower=vit", "--flip"}, extra));
  EXPECT_THAT(arguments.written.added_flags,  // what ranks that are processes agree on
              ElementsAre(Pair("--image-size", "64"), Pair("--mask-ratio", "0.25"), Pair("--tower", "vit"),
                          Pair("--flip", "true")));
  EXPECT_EQ(size, 64);
  EXPECT_EQ(ratio, 0.25);
  EXPECT_EQ(name, "vit");
  EXPECT_TRUE(flip);
  const std::string help = std::get<EarlyExit>(parsed_program({"--help"}, extra)).text;
  for (const char* part : {"Images:", "--image-size N=64", "Pixels of a side", "--train-iters N=100",
                           "Example:\n  my_pretrain --image-size 64 --flip\n"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_EQ(program_refusal({"--image-size", "0"}, extra), "--image-size is 0; use a whole number of at least 1");
  EXPECT_EQ(program_refusal({"--image-sise", "1"}, extra), "unknown flag --image-sise; did you mean --image-size?");
}

TEST(ProgramArguments, AFlagThatIsThereAlreadyIsRefused) {
  double lr = 1;
  std::string name = "a";
  bool flip = false;
  EXPECT_EQ(program_refusal({}, [&](train::ExtraArguments& flags) { flags.real("--lr", lr, "Rate"); }),
            "extra_args_provider adds --lr, which is a flag of training already; choose another name");
  EXPECT_EQ(program_refusal({},
                            [&](train::ExtraArguments& flags) {
                              flags.text("--tower", name, "Tower");
                              flags.toggle("--tower", flip, "Tower too");
                            }),
            "extra_args_provider adds --tower, which it has added already; choose another name");
  EXPECT_THAT(program_refusal({}, [&](train::ExtraArguments& flags) { flags.text("--", name, "Nothing"); }),
              AllOf(HasSubstr("extra_args_provider: "), HasSubstr("; name a flag '--' and a word, such as --config")));
}

TEST(ProgramArguments, HaveNotWhatOnlyShardloomTrainReads) {
  for (const char* flag : {"--model-config", "--sample-bytes", "--prompt"}) {
    EXPECT_EQ(program_refusal({flag, "1"}), fmt::format("unknown flag {}; see my_pretrain --help all", flag));
  }
}

// --- generate

// --- chat

// --- Help

// The lines of a text.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream from(text);
  for (std::string line; std::getline(from, line);) lines.push_back(line);
  return lines;
}

TEST(Help, IsShortUnlessAllOfItIsWanted) {
  for (const char* command : {"train", "plan"}) {
    SCOPED_TRACE(command);
    const std::string brief = std::get<EarlyExit>(parsed({command, "--help"})).text;
    EXPECT_THAT(brief, AllOf(HasSubstr("Common flags:\n  --model-config FILE"),
                             HasSubstr(fmt::format("All flags: shardloom {} --help all\n", command))));
    EXPECT_THAT(brief, Not(HasSubstr("--adam-eps")));
    EXPECT_LE(lines_of(brief).size(), 50U);
    const std::string whole = std::get<EarlyExit>(parsed({command, "--help", "all"})).text;
    EXPECT_THAT(whole, HasSubstr("--adam-eps"));
    for (const std::string& text : {brief, whole}) EXPECT_THAT(lines_of(text), Each(SizeIs(Le(100U))));
  }
}

TEST(Help, OfPlanBeginsWithItsOwnFlags) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"plan", "--help"}, {"plan", "-h", "all"}}) {
    const std::string text = std::get<EarlyExit>(parsed(words)).text;
    EXPECT_LT(text.find("--world-size"), text.find("--model-config"));
  }
}

TEST(Help, OfAUsersProgramShowsItsFlagsInShort) {
  std::int64_t size = 32;
  const auto extra = [&](train::ExtraArguments& flags) { flags.whole("--image-size", size, 1, "Pixels of a side"); };
  EXPECT_THAT(std::get<EarlyExit>(parsed_program({"--help"}, extra)).text,
              AllOf(HasSubstr("Flags of this program:\n  --image-size N=32"), HasSubstr("my_pretrain --help all")));
}

TEST(Help, OfTrainHasGroupsDefaultsAndAnExample) {
  const EarlyExit help = std::get<EarlyExit>(parsed({"train", "--help", "all"}));
  EXPECT_EQ(help.code, 0);
  for (const char* part : {"Model:",
                           "Data:",
                           "Batch and schedule:",
                           "Optimizer:",
                           "Sharding:",
                           "Schedule:",
                           "Execution:",
                           "Output:",
                           "Saving and ending:",
                           "Checkpoints:",
                           "--save-interval N=after the last step only",
                           "--exit-interval N=never",
                           "--untie-embeddings-and-output-weights",
                           "--ckpt-format {torch_dcp,hf,torch_dist}",
                           "--distributed-backend {nccl,gloo,npu:hccl,cpu:gloo}=nccl",
                           "--lr X=0.0003",
                           "--train-iters N=100",
                           "--lr-decay-style {constant,linear,cosine,inverse-square-root,WSD}=linear",
                           "fp16:",
                           "--kernel-grain {fast,pytorch}=fast",
                           "--global-batch-size N=micro-batch-size x ranks",
                           "Example:\n  shardloom train "}) {
    EXPECT_THAT(help.text, HasSubstr(part));
  }
}

TEST(ProfileFlags, HaveMindSpeedsDefaults) {
  const observe::ProfileOptions p = train({}).profile;
  EXPECT_FALSE(p.enabled || p.with_cpu || p.with_stack || p.with_memory || p.record_shapes);
  EXPECT_EQ(p.step_start, 10);
  EXPECT_EQ(p.step_end, 12);
  EXPECT_EQ(p.level, observe::ProfileLevel::kLevel0);
  EXPECT_EQ(p.save_path, "./profile_dir");
  EXPECT_THAT(p.ranks, ElementsAre(0));
  EXPECT_EQ(p.device, std::nullopt);
}

TEST(ProfileFlags, AreReadAsWritten) {
  const observe::ProfileOptions p = train({"--profile",
                                           "--profile-step-start",
                                           "3",
                                           "--profile-step-end",
                                           "4",
                                           "--profile-level",
                                           "level2",
                                           "--profile-with-cpu",
                                           "--profile-with-stack",
                                           "--profile-with-memory",
                                           "--profile-record-shapes",
                                           "--profile-save-path",
                                           "out",
                                           "--profile-ranks",
                                           "3",
                                           "0",
                                           "3",
                                           "--profile-device",
                                           "h200",
                                           "--nproc-per-node",
                                           "4"})
                                        .profile;
  EXPECT_TRUE(p.enabled && p.with_cpu && p.with_stack && p.with_memory && p.record_shapes);
  EXPECT_EQ(p.step_start, 3);
  EXPECT_EQ(p.step_end, 4);
  EXPECT_EQ(p.level, observe::ProfileLevel::kLevel2);
  EXPECT_EQ(p.save_path, "out");
  EXPECT_THAT(p.ranks, ElementsAre(0, 3));
  EXPECT_EQ(p.device, "h200");
}

TEST(ProfileFlags, AreRefusedWithoutProfile) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--profile-with-cpu"}, {"--profile-step-end", "5"}, {"--profile-ranks", "0"}}) {
    EXPECT_EQ(refusal(with_model_and_data(words)),
              words.front() + " is given, but --profile is not, so nothing is collected; add --profile");
  }
}

TEST(ProfileFlags, BelongToPretrainProgramsAndNotToPlans) {
  const std::string plan = std::get<EarlyExit>(parsed({"plan", "--help", "all"})).text;
  EXPECT_THAT(plan, Not(HasSubstr("--profile")));
  for (const std::string& help : {std::get<EarlyExit>(parsed({"train", "--help", "all"})).text,
                                  std::get<EarlyExit>(parsed_program({"--help", "all"}, {})).text}) {
    for (const char* part :
         {"Profile (ui.perfetto.dev opens it):", "--profile-step-start N=10", "--profile-ranks N=0",
          "--profile-level {level0,level1,level2}=level0", "--profile-save-path DIR=./profile_dir"}) {
      EXPECT_THAT(help, HasSubstr(part));
    }
  }
}

TEST(LogFlags, HaveMegatronsDefaults) {
  const job::Job a = train({});
  EXPECT_EQ(a.log.log_format, log::LogFormat::kShort);
  EXPECT_FALSE(a.log.log_throughput);
  EXPECT_FALSE(a.log.check_for_spiky_loss);
  EXPECT_FALSE(a.log.check_for_large_grads);
  EXPECT_EQ(a.log.tensorboard_dir, std::nullopt);
  EXPECT_EQ(a.log.tensorboard_log_interval, 1);
  EXPECT_EQ(a.log.tensorboard_queue_size, 1000);
  EXPECT_TRUE(a.log.log_loss_scale_to_tensorboard);
  for (const bool off : {a.log.log_timers_to_tensorboard, a.log.log_memory_to_tensorboard,
                         a.log.log_world_size_to_tensorboard, a.log.log_validation_ppl_to_tensorboard}) {
    EXPECT_FALSE(off);
  }
}

TEST(LogFlags, AreReadAsWritten) {
  const job::Job a = train({"--log-format",
                            "megatron",
                            "--log-interval",
                            "7",
                            "--log-throughput",
                            "--check-for-spiky-loss",
                            "--check-for-large-grads",
                            "--tensorboard-dir",
                            "tb",
                            "--tensorboard-log-interval",
                            "3",
                            "--tensorboard-queue-size",
                            "5",
                            "--log-timers-to-tensorboard",
                            "--log-memory-to-tensorboard",
                            "--no-log-loss-scale-to-tensorboard",
                            "--log-world-size-to-tensorboard",
                            "--log_validation_ppl_to_tensorboard",
                            "--timing-log-level",
                            "0"});
  EXPECT_EQ(a.log.log_format, log::LogFormat::kMegatron);
  EXPECT_EQ(a.log.log_interval, 7);
  EXPECT_EQ(a.log.tensorboard_dir, "tb");
  EXPECT_EQ(a.log.tensorboard_log_interval, 3);
  EXPECT_EQ(a.log.tensorboard_queue_size, 5);
  EXPECT_FALSE(a.log.log_loss_scale_to_tensorboard);
  for (const bool on : {a.log.log_throughput, a.log.check_for_spiky_loss, a.log.check_for_large_grads,
                        a.log.log_timers_to_tensorboard, a.log.log_memory_to_tensorboard,
                        a.log.log_world_size_to_tensorboard, a.log.log_validation_ppl_to_tensorboard}) {
    EXPECT_TRUE(on);
  }
  EXPECT_THAT(a.written.without_effect, ElementsAre());
}

// 101 bytes are 10 samples of 10 tokens and the one behind them: 2 batches of 4 in an epoch.
TEST(Epochs, AreWholeBatchesOfTheTrainingData) {
  const std::string data = test::write_file(test::fresh_folder() / "text.txt", std::string(101, 'a')).string();
  const auto words = [&](const Words& more) {
    Words all = {"train", "--model-config",      "m.yaml", "--data-path",         data, "--seq-length",
                 "10",    "--held-out-fraction", "0",      "--global-batch-size", "4"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto job = std::get<job::Job>(parsed(words({"--train-epochs", "3", "--save", "out", "--save-epochs", "2"})));
  EXPECT_EQ(job.schedule.train_iters, 6);
  EXPECT_EQ(job.schedule.lr_decay_iters, 6);
  EXPECT_EQ(job.schedule.save_epoch_iters, 4);
  EXPECT_EQ(refusal(words({"--train-epochs", "1", "--global-batch-size", "16"})),
            "--train-epochs is given, and the training data has 10 samples, less than one --global-batch-size of 16; "
            "use a smaller batch or --train-iters");
  EXPECT_EQ(refusal({"plan", "--model-config", "m.yaml", "--train-epochs", "2"}),
            "--train-epochs counts the samples of the training data, and none is given; give --data-path PATH, or "
            "--train-iters");
}

TEST(TrainArguments, FlagsOfLaunchersAndOfMegatronsOverlapAreNamed) {
  EXPECT_THAT(
      train({"--log_dir", "logs", "--cluster_time_out", "300", "--overlap-grad-reduce", "--overlap-param-gather"})
          .written.without_effect,
      UnorderedElementsAre("--cluster-time-out 300", "--log-dir logs", "--overlap-grad-reduce",
                           "--overlap-param-gather"));
}

TEST(LogFlags, ThroughputWithoutAPlaceToSayItIsNamedAsWithoutEffect) {
  EXPECT_THAT(train({"--log-throughput"}).written.without_effect, ElementsAre("--log-throughput"));
  EXPECT_THAT(train({"--log-throughput", "--tensorboard-dir", "tb"}).written.without_effect,
              ElementsAre("--log-throughput"));
  EXPECT_THAT(train({"--log-params-norm"}).written.without_effect, ElementsAre("--log-params-norm"));
  EXPECT_TRUE(train({"--log-params-norm", "--tensorboard-dir", "tb"}).log.log_params_norm);
  EXPECT_TRUE(train({"--log-params-norm", "--log-format", "megatron"}).log.log_params_norm);
  EXPECT_TRUE(train({"--log-throughput", "--tensorboard-dir", "tb", "--log-timers-to-tensorboard"}).log.log_throughput);
}

TEST(LogFlags, OfTensorBoardAreRefusedWithoutItsFolder) {
  for (const char* flag :
       {"--log-timers-to-tensorboard", "--log-memory-to-tensorboard", "--log-loss-scale-to-tensorboard",
        "--log-world-size-to-tensorboard", "--log-validation-ppl-to-tensorboard"}) {
    EXPECT_EQ(refusal(with_model_and_data({flag})),
              fmt::format("{} is given, but --tensorboard-dir is not, so no scalar is written; add --tensorboard-dir "
                          "DIR",
                          flag));
  }
  EXPECT_EQ(refusal(with_model_and_data({"--tensorboard-queue-size", "3"})),
            "--tensorboard-queue-size is given, but --tensorboard-dir is not, so no scalar is written; add "
            "--tensorboard-dir DIR");
  EXPECT_EQ(refusal(with_model_and_data({"--log-format", "megatorn"})),
            "--log-format is megatorn; use short, megatron (did you mean megatron?)");
  EXPECT_EQ(refusal(with_model_and_data({"--timing-log-level", "2"})),
            "--timing-log-level is 2; timers of a step's parts are not built; write 0, and use --profile to see the "
            "parts");
  EXPECT_EQ(refusal(with_model_and_data({"--wandb-project", "p"})),
            "--wandb-project names a project of Weights & Biases, which is not built; write --tensorboard-dir DIR");
}

TEST(CompareArguments, AreTwoRunsAndATolerance) {
  const auto a = std::get<CompareArguments>(parsed({"compare", "x", "y.jsonl", "--tolerance", "1e-3"}));
  EXPECT_EQ(a.a, "x");
  EXPECT_EQ(a.b, "y.jsonl");
  EXPECT_EQ(a.tolerance, 1e-3);
  EXPECT_FALSE(a.assert_equal);
  EXPECT_TRUE(std::get<CompareArguments>(parsed({"compare", "x", "y", "--assert_equal"})).assert_equal);
  const EarlyExit help = std::get<EarlyExit>(parsed({"compare", "--help"}));
  EXPECT_THAT(help.text, HasSubstr("--tolerance X=0"));
  EXPECT_THAT(help.text, HasSubstr("Exit status: 0 the runs are the same in all steps in common, 1 they differ"));
}

TEST(RecomputeFlags, AreMegatronsAndMindSpeeds) {
  using models::RecomputeGranularity;
  using models::RecomputeMethod;
  const job::Job a = train({"--recompute-granularity", "full", "--recompute-method=block", "--recompute_num_layers",
                            "2", "--recompute-activation-function", "--recompute-activation-function-num-layers", "3",
                            "--recompute-norm", "--enable-recompute-layers-per-pp-rank", "--moe-layer-recompute"});
  EXPECT_EQ(a.parallel.recompute_layers.granularity, RecomputeGranularity::kFull);
  EXPECT_EQ(a.parallel.recompute_layers.method, RecomputeMethod::kBlock);
  EXPECT_EQ(a.parallel.recompute_layers.num_layers, 2);
  EXPECT_TRUE(a.parallel.recompute_layers.activation_function);
  EXPECT_EQ(a.parallel.recompute_layers.activation_function_num_layers, 3);
  EXPECT_TRUE(a.parallel.recompute_layers.norm);
  EXPECT_EQ(a.parallel.recompute_layers.norm_num_layers, std::nullopt);
  EXPECT_TRUE(a.parallel.recompute_layers.moe_layer);
  EXPECT_THAT(a.parallel.megatron_recompute_flags,
              UnorderedElementsAre("--recompute-granularity", "--recompute-method", "--recompute-num-layers",
                                   "--recompute-activation-function", "--recompute-activation-function-num-layers",
                                   "--recompute-norm", "--moe-layer-recompute"));
  const job::Job selective = train({"--recompute-activations", "--recompute-keep", "selected_ops"});
  EXPECT_EQ(selective.parallel.recompute_layers.granularity, RecomputeGranularity::kSelective);
  EXPECT_EQ(selective.parallel.recompute_keep, sharding::RecomputeKeep::kSelectedOps);
  EXPECT_EQ(train({"--recompute-granularity", "full", "--recompute-activations"}).parallel.recompute_layers.granularity,
            RecomputeGranularity::kSelective);  // as Megatron has it
  EXPECT_EQ(train({"--recompute-every", "2"}).parallel.recompute_every, 2);
  const job::Job none = train({});
  EXPECT_FALSE(none.parallel.recompute_layers.any());
  EXPECT_THAT(none.parallel.megatron_recompute_flags, ::testing::IsEmpty());
  EXPECT_EQ(none.parallel.recompute_every, 0);
  EXPECT_THAT(std::get<EarlyExit>(parsed({"train", "--help", "all"})).text, HasSubstr("--recompute-granularity"));
}

TEST(RecomputeFlags, ThatDoNotGoTogetherAreRefused) {
  const auto refused = [](const std::vector<std::string>& flags) { return refusal(with_model_and_data(flags)); };
  EXPECT_EQ(refused({"--recompute-granularity", "half"}), "--recompute-granularity is half; use none, full, selective");
  EXPECT_EQ(refused({"--recompute-granularity", "full"}),
            "--recompute-granularity full is given without --recompute-method; write --recompute-method uniform "
            "(checkpoints of N layers) or block (the first N layers), and --recompute-num-layers N");
  EXPECT_EQ(refused({"--recompute-granularity", "full", "--recompute-method", "block"}),
            "--recompute-granularity full is given without --recompute-num-layers; write --recompute-method uniform "
            "(checkpoints of N layers) or block (the first N layers), and --recompute-num-layers N");
  EXPECT_EQ(
      refused({"--recompute-method", "block"}),
      "--recompute-method is given without --recompute-granularity full, so nothing is recomputed by it; add that");
  EXPECT_EQ(
      refused({"--recompute-num-layers", "1"}),
      "--recompute-num-layers is given without --recompute-granularity full, so nothing is recomputed by it; add that");
  EXPECT_EQ(refused({"--recompute-num-layers", "0"}), "--recompute-num-layers is 0; use a whole number of at least 1");
  EXPECT_EQ(refused({"--recompute-granularity", "selective", "--recompute-method", "uniform"}),
            "--recompute-method is of --recompute-granularity full, and --recompute-granularity asks for selective; "
            "remove one of them");
  EXPECT_EQ(
      refused({"--recompute-activations", "--recompute-granularity", "full", "--recompute-num-layers", "2"}),
      "--recompute-num-layers is of --recompute-granularity full, and --recompute-activations asks for selective; "
      "remove one of them");
  EXPECT_EQ(refused({"--recompute-activation-function-num-layers", "2"}),
            "--recompute-activation-function-num-layers is given without --recompute-activation-function; add that, or "
            "remove it");
  EXPECT_EQ(refused({"--recompute-norm-num-layers", "2"}),
            "--recompute-norm-num-layers is given without --recompute-norm; add that, or remove it");
  const std::vector<std::string> uniform = {"--recompute-granularity", "full", "--recompute-method", "uniform",
                                            "--recompute-num-layers",  "1"};
  for (const char* flag : {"--recompute-activation-function", "--recompute-norm", "--moe-layer-recompute"}) {
    std::vector<std::string> both = uniform;
    both.emplace_back(flag);
    EXPECT_EQ(refused(both),
              fmt::format("--recompute-method is uniform, which recomputes every layer, and {} is for layers that are "
                          "not; write --recompute-method block, or remove one of them",
                          flag));
  }
}

TEST(RecomputeFlags, OfPipelineStagesAndOfTokenCountsAreRefused) {
  EXPECT_THAT(
      refusal(with_model_and_data({"--recompute-in-bubble"})),
      HasSubstr("--recompute-in-bubble recomputes while a pipeline stage waits, which is not built; remove it"));
  EXPECT_THAT(refusal(with_model_and_data({"--recompute-in-advance"})),
              HasSubstr("--recompute-in-advance recomputes before a pipeline stage's backward, which is not built"));
  EXPECT_THAT(refusal(with_model_and_data({"--moe-adaptive-recompute-activation"})),
              HasSubstr("--moe-adaptive-recompute-activation chooses in each step by how many tokens an expert got, so "
                        "that ranks would do different work; write --moe-layer-recompute"));
  EXPECT_EQ(refusal(with_model_and_data({"--recompute-numlayers", "1"})),
            "unknown flag --recompute-numlayers; did you mean --recompute-num-layers?");
}

// --- launch scripts

TEST(RepeatedFlags, TheLastOneCountsAsWithArgparse) {
  const job::Job a =
      train({"--lr", "1", "--lr=0.5", "--seed", "3", "--data-path", "e", "f", "--use-torch-fsdp2", "--use-torch-fsdp2",
             "--data_path=g", "h", "--lr", "0.25", "--fsdp2-config", "a.yaml", "--fsdp2-config-path", "b.yaml"});
  EXPECT_EQ(a.schedule.lr, 0.25);
  EXPECT_THAT(a.data.data_path, ElementsAre("g", "h"));
  EXPECT_EQ(a.parallel.fsdp2_config_path, "b.yaml");
}

TEST(FlagsOfLaunchScripts, ThatChangeNothingAreTakenAndNamed) {
  const job::Job a =
      train({"--num-workers", "8", "--no-load-optim", "--no_load_rng", "--swiglu", "--nnodes", "1",
             "--attention-dropout", "0.0", "--normalization", "RMSNorm", "--num-layers", "4", "--lr", "0.5"});
  EXPECT_THAT(a.written.without_effect, UnorderedElementsAre("--num-workers 8", "--no-load-optim", "--no-load-rng"));
  EXPECT_EQ(a.model.shape.num_layers, 4);
  EXPECT_EQ(a.schedule.lr, 0.5);
  EXPECT_THAT(train({"--nnodes", "1"}).written.without_effect, ElementsAre());
}

TEST(FlagsOfEnds, AreOffUnlessGiven) {
  const job::Job a = train({});
  EXPECT_EQ(a.schedule.save_interval, 0);
  EXPECT_EQ(a.schedule.exit_interval, 0);
  EXPECT_EQ(a.schedule.exit_duration_in_mins, 0);
  EXPECT_FALSE(a.schedule.exit_signal_handler);
  EXPECT_THAT(train({"--save-interval", "7"}).written.without_effect, ElementsAre("--save-interval 7"));
}

TEST(FlagsOfCheckpoints, ChooseTheFormatThatTheyNeed) {
  for (const Words& flags : {Words{"--save-interval", "7"}, Words{"--load", "in"}, Words{"--async-save"},
                             Words{"--keep-last", "3"}, Words{"--on-save-error", "continue"}}) {
    Words words = flags;
    words.insert(words.end(), {"--save", "out"});
    EXPECT_EQ(train(words).checkpoint.ckpt_format, train::CheckpointFormat::kTorchDcp);
  }
  EXPECT_EQ(train({"--save", "out"}).checkpoint.ckpt_format, train::CheckpointFormat::kHf);
}

TEST(FlagsOfCheckpoints, ThatHaveNothingToActOnAreNamed) {
  EXPECT_THAT(
      train({"--finetune", "--exit-on-missing-checkpoint", "--no-save-rng", "--keep-last", "2"}).written.without_effect,
      ElementsAre("--finetune", "--exit-on-missing-checkpoint", "--no-save-rng", "--keep-last 2"));
}

TEST(Presets, AreFilesOfConfigsByName) {
  const job::Job a = std::get<job::Job>(parsed({"train", "--model-config", "llama3_8b", "--data-path", "d",
                                                "--use-torch-fsdp2", "--fsdp2-config-path", "full_shard"}));
  EXPECT_TRUE(a.model.model_config->string().ends_with("configs/models/llama3_8b.yaml")) << *a.model.model_config;
  EXPECT_TRUE(std::filesystem::exists(*a.model.model_config));
  EXPECT_TRUE(a.parallel.fsdp2_config_path->string().ends_with("configs/fsdp2/full_shard.yaml"))
      << *a.parallel.fsdp2_config_path;
  EXPECT_EQ(train({"--use-torch-fsdp2", "--fsdp2-config-path", "full_shard.yaml"}).parallel.fsdp2_config_path,
            "full_shard.yaml");  // a path
}

TEST(Version, IsPrinted) {
  const EarlyExit version = std::get<EarlyExit>(parsed({"--version"}));
  EXPECT_EQ(version.text, "shardloom 0.1.0\n");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(std::get<EarlyExit>(parsed_program({"--version"}, {})).text, "my_pretrain on Shardloom 0.1.0\n");
}

TEST(Help, OfPlanHasGroupsDefaultsAndAnExample) {
  const EarlyExit help = std::get<EarlyExit>(parsed({"plan", "--help", "all"}));
  EXPECT_EQ(help.code, 0);
  for (const char* part :
       {"Model:", "Sharding:", "Plan:", "--seq-length N=128", "--json FILE", "Example:\n  shardloom plan "}) {
    EXPECT_THAT(help.text, HasSubstr(part));
  }
}

// Both say that nothing is evaluated.
TEST(Evaluation, OfNothingMayBeSaidTwice) {
  const job::Job a = train({"--eval-iters", "0", "--held-out-fraction", "0", "--eval-interval", "5"});
  EXPECT_EQ(a.schedule.eval_iters, 0);
  EXPECT_EQ(a.data.held_out_fraction, 0);
}

TEST(SkipTrain, TakesTheScheduleOfAnyRun) {
  const job::Job a = train({"--skip-train", "--lr-warmup-iters", "500", "--lr-decay-style", "WSD", "--min-lr", "1",
                            "--train-iters", "50", "--weight-decay-incr-style", "linear"});
  EXPECT_EQ(a.schedule.train_iters, 50);
  EXPECT_EQ(a.schedule.lr_warmup_iters, 0);
  EXPECT_TRUE(a.checkpoint.no_load_optim);
  EXPECT_EQ(train({"--skip-train", "--train-samples", "64", "--global-batch-size", "4"}).schedule.train_iters, 16);
  EXPECT_EQ(std::get<job::Job>(parsed({"train", "--model-config", "m.yaml", "--test-data-path", "p", "--skip-train"}))
                .data.part_data_path[2],
            std::vector<std::string>{"p"});
}

TEST(Mistakes, AreSaidTogetherButNotThoseThatFollowFromAnother) {
  EXPECT_EQ(
      refusal(with_model_and_data({"--nproc-per-node", "x", "--global-batch-size", "3", "--micro-batch-size", "2",
                                   "--tensorboard-queue-size", "3", "--fp16"})),
      "the command line has 3 mistakes:\n"
      "  --nproc-per-node is x; use a whole number of at least 1\n"
      "  --fp16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file "
      "with param_dtype: fp16, or remove it\n"
      "  --tensorboard-queue-size is given, but --tensorboard-dir is not, so no scalar is written; add "
      "--tensorboard-dir DIR");
  EXPECT_EQ(refusal(with_model_and_data({"--bf16", "--use-torch-fsdp", "--tensorboard-queue-size", "0"})),
            "2 flags are not taken:\n"
            "  unknown flag --use-torch-fsdp; did you mean --use-torch-fsdp2?\n"
            "  --tensorboard-queue-size is 0; use a whole number of at least 1");
}

// --- What is refused

struct Bad {
  Words words;
  std::string message;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << ::testing::PrintToString(bad.words); }

class BadCommandLine : public ::testing::TestWithParam<Bad> {};

TEST_P(BadCommandLine, IsRefusedWithFlagValueAndWhatToWrite) {
  EXPECT_EQ(refusal(GetParam().words), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Flags, BadCommandLine,
    ::testing::Values(
        Bad{with_model_and_data({"--micro-batchsize", "2"}),
            "unknown flag --micro-batchsize; did you mean --micro-batch-size?"},
        Bad{with_model_and_data({"--lrr=1"}), "unknown flag --lrr; did you mean --lr?"},
        Bad{with_model_and_data({"--num-laiers", "4"}), "unknown flag --num-laiers; did you mean --num-layers?"},
        Bad{with_model_and_data({"--lrr", "-1", "--squared-relu", "--micro-batchsize=2",
                                 "--gradient-accumulation-fusion", "--lrr", "2"}),
            "4 flags are not taken:\n  unknown flag --lrr; did you mean --lr?\n"
            "  unknown flag --micro-batchsize; did you mean --micro-batch-size?\n"
            "  --gradient-accumulation-fusion does not go with FSDP2, which reduces the gradients itself; remove it or "
            "write --no-gradient-accumulation-fusion\n"
            "  --squared-relu is not built; write --swiglu, or nothing for GELU"},
        Bad{with_model_and_data({"--rotary-percent", "0.1"}),
            "--rotary-percent is 0.1; rotary positions of a part of each head are not built; write 1"},
        Bad{with_model_and_data({"--mm-model", "m.json"}),
            "--model-config is m.yaml, and --mm-model m.json: both describe the model; remove one of them"},
        Bad{with_model_and_data({"--skip-train", "--save", "out"}),
            "--save is given, but with --skip-train no step is taken; remove one of them"},
        Bad{with_model_and_data({"--skip-train", "--eval-iters", "0"}),
            "--eval-iters is 0, but with --skip-train evaluation is all there is; use at least 1"},
        Bad{with_model_and_data({"--use-torch-fsdp2", "--fsdp2-config", "ful_shard"}),
            "--fsdp2-config-path is ful_shard, neither a file nor a preset; did you mean full_shard? presets are "
            "frozen_base, full_shard, full_shard_gpt2, full_shard_tied, hybrid, multimodal_ignored_vision, offload, "
            "quickstart, zero2"},
        Bad{with_model_and_data({"-x"}), "unknown flag -x; see shardloom train --help all"},
        Bad{with_model_and_data({"--lr"}), "--lr needs a value, but nothing follows; see --help"},
        Bad{with_model_and_data({"--lr", "--seed", "1"}), "--lr needs a value, but --seed follows; give --lr X"},
        Bad{with_model_and_data({"--save", "--seed", "1"}),
            "--save needs a value, but --seed follows; give --save DIR"},
        Bad{with_model_and_data({"--save", "--sead", "1"}),
            "--save needs a value, but --sead follows; give --save DIR"},
        Bad{with_model_and_data({"--sample-bytes", "9", "--prompt", "--seed"}),
            "--prompt needs a value, but --seed follows; give --prompt TEXT"},
        Bad{{"train", "--data-path", "--model-config", "m"},
            "--data-path needs a value, but --model-config follows; give --data-path PATH"},
        Bad{with_model_and_data({"--use-torch-fsdp2=false"}), "--use-torch-fsdp2 takes no value; give it alone"},
        Bad{with_model_and_data({"--lr", "fast"}), "--lr is fast; use a number above 0"},
        Bad{with_model_and_data({"--lr", "0"}), "--lr is 0; use a number above 0"},
        Bad{with_model_and_data({"--lr", "nan"}), "--lr is nan; use a number above 0"},
        Bad{with_model_and_data({"--lr", "1e400"}), "--lr is 1e400; use a number above 0"},
        Bad{with_model_and_data({"--min-lr", "-1e-5"}), "--min-lr is -1e-5; use a number of at least 0"},
        Bad{with_model_and_data({"--adam-beta1", "1"}), "--adam-beta1 is 1; use a number from 0 to below 1"},
        Bad{with_model_and_data({"--adam-beta2", "-0.5"}), "--adam-beta2 is -0.5; use a number from 0 to below 1"},
        Bad{with_model_and_data({"--adam-eps", "0"}), "--adam-eps is 0; use a number above 0"},
        Bad{with_model_and_data({"--weight-decay", "-1"}), "--weight-decay is -1; use a number of at least 0"},
        Bad{with_model_and_data({"--save-interval", "0"}), "--save-interval is 0; use a whole number of at least 1"},
        Bad{with_model_and_data({"--exit-interval", "0"}), "--exit-interval is 0; use a whole number of at least 1"},
        Bad{with_model_and_data({"--exit-duration-in-mins", "-1"}),
            "--exit-duration-in-mins is -1; use a number of at least 0"},
        Bad{with_model_and_data({"--clip-grad", "-1"}), "--clip-grad is -1; use a number of at least 0"},
        Bad{with_model_and_data({"--held-out-fraction", "1"}),
            "--held-out-fraction is 1; use a number from 0 to below 1"},
        Bad{with_model_and_data({"--micro-batch-size", "0"}),
            "--micro-batch-size is 0; use a whole number of at least 1"},
        Bad{with_model_and_data({"--seq-length", "1.5"}), "--seq-length is 1.5; use a whole number of at least 1"},
        Bad{with_model_and_data({"--seq-length", "99999999999"}),
            "--seq-length is 99999999999; use a whole number from 1 to 2147483647"},
        Bad{with_model_and_data({"--train-iters", "many"}), "--train-iters is many; use a whole number of at least 1"},
        Bad{with_model_and_data({"--nproc-per-node", "0"}), "--nproc-per-node is 0; use a whole number of at least 1"},
        Bad{with_model_and_data({"--seed", "-1"}), "--seed is -1; use a whole number of at least 0"},
        Bad{with_model_and_data({"--lr-decay-style", "cosin"}),
            "--lr-decay-style is cosin; use constant, linear, cosine, inverse-square-root, WSD (did you mean "
            "cosine?)"},
        Bad{with_model_and_data({"--device-executor", "gpu"}), "--device-executor is gpu; use threaded, inline"},
        Bad{with_model_and_data({"--kernel-grain", "Fast"}),
            "--kernels is Fast; use fast, pytorch (did you mean fast?)"},
        Bad{with_model_and_data({"--profile-level", "level3"}),
            "--profile-level is level3; use level0, level1, level2 (did you mean level0?)"},
        Bad{with_model_and_data({"--profile-ranks", "0", "all"}),
            "--profile-ranks is all; use whole numbers of at least 0"},
        Bad{with_model_and_data({"--profile-step-start", "-1"}),
            "--profile-step-start is -1; use a whole number of at least 0"},
        Bad{with_model_and_data({"--save", ""}), "--save is empty; give it a value or leave it out"}));

INSTANTIATE_TEST_SUITE_P(
    Combinations, BadCommandLine,
    ::testing::Values(
        Bad{{"train", "--data-path", "d"},
            "no model is given; use --model-config FILE (fresh weights), --init-from-hf-path DIR, or Megatron's --num-layers, "
            "--hidden-size, --num-attention-heads and --vocab-size"},
        Bad{{"train", "--model-config", "m"}, "no data is given; use --data-path PATH"},
        Bad{with_model_and_data({"--init-from-hf-path", "q"}),
            "--model-config and --init-from-hf-path are both given; keep one: fresh weights or those of the folder"},
        Bad{with_model_and_data({"--fsdp2-config-path", "f.yaml"}),
            "--fsdp2-config-path is f.yaml, but --use-torch-fsdp2 is not given; add it"},
        Bad{with_model_and_data({"--report-device", "h200"}),
            "--report-device is h200, but --report is not given, so no page is written; add --report FILE"},
        Bad{with_model_and_data({"--print-schedule"}),
            "--print-schedule is given, but --use-torch-fsdp2 is not, so nothing is gathered; add it"},
        Bad{with_model_and_data({"--profile", "--profile-step-start", "5", "--profile-step-end", "5"}),
            "--profile-step-end is 5, but collection begins at --profile-step-start 5; use at least 6"},
        Bad{with_model_and_data({"--profile", "--profile-step-start", "20"}),
            "--profile-step-end is 12 by default, but collection begins at --profile-step-start 20; use at least 21"},
        Bad{with_model_and_data({"--profile", "--profile-ranks", "0", "2", "--nproc-per-node", "2"}),
            "--profile-ranks names rank 2, but 2 ranks run; use 0 to 1"},
        Bad{with_model_and_data({"--profile", "--profile-ranks", "1"}),
            "--profile-ranks names rank 1, but one rank runs; use 0"},
        Bad{with_model_and_data({"--use-torch-fsdp2"}),
            "--use-torch-fsdp2 is given without --fsdp2-config-path; add --fsdp2-config-path FILE"},
        Bad{with_model_and_data({"--global-batch-size", "10", "--micro-batch-size", "2", "--nproc-per-node", "4"}),
            "--global-batch-size is 10, but --micro-batch-size 2 x 4 ranks needs a multiple of 8; use 8 or 16"},
        Bad{with_model_and_data({"--global-batch-size", "2", "--micro-batch-size", "4"}),
            "--global-batch-size is 2, but --micro-batch-size 4 x 1 rank needs a multiple of 4; use 4"},
        Bad{with_model_and_data({"--micro-batch-size", "10000000", "--nproc-per-node", "4"}),
            "--micro-batch-size 10000000 x 4 ranks is 40000000 sequences a step, above 10000000; use less"},
        Bad{with_model_and_data({"--lr", "0.001", "--min-lr", "0.01"}),
            "--min-lr is 0.01, above --lr 0.001; use at most --lr"},
        Bad{with_model_and_data({"--train-iters", "10", "--lr-warmup-iters", "10"}),
            "--lr-warmup-iters is 10, but --train-iters is 10; use less than 10"},
        Bad{with_model_and_data({"--train-iters", "10", "--lr-decay-iters", "5", "--lr-warmup-iters", "6"}),
            "--lr-warmup-iters is 6, but --lr-decay-iters is 5; use less than 5"},
        Bad{with_model_and_data({"--prompt", "a"}),
            "--prompt is given, but --sample-bytes is 0, so no text is generated; give --sample-bytes N"},
        Bad{with_model_and_data({"--held-out-fraction", "0", "--eval-iters", "5"}),
            "--eval-iters is given, but --held-out-fraction is 0, so no data is kept for evaluation; use a fraction "
            "above 0"}));

INSTANTIATE_TEST_SUITE_P(
    Schedules, BadCommandLine,
    ::testing::Values(
        Bad{with_model_and_data({"--train-iters", "5", "--train-epochs", "5"}),
            "--train-iters and --train-epochs are both given; keep one"},
        Bad{with_model_and_data({"--train-samples", "5", "--train-epochs", "5"}),
            "--train-samples and --train-epochs are both given; keep one"},
        Bad{with_model_and_data({"--train-epochs", "1000001"}), "--train-epochs is 1000001; use at most 1000000"},
        Bad{with_model_and_data({"--loss-reduction", "per_sample", "--loss-chunk-size", "4"}),
            "--loss-reduction is per_sample, and with --loss-chunk-size the loss is computed in pieces over all "
            "samples; remove one of them"},
        Bad{with_model_and_data({"--lr-scaling-plan", "head"}),
            "--lr-scaling-plan has head; write REGEX=FACTOR with a factor of at least 0, as in "
            "'model\\.embed_tokens=0.1'"},
        Bad{with_model_and_data({"--train-iters", "5", "--train-samples", "5"}),
            "--train-iters and --train-samples are both given; keep one"},
        Bad{with_model_and_data({"--train-samples", "5", "--lr-decay-iters", "5"}),
            "--lr-decay-iters is given, but --train-samples counts the run in samples; write --lr-decay-samples N"},
        Bad{with_model_and_data({"--train-samples", "5", "--lr-warmup-iters", "5"}),
            "--lr-warmup-iters is given, but --train-samples counts the run in samples; write --lr-warmup-samples N"},
        Bad{with_model_and_data({"--lr-warmup-samples", "5"}),
            "--lr-warmup-samples is given, but the run is counted in iterations; write --lr-warmup-iters N, or "
            "--train-samples N"},
        Bad{with_model_and_data({"--lr-decay-style", "WSD", "--lr-wsd-decay-samples", "5"}),
            "--lr-wsd-decay-samples is given, but the run is counted in iterations; write --lr-wsd-decay-iters N, or "
            "--train-samples N"},
        Bad{with_model_and_data({"--train-samples", "7", "--global-batch-size", "8"}),
            "--train-samples is 7, less than one --global-batch-size of 8; use at least 8"},
        Bad{with_model_and_data({"--train-samples", "4294967296"}),
            "--train-samples is 4294967296, which is 4294967296 steps of --global-batch-size 1; use at most 4294967295 "
            "steps"},
        Bad{with_model_and_data({"--train-samples", "9007199254740993"}),
            "--train-samples is 9007199254740993; use at most 9007199254740992"},
        Bad{with_model_and_data({"--lr-warmup-fraction", "0.1", "--lr-warmup-iters", "5"}),
            "--lr-warmup-fraction and --lr-warmup-iters are both given; keep one"},
        Bad{with_model_and_data({"--train-samples", "50", "--lr-warmup-fraction", "0.1", "--lr-warmup-samples", "5"}),
            "--lr-warmup-fraction and --lr-warmup-samples are both given; keep one"},
        Bad{with_model_and_data({"--lr-warmup-fraction", "1"}),
            "--lr-warmup-fraction is 1; use a number from 0 to below 1"},
        Bad{with_model_and_data({"--train-samples", "50", "--lr-warmup-samples", "50"}),
            "--lr-warmup-samples is 50, but --train-samples is 50; use less than 50"},
        Bad{with_model_and_data({"--lr", "1e-3", "--lr-warmup-init", "2e-3", "--lr-warmup-iters", "5"}),
            "--lr-warmup-init is 0.002, above --lr 0.001; use at most --lr"},
        Bad{with_model_and_data({"--lr-decay-style", "WSD"}),
            "--lr-decay-style is WSD, but --lr-wsd-decay-iters is not given; give the length of its last part"},
        Bad{with_model_and_data({"--train-samples", "50", "--lr-decay-style", "WSD"}),
            "--lr-decay-style is WSD, but --lr-wsd-decay-samples is not given; give the length of its last part"},
        Bad{with_model_and_data({"--lr-decay-style", "WSD", "--lr-decay-iters", "20", "--lr-wsd-decay-iters", "21"}),
            "--lr-wsd-decay-iters is 21, but the whole decay is 20; use at most 20"},
        Bad{with_model_and_data({"--lr-wsd-decay-style", "cosine"}),
            "--lr-wsd-decay-style is given, but --lr-decay-style is linear; write --lr-decay-style WSD, or remove it"},
        Bad{with_model_and_data({"--lr-wsd-decay-iters", "5"}),
            "--lr-wsd-decay-iters is given, but --lr-decay-style is linear; write --lr-decay-style WSD, or remove it"},
        Bad{with_model_and_data({"--lr-decay-style", "WSD", "--lr-wsd-decay-style", "sqrt"}),
            "--lr-wsd-decay-style is sqrt; use exponential, linear, cosine, minus_sqrt"},
        Bad{with_model_and_data({"--start-weight-decay", "0.1"}),
            "--start-weight-decay is given, but --weight-decay-incr-style is constant; write linear or cosine, or "
            "remove it"},
        Bad{with_model_and_data({"--weight-decay-incr-style", "linear", "--start-weight-decay", "0.1"}),
            "--weight-decay-incr-style is linear, but --end-weight-decay is not given; add it"},
        Bad{with_model_and_data({"--weight-decay-incr-style", "cosine", "--start-weight-decay", "0.2",
                                 "--end-weight-decay", "0.1"}),
            "--start-weight-decay is 0.2, above --end-weight-decay 0.1; use at most that"},
        Bad{with_model_and_data({"--override-opt_param-scheduler", "--use-checkpoint-opt_param-scheduler"}),
            "--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler are both given; keep one"}));

INSTANTIATE_TEST_SUITE_P(
    LossScale, BadCommandLine,
    ::testing::Values(Bad{with_model_and_data({"--use-torch-fsdp2", "--fsdp2-config-path", "f", "--fp16",
                                               "--initial-loss-scale", "2", "--min-loss-scale", "4"}),
                          "--min-loss-scale is 4, above --initial-loss-scale 2; use at most that"},
                      Bad{with_model_and_data({"--loss-scale", "0"}), "--loss-scale is 0; use a number above 0"},
                      Bad{with_model_and_data({"--hysteresis", "0"}),
                          "--hysteresis is 0; use a whole number of at least 1"},
                      Bad{with_model_and_data({"--loss-scale-window", "0"}),
                          "--loss-scale-window is 0; use a whole number of at least 1"}));

INSTANTIATE_TEST_SUITE_P(
    SkippedIterations, BadCommandLine,
    ::testing::Values(
        Bad{with_model_and_data({"--iterations-to-skip", "0"}),
            "--iterations-to-skip is 0; use whole numbers of at least 1"},
        Bad{with_model_and_data({"--train-iters", "5", "--iterations-to-skip", "3", "6"}),
            "--iterations-to-skip names 6, but the run has 5 iterations; use 1 to 5"},
        Bad{with_model_and_data({"--train-iters", "2", "--iterations-to-skip", "1", "2", "1"}),
            "--iterations-to-skip names all 2 iterations, so nothing is trained; name less"},
        Bad{with_model_and_data({"--report", "r.html", "--iterations-to-skip", "2"}),
            "--report needs iteration 2, which --iterations-to-skip names; remove one of them"},
        Bad{with_model_and_data({"--memory-snapshot", "s.pickle", "--iterations-to-skip", "2"}),
            "--memory-snapshot needs iteration 2, which --iterations-to-skip names; remove one of them"},
        Bad{with_model_and_data({"--profile", "--iterations-to-skip", "12"}),
            "--profile needs iteration 12, which --iterations-to-skip names; remove one of them"},
        Bad{with_model_and_data({"--skip-train", "--iterations-to-skip", "1"}),
            "--iterations-to-skip is given, but with --skip-train no step is taken; remove one of them"}));

TEST(CommandLine, TheReportsDeviceIsAlsoThatOfARunsPlans) {
  EXPECT_EQ(train({"--report-device", "h200", "--device-memory", "100"}).report.device, "h200");
  EXPECT_EQ(train({"--report-device", "h200", "--adaptive-recompute-device-swap"}).report.device, "h200");
}

TEST(CommandLine, ALossChunkFollowsFromAllTokensOfAChunk) {
  const auto chunk = [](const std::string& batch, const std::string& total) {
    return train({"--micro-batch-size", batch, "--total-chunk-size", total}).objective.loss_chunk_size;
  };
  EXPECT_EQ(chunk("3", "4096"), 1024);
  EXPECT_EQ(chunk("4096", "4096"), 1);
  EXPECT_EQ(chunk("5000", "4096"), 1);
  EXPECT_EQ(chunk("1", "4096"), 4096);
  EXPECT_EQ(chunk("1", "4095"), 2048);
}

// --- cores

TEST(ProgramArguments, BindRanksToCoresAsMsrunAndTorchNpuAreTold) {
  EXPECT_EQ(train({}).launch.affinity.mode, launch::AffinityMode::kOff);
  EXPECT_EQ(train({"--bind_core", "False"}).launch.affinity.mode, launch::AffinityMode::kOff);
  const auto map = train({"--bind-core", R"({"device0": ["0-1"], "device1": ["2-3"]})"}).launch.affinity;
  EXPECT_EQ(map.mode, launch::AffinityMode::kRange);
  EXPECT_THAT(map.cores_of_rank, ElementsAre(Pair(0, ElementsAre(0, 1)), Pair(1, ElementsAre(2, 3))));
  const launch::Start npu{.cores = 8, .processes = 0, .local_processes = 0, .affinity_conf = "2,npu0:0-3"};
  EXPECT_EQ(train({}, npu).launch.affinity.mode, launch::AffinityMode::kCores);
  EXPECT_EQ(train({"--numa-device", "h200"}).launch.numa_device, "h200");
}

TEST(CommandLine, RanksAreBoundInOneWay) {
  const launch::Start npu{.cores = 8, .processes = 0, .local_processes = 0, .affinity_conf = "1"};
  EXPECT_EQ(refusal(with_model_and_data({"--bind-core", "True"}), npu),
            "--bind-core is True, and CPU_AFFINITY_CONF in the environment is 1; keep one of them");
}

TEST(CommandLine, SaysWhereOptimizerStateIs) {
  const job::Job plain = train({});
  EXPECT_EQ(plain.optimizer.mem_fraction_static, 0.8);
  EXPECT_EQ(plain.optimizer.swap_optimizer_times, 16);
  EXPECT_FALSE(plain.optimizer.swap_optimizer);
  EXPECT_FALSE(plain.optimizer.overlap_cpu_optimizer.has_value());
  const job::Job batches = train({"--optimizer", "adamw_swap", "--mem-fraction-static", "0.25"});
  EXPECT_EQ(batches.optimizer.kind, train::OptimizerKind::kAdamSwap);
  EXPECT_EQ(batches.optimizer.mem_fraction_static, 0.25);
  const job::Job slices = train({"--swap-optimizer", "--use-distributed-optimizer", "--swap-optimizer-times", "4"});
  EXPECT_TRUE(slices.optimizer.swap_optimizer);
  EXPECT_EQ(slices.optimizer.swap_optimizer_times, 4);
  EXPECT_EQ(train({"--overlap-cpu-optimizer-d2h-h2d"}).optimizer.overlap_cpu_optimizer, true);
  EXPECT_EQ(train({"--no-overlap-cpu-optimizer-d2h-h2d"}).optimizer.overlap_cpu_optimizer, false);
  EXPECT_EQ(
      train({"--no-overlap-cpu-optimizer-d2h-h2d", "--overlap-cpu-optimizer-d2h-h2d"}).optimizer.overlap_cpu_optimizer,
      true);
}

TEST(CommandLine, RanksAreNotGivenTwiceUnderMpi) {
  EXPECT_EQ(refusal(with_model_and_data({"--nproc-per-node", "2"}), {.cores = 8, .processes = 4, .local_processes = 4}),
            "--nproc-per-node is 2, but the launcher started 4 ranks, one a process; leave it out");
}

INSTANTIATE_TEST_SUITE_P(
    LaunchScripts, BadCommandLine,
    ::testing::Values(
        Bad{with_model_and_data({"--bf16"}),
            "--bf16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file "
            "with param_dtype: bf16, or remove it"},
        Bad{with_model_and_data({"--fp16"}),
            "--fp16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file "
            "with param_dtype: fp16, or remove it"},
        Bad{with_model_and_data({"--fp16", "--bf16"}), "--fp16 and --bf16 are both given; keep one"},
        Bad{with_model_and_data({"--muon-momentum", "0.9"}),
            "--muon-momentum is of --optimizer muon, which is not given; add it, or remove the flag"},
        Bad{with_model_and_data({"--optimizer", "muon", "--sgd-nesterov"}),
            "--sgd-nesterov is of --optimizer sgd, which is not given; add it, or remove the flag"},
        Bad{with_model_and_data({"--optimizer", "sgd", "--sgd-nesterov", "--sgd-momentum", "0"}),
            "--sgd-nesterov is given, and --sgd-momentum is 0; give a momentum above 0, or remove it"},
        Bad{with_model_and_data({"--optimizer", "sgd", "--sgd-nesterov", "--sgd-dampening", "0.5"}),
            "--sgd-dampening is 0.5, and Nesterov's form (--sgd-nesterov) has none; remove one of the two"},
        Bad{with_model_and_data({"--optimizer", "sgd", "--sgd-momentum", "0", "--sgd-dampening", "0.5"}),
            "--sgd-dampening is 0.5, and --sgd-momentum is 0, so there is none; remove one of the two"},
        Bad{with_model_and_data({"--optimizer", "sgd", "--sgd-dampening", "1.5"}),
            "--sgd-dampening is 1.5; use a number from 0 to 1"},
        Bad{with_model_and_data({"--optimizer", "sgd", "--muon-scalar-lr", "1e-3"}),
            "--muon-scalar-lr is of --optimizer muon, which is not given; add it, or remove the flag"},
        Bad{with_model_and_data({"--optimizer", "muon", "--muon-scalar-lr", "0"}),
            "--muon-scalar-lr is 0; use a number above 0"},
        Bad{with_model_and_data({"--optimizer", "lion"}),
            "--optimizer is lion; use adam, adamw, sgd, muon, adamw_swap (did you mean muon?)"},
        Bad{with_model_and_data({"--optimizer", "muon", "--muon-num-ns-steps", "1000"}),
            "--muon-num-ns-steps is 1000; use at most 100"},
        Bad{with_model_and_data({"--mem-fraction-static", "0.5"}),
            "--mem-fraction-static is of --optimizer adamw_swap, which is not given; add it, or remove the flag"},
        Bad{with_model_and_data({"--optimizer", "adamw_swap", "--mem-fraction-static", "1.5"}),
            "--mem-fraction-static is 1.5; use a number above 0 and at most 1"},
        Bad{with_model_and_data({"--optimizer", "adamw_swap", "--mem-fraction-static", "0"}),
            "--mem-fraction-static is 0; use a number above 0 and at most 1"},
        Bad{with_model_and_data({"--optimizer", "adamw_swap", "--swap-optimizer"}),
            "--swap-optimizer moves the state of --optimizer adam, and --optimizer is adamw_swap; keep one of the two"},
        Bad{with_model_and_data({"--optimizer", "sgd", "--swap-optimizer"}),
            "--swap-optimizer moves the state of --optimizer adam, and --optimizer is sgd; use --optimizer adam, or "
            "remove --swap-optimizer"},
        Bad{with_model_and_data({"--swap-optimizer"}),
            "--swap-optimizer is given without --use-torch-fsdp2 and without --use-distributed-optimizer; add "
            "--use-torch-fsdp2 and a file, which shards the optimizer state, or --use-distributed-optimizer"},
        Bad{with_model_and_data({"--swap-optimizer-times", "4"}),
            "--swap-optimizer-times is 4, but --swap-optimizer is not given; add it, or remove the flag"},
        Bad{with_model_and_data({"--swap-optimizer", "--swap-optimizer-times", "5000"}),
            "--swap-optimizer-times is 5000; use at most 4096"},
        Bad{with_model_and_data({"--virtual-optimizer", "all"}),
            "--virtual-optimizer maps moments in host memory into the device, which is not built; write --optimizer "
            "adamw_swap, which copies them"},
        Bad{with_model_and_data({"--total-chunk-size", "8", "--loss-chunk-size", "4"}),
            "--loss-chunk-size and --total-chunk-size are both given, and both say how many tokens a chunk of the loss "
            "has; remove one of them"},
        Bad{with_model_and_data({"--device-memory", "-1"}), "--device-memory is -1; use a whole number of at least 0"},
        Bad{with_model_and_data({"--device-memory", "9223372036854775807"}),
            "--device-memory is 9223372036854775807; use at most 4398046511103 MiB"},
        Bad{with_model_and_data({"--adaptive-recompute-device-size", "100"}),
            "--adaptive-recompute-device-size is 100, but --adaptive-recompute-device-swap is not given, so nothing is "
            "chosen; add it"},
        Bad{with_model_and_data({"--adaptive-recompute-device-swap", "--memory-fragmentation"}),
            "--adaptive-recompute-device-swap and --memory-fragmentation are both given, and the first chooses what is "
            "recomputed and swapped; remove one of them"},
        Bad{with_model_and_data({"--adaptive-recompute-device-swap", "--recompute-norm"}),
            "--adaptive-recompute-device-swap and --recompute-norm are both given, and the first chooses what is "
            "recomputed and swapped; remove one of them"},
        Bad{with_model_and_data({"--stage", "prm", "--loss-chunk-size", "4"}),
            "--loss-chunk-size is 4, which is for the loss of next tokens, and --stage is prm; remove it"},
        Bad{with_model_and_data({"--use-torch-fsdp2", "--fsdp2-config-path", "full_shard",
                                 "--use-distributed-optimizer"}),
            "--use-distributed-optimizer does not go with a file of --use-torch-fsdp2, which says itself how the "
            "optimizer's state is shared out; remove it, and write reshard_after_forward: false, "
            "reshard_after_backward: false and sync_each_batch: false into the file for what it does"},
        Bad{with_model_and_data({"--gradient-accumulation-fusion"}),
            "--gradient-accumulation-fusion does not go with FSDP2, which reduces the gradients itself; remove it or "
            "write --no-gradient-accumulation-fusion"},
        Bad{with_model_and_data({"--nnodes", "2"}),
            "--nnodes is 2; a launcher has started this process, and says it; remove it"},
        Bad{with_model_and_data({"--node_rank", "1"}),
            "--node-rank is 1; it is for several hosts; write --nnodes beside it, or remove it"},
        Bad{with_model_and_data({"--bind_core", "dev0"}),
            R"(--bind-core is dev0; use True, False, or a JSON map of ranges as {"device0": ["0-9"], "device1": )"
            R"(["10-19"]})"},
        Bad{with_model_and_data({"--worker_num", "8", "--local_worker_num", "4"}),
            "--worker-num is 8, but 4 ranks run; write --local-worker-num 8 beside it, or remove it"},
        Bad{with_model_and_data({"--ckpt-format", "torch"}), "--ckpt-format is torch; use torch_dcp, hf, torch_dist"},
        Bad{with_model_and_data({"--ckpt-format", "torch_dist", "--save", "out"}),
            "--ckpt-format is torch_dist, a layout of Megatron's own that is neither written nor read here; use "
            "torch_dcp"},
        Bad{with_model_and_data({"--ckpt-format", "hf", "--save", "out", "--keep-last", "2"}),
            "--ckpt-format is hf, a folder of the trained model from which no run can go on, but a flag of checkpoints "
            "is given (--save-interval, --save-epochs, --load, --async-save, --keep-last, --no-save-optim, --no-save-rng or "
            "--on-save-error); remove it, or use torch_dcp"},
        Bad{with_model_and_data({"--ckpt-step", "4"}),
            "--ckpt-step is 4, but --load is not given, so nothing is loaded; add --load DIR"},
        Bad{with_model_and_data({"--keep-last", "0"}), "--keep-last is 0; use a whole number of at least 1"},
        Bad{with_model_and_data({"--on-save-error", "ask"}), "--on-save-error is ask; use stop, continue"},
        Bad{with_model_and_data({"--downcast-to-bf16"}),
            "--downcast-to-bf16 rounds loaded weights, but none are loaded; add --init-from-hf-path DIR or remove "
            "it"}));

}  // namespace
}  // namespace loom::cli
