#include "engine/job/rows.h"

namespace loom::job {
namespace {

bool is_sgd(const Job& job) { return job.optimizer.kind == train::OptimizerKind::kSgd; }
bool is_muon(const Job& job) { return job.optimizer.kind == train::OptimizerKind::kMuon; }

}  // namespace

void add_optimizer_keys(std::vector<Key>& table) {
  add_under(
      "Optimizer",
      {
          choice<&Job::optimizer, &Optimizer::kind>(
              "--optimizer",
              "adam (AdamW); sgd; muon: Muon for the layers' matrices, AdamW for the rest; adamw_swap: AdamW with its moments in host memory")
              .is_common()
              .saved(),
          real<&Job::schedule, &Schedule::weight_decay>("--weight-decay", kFromZero,
                                                        "Weight decay, multiplied by the learning rate")
              .saved(),
          choice<&Job::schedule, &Schedule::weight_decay_incr_style>(
              "--weight-decay-incr-style",
              "How the weight decay changes, from --start-weight-decay to --end-weight-decay")
              .saved(),
          real<&Job::schedule, &Schedule::start_weight_decay>("--start-weight-decay", kFromZero,
                                                              "Weight decay of the first step")
              .saved(),
          real<&Job::schedule, &Schedule::end_weight_decay>("--end-weight-decay", kFromZero,
                                                            "Weight decay at the end of training")
              .saved(),
          toggle<&Job::optimizer, &Optimizer::no_weight_decay_on_norms_and_biases>(
              "--no-weight-decay-on-norms-and-biases", "No weight decay on biases and one-dimensional parameters")
              .saved(),
          texts<&Job::optimizer, &Optimizer::no_decay_modules>(
              "--no-decay-modules", "CLASS", "No weight decay on parameters below modules of these classes")
              .saved(),
          texts<&Job::optimizer, &Optimizer::no_decay_params>(
              "--no-decay-params", "TEXT", "No weight decay on parameters with one of these texts in their path")
              .saved(),
          texts<&Job::optimizer, &Optimizer::lr_scaling_plan>(
              "--lr-scaling-plan", "REGEX=FACTOR",
              "Factors on the learning rate of parameters; the first regex that matches the beginning of the path counts")
              .saved(),
          real<&Job::optimizer, &Optimizer::clip_grad>("--clip-grad", kFromZero,
                                                       "Clip gradients to this norm; 0 = no clipping")
              .saved(),
          toggle<&Job::optimizer, &Optimizer::check_for_nan_in_loss_and_grad>(
              "--check-for-nan-in-loss-and-grad,!--no-check-for-nan-in-loss-and-grad",
              "Stop at a loss or gradient norm that is NaN or Inf; on by default"),
          real<&Job::optimizer, &Optimizer::adam_beta1>("--adam-beta1", kBelowOne, "Decay of the first moment").saved(),
          real<&Job::optimizer, &Optimizer::adam_beta2>("--adam-beta2", kBelowOne, "Decay of the second moment")
              .saved(),
          real<&Job::optimizer, &Optimizer::adam_eps>("--adam-eps", kAboveZero,
                                                      "Added to the square root of the second moment")
              .saved(),
          real<&Job::optimizer, &Optimizer::sgd_momentum>("--sgd-momentum", kBelowOne, "Momentum of --optimizer sgd")
              .saved_if(is_sgd),
          real<&Job::optimizer, &Optimizer::sgd_dampening>(
              "--sgd-dampening", kToOne,
              "Dampening of SGD's momentum: gradients after the first are scaled by 1 minus this")
              .saved_if(is_sgd),
          toggle<&Job::optimizer, &Optimizer::sgd_nesterov>("--sgd-nesterov",
                                                            "Nesterov momentum for SGD; needs a dampening of 0")
              .saved_if(is_sgd),
          real<&Job::optimizer, &Optimizer::muon, &nn::MuonOptions::momentum>("--muon-momentum", kBelowOne,
                                                                              "Momentum of --optimizer muon")
              .saved_if(is_muon),
          toggle<&Job::optimizer, &Optimizer::muon, &nn::MuonOptions::nesterov>(
              "--muon-nesterov,!--no-muon-nesterov", "Nesterov momentum for Muon; on by default")
              .saved_if(is_muon),
          whole<&Job::optimizer, &Optimizer::muon, &nn::MuonOptions::steps>("--muon-num-ns-steps", 1,
                                                                            "Steps of the Newton-Schulz iteration")
              .saved_if(is_muon),
          choice<&Job::optimizer, &Optimizer::muon, &nn::MuonOptions::coefficients>(
              "--muon-coefficient-type", "Coefficients of the Newton-Schulz iteration")
              .saved_if(is_muon),
          choice<&Job::optimizer, &Optimizer::muon, &nn::MuonOptions::scale>(
              "--muon-scale-mode",
              "Scale of Muon's update of an [A,B] matrix: sqrt(max(A,B)), sqrt(A/B), or sqrt(max(1,A/B))")
              .saved_if(is_muon),
          real<&Job::optimizer, &Optimizer::muon, &nn::MuonOptions::extra_scale>(
              "--muon-extra-scale-factor", kAboveZero,
              "Factor on that scale; 0.2 with spectral is MindSpeed-MM's matched_adamw_rms")
              .saved_if(is_muon),
          real<&Job::optimizer, &Optimizer::muon, &nn::MuonOptions::scalar_lr>(
              "--muon-scalar-lr", kAboveZero,
              "Peak learning rate of the parameters that AdamW updates under --optimizer muon; default: --lr")
              .saved_if(is_muon),
      },
      table);
  add_under(
      "Optimizer on the host",
      {
          real<&Job::optimizer, &Optimizer::mem_fraction_static>(
              "--mem-fraction-static", kShare,
              "Share of the unused device memory for a batch of moments, with --optimizer adamw_swap")
              .saved(),
          toggle<&Job::optimizer, &Optimizer::swap_optimizer>(
              "--swap-optimizer", "Keep AdamW's moments in pinned host memory; on the device only while in use")
              .saved(),
          whole<&Job::optimizer, &Optimizer::swap_optimizer_times>(
              "--swap-optimizer-times", 1, "Number of slices that --swap-optimizer moves one after another")
              .saved(),
          toggle<&Job::optimizer, &Optimizer::overlap_cpu_optimizer>(
              "--overlap-cpu-optimizer-d2h-h2d,!--no-overlap-cpu-optimizer-d2h-h2d",
              "With offload_to_cpu and pin_memory: use each gradient when it has landed on the host, instead of when all have; on with --kernels fast, off with pytorch")
              .saved(),
      },
      table);
  add_under("fp16",
            {
                toggle<&Job::optimizer, &Optimizer::fp16>(
                    "--fp16", "Scale the loss; needs param_dtype: fp16 in the file of --fsdp2-config-path")
                    .saved(),
                real<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::constant>(
                    "--loss-scale", kAboveZero, "Constant loss scale; default: dynamic")
                    .saved(),
                real<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::initial>(
                    "--initial-loss-scale", kAboveZero, "Initial dynamic loss scale")
                    .saved(),
                real<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::minimum>(
                    "--min-loss-scale", kAboveZero, "Lower bound of the dynamic loss scale")
                    .saved(),
                whole<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::window>(
                    "--loss-scale-window", 1, "Consecutive updates without overflow before the loss scale doubles")
                    .saved(),
                whole<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::hysteresis>(
                    "--hysteresis", 1, "Overflows before the loss scale is halved")
                    .saved(),
            },
            table);
}

}  // namespace loom::job
