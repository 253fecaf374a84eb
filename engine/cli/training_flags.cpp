#include "engine/cli/training_flags.h"

#include "engine/cli/host_flags.h"
#include "engine/cli/host_optimizer_flags.h"
#include "engine/cli/memory_flags.h"
#include "engine/cli/recompute_flags.h"
#include "engine/cli/swap_flags.h"
#include "engine/train/optimizer_words.h"

namespace loom::cli {
namespace {

bool positive(double x) { return x > 0; }
bool not_negative(double x) { return x >= 0; }
bool below_one(double x) { return x >= 0 && x < 1; }

void add_data(Flags& flags, ProgramArguments& a) {
  flags.group("Data");
  flags.texts(
      "--data-path", "PATH", a.data_path,
      "Training data, one or more: files and folders, read as bytes; or prefixes of .bin/.idx pairs of token ids, "
      "each with a weight in front where weights are given");
  flags.toggle("--bytes-as-tokens", a.bytes_as_tokens, "Train on bytes although the model's folder has a tokenizer");
  flags.whole("--seq-length", a.seq_length, 1, "Tokens of a sequence");
  flags.real("--held-out-fraction", a.held_out_fraction, below_one, "a number from 0 to below 1",
             "Of bytes: share of the data kept for evaluation; 0 = no evaluation");
  flags.group("Data of token ids");
  flags.texts("--train-data-path", "PREFIX", a.part_data_path[0],
              "Pairs for training alone, in the place of --data-path");
  flags.texts("--valid-data-path", "PREFIX", a.part_data_path[1], "Pairs for evaluation alone");
  flags.texts("--test-data-path", "PREFIX", a.part_data_path[2], "Pairs for the last evaluation alone");
  flags.text("--split", "TEXT", a.split, "Weights of training, validation and test data in --data-path", "969,30,1");
  flags.text("--data-cache-path", "DIR", a.data_cache_path,
             "Where indices of samples are kept; each is built once a host", "beside the data");
  flags.text("--tokenizer-name-or-path,--tokenizer-model", "DIR", a.tokenizer_name_or_path,
             "Folder of the tokenizer whose ids the data has: tokenizer.json", "that of the model, if it has one");
  flags.toggle("--reset-position-ids", a.reset_position_ids, "Positions begin again behind the end of a document");
  flags.toggle("--reset-attention-mask", a.reset_attention_mask,
               "Tokens attend to nothing before the end of the last document");
  flags.toggle("--eod-mask-loss", a.eod_mask_loss, "No loss where the token is the end of a document");
}

void add_instruction_data(Flags& flags, ProgramArguments& a) {
  flags.group("Data for fine-tuning (--stage)");
  flags.optional_choice("--stage", a.stage, {"sft", "dpo", "simpo", "orm", "prm"},
                        "Supervised fine-tuning, preferences (dpo, simpo), or a reward model of outcomes or of "
                        "processes, on what shardloom preprocess wrote");
  flags.toggle("--is-instruction-dataset", a.is_instruction_dataset, "The same as --stage sft");
  flags.toggle("--is-pairwise-dataset", a.is_pairwise_dataset,
               "Samples have two answers; with --stage dpo, simpo or orm");
  flags.toggle("--neat-pack", a.neat_pack, "Packed samples do not see each other; of data made with --neat-pack");
  flags.toggle("--no-shuffle", a.no_shuffle, "Samples in the order of the data");
  flags.toggle("--padded-samples", a.padded_samples, "Epochs of a multiple of --global-batch-size");
  flags.toggle("--cut-max-seqlen", a.cut_max_seqlen, "Cut samples that are too long at their end, not turn by turn");
  flags.toggle("--no-cut-token", a.no_cut_token, "Do not cut them; with --variable-seq-lengths");
  flags.toggle("--variable-seq-lengths", a.variable_seq_lengths,
               "Rows as long as the longest of their micro-batch, not --seq-length");
  flags.toggle("--no-pad-to-seq-lengths", a.no_pad_to_seq_lengths, "The same as --variable-seq-lengths");
  flags.whole("--pad-to-multiple-of", a.pad_to_multiple_of, 1, "Of such rows");
}

const std::vector<std::pair<std::string, train::PreferenceLossType>> kPreferenceLosses = {
    {"sigmoid", train::PreferenceLossType::kSigmoid},
    {"hinge", train::PreferenceLossType::kHinge},
    {"ipo", train::PreferenceLossType::kIpo}};

bool below_half(double x) { return x >= 0 && x < 0.5; }

// The two stages have flags and defaults of their own for the same numbers.
void add_preferences(Flags& flags, ProgramArguments& a) {
  flags.group("Preferences (--stage dpo, simpo)");
  flags.choice("--dpo-loss-type", a.dpo.loss_type, kPreferenceLosses, "Loss of the difference of two answers");
  flags.real("--dpo-beta", a.dpo.beta, positive, "a number above 0",
             "How far the policy may leave the reference model");
  flags.real("--dpo-label-smoothing", a.dpo.label_smoothing, below_half, "a number from 0 to below 0.5",
             "Share of pairs whose order is taken to be wrong");
  flags.choice("--simpo-loss-type", a.simpo.loss_type, kPreferenceLosses, "The same of SimPO");
  flags.real("--simpo-beta", a.simpo.beta, positive, "a number above 0", "Scale of SimPO's difference");
  flags.real("--gamma-beta-ratio", a.simpo.gamma_beta_ratio, not_negative, "a number of at least 0",
             "Margin of SimPO's difference");
  flags.real("--simpo-label-smoothing", a.simpo.label_smoothing, below_half, "a number from 0 to below 0.5",
             "The same of SimPO");
  flags.real("--pref-ftx", a.dpo.pref_ftx, not_negative, "a number of at least 0",
             "Weight of the chosen answers' own loss, of both");
  flags.text("--ref-model", "DIR", a.ref_model, "Reference model of DPO", "the model that training starts from");
  flags.text("--ref-logps-cache", "FILE", a.ref_logps_cache,
             "Log-probabilities of DPO's reference model: computed once, before training, where FILE is not there, and "
             "read where it is; training then holds no reference model",
             "none");
}

void add_process_rewards(Flags& flags, ProgramArguments& a) {
  flags.group("Process rewards (--stage prm)");
  flags.text("--placeholder-token", "TEXT", a.placeholder_token,
             "Token behind each step, where labels count; as shardloom preprocess was told", "every label counts");
  flags.texts("--reward-tokens", "TOKEN", a.reward_tokens,
              "The labels there are: the loss compares their logits alone");
}

void add_tuning(Flags& flags, ProgramArguments& a) {
  flags.group("Adapters and frozen modules");
  flags.texts("--lora-target-modules", "NAME", a.lora.target_modules,
              "Linear modules that get a LoRA adapter, the rest frozen: names, paths with {*}, a regex, all-linear, or "
              "Megatron's linear_qkv linear_proj linear_fc1 linear_fc2");
  flags.optional_whole("--lora-r", a.lora.r, 1, "Rank of the adapters (16)");
  flags.optional_real("--lora-alpha", a.lora.alpha, positive, "a number above 0",
                      "Their scale is alpha / r (alpha is 32)");
  flags.optional_real("--lora-dropout", a.lora.dropout, below_one, "a number from 0 to below 1",
                      "Dropout of their input (0)");
  flags.toggle("--use-rslora", a.lora.use_rslora, "Their scale is alpha / sqrt(r)");
  flags.texts("--lora-modules-to-save", "NAME", a.lora.modules_to_save,
              "Modules that are trained whole and saved with the adapters");
  flags.text("--lora-load", "DIR", a.lora.load,
             "Adapters to start from, as peft saves them; rank, alpha and targets are those of the folder");
  flags.texts("--freeze", "PATTERN", a.freeze, "Modules that are not trained, as in sub_modules_to_wrap of the file");
}

void add_model_and_data(Flags& flags, Program program, ProgramArguments& a) {
  const bool own = !is_users(program);
  flags.group(own ? "Model (one of the first two)" : "Model");
  if (own) {
    flags.text("--model-config", "FILE", a.model_config,
               "Shape of a model that starts with fresh weights: a file, or a name in configs/models");
  }
  flags.text("--init-from-hf-path", "DIR", a.init_from_hf_path, "Model to start from: config.json and safetensors");
  flags.toggle("--untie-embeddings-and-output-weights", a.untie_embeddings_and_output_weights,
               "Separate the output layer from the embedding it is tied to; both start with the same weights");
  flags.toggle("--downcast-to-bf16", a.downcast_to_bf16,
               "Round the loaded weights to bf16 once; they stay fp32. Needs --init-from-hf-path");
  add_tuning(flags, a);
  flags.group(own ? "Model (one of the first two)" : "Model");
  flags.toggle("--init-model-with-meta-device", a.init_model_with_meta_device,
               "Accepted as MindSpeed has it; models are always built so");
  add_data(flags, a);
  add_instruction_data(flags, a);
  add_preferences(flags, a);
  add_process_rewards(flags, a);
}

void add_batch_and_schedule(Flags& flags, ProgramArguments& a) {
  flags.group("Batch and schedule");
  flags.whole("--micro-batch-size", a.micro_batch_size, 1, "Sequences of one forward and backward on a rank");
  flags.whole("--global-batch-size", a.global_batch_size, 1, "Sequences of a step on all ranks",
              "micro-batch-size x ranks");
  flags.whole("--train-iters", a.train_iters, 1, "Optimizer steps");
  flags.whole("--train-samples", a.train_samples, 1,
              "Sequences to train on, whole batches of them; in the place of --train-iters", "none");
  flags.whole_numbers<std::int64_t>("--iterations-to-skip", a.iterations_to_skip, 1,
                                    "Iterations, from 1, whose data is consumed and not trained on");
  flags.real("--lr", a.lr, positive, "a number above 0", "Largest learning rate");
  flags.real("--min-lr", a.min_lr, not_negative, "a number of at least 0", "Learning rate at the end of the decay");
  flags.choice("--lr-decay-style", a.lr_decay_style, train::style_words<train::LrDecayStyle>(),
               "How the learning rate falls after the warm-up");
  flags.whole("--lr-decay-iters", a.lr_decay_iters, 1, "Steps until --min-lr is reached, warm-up included",
              "train-iters");
  flags.whole("--lr-decay-samples", a.lr_decay_samples, 1, "The same in samples, with --train-samples",
              "train-samples");
  flags.whole("--lr-warmup-iters", a.lr_warmup_iters, 0, "Steps in which the learning rate rises");
  flags.whole("--lr-warmup-samples", a.lr_warmup_samples, 0, "The same in samples, with --train-samples");
  flags.optional_real("--lr-warmup-fraction", a.lr_warmup_fraction, below_one, "a number from 0 to below 1",
                      "The same as a share of the decay's length");
  flags.real("--lr-warmup-init", a.lr_warmup_init, not_negative, "a number of at least 0",
             "Learning rate at which the warm-up begins");
  flags.choice("--lr-wsd-decay-style", a.lr_wsd_decay_style, train::style_words<train::WsdDecayStyle>(),
               "How the learning rate falls in the last part of WSD");
  flags.whole("--lr-wsd-decay-iters", a.lr_wsd_decay_iters, 1, "Steps of that last part", "none");
  flags.whole("--lr-wsd-decay-samples", a.lr_wsd_decay_samples, 1, "The same in samples, with --train-samples", "none");
  flags.toggle("--override-opt-param-scheduler", a.override_opt_param_scheduler,
               "Of a run that goes on, the command line's schedule holds, not the checkpoint's");
  flags.toggle("--use-checkpoint-opt-param-scheduler", a.use_checkpoint_opt_param_scheduler,
               "Of a run that goes on, the checkpoint's schedule holds, not the command line's");
}

void add_loss_scale(Flags& flags, ProgramArguments& a) {
  flags.group("fp16");
  flags.toggle("--fp16", a.fp16, "Scale the loss; needs param_dtype: fp16 in the file of --fsdp2-config-path");
  flags.optional_real("--loss-scale", a.loss_scale.constant, positive, "a number above 0",
                      "One scale for the whole run; not given: it adapts");
  flags.real("--initial-loss-scale", a.loss_scale.initial, positive, "a number above 0", "Scale of the first step");
  flags.real("--min-loss-scale", a.loss_scale.minimum, positive, "a number above 0", "Below it the scale never falls");
  flags.whole("--loss-scale-window", a.loss_scale.window, 1, "Updates without overflow after which the scale doubles");
  flags.whole("--hysteresis", a.loss_scale.hysteresis, 1, "Overflows after which the scale is halved");
}

void add_muon(Flags& flags, sharding::MuonOptions& muon) {
  flags.real("--muon-momentum", muon.momentum, below_one, "a number from 0 to below 1", "Momentum of --optimizer muon");
  flags.toggle("--muon-nesterov,!--no-muon-nesterov", muon.nesterov,
               "Nesterov's form of that momentum; on unless --no-... is given");
  flags.whole("--muon-num-ns-steps", muon.steps, 1, "Steps of the Newton-Schulz iteration");
  flags.choice("--muon-coefficient-type", muon.coefficients, train::style_words<sharding::MuonCoefficients>(),
               "Coefficients of the iteration");
  flags.choice("--muon-scale-mode", muon.scale, train::style_words<sharding::MuonScale>(),
               "Scale of an update [A,B]: sqrt(max(A,B)), sqrt(A/B), or sqrt(max(1,A/B))");
  flags.real("--muon-extra-scale-factor", muon.extra_scale, positive, "a number above 0",
             "Times that scale; 0.2 with spectral is MindSpeed-MM's matched_adamw_rms");
}

void add_optimizer(Flags& flags, ProgramArguments& a) {
  flags.group("Optimizer");
  flags.choice("--optimizer", a.optimizer, train::style_words<train::OptimizerKind>(),
               "adam (AdamW), sgd, muon for the matrices of the layers with AdamW for the rest, or adamw_swap: AdamW "
               "whose moments are in host memory");
  flags.real("--weight-decay", a.weight_decay, not_negative, "a number of at least 0",
             "Decay of the weights, times lr");
  flags.choice("--weight-decay-incr-style", a.weight_decay_incr_style,
               train::style_words<train::WeightDecayIncrStyle>(),
               "How the decay of the weights rises; not constant: from --start- to --end-weight-decay");
  flags.optional_real("--start-weight-decay", a.start_weight_decay, not_negative, "a number of at least 0",
                      "Decay of the weights in the first step");
  flags.optional_real("--end-weight-decay", a.end_weight_decay, not_negative, "a number of at least 0",
                      "Decay of the weights at the end of training");
  flags.toggle("--no-weight-decay-on-norms-and-biases", a.no_weight_decay_on_norms_and_biases,
               "Parameters of one dim, and biases, do not decay");
  flags.real("--clip-grad", a.clip_grad, not_negative, "a number of at least 0",
             "Largest gradient norm; 0 = no clipping");
  flags.toggle("--check-for-nan-in-loss-and-grad,!--no-check-for-nan-in-loss-and-grad",
               a.check_for_nan_in_loss_and_grad,
               "End the run at a loss or gradient norm that is NaN or Inf; on unless --no-... is given");
  flags.real("--adam-beta1", a.adam_beta1, below_one, "a number from 0 to below 1", "Decay of the first moment");
  flags.real("--adam-beta2", a.adam_beta2, below_one, "a number from 0 to below 1", "Decay of the second moment");
  flags.real("--adam-eps", a.adam_eps, positive, "a number above 0", "Added to the root of the second moment");
  flags.real("--sgd-momentum", a.sgd_momentum, below_one, "a number from 0 to below 1", "Momentum of --optimizer sgd");
  flags.toggle("--sgd-nesterov", a.sgd_nesterov, "Nesterov's form of that momentum");
  add_muon(flags, a.muon);
}

void add_execution(Flags& flags, ProgramArguments& a) {
  flags.group("Sharding");
  flags.toggle("--use-torch-fsdp2", a.use_torch_fsdp2, "Shard the FSDP2 way; needs --fsdp2-config-path");
  flags.text("--fsdp2-config-path,--fsdp2-config", "FILE", a.fsdp2_config_path,
             "fsdp2_config.yaml: a file, or a name in configs/fsdp2");
  flags.group("Schedule");
  flags.toggle("--print-schedule", a.print_schedule,
               "Print what the second step issued, stream by stream, and the wasted prefetches");
  flags.group("Execution");
  flags.choice<std::string>("--distributed-backend", a.distributed_backend,
                            {{"nccl", "nccl"}, {"gloo", "gloo"}, {"npu:hccl,cpu:gloo", "npu:hccl,cpu:gloo"}},
                            "Accepted as Megatron has it; changes nothing here, offload_to_cpu included");
  flags.whole("--nproc-per-node,--local-worker-num", a.ranks, 1, "Ranks, as threads of this process");
  flags.whole("--compute-threads", a.compute_threads, 1, "Threads of one rank", "cores / ranks");
  flags.choice<device::ExecutorKind>(
      "--device-executor", a.device_executor,
      {{"threaded", device::ExecutorKind::kThreaded}, {"inline", device::ExecutorKind::kInline}},
      "Collectives and copies behind the computation, or everything when it is issued; same bits");
  flags.choice<train::KernelSet>("--kernels,--kernel-grain", a.kernels,
                                 {{"fast", train::KernelSet::kFast}, {"pytorch", train::KernelSet::kPytorch}},
                                 "Fused kernels, or composed as PyTorch eager composes them");
  flags.toggle("--use-fused-rmsnorm", a.fused.fused_rmsnorm, "Fused RMS norm; always on with --kernels fast");
  flags.toggle("--use-fused-swiglu", a.fused.fused_swiglu, "Fused SwiGLU; always on with --kernels fast");
  flags.toggle("--use-fused-rotary-pos-emb", a.fused.fused_rotary_pos_emb,
               "Fused rotary embedding; always on with --kernels fast");
  flags.toggle("--use-flash-attn", a.fused.flash_attn, "Flash attention; always on with --kernels fast");
  flags.toggle("--cross-entropy-loss-fusion", a.fused.fused_cross_entropy,
               "Fused cross-entropy; always on with --kernels fast");
  flags.whole(
      "--loss-chunk-size", a.loss_chunk_size, 0,
      "Logits and loss of so many tokens of each sequence at a time, without keeping the logits; 0 = all at once");
  flags.whole("--total-chunk-size", a.total_chunk_size, 0,
              "The same for so many tokens of a micro-batch: N over its sequences, down to a power of two");
  flags.whole("--distributed-timeout-minutes", a.distributed_timeout_minutes, 1, "How long a rank waits for its peers");
  flags.whole("--seed", a.seed, 0, "Seed of weights and data order");
}

void add_output(Flags& flags, Program program, ProgramArguments& a) {
  flags.group("Output");
  flags.text("--save", "DIR", a.save, "Where the trained model, or checkpoints, are written; not given: nowhere");
  flags.choice<train::SaveDType>("--save-dtype", a.save_dtype,
                                 {{"as-loaded", train::SaveDType::kAsLoaded},
                                  {"fp32", train::SaveDType::kFp32},
                                  {"bf16", train::SaveDType::kBf16}},
                                 "Type of the saved weights; as-loaded: bf16 where they were loaded as bf16");
  flags.text("--metrics-path", "FILE", a.metrics_path, "One JSON line a step", "metrics.jsonl in --save or here");
  flags.text("--report", "FILE", a.report, "Write an HTML page with charts of the run or plan; it works offline");
  if (!plans(program)) {
    flags.text("--report-device", "PROFILE", a.report_device,
               "Whose virtual time the page shows, and --smart-swap plans with: a device profile's file, or a name in "
               "configs/devices",
               a.report_device);
  }
  flags.whole("--eval-interval", a.eval_interval, 1, "Steps between evaluations");
  flags.whole("--eval-iters", a.eval_iters, 0, "Batches of one evaluation; 0 = no evaluation");
  if (!plans(program)) {
    flags.toggle("--skip-train", a.skip_train, "Evaluate the held-out data and end; no step is taken");
  }
  if (program != Program::kShardloomTrain) return;
  flags.whole("--sample-bytes", a.sample_bytes, 0, "Length of the text generated after training; 0 = none");
  flags.text("--prompt", "TEXT", a.prompt, "What that text continues");
}

void add_checkpoints(Flags& flags, Program program, ProgramArguments& a) {
  if (plans(program))
    flags.group("");  // of a launch script: a plan saves and loads nothing
  else
    flags.group("Checkpoints");
  flags.optional_choice(
      "--ckpt-format", a.ckpt_format_word, {"torch_dcp", "hf", "torch_dist"},
      "What --save writes: checkpoints of torch.distributed.checkpoint, or Hugging Face's files of the "
      "model after the last step; torch_dcp where a flag below that saves is given, else hf");
  flags.text("--load", "DIR", a.load, "Checkpoints to go on from: the newest whole one of a folder, or a single one");
  flags.optional_whole("--ckpt-step", a.ckpt_step, 0, "The iteration of --load to take, and no other");
  flags.toggle("--no-load-optim", a.no_load_optim, "Begin with a fresh optimizer and schedule");
  flags.toggle("--no-load-rng", a.no_load_rng, "Keep --seed and begin its numbers anew");
  flags.toggle("--finetune", a.finetune, "Take the weights alone, and begin at iteration 0");
  flags.toggle("--exit-on-missing-checkpoint", a.exit_on_missing_checkpoint,
               "End where --load has no checkpoint, instead of beginning anew");
  flags.choice<checkpoint::Strictness>("--dist-ckpt-strictness", a.dist_ckpt_strictness,
                                       {{"raise_all", checkpoint::Strictness::kRaiseAll},
                                        {"assume_ok_unexpected", checkpoint::Strictness::kAssumeOkUnexpected},
                                        {"log_all", checkpoint::Strictness::kLogAll}},
                                       "Names that do not fit the model: an error, an error unless they are beside it, "
                                       "or a warning");
  flags.toggle("--no-save-optim", a.no_save_optim, "Leave the optimizer and the schedule out");
  flags.toggle("--no-save-rng", a.no_save_rng, "Leave the random numbers' position out");
  flags.toggle("--async-save", a.async_save, "Write behind the training, which waits for a copy in memory only");
  flags.optional_whole("--keep-last", a.keep_last, 1, "Remove all but the newest N checkpoints after a save");
  flags.choice<train::OnSaveError>("--on-save-error", a.on_save_error,
                                   {{"stop", train::OnSaveError::kStop}, {"continue", train::OnSaveError::kContinue}},
                                   "When a checkpoint cannot be written (disk full); the former one stays");
}

void add_end(Flags& flags, ProgramArguments& a) {
  flags.group("Saving and ending");
  flags.whole("--save-interval", a.save_interval, 1, "Steps between saves", "after the last step only");
  flags.whole("--exit-interval", a.exit_interval, 1, "End after a step whose number this divides; saves with --save",
              "never");
  flags.real("--exit-duration-in-mins", a.exit_duration_in_mins, not_negative, "a number of at least 0",
             "End after the first step later than this; saves with --save; 0 = never");
  flags.toggle("--exit-signal-handler", a.exit_signal_handler,
               "SIGTERM ends the run with status 0 instead of 143; either way it saves with --save");
}

void add_logging(Flags& flags, train::LogOptions& a) {
  flags.group("Log");
  flags.choice<train::LogFormat>(
      "--log-format", a.log_format, {{"short", train::LogFormat::kShort}, {"megatron", train::LogFormat::kMegatron}},
      "Lines and a progress bar of our own, or the line of Megatron-LM's training_log, of the last rank");
  flags.whole("--log-interval", a.log_interval, 1, "Steps between printed lines");
  flags.toggle("--log-throughput", a.log_throughput,
               "TFLOP/s of a rank, in Megatron's line and, with --log-timers-to-tensorboard, in TensorBoard");
  flags.toggle("--check-for-spiky-loss", a.check_for_spiky_loss,
               "Warn of a loss 10 times the largest of the first 100 steps or more");
  flags.toggle("--check-for-large-grads", a.check_for_large_grads, "The same for the gradient norm");
  flags.group("TensorBoard (the last rank writes)");
  flags.text("--tensorboard-dir", "DIR", a.tensorboard_dir, "Folder of an event file with the scalars of the run");
  flags.whole("--tensorboard-log-interval", a.tensorboard_log_interval, 1, "Steps between scalars");
  flags.whole("--tensorboard-queue-size", a.tensorboard_queue_size, 1,
              "Scalars that wait at most before they are written, two minutes at the longest");
  flags.toggle("--log-timers-to-tensorboard", a.log_timers_to_tensorboard,
               "Time of a step, every --log-interval steps; with --log-throughput the throughput too");
  flags.toggle("--log-memory-to-tensorboard", a.log_memory_to_tensorboard, "Memory of the emulated device");
  flags.toggle("--log-loss-scale-to-tensorboard,!--no-log-loss-scale-to-tensorboard", a.log_loss_scale_to_tensorboard,
               "The loss scale; on unless --no-... is given");
  flags.toggle("--log-world-size-to-tensorboard", a.log_world_size_to_tensorboard, "The number of ranks");
  flags.toggle("--log-validation-ppl-to-tensorboard", a.log_validation_ppl_to_tensorboard,
               "The perplexity on the held-out data");
}

void add_profile(Flags& flags, observe::ProfileOptions& a) {
  flags.group("Profile (ui.perfetto.dev opens it)");
  flags.toggle("--profile", a.enabled, "Write a trace of what ran, and a summary; the flags below need this one");
  flags.whole("--profile-step-start", a.step_start, 0, "First step collected, counted from 0");
  flags.whole("--profile-step-end", a.step_end, 1, "Step before which collection ends");
  flags.choice<observe::ProfileLevel>("--profile-level", a.level,
                                      {{"level0", observe::ProfileLevel::kLevel0},
                                       {"level1", observe::ProfileLevel::kLevel1},
                                       {"level2", observe::ProfileLevel::kLevel2}},
                                      "Streams and collectives; every kernel too; also shapes, waits and memory");
  flags.toggle("--profile-with-cpu", a.with_cpu, "What the host does too");
  flags.toggle("--profile-with-stack", a.with_stack, "The modules that each item ran for");
  flags.toggle("--profile-with-memory", a.with_memory, "Memory by category, also below level2");
  flags.toggle("--profile-record-shapes", a.record_shapes, "Shapes of matrix products, also below level2");
  flags.text("--profile-save-path", "DIR", a.save_path, "Where it is written", a.save_path.string());
  flags.whole_numbers("--profile-ranks", a.ranks, 0, "Ranks collected, one or more");
  flags.text("--profile-device", "PROFILE", a.device,
             "Virtual time on this device beside the wall clock's: a file, or a name in configs/devices");
}

}  // namespace

void add_training(Flags& flags, Program program, ProgramArguments& a) {
  add_model_and_data(flags, program, a);
  add_batch_and_schedule(flags, a);
  add_optimizer(flags, a);
  add_host_optimizer(flags, a);
  add_loss_scale(flags, a);
  add_recompute(flags, a);
  add_execution(flags, a);
  add_memory(flags, a);
  add_swap(flags, a);
  add_host(flags, program, a);
  add_output(flags, program, a);
  add_checkpoints(flags, program, a);
  add_end(flags, a);
  add_logging(flags, a);
  if (!plans(program)) add_profile(flags, a.profile);
}

void add_plan(Flags& flags, PlanArguments& a, int& world_size) {
  flags.group("Plan");
  flags.whole("--world-size", world_size, 1, "Devices", "--nproc-per-node");
  flags.text("--device", "PROFILE", a.device, "Device profile: a file, or a name in configs/devices", a.device);
  flags.text("--json", "FILE", a.json, "Write the plan as JSON; - is standard output");
  flags.text("--trace", "FILE", a.trace, "Write the planned step for Perfetto (ui.perfetto.dev)");
  flags.toggle("--sweep", a.sweep, "Try sharding sizes, reshard, recompute, prefetch, micro-batches; rank what fits");
  flags.choice<PlanArguments::Fit>(
      "--fit", a.fit,
      {{"nothing", PlanArguments::Fit::kNothing},
       {"micro-batch", PlanArguments::Fit::kMicroBatch},
       {"world-size", PlanArguments::Fit::kWorldSize}},
      "Search the largest micro-batch, or the smallest world, that fits; a --global-batch-size is kept");
}

void add_compare(Flags& flags, CompareArguments& a) {
  flags.group("Runs");
  flags.text("A", "PATH", a.a, "metrics.jsonl, an event file of TensorBoard, or a folder that holds them");
  flags.text("B", "PATH", a.b, "The same of the other run");
  flags.group("Comparison");
  flags.real("--tolerance", a.tolerance, not_negative, "a number of at least 0",
             "Relative error up to which values are the same");
  flags.toggle("--assert-equal", a.assert_equal,
               "Accepted as torchtitan has it; status 1 at a difference is always so");
}

}  // namespace loom::cli
