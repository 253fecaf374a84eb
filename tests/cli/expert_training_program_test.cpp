// Promise: Megatron's losses of routers, the capacity of experts and the correction of choices do what their formulas
//          say, alike on any ranks that share experts or sequences; loads and dropped choices are counted once,
//          recompute or not; both dispatchers train the same model; a dispatch beside the shared expert changes no bit.
// World:   the built program; small models with four experts of three families; 1, 2 and 4 ranks.
#include <cmath>
#include <gmock/gmock.h>
#include <numeric>

#include "tests/cli/axes_program.h"

namespace loom::test {
namespace {

using json = nlohmann::ordered_json;
using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Le;

class ExpertTraining : public AxesProgram {
 protected:
  ExpertTraining() : AxesProgram(4, 2, {"--eval-iters", "0"}) {
    folder.write("plain.yaml", kSharding);
    folder.write("shared.yaml", kSharding + kShared);
    folder.write("ring.yaml", kSharding + "ring_attention_size: 2\n");
    folder.write("gathered.yaml", kSharding + kShared + "moe_token_dispatcher_type: allgather\n");
    folder.write("beside.yaml", kSharding + kShared + "moe_shared_expert_overlap: true\n");
    folder.write(
        "qwen2_moe.yaml",
        "model_type: qwen2_moe\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
        "num_attention_heads: 2\nnum_key_value_heads: 2\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
        "num_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 8\nshared_expert_intermediate_size: 16\n"
        "norm_topk_prob: false\ndecoder_sparse_step: 1\ntie_word_embeddings: false\n");
    folder.write("deepseek.yaml", latent_model(3));
  }

  std::vector<json> lines(const std::string& name, const Words& more) const {
    const Outcome outcome = folder.run(Words{"train"} + more + Words{"--metrics-path", name});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return folder.metrics(name);
  }
  // A figure that the loss reports, of every step.
  static std::vector<double> reported(const std::vector<json>& lines, const std::string& name) {
    std::vector<double> values;
    for (const json& line : lines) values.push_back(line.at("reports").at(name));
    return values;
  }
  std::string refused(const Words& more) const {
    const Outcome outcome = folder.run(Words{"train"} + more + Words{"--train-iters", "1"});
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  }

  const Words kThree = {"--train-iters", "3"};
  const std::string kShared = "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n";
};

TEST_F(ExpertTraining, HuggingFacesLossOfOneLayerIsKTimesMegatrons) {
  std::string one = folder.read("moe.yaml");
  one.replace(one.find("num_hidden_layers: 2"), 20, "num_hidden_layers: 1");
  folder.write("one.yaml", one);
  folder.write("hf.yaml", one + "output_router_logits: true\nrouter_aux_loss_coef: 0.01\n");
  const std::vector<json> hf = lines("hf.jsonl", words("plain.yaml", 1, "hf.yaml") + kThree);
  const std::vector<json> megatron =
      lines("megatron.jsonl", words("plain.yaml", 1, "one.yaml") + kThree + Words{"--moe-aux-loss-coeff", "0.02"});
  EXPECT_EQ(megatron.size(), 3U);
  for (std::size_t i = 0; i < hf.size(); ++i) {
    EXPECT_NEAR(reported(hf, "router_aux_loss")[i], 2 * reported(megatron, "load_balancing_loss")[i], 1e-5);
    EXPECT_NEAR(hf[i].at("loss").get<double>(), megatron[i].at("loss").get<double>(), 1e-5);
  }
}

TEST_F(ExpertTraining, TheLossIsTheTokensAndTheTermsWithTheirCoefficients) {
  const Words both = {"--moe-aux-loss-coeff", "0.5", "--moe-z-loss-coeff", "0.25", "--eval-iters", "1"};
  const Outcome run =
      folder.run(Words{"train"} + words("plain.yaml", 1) + kThree + both + Words{"--metrics-path", "m"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const json& line : folder.metrics("m")) {
    const json& of = line.at("reports");
    const double layers = 2;
    const double sum = of.at("cross_entropy").get<double>() +
                       0.5 * layers * of.at("load_balancing_loss").get<double>() +
                       0.25 * layers * of.at("z_loss").get<double>();
    EXPECT_NEAR(line.at("loss").get<double>(), sum, 1e-5);
  }
}

TEST_F(ExpertTraining, LossesOfRoutersAreTheSameOnRanksThatShareExpertsOrSequences) {
  // One sequence a micro-batch: the loss is of a micro-batch, on any number of ranks.
  for (const char* type : {"aux_loss", "seq_aux_loss"}) {
    for (const char* model : {"moe.yaml", "deepseek.yaml"}) {
      const Words more = kThree + Words{"--moe-router-load-balancing-type",
                                        type,
                                        "--moe-aux-loss-coeff",
                                        "0.1",
                                        "--moe-z-loss-coeff",
                                        "0.1",
                                        "--micro-batch-size",
                                        "1"};
      const std::vector<json> whole = lines("whole.jsonl", words("plain.yaml", 1, model) + more);
      for (const auto& [sharding, ranks] : {std::pair{"shared.yaml", 2}, {"shared.yaml", 4}, {"ring.yaml", 4}}) {
        const std::vector<json> shared = lines("shared.jsonl", words(sharding, ranks, model) + more);
        for (const char* name : {"cross_entropy", "load_balancing_loss", "z_loss"}) {
          expect_near(reported(shared, name), reported(whole, name));
        }
      }
    }
  }
}

TEST_F(ExpertTraining, HuggingFacesLossIsOfWholeSequencesToo) {
  folder.write("hf.yaml", folder.read("moe.yaml") + "output_router_logits: true\nrouter_aux_loss_coef: 0.1\n");
  const Words more = kThree + Words{"--micro-batch-size", "1"};
  const std::vector<json> whole = lines("whole.jsonl", words("plain.yaml", 1, "hf.yaml") + more);
  const std::vector<json> halves = lines("halves.jsonl", words("ring.yaml", 2, "hf.yaml") + more);
  expect_near(reported(halves, "router_aux_loss"), reported(whole, "router_aux_loss"));
}

TEST_F(ExpertTraining, LossesOfRoutersAreOfTrainingAlone) {
  const Words more = {"--train-iters", "2", "--moe-aux-loss-coeff", "0.5", "--eval-iters", "1"};
  const Words words_of = words("plain.yaml", 1);
  const std::vector<json> with = lines("with.jsonl", words_of + more);
  EXPECT_FALSE(with.back().contains("held_out_reports") && with.back().at("held_out_reports").contains("z_loss"));
}

TEST_F(ExpertTraining, ACapacityThatSufficesDropsNothing) {
  const std::vector<double> dropless = losses("dropless.jsonl", words("shared.yaml", 2) + kThree);
  for (const Words& padded : {Words{}, Words{"--moe-pad-expert-input-to-capacity"}}) {
    const std::vector<json> wide =
        lines("wide.jsonl", words("shared.yaml", 2) + kThree + Words{"--moe-expert-capacity-factor", "2"} + padded);
    EXPECT_THAT(reported(wide, "dropped_choices"), Each(0));
    for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(wide[i].at("loss").get<double>(), dropless[i]);
  }
}

TEST_F(ExpertTraining, ChoicesBeyondTheCapacityAreDroppedAndCounted) {
  const Words tight = kThree + Words{"--moe-expert-capacity-factor", "0.75", "--micro-batch-size", "1"};
  for (const char* policy : {"probs", "position"}) {
    const Words more = tight + Words{"--moe-token-drop-policy", policy};
    const std::vector<json> whole = lines("whole.jsonl", words("plain.yaml", 1) + more);
    EXPECT_THAT(reported(whole, "dropped_choices"), Each(Gt(0)));
    for (const json& line : whole) {
      const auto tokens = line.at("expert_tokens").get<std::vector<double>>();
      // 4 sequences of 16 tokens, 2 experts each, 2 layers; 6 tokens of each expert and sequence.
      EXPECT_EQ(std::reduce(tokens.begin(), tokens.end()) + line.at("reports").at("dropped_choices").get<double>(),
                256);
      EXPECT_THAT(tokens, Each(Le(6 * 4 * 2)));
    }
    for (const char* sharding : {"shared.yaml", "gathered.yaml"}) {
      const std::vector<json> shared = lines("shared.jsonl", words(sharding, 2) + more);
      EXPECT_EQ(reported(shared, "dropped_choices").front(), reported(whole, "dropped_choices").front());
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_NEAR(shared[i].at("loss").get<double>(), whole[i].at("loss").get<double>(), 2e-4) << i;
      }
    }
  }
}

TEST_F(ExpertTraining, LoadsAreCountedOnceWhateverIsRecomputed) {
  const std::vector<json> plain = lines("plain.jsonl", words("shared.yaml", 2) + kThree);
  EXPECT_EQ(plain.front().at("expert_tokens").size(), 4U);
  for (const char* reentrant : {"true", "false"}) {
    folder.write("again.yaml",
                 kSharding + kShared + "recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: " + reentrant + "\n");
    const std::vector<json> again = lines("again.jsonl", words("again.yaml", 2) + kThree);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(again[i].at("expert_tokens"), plain[i].at("expert_tokens"));
      EXPECT_EQ(again[i].at("reports"), plain[i].at("reports"));
    }
  }
}

TEST_F(ExpertTraining, CorrectionsBalanceTheLoadsAndAreSaved) {
  const Words bias = {"--moe-router-enable-expert-bias", "--moe-router-bias-update-rate", "0.001", "--lr", "1e-12"};
  const Words model = words("shared.yaml", 4, "deepseek.yaml");
  const Words save = {"--train-iters", "20", "--save", "out", "--save-interval", "10", "--ckpt-format", "torch_dcp"};
  const std::vector<json> all = lines("all.jsonl", model + bias + save);
  // Weights stay as they are: the corrections alone move the choices.
  EXPECT_LT(reported(all, "expert_load_max_over_mean").back(), reported(all, "expert_load_max_over_mean").front());
  const std::vector<json> rest =
      lines("rest.jsonl", model + bias + Words{"--train-iters", "20", "--load", "out", "--ckpt-step", "10"});
  ASSERT_EQ(rest.size(), 10U);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    EXPECT_EQ(rest[i].at("expert_tokens"), all[i + 10].at("expert_tokens")) << i;
    EXPECT_EQ(rest[i].at("loss"), all[i + 10].at("loss")) << i;
  }
}

TEST_F(ExpertTraining, GatheredTokensTrainTheSameModel) {
  const std::vector<double> exchanged = losses("exchanged.jsonl", words("shared.yaml", 4) + kThree);
  const std::vector<double> gathered = losses("gathered.jsonl", words("gathered.yaml", 4) + kThree);
  expect_near(gathered, exchanged);
  EXPECT_EQ(losses("flag.jsonl", words("shared.yaml", 4) + kThree + Words{"--moe-token-dispatcher-type", "allgather"}),
            gathered);
}

TEST_F(ExpertTraining, TheSharedExpertRunsBesideTheDispatchWithTheSameBits) {
  for (const char* model : {"qwen2_moe.yaml", "deepseek.yaml"}) {
    const std::vector<double> after = losses("after.jsonl", words("shared.yaml", 2, model) + kThree);
    EXPECT_EQ(losses("beside.jsonl", words("beside.yaml", 2, model) + kThree), after) << model;
    EXPECT_EQ(losses("inline.jsonl", words("beside.yaml", 2, model) + kThree + Words{"--device-executor", "inline"}),
              after);
    EXPECT_EQ(losses("flag.jsonl", words("shared.yaml", 2, model) + kThree + Words{"--moe-shared-expert-overlap"}),
              after);
    folder.write("again.yaml", kSharding + kShared +
                                   "moe_shared_expert_overlap: true\nuse_reentrant: false\n"
                                   "recompute_modules: [\"model.layers.{*}\"]\n");
    EXPECT_EQ(losses("again.jsonl", words("again.yaml", 2, model) + kThree), after) << model;
  }
}

TEST_F(ExpertTraining, APlanHasTheDispatchBesideTheSharedExpert) {
  const auto step_of = [&](const std::string& sharding) {
    const Outcome outcome =
        folder.run(Words{"plan"} + words(sharding, 1, "wide.yaml") +
                   Words{"--world-size", "8", "--global-batch-size", "8", "--device", "h200", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out).at("time").at("step_ns").get<double>();
  };
  std::string wide = folder.read("qwen2_moe.yaml");
  wide.replace(wide.find("hidden_size: 16"), 15, "hidden_size: 1024");
  wide.replace(wide.find("shared_expert_intermediate_size: 16"), 35, "shared_expert_intermediate_size: 16384");
  folder.write("wide.yaml", wide);
  EXPECT_LT(step_of("beside.yaml"), step_of("shared.yaml"));
}

TEST_F(ExpertTraining, WhatDoesNotFitIsRefusedFirst) {
  const auto refusal = [&](const Words& more, const std::string& model) {
    return refused(words("plain.yaml", 1, model) + more);
  };
  EXPECT_THAT(refusal({"--moe-z-loss-coeff", "0.1"}, "model.yaml"),
              HasSubstr("--moe-aux-loss-coeff, --moe-z-loss-coeff, --moe-expert-capacity-factor and "
                        "--moe-router-enable-expert-bias are of experts, and Qwen2ForCausalLM has none; remove them"));
  EXPECT_THAT(refusal({"--moe-router-enable-expert-bias"}, "moe.yaml"),
              HasSubstr("--moe-router-enable-expert-bias: the router of 'model.layers.0.mlp' has no correction of its "
                        "choices; it is of routers with sigmoid scores (DeepSeek-V3); remove the flag"));
  folder.write("hf.yaml", folder.read("moe.yaml") + "output_router_logits: true\nrouter_aux_loss_coef: 0.01\n");
  EXPECT_THAT(
      refusal({"--moe-aux-loss-coeff", "0.1"}, "hf.yaml"),
      HasSubstr("Qwen3MoeForCausalLM has Hugging Face's load-balancing loss already; set output_router_logits to "
                "false in its configuration, or remove the flags"));
  EXPECT_THAT(refusal({"--moe-token-drop-policy", "probs"}, "moe.yaml"),
              HasSubstr("--moe-token-drop-policy is of experts with a capacity; add --moe-expert-capacity-factor X, or "
                        "remove it"));
  EXPECT_THAT(
      refusal({"--moe-aux-loss-coeff", "0.1", "--moe-router-load-balancing-type", "none"}, "moe.yaml"),
      HasSubstr("--moe-router-load-balancing-type none has no such loss; write aux_loss or seq_aux_loss, or 0"));
  folder.write("bad.yaml", kSharding + kShared + "moe_token_dispatcher_type: mc2\n");
  EXPECT_THAT(refused(words("bad.yaml", 2)),
              HasSubstr("bad.yaml:5:28: moe_token_dispatcher_type is mc2; use alltoall or allgather"));
}

}  // namespace
}  // namespace loom::test
