#include "engine/job/rule_rows.h"

namespace loom::job {
namespace {

using models::RecomputeGranularity;
using models::RecomputeMethod;

bool is_full(const Job& job) { return job.parallel.recompute_layers.granularity == RecomputeGranularity::kFull; }
bool is_selective(const Job& job) {
  return job.parallel.recompute_layers.granularity == RecomputeGranularity::kSelective;
}
bool is_planned(const Job& job) {
  return job.swap.smart_swap || job.memory.adaptive_recompute || job.memory.device_memory_mib > 0;
}
bool has_evaluation_data(const Job& job) {
  return job.data.held_out_fraction > 0 || data::data_kind(job.data) == data::DataKind::kTokens;
}

}  // namespace

bool keeps_checkpoints(const Job& job) {
  return job.schedule.save_interval > 0 || job.schedule.save_epochs > 0 || job.checkpoint.async_save ||
         job.checkpoint.keep_last || job.checkpoint.no_save_optim || job.checkpoint.no_save_rng ||
         job.checkpoint.on_save_error != train::OnSaveError::kStop || job.checkpoint.load;
}

void add_recompute_rules(std::vector<Rule>& table) {
  const std::vector<Rule> rows{
      {{"--recompute-method", "--recompute-num-layers"},
       [](const Job& job) { return is_selective(job) && job.parallel.recompute_activations; },
       "{flag} is of --recompute-granularity full, and --recompute-activations asks for selective; remove one of them"},
      {{"--recompute-method", "--recompute-num-layers"},
       [](const Job& job) { return is_selective(job) && !job.parallel.recompute_activations; },
       "{flag} is of --recompute-granularity full, and --recompute-granularity asks for selective; remove one of them"},
      {{"--recompute-method"},
       [](const Job& job) { return !is_full(job) && !is_selective(job); },
       "{flag} is given without --recompute-granularity full, so nothing is recomputed by it; add that"},
      {{"--recompute-num-layers"},
       [](const Job& job) {
         return !is_full(job) && !is_selective(job) && job.parallel.recompute_layers.num_layers > 0;
       },
       "{flag} is given without --recompute-granularity full, so nothing is recomputed by it; add that"},
      {{"--recompute-granularity"},
       [](const Job& job) { return is_full(job) && job.parallel.recompute_layers.method == RecomputeMethod::kNone; },
       "--recompute-granularity full is given without --recompute-method; write --recompute-method uniform (checkpoints "
       "of N layers) or block (the first N layers), and --recompute-num-layers N"},
      {{"--recompute-granularity"},
       [](const Job& job) { return is_full(job) && job.parallel.recompute_layers.num_layers == 0; },
       "--recompute-granularity full is given without --recompute-num-layers; write --recompute-method uniform "
       "(checkpoints of N layers) or block (the first N layers), and --recompute-num-layers N"},
      {{"--recompute-activation-function-num-layers"},
       [](const Job& job) { return !job.parallel.recompute_layers.activation_function; },
       "{flag} is given without --recompute-activation-function; add that, or remove it"},
      {{"--recompute-norm-num-layers"},
       [](const Job& job) { return !job.parallel.recompute_layers.norm; },
       "{flag} is given without --recompute-norm; add that, or remove it"},
      {{"--recompute-activation-function", "--recompute-norm", "--moe-layer-recompute"},
       [](const Job& job) { return job.parallel.recompute_layers.method == RecomputeMethod::kUniform; },
       "--recompute-method is uniform, which recomputes every layer, and {flag} is for layers that are not; write "
       "--recompute-method block, or remove one of them"},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_memory_rules(std::vector<Rule>& table) {
  std::vector<std::string_view> chosen_by_adaptive{"--memory-fragmentation", "--swap-attention", "--smart-swap"};
  chosen_by_adaptive.insert(chosen_by_adaptive.end(), kMegatronRecomputeFlags.begin(), kMegatronRecomputeFlags.end());
  const std::vector<Rule> rows{
      {{"--adaptive-recompute-device-size"},
       [](const Job& job) { return !job.memory.adaptive_recompute; },
       "{flag} is {value}, but --adaptive-recompute-device-swap is not given, so nothing is chosen; add it"},
      {chosen_by_adaptive, [](const Job& job) { return job.memory.adaptive_recompute; },
       "--adaptive-recompute-device-swap and {flag} are both given, and the first chooses what is recomputed and "
       "swapped; remove one of them"},
      {{"--swap-modules"},
       [](const Job& job) { return !job.swap.swap_attention; },
       "{flag} is given, but --swap-attention is not, so nothing is swapped; add it"},
      {{"--smart-swap-device-size"},
       [](const Job& job) { return !job.swap.smart_swap; },
       "{flag} is {value}, but --smart-swap is not given, so nothing is chosen; add it"},
      {{"--smart-swap"},
       [](const Job& job) { return job.swap.swap_attention; },
       "--smart-swap and --swap-attention are both given, and both say what is swapped; remove one of them"},
      {{"--smart-swap"},
       [](const Job& job) { return !job.swap.swap_attention && !job.swap.smart_swap_device_size; },
       "--smart-swap is given without --smart-swap-device-size, and the memory of this machine is no device's; give the "
       "MiB that a step has to fit",
       [](Program program) { return !plans(program); }},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_checkpoint_rules(std::vector<Rule>& table) {
  const std::vector<Rule> rows{
      {{"--ckpt-format"},
       [](const Job& job) {
         return job.checkpoint.ckpt_format_word == "torch_dist" && (job.checkpoint.save || job.checkpoint.load);
       },
       "--ckpt-format is torch_dist, a layout of Megatron's own that is neither written nor read here; use torch_dcp"},
      {{"--ckpt-format"},
       [](const Job& job) { return job.checkpoint.ckpt_format_word == "hf" && keeps_checkpoints(job); },
       "--ckpt-format is hf, a folder of the trained model from which no run can go on, but a flag of checkpoints is "
       "given (--save-interval, --save-epochs, --load, --async-save, --keep-last, --no-save-optim, --no-save-rng or --on-save-error); "
       "remove it, or use torch_dcp"},
      {{"--ckpt-step"},
       [](const Job& job) { return !job.checkpoint.load; },
       "{flag} is {value}, but --load is not given, so nothing is loaded; add --load DIR"},
      {{"--no-load-optim", "--no-load-rng", "--finetune", "--exit-on-missing-checkpoint"},
       [](const Job& job) { return !job.checkpoint.load; }},
      {{"--save-interval", "--save-epochs", "--async-save", "--keep-last", "--no-save-optim", "--no-save-rng"},
       [](const Job& job) { return !job.checkpoint.save; }},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

void add_output_rules(std::vector<Rule>& table) {
  const std::vector<Rule> rows{
      {{"--print-schedule"},
       [](const Job& job) { return !job.parallel.use_torch_fsdp2; },
       "{flag} is given, but --use-torch-fsdp2 is not, so nothing is gathered; add it"},
      {{"--prompt"},
       [](const Job& job) { return job.sample.sample_bytes == 0; },
       "{flag} is given, but --sample-bytes is 0, so no text is generated; give --sample-bytes N"},
      {{"--report-device"},
       [](const Job& job) { return !job.report.path && !is_planned(job); },
       "{flag} is {value}, but --report is not given, so no page is written; add --report FILE"},
      {{"--eval-iters", "--eval-interval"},
       [](const Job& job) { return job.schedule.eval_iters > 0 && !has_evaluation_data(job); },
       "{flag} is given, but --held-out-fraction is 0, so no data is kept for evaluation; use a fraction above 0"},
      {{"--tensorboard-log-interval", "--tensorboard-queue-size", "--log-timers-to-tensorboard",
        "--log-memory-to-tensorboard", "--log-loss-scale-to-tensorboard", "--log-world-size-to-tensorboard",
        "--log-validation-ppl-to-tensorboard"},
       [](const Job& job) { return !job.log.tensorboard_dir; },
       "{flag} is given, but --tensorboard-dir is not, so no scalar is written; add --tensorboard-dir DIR"},
      {{"--profile-*"},
       [](const Job& job) { return !job.profile.enabled; },
       "{flag} is given, but --profile is not, so nothing is collected; add --profile"},
  };
  table.insert(table.end(), rows.begin(), rows.end());
}

}  // namespace loom::job
