// Promise: a pipeline trains as one rank does, in every schedule with the same bits, with FSDP2 inside its stages;
//          evaluates, saves, resumes to the bit and exports what one rank exports; says what does not go with it.
// World:   the built program; models of four layers; 2 and 4 stages on 2 to 4 ranks as threads.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/cli/axes_program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

class PipelineParallel : public AxesProgram {
 protected:
  PipelineParallel() : AxesProgram(4, 4, {"--eval-iters", "0"}) {
    for (const char* family : {"llama", "qwen2", "gpt2", "tied"})
      folder.write(std::string(family) + ".yaml", model_of(family));
  }

  static std::string model_of(const std::string& family) {
    if (family == "gpt2") {
      return "model_type: gpt2\nvocab_size: 256\nn_embd: 16\nn_layer: 4\nn_head: 4\nn_positions: 32\n"
             "tie_word_embeddings: false\n";
    }
    return fmt::format(
        "model_type: {}\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 4\n"
        "num_attention_heads: 4\nnum_key_value_heads: 2\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
        "tie_word_embeddings: {}\n",
        family == "tied" ? "llama" : family, family == "tied");
  }

  Words job(const std::string& keys, int ranks, const std::string& family = "llama") const {
    const std::string layers = family == "gpt2" ? "transformer.h.{*}" : "model.layers.{*}";
    folder.write("file.yaml", fmt::format("sharding_size: auto\nsub_modules_to_wrap: [\"{}\"]\n{}", layers, keys));
    return words("file.yaml", ranks, family + ".yaml") +
           Words{"--micro-batch-size", "1", "--global-batch-size", "8", "--train-iters", "4"};
  }
  std::vector<double> trained(int ranks, const Words& more, const std::string& keys = "",
                              const std::string& family = "llama") const {
    return losses("run.jsonl", job(keys, ranks, family) + more);
  }
  int runs_ = 0;

  static Words stages(int count, const std::string& schedule = "1F1B") {
    return {"--pipeline-model-parallel-size", std::to_string(count), "--pipeline-parallel-schedule", schedule};
  }
  static Words with_two_a_rank(Words words) {
    return std::move(words) + Words{"--num-virtual-stages-per-pipeline-rank", "2"};
  }
};

TEST_F(PipelineParallel, TrainsAsOneRankDoesWithTheSameBitsInEverySchedule) {
  const std::vector<double> one = trained(1, {});
  const std::vector<double> piped = trained(2, stages(2));
  ASSERT_EQ(piped.size(), 4U);
  expect_near(piped, one);
  EXPECT_EQ(trained(2, stages(2, "GPipe")), piped);
  for (const char* schedule : {"Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    SCOPED_TRACE(schedule);
    EXPECT_EQ(trained(2, with_two_a_rank(stages(2, schedule))), piped);
  }
  expect_near(trained(2, with_two_a_rank(stages(2, "LoopedBFS"))), piped);  // adds from the last micro-batch on
  EXPECT_EQ(trained(4, stages(4)), piped);
  EXPECT_EQ(trained(2, stages(2) + Words{"--num-layer-list", "1,3"}), piped);
  EXPECT_EQ(trained(2, stages(2) + Words{"--device-executor", "threaded"}), piped);
}

TEST_F(PipelineParallel, ShardsInsideItsStages) {
  const std::vector<double> sharded = trained(2, {});
  const std::vector<double> piped = trained(4, stages(2));
  expect_near(piped, sharded);
  for (const std::string keys : {"reshard_after_forward: false\n", "recompute_modules: [\"model.layers.{*}\"]\n",
                                 "num_to_forward_prefetch: 1\nnum_to_backward_prefetch: 1\n"}) {
    SCOPED_TRACE(keys);
    EXPECT_EQ(trained(4, stages(2), keys), piped);
    EXPECT_EQ(trained(4, with_two_a_rank(stages(2, "Interleaved1F1B")), keys), piped);
  }
  EXPECT_EQ(trained(4, with_two_a_rank(stages(2, "ZBVZeroBubble")), "reshard_after_forward: false\n"), piped);
  EXPECT_EQ(trained(4, with_two_a_rank(stages(2, "ZBVZeroBubble")) + Words{"--recompute-granularity", "full",
                                                                           "--recompute-method", "uniform",
                                                                           "--recompute-num-layers", "1"}),
            piped);
}

// Two stages of two ranks that share matrices or sequences; of four ranks that do both.
TEST_F(PipelineParallel, GoesWithTheOtherAxes) {
  const std::vector<double> one = trained(1, {});
  for (const std::string keys :
       {"tensor_parallel_size: 2\n", "tensor_parallel_size: 2\nsequence_parallel: true\nloss_parallel: true\n",
        "ring_attention_size: 2\n", "ulysses_parallel_size: 2\n"}) {
    SCOPED_TRACE(keys);
    expect_near(trained(4, stages(2), keys), one);
    expect_near(trained(4, with_two_a_rank(stages(2, "ZBVZeroBubble")), keys), one);
  }
  const std::string all = "tensor_parallel_size: 2\nsequence_parallel: true\nring_attention_size: 2\n";
  expect_near(trained(8, stages(2), all), one);
  expect_near(trained(16, stages(2), all), trained(8, {}, all));
}

// Its first layer is dense, so that the first of four stages has no experts.
TEST_F(PipelineParallel, TrainsExperts) {
  folder.write("latent.yaml", latent_model(4));
  const auto run = [&](const std::string& model, int ranks, const Words& flags, const std::string& keys) {
    folder.write("file.yaml", kSharding + keys);
    const std::string name = fmt::format("{}.jsonl", ++runs_);
    const std::vector<double> values = losses(
        name, words("file.yaml", ranks, model) + Words{"--train-iters", "3", "--global-batch-size", "8"} + flags);
    return std::pair(values, folder.metrics(name).back().at("reports").at("expert_load_max_over_mean").get<double>());
  };
  const std::string experts = "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n";
  for (const auto& [model, stage_count] : {std::pair<const char*, int>{"moe.yaml", 2}, {"latent.yaml", 4}}) {
    SCOPED_TRACE(model);
    const std::string keys = stage_count == 2 ? experts : "";
    const auto [one, load] = run(model, 1, {}, "");
    const auto [piped, piped_load] = run(model, 4, stages(stage_count), keys);
    expect_near(piped, one);
    EXPECT_NEAR(piped_load, load, 1e-12);
  }
}

TEST_F(PipelineParallel, TrainsTheFamilies) {
  for (const char* family : {"qwen2", "gpt2", "tied"}) {
    SCOPED_TRACE(family);
    const std::vector<double> one = trained(1, {}, "", family);
    expect_near(trained(2, stages(2), "", family), one);
    expect_near(trained(2, with_two_a_rank(stages(2, "ZBVZeroBubble")), "", family), one);
  }
}

// The embedding is the output layer too: both ends of the pipeline have it.
TEST_F(PipelineParallel, SavesResumesAndExportsTiedModels) {
  const auto run = [&](const std::string& name, int ranks, const Words& more) {
    return losses(name, job("", ranks, "tied") + more);
  };
  const std::vector<double> whole = run("whole.jsonl", 4, stages(2));
  const Words save{"--save-interval", "2", "--ckpt-format", "torch_dcp"};
  EXPECT_EQ(run("saved.jsonl", 4, stages(2) + save + Words{"--save", "saved"}), whole);
  const std::vector<double> rest(whole.begin() + 2, whole.end());
  const Words load{"--load", "saved", "--ckpt-step", "2"};
  EXPECT_EQ(run("a.jsonl", 4, stages(2) + load), rest);
  expect_near(run("b.jsonl", 2, load), rest);
  expect_near(run("c.jsonl", 4, with_two_a_rank(stages(2, "ZBVZeroBubble")) + load), rest);
  run("one.jsonl", 2, save + Words{"--save", "of_two"});
  expect_near(run("d.jsonl", 4, stages(4) + Words{"--load", "of_two", "--ckpt-step", "2"}), rest);
  run("e.jsonl", 4, stages(2) + Words{"--save", "piped"});
  run("f.jsonl", 1, {"--save", "one"});
  EXPECT_EQ(std::filesystem::file_size(folder.path("piped/model.safetensors")),
            std::filesystem::file_size(folder.path("one/model.safetensors")));
}

TEST_F(PipelineParallel, ResumesToTheBitUnderAnyNumberOfStages) {
  const std::vector<double> whole = trained(4, stages(2));
  trained(4, stages(2) + Words{"--save", "saved", "--save-interval", "2", "--ckpt-format", "torch_dcp"});
  const std::vector<double> rest(whole.begin() + 2, whole.end());
  const auto resumed = [&](const std::string& name, int ranks, const Words& flags) {
    return losses(name, job("", ranks) + flags + Words{"--load", "saved", "--ckpt-step", "2"});
  };
  EXPECT_EQ(resumed("a.jsonl", 4, stages(2)), rest);
  expect_near(resumed("b.jsonl", 4, stages(4)), rest);
  expect_near(resumed("c.jsonl", 2, {}), rest);
  expect_near(resumed("d.jsonl", 4, with_two_a_rank(stages(2, "DualPipeV"))), rest);
}

TEST_F(PipelineParallel, ExportsAndEvaluatesWhatOneRankDoes) {
  const Words evaluated{"--held-out-fraction", "0.2", "--eval-interval", "2", "--eval-iters", "2"};
  const Outcome one = folder.run(Words{"train"} + job("", 1) + evaluated + Words{"--save", "one"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const Outcome piped = folder.run(Words{"train"} + job("", 4) + stages(2) + evaluated + Words{"--save", "piped"});
  ASSERT_EQ(piped.exit_code, 0) << piped.err;
  const auto held_out = [&](const std::string& name) {
    std::vector<double> values;
    for (const auto& line : folder.metrics(name)) {
      if (line.contains("held_out_loss")) values.push_back(line.at("held_out_loss"));
    }
    return values;
  };
  EXPECT_EQ(held_out("one/metrics.jsonl").size(), 2U);
  expect_near(held_out("piped/metrics.jsonl"), held_out("one/metrics.jsonl"));
  EXPECT_EQ(folder.read("piped/config.json"), folder.read("one/config.json"));
  const auto next = [&](const std::string& from) {
    Words words = job("", 1);
    words[1] = from;
    words[0] = "--init-from-hf-path";
    return losses("next.jsonl", words + Words{"--train-iters", "1"});
  };
  expect_near(next("piped"), next("one"));
}

TEST_F(PipelineParallel, SaysWhatDoesNotGoWithIt) {
  const auto refused = [&](int ranks, const Words& more, const std::string& keys = "") {
    const Outcome outcome = folder.run(Words{"train"} + job(keys, ranks) + more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(refused(3, stages(2) + Words{"--global-batch-size", "6"}),
              HasSubstr("--pipeline-model-parallel-size is 2, of 3 ranks; use a divisor"));
  EXPECT_THAT(
      refused(4, stages(2), "sync_each_batch: false\n"),
      HasSubstr("--pipeline-model-parallel-size 2 does not go with sync_each_batch: false (gradients of a stage "
                "are always reduced once) in this version; remove one of them"));
  EXPECT_THAT(refused(2, stages(2) + Words{"--num-virtual-stages-per-pipeline-rank", "2"}),
              HasSubstr("--pipeline-parallel-schedule 1F1B has one stage a rank, and the layers are cut into 4 stages; "
                        "use Interleaved1F1B"));
  const Outcome losses =
      folder.run(Words{"train"} + words("file.yaml", 2) + stages(2) + Words{"--moe-aux-loss-coeff", "0.1"});
  EXPECT_THAT(losses.err, HasSubstr("--pipeline-model-parallel-size 2 does not go with losses of routers"));
}

// By plans, which are the same every time: so are the split and its bits.
TEST_F(PipelineParallel, SplitsByPlannedSteps) {
  const Words by_cost = stages(2) + Words{"--pipeline-split", "auto"};
  const Outcome run = folder.run(Words{"train"} + job("", 2) + by_cost + Words{"--metrics-path", "run.jsonl"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("layers of the stages, by planned steps\n"));
  EXPECT_THAT(run.out, HasSubstr("2,2: step "));
  expect_near(trained(2, by_cost), trained(1, {}));
  EXPECT_EQ(trained(2, by_cost), trained(2, stages(2)));
}

TEST_F(PipelineParallel, IsPlanned) {
  const Words plan =
      Words{"plan"} + job("", 4) + stages(2) +
      Words{"--device", "h200", "--json", "plan.json", "--trace", "trace.json", "--report", "report.html"};
  const Outcome planned = folder.run(plan);
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("\npipeline 1F1B: bubble "));
  const auto json = nlohmann::json::parse(folder.read("plan.json"));
  ASSERT_EQ(json["pipeline"]["ranks"].size(), 2U);
  EXPECT_EQ(json["pipeline"]["ranks"][0]["stages"], "stage 0: embedding, layers 0 to 1");
  EXPECT_EQ(json["pipeline"]["ranks"][1]["rank"], 2);
  EXPECT_THAT(folder.read("trace.json"), HasSubstr("receive_previous"));
  const Outcome split =
      folder.run(Words{"plan"} + job("", 2) + stages(2) + Words{"--pipeline-split", "auto", "--json", "split.json"});
  ASSERT_EQ(split.exit_code, 0) << split.err;
  EXPECT_GE(nlohmann::json::parse(folder.read("split.json"))["pipeline_split"]["tried"].size(), 2U);
}

}  // namespace
}  // namespace loom::test
