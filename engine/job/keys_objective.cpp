#include "engine/job/rows.h"

namespace loom::job {

void add_objective_keys(std::vector<Key>& table) {
  add_under(
      "Preferences (--stage dpo, simpo)",
      {
          choice<&Job::dpo, &train::PreferenceOptions::loss_type>("--dpo-loss-type",
                                                                  "Loss of the difference of two answers"),
          real<&Job::dpo, &train::PreferenceOptions::beta>("--dpo-beta", kAboveZero,
                                                           "How far the policy may leave the reference model"),
          real<&Job::dpo, &train::PreferenceOptions::label_smoothing>(
              "--dpo-label-smoothing", kBelowHalf, "Share of pairs whose order is taken to be wrong"),
          choice<&Job::simpo, &train::PreferenceOptions::loss_type>("--simpo-loss-type", "The same of SimPO"),
          real<&Job::simpo, &train::PreferenceOptions::beta>("--simpo-beta", kAboveZero, "Scale of SimPO's difference"),
          real<&Job::simpo, &train::PreferenceOptions::gamma_beta_ratio>("--gamma-beta-ratio", kFromZero,
                                                                         "Margin of SimPO's difference"),
          real<&Job::simpo, &train::PreferenceOptions::label_smoothing>("--simpo-label-smoothing", kBelowHalf,
                                                                        "The same of SimPO"),
          real<&Job::dpo, &train::PreferenceOptions::pref_ftx>("--pref-ftx", kFromZero,
                                                               "Weight of the chosen answers' own loss, of both"),
          text<&Job::ref_model>("--ref-model", "DIR", "Reference model of DPO")
              .saved_if([](const Job& job) { return job.is_pairwise_dataset; })
              .from("the model that training starts from")
              .by_content(),
          text<&Job::ref_logps_cache>(
              "--ref-logps-cache", "FILE",
              "Log-probabilities of DPO's reference model: computed once, before training, where FILE is not there, and read where it is; training then holds no reference model")
              .from("none")
              .by_content(),
      },
      table);
  add_under(
      "Process rewards (--stage prm)",
      {
          text<&Job::placeholder_token>("--placeholder-token", "TEXT",
                                        "Token behind each step, where labels count; as shardloom preprocess was told")
              .saved()
              .from("every label counts"),
          texts<&Job::reward_tokens>("--reward-tokens", "TOKEN",
                                     "The labels there are: the loss compares their logits alone")
              .saved(),
      },
      table);
}

}  // namespace loom::job
