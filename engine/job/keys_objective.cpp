#include "engine/job/rows.h"

namespace loom::job {

void add_objective_keys(std::vector<Key>& table) {
  add_under(
      "Preferences (--stage dpo, simpo)",
      {
          choice<&Job::objective, &Objective::dpo, &train::PreferenceOptions::loss_type>(
              "--dpo-loss-type", "Loss of the difference of two answers"),
          real<&Job::objective, &Objective::dpo, &train::PreferenceOptions::beta>(
              "--dpo-beta", kAboveZero, "How far the policy may leave the reference model"),
          real<&Job::objective, &Objective::dpo, &train::PreferenceOptions::label_smoothing>(
              "--dpo-label-smoothing", kBelowHalf, "Share of pairs whose order is taken to be wrong"),
          choice<&Job::objective, &Objective::simpo, &train::PreferenceOptions::loss_type>("--simpo-loss-type",
                                                                                           "The same of SimPO"),
          real<&Job::objective, &Objective::simpo, &train::PreferenceOptions::beta>("--simpo-beta", kAboveZero,
                                                                                    "Scale of SimPO's difference"),
          real<&Job::objective, &Objective::simpo, &train::PreferenceOptions::gamma_beta_ratio>(
              "--gamma-beta-ratio", kFromZero, "Margin of SimPO's difference"),
          real<&Job::objective, &Objective::simpo, &train::PreferenceOptions::label_smoothing>(
              "--simpo-label-smoothing", kBelowHalf, "The same of SimPO"),
          real<&Job::objective, &Objective::dpo, &train::PreferenceOptions::pref_ftx>(
              "--pref-ftx", kFromZero, "Weight of the chosen answers' own loss, of both"),
          text<&Job::objective, &Objective::ref_model>("--ref-model", "DIR", "Reference model of DPO")
              .saved_if([](const Job& job) { return job.data.is_pairwise_dataset; })
              .from("the model that training starts from")
              .by_content(),
          text<&Job::objective, &Objective::ref_logps_cache>(
              "--ref-logps-cache", "FILE",
              "Log-probabilities of DPO's reference model: computed once, before training, where FILE is not there, and read where it is; training then holds no reference model")
              .from("none")
              .by_content(),
      },
      table);
  add_under("Process rewards (--stage prm)",
            {
                text<&Job::data, &Data::placeholder_token>(
                    "--placeholder-token", "TEXT",
                    "Token behind each step, where labels count; as shardloom preprocess was told")
                    .saved()
                    .from("every label counts"),
                texts<&Job::data, &Data::reward_tokens>("--reward-tokens", "TOKEN",
                                                        "The labels there are: the loss compares their logits alone")
                    .saved(),
            },
            table);
}

}  // namespace loom::job
