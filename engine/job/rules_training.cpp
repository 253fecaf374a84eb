#include "engine/job/rule_rows.h"
#include "engine/objective/stage.h"

namespace loom::job {
namespace {

using objective::LossReduction;

bool is_shardloom(Program program) { return !is_users(program); }
bool is_of_bytes(const Job& job) { return data::data_kind(job.data) == data::DataKind::kBytes; }
bool has_pictures(const Job& job) { return job.data.mm_data.has_value(); }
bool is_of_pairs(const Job& job) { return !is_of_bytes(job) && !has_pictures(job); }
bool has_parts(const Job& job) {
  const auto& [train, valid, test] = job.data.part_data_path;
  return !(train.empty() && valid.empty() && test.empty());
}
template <objective::Stage kStage>
bool is_not_of(const Job& job) {
  return job.objective.stage != kStage;
}
const objective::StageRow& stage_of(const Job& job) { return objective::row_of(job.objective.stage); }
bool is_per_sample(const Job& job) { return job.objective.loss_reduction == LossReduction::kPerSample; }
bool trains_in_samples(const Job& job) { return !job.schedule.skip_train && job.schedule.train_samples > 0; }
bool trains_in_iterations(const Job& job) { return !job.schedule.skip_train && job.schedule.train_samples == 0; }
bool is_stored_in_bf16(const Job& job) { return job.model.params_dtype == DType::kBF16; }
bool is_constant_decay(const Job& job) {
  return job.schedule.weight_decay_incr_style == train::WeightDecayIncrStyle::kConstant;
}

}  // namespace

void add_model_rules(std::vector<Rule>& table) {
  const std::vector<Rule> rows{
      {{"--mm-model"},
       [](const Job& job) { return job.model.model_config.has_value(); },
       "--model-config is {--model-config}, and --mm-model {value}: both describe the model; remove one of them"},
      {{"--downcast-to-bf16"},
       [](const Job& job) { return !job.model.init_from_hf_path; },
       "{flag} rounds loaded weights, but none are loaded; add --init-from-hf-path DIR or remove it"},
      {{"--downcast-to-bf16"},
       is_stored_in_bf16,
       "{flag} rounds weights that stay fp32, and --params-dtype is bf16; remove one of them"},
      {{"--lora-r", "--lora-alpha", "--lora-dropout", "--use-rslora", "--lora-modules-to-save"},
       [](const Job& job) { return !job.model.lora.on(); },
       "{flag} is given, but the model has no adapters; add --lora-target-modules NAME ... or --lora-load DIR, or "
       "remove it"},
      {{"--moe-pad-expert-input-to-capacity", "--moe-token-drop-policy"},
       [](const Job& job) { return job.model.experts.capacity_factor == 0; },
       "{flag} is of experts with a capacity; add --moe-expert-capacity-factor X, or remove it"},
      {{"--moe-router-bias-update-rate"},
       [](const Job& job) { return !job.model.experts.enable_expert_bias; },
       "{flag} is of --moe-router-enable-expert-bias; add that, or remove it"},
      {{"--moe-aux-loss-coeff"},
       [](const Job& job) {
         return job.model.experts.aux_loss_coeff > 0 &&
                job.model.experts.load_balancing == models::LoadBalancing::kNone;
       },
       "--moe-aux-loss-coeff is {--moe-aux-loss-coeff}, and --moe-router-load-balancing-type none has no such loss; write "
       "aux_loss or seq_aux_loss, or 0"},
      {{"--lora-target-modules", "--lora-modules-to-save"},
       [](const Job& job) { return job.model.lora.load.has_value(); },
       "--lora-load is {--lora-load}, whose configuration has the modules, and {flag} is given too; remove one of them"},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_parallel_rules(std::vector<Rule>& table) {
  const std::vector<Rule> rows{
      {{"--use-ascend-mc2"},
       [](const Job& job) { return job.parallel.use_ascend_coc; },
       "--use-ascend-mc2 and --use-ascend-coc both choose the slices of a product; remove one of them"},
      {{"--use-ascend-mc2", "--use-ascend-coc"},
       [](const Job& job) { return !job.parallel.use_torch_fsdp2; },
       "{flag} is of ranks that share matrices; add --use-torch-fsdp2, or remove it"},
      {{"--coc-parallel-num"},
       [](const Job& job) { return !job.parallel.use_ascend_coc; },
       "{flag} is of --use-ascend-coc; add that, or remove it"},
      {{"--coc-parallel-num"},
       [](const Job& job) {
         const int slices = job.parallel.coc_parallel_num;
         return slices != 1 && slices != 2 && slices != 4 && slices != 8;
       },
       "--coc-parallel-num is {value}; use 1, 2, 4 or 8"},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_objective_rules(std::vector<Rule>& table) {
  using objective::Stage;
  const std::vector<Rule> rows{
      {{"--dpo-loss-type", "--dpo-beta", "--dpo-label-smoothing", "--ref-model", "--ref-logps-cache"},
       is_not_of<Stage::kDpo>,
       "{flag} is of --stage dpo; add that, or remove it"},
      {{"--simpo-loss-type", "--simpo-beta", "--gamma-beta-ratio", "--simpo-label-smoothing"},
       is_not_of<Stage::kSimpo>,
       "{flag} is of --stage simpo; add that, or remove it"},
      {{"--placeholder-token", "--reward-tokens"},
       is_not_of<Stage::kPrm>,
       "{flag} is of --stage prm; add that, or remove it"},
      {{"--is-pairwise-dataset"},
       [](const Job& job) { return !stage_of(job).has_pairs; },
       "--is-pairwise-dataset is of --stage dpo, simpo and orm; add one, or remove it"},
      {{"--pref-ftx"},
       [](const Job& job) { return !stage_of(job).has_preference; },
       "--pref-ftx is of --stage dpo and simpo; add one, or remove it"},
      {{"--neat-pack"},
       [](const Job& job) { return stage_of(job).has_pairs; },
       "--neat-pack is of --stage sft and prm: pairs are not packed; remove it"},
      {{"--sample-bytes"},
       [](const Job& job) { return stage_of(job).head == objective::Head::kScores && job.sample.sample_bytes > 0; },
       "--sample-bytes is {value}, and a model of --stage {--stage} gives scores, not text; remove it"},
      {{"--total-chunk-size"},
       [](const Job& job) { return job.objective.total_chunk_size > 0 && job.objective.loss_chunk_size > 0; },
       "--loss-chunk-size and --total-chunk-size are both given, and both say how many tokens a chunk of the loss has; "
       "remove one of them"},
      {{"--loss-in-model"},
       [](const Job& job) { return job.model.model_graph.has_value(); },
       "--loss-in-model is of a model that is built here, and --model-graph is {--model-graph}, whose loss is where it was recorded; "
       "remove it"},
      {{"--loss-in-model"},
       [](const Job& job) { return job.parallel.pipeline.pipeline_model_parallel_size > 1; },
       "--loss-in-model is of a whole model, and --pipeline-model-parallel-size is {--pipeline-model-parallel-size}; remove one of "
       "them"},
      {{"--loss-in-model"},
       [](const Job& job) { return !stage_of(job).takes_chunks; },
       "--loss-in-model is of the loss of next tokens, and --stage is {--stage}; remove it"},
      {{"--loss-chunk-size", "--total-chunk-size"},
       [](const Job& job) { return !stage_of(job).takes_chunks; },
       "{flag} is {value}, which is for the loss of next tokens, and --stage is {--stage}; remove it"},
      {{"--loss-reduction"},
       [](const Job& job) {
         return job.objective.loss_reduction != LossReduction::kPerToken && !stage_of(job).takes_chunks;
       },
       "--loss-reduction is of the loss of next tokens, and --stage is {--stage}; remove it"},
      {{"--loss-reduction"},
       is_per_sample,
       "--loss-reduction per_sample is of the loss of shardloom train, and this program computes its own; compute it in "
       "loss_func, or remove the flag",
       is_users},
      {{"--loss-chunk-size", "--total-chunk-size"},
       is_per_sample,
       "--loss-reduction is per_sample, and with {flag} the loss is computed in pieces over all samples; remove one of "
       "them"},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_data_rules(std::vector<Rule>& table) {
  const std::vector<Rule> rows{
      {{"--data-path", "--train-data-path", "--valid-data-path", "--test-data-path"},
       has_pictures,
       "{flag} and --mm-data are both given; keep one"},
      {{"--image-size"},
       [](const Job& job) { return has_pictures(job) || !job.data.data_path.empty() || has_parts(job); },
       "{flag} is for a plan without data; remove it, or the data"},
      {{"--images-per-sample"},
       [](const Job& job) { return job.data.image_size.empty(); },
       "{flag} counts pictures, whose size is not given; add --image-size"},
      {{"--stage", "--is-instruction-dataset", "--split", "--data-cache-path", "--tokenizer-name-or-path",
        "--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss", "--held-out-fraction", "--bytes-as-tokens",
        "--variable-seq-lengths"},
       has_pictures,
       "{flag} is not for --mm-data, whose file describes the data; remove it"},
      {{"--train-epochs", "--save-epochs"},
       has_pictures,
       "{flag} counts samples before --mm-data is read; write --train-iters, or --save-interval"},
      {{"--train-data-path", "--valid-data-path", "--test-data-path"},
       [](const Job& job) { return !job.data.data_path.empty(); },
       "--data-path and {flag} are both given; keep the first for one data set with --split, or the others for one "
       "each"},
      {{"--valid-data-path", "--test-data-path"},
       [](const Job& job) { return job.data.part_data_path.front().empty() && !job.schedule.skip_train; },
       "--train-data-path is missing beside the paths of the other parts; add it"},
      {{"--split"},
       [](const Job& job) { return has_parts(job) && job.data.data_path.empty(); },
       "--split is for --data-path, and --train-data-path names the parts themselves; remove one of them"},
      {{"--eod-mask-loss"},
       [](const Job& job) { return job.data.is_instruction_dataset && job.objective.stage.has_value(); },
       "--eod-mask-loss is for pretraining: with --stage {--stage} the labels of the data say where the loss is; remove "
       "it"},
      {{"--eod-mask-loss"},
       [](const Job& job) { return job.data.is_instruction_dataset && !job.objective.stage; },
       "--eod-mask-loss is for pretraining: with --is-instruction-dataset the labels of the data say where the loss is; "
       "remove it"},
      {{"--neat-pack", "--no-shuffle", "--padded-samples", "--cut-max-seqlen", "--no-cut-token", "--pad-to-multiple-of",
        "--no-pad-to-seq-lengths"},
       [](const Job& job) { return !job.data.is_instruction_dataset; },
       "{flag} is for samples for fine-tuning; add --stage sft, or remove it"},
      {{"--no-cut-token"},
       [](const Job& job) { return job.data.cut_max_seqlen; },
       "--no-cut-token and --cut-max-seqlen are both given; keep one"},
      {{"--held-out-fraction"},
       is_of_pairs,
       "{flag} is for text that is read as bytes, and the data is .bin/.idx pairs; remove it, and write --split",
       is_shardloom},
      {{"--bytes-as-tokens"},
       is_of_pairs,
       "{flag} is for text that is read as bytes, and the data is .bin/.idx pairs; remove it",
       is_shardloom},
      {{"--split", "--data-cache-path", "--tokenizer-name-or-path", "--reset-position-ids", "--reset-attention-mask",
        "--eod-mask-loss"},
       [](const Job& job) { return is_of_bytes(job) && !job.data.data_path.empty(); },
       "{flag} is for .bin/.idx pairs, and --data-path {--data-path} is read as bytes: there is no {--data-path}.idx; "
       "make pairs with shardloom preprocess, or remove it",
       is_shardloom},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_schedule_rules(std::vector<Rule>& table) {
  std::vector<Rule> rows{
      {{"--train-iters"}, trains_in_samples, "--train-iters and --train-samples are both given; keep one"},
      {{"--lr-decay-iters"},
       trains_in_samples,
       "{flag} is given, but --train-samples counts the run in samples; write --lr-decay-samples N"},
      {{"--lr-warmup-iters"},
       trains_in_samples,
       "{flag} is given, but --train-samples counts the run in samples; write --lr-warmup-samples N"},
      {{"--lr-wsd-decay-iters"},
       trains_in_samples,
       "{flag} is given, but --train-samples counts the run in samples; write --lr-wsd-decay-samples N"},
      {{"--lr-decay-samples"},
       trains_in_iterations,
       "{flag} is given, but the run is counted in iterations; write --lr-decay-iters N, or --train-samples N"},
      {{"--lr-warmup-samples"},
       trains_in_iterations,
       "{flag} is given, but the run is counted in iterations; write --lr-warmup-iters N, or --train-samples N"},
      {{"--lr-wsd-decay-samples"},
       trains_in_iterations,
       "{flag} is given, but the run is counted in iterations; write --lr-wsd-decay-iters N, or --train-samples N"},
      {{},
       [](const Job& job) { return !job.schedule.skip_train && job.schedule.min_lr > job.schedule.lr; },
       "--min-lr is {--min-lr}, above --lr {--lr}; use at most --lr"},
      {{},
       [](const Job& job) { return !job.schedule.skip_train && job.schedule.lr_warmup_init > job.schedule.lr; },
       "--lr-warmup-init is {--lr-warmup-init}, above --lr {--lr}; use at most --lr"},
      {{"--override-opt-param-scheduler"},
       [](const Job& job) { return job.schedule.use_checkpoint_opt_param_scheduler; },
       "--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler are both given; keep one"},
      {{"--start-weight-decay", "--end-weight-decay"},
       [](const Job& job) { return !job.schedule.skip_train && is_constant_decay(job); },
       "{flag} is given, but --weight-decay-incr-style is constant; write linear or cosine, or remove it"},
      {{"--weight-decay"}, [](const Job& job) { return !job.schedule.skip_train && !is_constant_decay(job); }},
      {{},
       [](const Job& job) { return job.schedule.skip_train && job.schedule.eval_iters == 0; },
       "--eval-iters is 0, but with --skip-train evaluation is all there is; use at least 1"},
      {{"--save", "--report", "--memory-snapshot", "--print-schedule", "--profile", "--iterations-to-skip",
        "--smart-swap", "--adaptive-recompute-device-swap"},
       [](const Job& job) { return job.schedule.skip_train; },
       "{flag} is given, but with --skip-train no step is taken; remove one of them"},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_optimizer_rules(std::vector<Rule>& table) {
  using Kind = train::OptimizerKind;
  const std::vector<Rule> rows{
      {{"--muon-*"},
       [](const Job& job) { return job.optimizer.kind != Kind::kMuon; },
       "{flag} is of --optimizer muon, which is not given; add it, or remove the flag"},
      {{"--sgd-*"},
       [](const Job& job) { return job.optimizer.kind != Kind::kSgd; },
       "{flag} is of --optimizer sgd, which is not given; add it, or remove the flag"},
      {{"--mem-fraction-static"},
       [](const Job& job) { return job.optimizer.kind != Kind::kAdamSwap; },
       "{flag} is of --optimizer adamw_swap, which is not given; add it, or remove the flag"},
      {{"--sgd-nesterov"},
       [](const Job& job) { return job.optimizer.sgd_momentum == 0; },
       "{flag} is given, and --sgd-momentum is 0; give a momentum above 0, or remove it"},
      {{},
       [](const Job& job) { return job.optimizer.sgd_dampening != 0 && job.optimizer.sgd_nesterov; },
       "--sgd-dampening is {--sgd-dampening}, and Nesterov's form (--sgd-nesterov) has none; remove one of the two"},
      {{},
       [](const Job& job) { return job.optimizer.sgd_dampening != 0 && job.optimizer.sgd_momentum == 0; },
       "--sgd-dampening is {--sgd-dampening}, and --sgd-momentum is 0, so there is none; remove one of the two"},
      {{"--swap-optimizer-times"},
       [](const Job& job) { return !job.optimizer.swap_optimizer; },
       "{flag} is {value}, but --swap-optimizer is not given; add it, or remove the flag"},
      {{"--reuse-fp32-param"},
       [](const Job& job) { return job.optimizer.swap_optimizer; },
       "--swap-optimizer and --reuse-fp32-param are both given, and both lay out fp32 state; remove one"},
      {{"--reuse-fp32-param"},
       is_stored_in_bf16,
       "{flag} is for fp32 parameters, and --params-dtype is bf16; remove one of them"},
      {{"--fp16"},
       is_stored_in_bf16,
       "--fp16 scales the loss for gradients in fp16, and with --params-dtype bf16 they are stored in bf16; use "
       "--bf16, or write --params-dtype fp32"},
      {{},
       [](const Job& job) { return job.optimizer.fp16 && job.parallel.bf16; },
       "--fp16 and --bf16 are both given; keep one"},
      {{},
       [](const Job& job) {
         return job.parallel.bf16 && !job.optimizer.fp16 && !job.parallel.use_torch_fsdp2 && !is_stored_in_bf16(job);
       },
       "--bf16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file with "
       "param_dtype: bf16, or remove it"},
      {{"--fp16"},
       [](const Job& job) { return !job.parallel.bf16 && !job.parallel.use_torch_fsdp2; },
       "--fp16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file with "
       "param_dtype: fp16, or remove it"},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

}  // namespace loom::job
