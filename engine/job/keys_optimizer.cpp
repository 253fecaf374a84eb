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
              "adam (AdamW), sgd, muon for the matrices of the layers with AdamW for the rest, or adamw_swap: AdamW whose moments are in host memory")
              .is_common()
              .saved(),
          real<&Job::schedule, &Schedule::weight_decay>("--weight-decay", kFromZero, "Decay of the weights, times lr")
              .saved(),
          choice<&Job::schedule, &Schedule::weight_decay_incr_style>(
              "--weight-decay-incr-style",
              "How the decay of the weights rises; not constant: from --start- to --end-weight-decay")
              .saved(),
          real<&Job::schedule, &Schedule::start_weight_decay>("--start-weight-decay", kFromZero,
                                                              "Decay of the weights in the first step")
              .saved(),
          real<&Job::schedule, &Schedule::end_weight_decay>("--end-weight-decay", kFromZero,
                                                            "Decay of the weights at the end of training")
              .saved(),
          toggle<&Job::optimizer, &Optimizer::no_weight_decay_on_norms_and_biases>(
              "--no-weight-decay-on-norms-and-biases", "Parameters of one dim, and biases, do not decay")
              .saved(),
          real<&Job::optimizer, &Optimizer::clip_grad>("--clip-grad", kFromZero,
                                                       "Largest gradient norm; 0 = no clipping")
              .saved(),
          toggle<&Job::optimizer, &Optimizer::check_for_nan_in_loss_and_grad>(
              "--check-for-nan-in-loss-and-grad,!--no-check-for-nan-in-loss-and-grad",
              "End the run at a loss or gradient norm that is NaN or Inf; on unless --no-... is given"),
          real<&Job::optimizer, &Optimizer::adam_beta1>("--adam-beta1", kBelowOne, "Decay of the first moment").saved(),
          real<&Job::optimizer, &Optimizer::adam_beta2>("--adam-beta2", kBelowOne, "Decay of the second moment")
              .saved(),
          real<&Job::optimizer, &Optimizer::adam_eps>("--adam-eps", kAboveZero,
                                                      "Added to the root of the second moment")
              .saved(),
          real<&Job::optimizer, &Optimizer::sgd_momentum>("--sgd-momentum", kBelowOne, "Momentum of --optimizer sgd")
              .saved_if(is_sgd),
          real<&Job::optimizer, &Optimizer::sgd_dampening>(
              "--sgd-dampening", kToOne,
              "Dampening of that momentum: a gradient after the first counts times 1 minus this")
              .saved_if(is_sgd),
          toggle<&Job::optimizer, &Optimizer::sgd_nesterov>("--sgd-nesterov",
                                                            "Nesterov's form of that momentum; without dampening")
              .saved_if(is_sgd),
          real<&Job::optimizer, &Optimizer::muon, &sharding::MuonOptions::momentum>("--muon-momentum", kBelowOne,
                                                                                    "Momentum of --optimizer muon")
              .saved_if(is_muon),
          toggle<&Job::optimizer, &Optimizer::muon, &sharding::MuonOptions::nesterov>(
              "--muon-nesterov,!--no-muon-nesterov", "Nesterov's form of that momentum; on unless --no-... is given")
              .saved_if(is_muon),
          whole<&Job::optimizer, &Optimizer::muon, &sharding::MuonOptions::steps>(
              "--muon-num-ns-steps", 1, "Steps of the Newton-Schulz iteration")
              .saved_if(is_muon),
          choice<&Job::optimizer, &Optimizer::muon, &sharding::MuonOptions::coefficients>(
              "--muon-coefficient-type", "Coefficients of the iteration")
              .saved_if(is_muon),
          choice<&Job::optimizer, &Optimizer::muon, &sharding::MuonOptions::scale>(
              "--muon-scale-mode", "Scale of an update [A,B]: sqrt(max(A,B)), sqrt(A/B), or sqrt(max(1,A/B))")
              .saved_if(is_muon),
          real<&Job::optimizer, &Optimizer::muon, &sharding::MuonOptions::extra_scale>(
              "--muon-extra-scale-factor", kAboveZero,
              "Times that scale; 0.2 with spectral is MindSpeed-MM's matched_adamw_rms")
              .saved_if(is_muon),
          real<&Job::optimizer, &Optimizer::muon, &sharding::MuonOptions::scalar_lr>(
              "--muon-scalar-lr", kAboveZero,
              "Largest learning rate of what AdamW updates beside --optimizer muon, on the schedule of --lr; not given: --lr")
              .saved_if(is_muon),
      },
      table);
  add_under(
      "Optimizer on the host",
      {
          real<&Job::optimizer, &Optimizer::mem_fraction_static>(
              "--mem-fraction-static", kShare,
              "Share of the device's unused memory that a batch of moments takes, with --optimizer adamw_swap")
              .saved(),
          toggle<&Job::optimizer, &Optimizer::swap_optimizer>(
              "--swap-optimizer", "Keep AdamW's moments in pinned host memory, on the device only while they are used")
              .saved(),
          whole<&Job::optimizer, &Optimizer::swap_optimizer_times>("--swap-optimizer-times", 1,
                                                                   "Slices in which --swap-optimizer moves them")
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
                    "--loss-scale", kAboveZero, "One scale for the whole run; not given: it adapts")
                    .saved(),
                real<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::initial>(
                    "--initial-loss-scale", kAboveZero, "Scale of the first step")
                    .saved(),
                real<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::minimum>(
                    "--min-loss-scale", kAboveZero, "Below it the scale never falls")
                    .saved(),
                whole<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::window>(
                    "--loss-scale-window", 1, "Updates without overflow after which the scale doubles")
                    .saved(),
                whole<&Job::optimizer, &Optimizer::loss_scale, &train::LossScaleOptions::hysteresis>(
                    "--hysteresis", 1, "Overflows after which the scale is halved")
                    .saved(),
            },
            table);
}

}  // namespace loom::job
