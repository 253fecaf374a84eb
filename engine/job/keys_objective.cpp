#include "engine/job/rows.h"

namespace loom::job {

void add_objective_keys(std::vector<Key>& table) {
  add_under(
      "Preferences (--stage dpo, simpo)",
      {
          choice<&Job::objective, &Objective::dpo, &objective::PreferenceOptions::loss_type>(
              "--dpo-loss-type", "Loss on the difference between the two answers (DPO)"),
          real<&Job::objective, &Objective::dpo, &objective::PreferenceOptions::beta>(
              "--dpo-beta", kAboveZero, "Strength of the pull towards the reference model"),
          real<&Job::objective, &Objective::dpo, &objective::PreferenceOptions::label_smoothing>(
              "--dpo-label-smoothing", kBelowHalf, "Assumed share of pairs whose preference is wrong (DPO)"),
          choice<&Job::objective, &Objective::simpo, &objective::PreferenceOptions::loss_type>(
              "--simpo-loss-type", "Loss on the difference between the two answers (SimPO)"),
          real<&Job::objective, &Objective::simpo, &objective::PreferenceOptions::beta>(
              "--simpo-beta", kAboveZero, "Scale of the difference (SimPO)"),
          real<&Job::objective, &Objective::simpo, &objective::PreferenceOptions::gamma_beta_ratio>(
              "--gamma-beta-ratio", kFromZero, "Target margin over beta (SimPO)"),
          real<&Job::objective, &Objective::simpo, &objective::PreferenceOptions::label_smoothing>(
              "--simpo-label-smoothing", kBelowHalf, "Assumed share of pairs whose preference is wrong (SimPO)"),
          real<&Job::objective, &Objective::dpo, &objective::PreferenceOptions::pref_ftx>(
              "--pref-ftx", kFromZero, "Weight of the language-model loss on the chosen answers (DPO and SimPO)"),
          text<&Job::objective, &Objective::ref_model>("--ref-model", "DIR", "Folder of the reference model (DPO)")
              .saved_if([](const Job& job) { return job.data.is_pairwise_dataset; })
              .from("the model that training starts from")
              .by_content(),
          text<&Job::objective, &Objective::ref_logps_cache>(
              "--ref-logps-cache", "FILE",
              "File of the reference model's log-probabilities (DPO). Computed before training if FILE does not exist, read if it does; training then holds no reference model")
              .from("none")
              .by_content(),
      },
      table);
  add_under("Process rewards (--stage prm)",
            {
                text<&Job::data, &Data::placeholder_token>(
                    "--placeholder-token", "TEXT",
                    "Token after each step, where labels count; the one given to shardloom preprocess")
                    .saved()
                    .from("every label counts"),
                texts<&Job::data, &Data::reward_tokens>("--reward-tokens", "TOKEN",
                                                        "Tokens that are labels: the loss compares only their logits")
                    .saved(),
            },
            table);
}

}  // namespace loom::job
