// Promise: what a user does with one model works from end to end, for every family: pretraining, a checkpoint, a run
//          that is killed and resumed at the same and at another number of ranks, inspection, export, generation,
//          conversion and back, fine-tuning, adapters and their merge, preferences, and the plan of the same words,
//          whose peak of memory is the run's. Every step reads what the step before wrote, through the program alone;
//          every result is compared. What a family cannot do is refused with exit status 2 and a text.
// World:   the built programs; models of about 40 thousand parameters; ranks as threads.
#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/journeys/families.h"
#include "tests/support/checkpoints.h"

namespace loom::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kSft = LOOM_SOURCE_DIR "/tests/reference/sft/";
const Words kTokenizer{"--tokenizer-name-or-path", kSft + "tokenizers/qwen2"};
const Words kTwoRanks{"--nproc-per-node", "2"};
const Words kSteps{"--train-iters", "40", "--lr",   "0.01", "--micro-batch-size", "1", "--global-batch-size", "4",
                   "--eval-iters",  "1",  "--seed", "5",    "--use-torch-fsdp2"};

// The step is refused for this family, as its row says.
struct Refused {};

class Walk {
 public:
  explicit Walk(const Family& family) : family(family) {
    for (const auto& [name, text] : family.files) folder.write(name, text);
  }

  // A command of the shardloom program that ends well, or with the refusal that the family's row has for this step.
  Outcome does(const Words& words) { return ends_well(folder.run(words), words); }
  // Training of fresh weights by the family's own program.
  Words training(const Words& more) const {
    return Words{family.program} + family.command + family.shape + family.data + more;
  }
  Outcome trains(const Words& more) { return runs(training(more)); }
  // Any command.
  Outcome runs(const Words& words) { return ends_well(folder.run_command(words), words); }
  StartedProgram starts_training(const Words& more) const { return {folder.path("."), training(more)}; }
  // A greedy text of the model in that folder.
  std::string text_of(const std::string& model, const Words& more = {}) {
    const Outcome made = does(Words{"generate", model, "--prompt", "Buffer a name", "--max-new-tokens", "12"} + more);
    EXPECT_THAT(made.out, StartsWith("Buffer a name"));
    return made.out;
  }
  double last_of(const std::string& metrics, const char* key) const {
    return folder.metrics(metrics).back().at(key).get<double>();
  }
  // The loss on held-out data of weights that these words name.
  double held_out_loss(const Words& weights) {
    fs::remove(folder.path("evaluated.jsonl"));
    const Words words = Words{family.program} + family.command + weights + family.data + kSteps + kTwoRanks +
                        Words{"--skip-train", "--metrics-path", "evaluated.jsonl"};
    runs(words);
    return last_of("evaluated.jsonl", "held_out_loss");
  }

  const Family& family;
  const ProgramFolder folder;
  std::string step;

 private:
  Outcome ends_well(Outcome outcome, const Words& words) const {
    const auto refusal = family.refused.find(step);
    if (refusal == family.refused.end()) {
      EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << "\nof "
                                      << fmt::format("{}", fmt::join(words, " "));
      return outcome;
    }
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(refusal->second));
    EXPECT_THAT(outcome.err, Not(HasSubstr("internal")));
    throw Refused{};
  }
};

// --- pretraining

void tokens(Walk& walk) {
  if (!walk.family.texts) return;
  const Words tokenized = Words{"preprocess"} + kTokenizer;
  walk.does(tokenized + Words{"--input", kSft + "inputs/text.jsonl", "--append-eod", "--output-prefix", "texts"});
  walk.does(tokenized + Words{"--input", kSft + "inputs/alpaca.jsonl", "--handler-name",
                              "AlpacaStyleInstructionHandler", "--prompt-type", "qwen", "--output-prefix", "turns"});
  walk.does(tokenized + Words{"--input", kSft + "inputs/pair_alpaca.jsonl", "--handler-name",
                              "AlpacaStylePairwiseHandler", "--prompt-type", "qwen", "--output-prefix", "pairs"});
}

const Words kSaving = kSteps + kTwoRanks + Words{"--ckpt-format", "torch_dcp", "--save-interval", "20"};

void pretrain(Walk& walk) {
  walk.trains(kSaving + Words{"--save", "whole"});
  const auto lines = walk.folder.metrics("whole/metrics.jsonl");
  ASSERT_EQ(lines.size(), 40U);
  EXPECT_LT(lines.back().at("loss"), lines.front().at("loss"));
  EXPECT_THAT(walk.folder.read("whole/effective_config.yaml"), HasSubstr("\ntrain_iters: 40\n"));
}

// A folder of the model as it begins, for the commands that need its config.json and tokenizer.
void save_as_folder(Walk& walk) {
  walk.trains(with_value(kSteps, "--train-iters", "1") + kTwoRanks + Words{"--save", "base"});
  EXPECT_TRUE(fs::exists(walk.folder.path("base/config.json")));
}

void killed_and_resumed(Walk& walk) {
  StartedProgram started = walk.starts_training(kSaving + Words{"--save", "run"});
  ASSERT_TRUE(started.wait_for_steps("run/metrics.jsonl", 22));
  started.send(SIGKILL);
  started.end();
  walk.trains(kSaving + Words{"--save", "run", "--load", "run"});
  expect_same_checkpoint(walk.folder.path("run"), walk.folder.path("whole"), 40);
}

void resumed_at_other_ranks(Walk& walk) {
  const auto whole = walk.folder.metrics("whole/metrics.jsonl");
  for (const char* ranks : {"1", "4"}) {
    walk.trains(kSteps + Words{"--nproc-per-node", ranks, "--load", "whole", "--ckpt-step", "20", "--metrics-path",
                               fmt::format("rest{}.jsonl", ranks)});
    const auto rest = walk.folder.metrics(fmt::format("rest{}.jsonl", ranks));
    ASSERT_EQ(rest.size(), 20U);
    for (std::size_t i = 0; i < rest.size(); ++i) {
      EXPECT_NEAR(rest[i].at("loss"), whole[20 + i].at("loss"), 2e-5) << ranks << " ranks, step " << 20 + i;
    }
  }
}

// --- in and out

void inspect(Walk& walk) {
  const Outcome seen = walk.does({"inspect", "run"});
  EXPECT_THAT(seen.out, Not(HasSubstr("DAMAGED")));
}

void export_to_folder(Walk& walk) {
  walk.does({"convert", "dcp-to-hf", "--load-dir", "run", "--save-dir", "exported", "--model-assets-dir", "base"});
  walk.does({"inspect", "--diff", "run", "exported"});
  const auto config = nlohmann::json::parse(walk.folder.read("exported/config.json"));
  EXPECT_EQ(config, nlohmann::json::parse(walk.folder.read("base/config.json")));
  EXPECT_NEAR(walk.held_out_loss(walk.family.weights + Words{"exported"}),
              walk.last_of("run/metrics.jsonl", "held_out_loss"), 1e-6);
}

// By any number of ranks, and by the run that was not killed.
void generate(Walk& walk) {
  const std::string text = walk.text_of("exported");
  EXPECT_EQ(walk.text_of("exported", kTwoRanks), text);
  walk.does({"convert", "dcp-to-hf", "--load-dir", "whole", "--save-dir", "of_whole", "--model-assets-dir", "base"});
  EXPECT_EQ(walk.text_of("of_whole"), text);
}

void to_dcp_and_back(Walk& walk) {
  walk.does({"convert", "hf-to-dcp", "--hf-dir", "exported", "--dcp-dir", "dcp"});
  walk.does({"convert", "dcp-to-dcp", "--load-dir", "dcp", "--save-dir", "three", "--world-size", "3"});
  walk.does({"convert", "dcp-to-hf", "--load-dir", "three", "--save-dir", "again", "--model-assets-dir", "exported"});
  EXPECT_TRUE(walk.folder.read("again/model.safetensors") == walk.folder.read("exported/model.safetensors"));
  // The weights of no run are where a new run begins.
  EXPECT_NEAR(walk.held_out_loss(walk.family.shape + Words{"--load", "dcp", "--finetune"}),
              walk.last_of("run/metrics.jsonl", "held_out_loss"), 1e-6);
}

void to_mcore_and_back(Walk& walk) {
  walk.does({"convert", "hf-to-mcore", "--load-dir", "exported", "--save-dir", "mcore",
             "--target-pipeline-parallel-size", "2"});
  walk.does({"convert", "mcore-to-hf", "--load-dir", "mcore", "--save-dir", "back", "--hf-cfg-dir", "exported"});
  walk.does({"inspect", "--diff", "exported", "back"});
  EXPECT_EQ(walk.text_of("back"), walk.text_of("exported"));
}

// --- after pretraining

// Fine-tuning of that folder by the shardloom program, on data of `preprocess`.
Words tuning(const std::string& model, const std::string& stage, const std::string& data) {
  return {"train",
          "--init-from-hf-path",
          model,
          "--stage",
          stage,
          "--data-path",
          data,
          "--split",
          "1,0,0",
          "--seq-length",
          "256",
          "--variable-seq-lengths",
          "--cut-max-seqlen",
          "--train-iters",
          "8",
          "--lr",
          "0.003",
          "--global-batch-size",
          "4",
          "--micro-batch-size",
          "1",
          "--eval-iters",
          "0",
          "--nproc-per-node",
          "2",
          "--use-torch-fsdp2",
          "--fsdp2-config-path",
          "fsdp2.yaml"};
}

// A program with data of its own is asked for the stage, and refuses it.
void refused_stage(Walk& walk, const std::string& stage) {
  walk.runs(Words{walk.family.program} + walk.family.command + walk.family.weights + Words{"exported"} +
            walk.family.data + kSteps + Words{"--stage", stage});
}

void sft(Walk& walk) {
  if (!walk.family.texts) return refused_stage(walk, "sft");
  walk.does(tuning("exported", "sft", "turns") + Words{"--save", "tuned", "--metrics-path", "tuned.jsonl"});
  const auto lines = walk.folder.metrics("tuned.jsonl");
  EXPECT_LT(lines.back().at("loss"), lines.front().at("loss"));
  walk.text_of("tuned");
}

// Eight steps from the weights of a folder: on conversations, or, of a family without texts, on its own data.
Words eight_steps(const Walk& walk, const std::string& model, const std::string& metrics) {
  const Words written{"--metrics-path", metrics};
  if (walk.family.texts) return Words{walk.family.program} + tuning(model, "sft", "turns") + written;
  return Words{walk.family.program} + walk.family.command + walk.family.weights + Words{model} + walk.family.data +
         with_value(kSteps, "--train-iters", "8") + kTwoRanks + written;
}

void lora_and_merge(Walk& walk) {
  const std::string base = walk.family.texts ? "tuned" : "exported";
  walk.runs(eight_steps(walk, base, "lora.jsonl") + Words{"--lora-target-modules"} + walk.family.lora_targets +
            Words{"--lora-r", "2", "--save", "adapters"});
  walk.does({"merge", "--base", base, "--adapter", "adapters", "--save", "merged"});
  walk.runs(eight_steps(walk, base, "beside.jsonl") + Words{"--lora-load", "adapters"});
  walk.runs(eight_steps(walk, "merged", "merged.jsonl"));
  const double beside = walk.folder.metrics("beside.jsonl").front().at("loss");
  EXPECT_NEAR(walk.folder.metrics("merged.jsonl").front().at("loss"), beside, walk.family.merged_tolerance);
  EXPECT_NE(walk.folder.metrics("lora.jsonl").front().at("loss"), beside) << "the adapters change nothing";
}

void dpo(Walk& walk) {
  if (!walk.family.texts) return refused_stage(walk, "dpo");
  walk.does(tuning("merged", "dpo", "pairs") + Words{"--save", "preferred", "--metrics-path", "dpo.jsonl"});
  const auto lines = walk.folder.metrics("dpo.jsonl");
  EXPECT_NEAR(lines.front().at("loss"), std::log(2.0), 1e-6);  // the policy is its own reference model
  EXPECT_LT(lines.back().at("loss"), lines.front().at("loss"));
  walk.text_of("preferred");
}

void plan(Walk& walk) {
  const Words words = Words{walk.family.program, "plan"} + walk.family.shape + walk.family.data + kSteps +
                      Words{"--world-size", "2", "--device", "cpu", "--json", "-"};
  const Outcome planned = walk.folder.run_command(words);
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const auto plan = nlohmann::json::parse(planned.out);
  EXPECT_EQ(plan.at("world_size"), 2);
  const auto trained = walk.folder.metrics("whole/metrics.jsonl");
  EXPECT_EQ(plan.at("memory").at("peak_allocated_bytes"), trained.at(10).at("peak_memory_bytes").at("total"));
}

struct Step {
  const char* name;
  void (*take)(Walk&);
};

const Step kJourney[] = {{"tokens", tokens},
                         {"pretrain", pretrain},
                         {"save as a folder", save_as_folder},
                         {"killed and resumed", killed_and_resumed},
                         {"resumed at other ranks", resumed_at_other_ranks},
                         {"inspect", inspect},
                         {"export", export_to_folder},
                         {"generate", generate},
                         {"to dcp and back", to_dcp_and_back},
                         {"to mcore and back", to_mcore_and_back},
                         {"sft", sft},
                         {"lora and merge", lora_and_merge},
                         {"dpo", dpo},
                         {"plan", plan}};

class Journey : public ::testing::TestWithParam<Family> {};

TEST_P(Journey, TakesEveryStepFromWhatTheStepBeforeWrote) {
  Walk walk(GetParam());
  for (const Step& step : kJourney) {
    SCOPED_TRACE(step.name);
    walk.step = step.name;
    try {
      step.take(walk);
      EXPECT_FALSE(walk.family.refused.contains(step.name)) << "the step is not refused: remove it from the row";
    } catch (const Refused&) {
    }
    if (HasFatalFailure() || HasNonfatalFailure()) return;  // the next step has nothing to read
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Journey, ::testing::ValuesIn(families()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace loom::test
