// Promise: `explain` takes a text or a file, and behind it the words of a plan; what is of a plan alone is refused.
// World:   command lines, nothing is run.
#include <gmock/gmock.h>

#include "tests/cli/parsed.h"

namespace loom::cli {
namespace {

using ::testing::HasSubstr;

TEST(ExplainFlags, TakeATextAlone) {
  const auto explained = std::get<ExplainArguments>(parsed({"explain", "CUDA out of memory.", "--json", "-"}));
  EXPECT_EQ(explained.text, "CUDA out of memory.");
  EXPECT_EQ(explained.json, "-");
  EXPECT_FALSE(explained.job);
}

TEST(ExplainFlags, TakeTheJobAsAPlanDoes) {
  const auto explained = std::get<ExplainArguments>(
      parsed({"explain", "run.log", "--model-config", "quickstart", "--world-size", "1", "--json=out.json"}));
  EXPECT_EQ(explained.json, "out.json");
  ASSERT_TRUE(explained.job);
  EXPECT_EQ(explained.job->train.launch.ranks, 1);
  EXPECT_FALSE(explained.job->json);
}

TEST(ExplainFlags, TakeFilesOfTheRunInPlaceOfAText) {
  const auto explained = std::get<ExplainArguments>(parsed(
      {"explain", "--trace", "t.json", "--snapshot", "s.pickle", "--model-config", "quickstart", "--world-size", "1"}));
  EXPECT_EQ(explained.trace, "t.json");
  EXPECT_EQ(explained.snapshot, "s.pickle");
  EXPECT_TRUE(explained.job);
  EXPECT_THAT(refusal({"explain", "--trace", "t.json"}),
              HasSubstr("--trace is explained beside the plan of the run's job, and no job is given; add its words"));
  EXPECT_THAT(refusal({"explain", "--trace"}), HasSubstr("--trace needs a value"));
}

TEST(LossInModelFlag, IsOfAWholeModelAndTheNextToken) {
  EXPECT_TRUE(
      std::get<PlanArguments>(parsed({"plan", "--model-config", "quickstart", "--world-size", "1", "--loss-in-model"}))
          .train.objective.loss_in_model);
  EXPECT_THAT(
      refusal({"plan", "--model-config", "quickstart", "--world-size", "1", "--loss-in-model", "--stage", "orm"}),
      HasSubstr("--loss-in-model is of the loss of next tokens, and --stage is orm; remove it"));
  EXPECT_THAT(
      refusal({"plan", "--model-graph", "g.json.gz", "--world-size", "1", "--loss-in-model"}),
      HasSubstr("--loss-in-model is of a model that is built here, and --model-graph is g.json.gz, whose loss is where "
                "it was recorded; remove it"));
}

TEST(ExplainFlags, RefuseWhatIsOfPlans) {
  EXPECT_EQ(refusal({"explain"}),
            "no error text is given; use shardloom explain TEXT|FILE [the job's words], - is standard input");
  EXPECT_EQ(refusal({"explain", "--world-size", "2"}), refusal({"explain"}));
  EXPECT_EQ(refusal({"explain", "run.log", "--model-config", "quickstart", "--sweep"}),
            "explain plans the step of the run's job alone, and --sweep is of shardloom plan; remove it");
  EXPECT_EQ(refusal({"explain", "run.log", "--model_weights", "dir"}),
            "explain plans the step of the run's job alone, and --model-weights is of shardloom plan; remove it");
  EXPECT_THAT(refusal({"explain", "run.log", "--model-config", "quickstart", "--json"}),
              HasSubstr("--json needs a value"));
  EXPECT_THAT(refusal({"explain", "run.log", "--modle-config", "quickstart"}),
              HasSubstr("did you mean --model-config?"));
}

TEST(ExplainFlags, HaveAHelp) {
  const std::string help = std::get<EarlyExit>(parsed({"explain", "--help"})).text;
  EXPECT_THAT(help, HasSubstr("shardloom explain run.log train.yaml"));
  EXPECT_THAT(help, HasSubstr("--json"));
}

TEST(ModelWeights, StandAloneInAPlan) {
  const auto plan = std::get<PlanArguments>(parsed({"plan", "--model-weights", "dir", "--world-size", "1"}));
  EXPECT_EQ(plan.train.model.model_weights, "dir");
  EXPECT_EQ(refusal({"plan", "--model-weights", "dir", "--model-config", "quickstart"}),
            "--model-weights is given beside another model; keep one: weights alone, or a configuration");
  EXPECT_THAT(refusal({"plan", "--model-weights", "dir", "--compare", "a.yaml", "b.yaml"}),
              HasSubstr("--model-weights is of one plan; remove one of them"));
  EXPECT_THAT(refusal({"train", "--model-weights", "dir"}),
              HasSubstr("--model-weights is a flag of shardloom plan, and not of shardloom train; remove it"));
}

}  // namespace
}  // namespace loom::cli
