// Promise: processes that would not train the same model on the same data are told which key or datum differs and who
//          has what, with one text on every rank (the flags: tests/job/agreement_test.cpp).
// World:   2 ranks as threads, each with the entries of a process of its own; a model of one linear layer.
#include "engine/train/same_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

class OneLayer final : public nn::Module {
 public:
  explicit OneLayer(std::int64_t width)
      : head_(register_module("head", std::make_shared<nn::Linear>(width, 8, false, 0.5))) {}
  std::string_view type_name() const override { return "OneLayer"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return head_(args.tensor(0)); }

 private:
  nn::Child<nn::Linear> head_;
};

// What a process was started with.
struct Process {
  TrainSections arguments;
  std::int64_t width = 4;
  std::int64_t first_id = 0;
  std::vector<sharding::ConfigEntry> sharding = {};  // what the file means

  std::vector<comm::SaidEntry> entries() const {
    const PretrainCallbacks callbacks{
        .model_provider = [this](const TrainArguments&) { return std::make_shared<OneLayer>(width); }};
    TrainingInputs inputs;
    if (!sharding.empty()) inputs.fsdp2.emplace().entries = sharding;
    inputs.objective.loaders.train = [this](std::span<const std::int64_t> samples) {
      const Tensor ids = Tensor::host({static_cast<std::int64_t>(samples.size())}, DType::kI64, "ids");
      for (std::size_t i = 0; i < samples.size(); ++i) ids.data<std::int64_t>()[i] = samples[i] + first_id;
      return data::Batch{{{"ids", ids}}};
    };
    return job_entries(arguments, callbacks, inputs);
  }
};

Process common() {
  Process process;
  process.arguments.schedule.train_iters = process.arguments.schedule.lr_decay_iters = 4;
  process.arguments.schedule.micro_batch_size = process.arguments.schedule.global_batch_size = 2;
  return process;
}

// What each of two ranks ends with; "" where all is well.
std::vector<std::string> ends(const Process& first, const Process& second) {
  std::vector<std::string> texts(2);
  const std::vector<comm::SaidEntry> entries[] = {first.entries(), second.entries()};
  launch::run_ranks(2, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    const auto rank = static_cast<std::size_t>(context.rank());
    try {
      check_same_job(entries[rank], *world.everyone());
    } catch (const ConfigError& error) {
      texts[rank] = error.what();
    }
  });
  return texts;
}

std::string in_frame(const std::string& difference) {
  return "ranks do not train the same: " + difference + "; start every rank with the same flags, model and data";
}

struct Difference {
  const char* text;
  std::function<void(Process&)> make;
};
void PrintTo(const Difference& difference, std::ostream* out) { *out << difference.text; }

class OfProcesses : public ::testing::TestWithParam<Difference> {};
INSTANTIATE_TEST_SUITE_P(
    Differences, OfProcesses,
    ::testing::Values(
        Difference{"parameters: rank 0 lists 'head.weight [8, 4] fp32', rank 1 does not; parameters: rank 1 lists "
                   "'head.weight [8, 6] fp32', rank 0 does not",
                   [](Process& p) { p.width = 6; }},
        Difference{"'ids' of the first micro-batch: rank 0 has the digest DIGEST, rank 1 has the digest DIGEST",
                   [](Process& p) { p.first_id = 1; }}));

TEST_P(OfProcesses, IsNamedToEveryRank) {
  Process other = common();
  GetParam().make(other);
  std::vector<std::string> texts = ends(common(), other);
  EXPECT_EQ(texts[0], texts[1]);
  for (std::string& text : texts) {  // whatever the digests are
    for (std::size_t at = 0; (at = text.find("digest ", at)) != std::string::npos; at += 7) {
      if (text.compare(at + 7, 6, "DIGEST") != 0) text.replace(at + 7, 16, "DIGEST");
    }
  }
  EXPECT_THAT(texts, Each(in_frame(GetParam().text)));
}

TEST(SameJob, ComparesTheModelsConfigurationByValue) {
  const auto folder = test::fresh_folder();
  const std::string head = "model_type: qwen2\nlayers: [1, 2]\n";
  Process first = common(), second = common();
  first.arguments.model.model_config = test::write_file(folder / "a.yaml", head + "eps: 1e-6\nact: silu\n");
  second.arguments.model.model_config = test::write_file(folder / "b.yaml", head + "act: 'silu'\neps: 1.0e-06\n");
  const auto sorted = [](const Process& process) {
    std::vector<std::string> lines;
    for (const comm::SaidEntry& entry : process.entries()) lines.push_back(entry.key + "=" + entry.value);
    std::ranges::sort(lines);
    return lines;
  };
  EXPECT_EQ(sorted(first), sorted(second));
  second.arguments.model.model_config = test::write_file(folder / "c.yaml", head + "eps: 1e-5\nact: silu\n");
  EXPECT_THAT(ends(first, second), Each(in_frame("model eps: rank 0 has 1e-06, rank 1 has 1e-05")));
  second.arguments.model.model_config = test::write_file(folder / "d.yaml", head + "eps: 1e-6\nact: \"a\\tb\\nc\"\n");
  EXPECT_THAT(ends(first, second), Each(in_frame("model act: rank 0 has \"silu\", rank 1 has \"a\\tb\\nc\"")));
}

TEST(SameJob, ComparesWhatTheShardingFileMeans) {
  Process first = common(), second = common();
  first.sharding = {{"ring_attention_size", "2"}, {"sub_modules_to_wrap", "layers.0", true}};
  second.sharding = {{"ring_attention_size", "1"}, {"sub_modules_to_wrap", "layers.1", true}};
  EXPECT_THAT(ends(first, second),
              Each(in_frame("fsdp2_config.yaml ring_attention_size: rank 0 has 2, rank 1 has 1; "
                            "fsdp2_config.yaml sub_modules_to_wrap: rank 0 lists 'layers.0', rank 1 does not; "
                            "fsdp2_config.yaml sub_modules_to_wrap: rank 1 lists 'layers.1', rank 0 does not")));
}

TEST(SameJob, ComparesTheTokenizersBytes) {
  const auto folder = test::fresh_folder();
  Process first = common(), second = common();
  first.arguments.data.tokenizer_name_or_path = test::write_file(folder / "a" / "tokenizer.json", "{}").parent_path();
  second.arguments.data.tokenizer_name_or_path = test::write_file(folder / "b" / "tokenizer.json", "{}").parent_path();
  EXPECT_THAT(ends(first, second), Each(""));
  test::write_file(folder / "b" / "tokenizer.json", "[]");
  EXPECT_THAT(ends(first, second), Each(::testing::StartsWith("ranks do not train the same: tokenizer.json: rank 0 has "
                                                              "2 bytes in 1 files with the digest ")));
}

TEST(SameJob, ComparesEveryByteOfTheData) {
  const auto folder = test::fresh_folder();
  test::write_file(folder / "a" / "1.txt", "some text");
  test::write_file(folder / "a" / "2.txt", "more text");
  test::write_file(folder / "b" / "1.txt", "some text");
  test::write_file(folder / "b" / "2.txt", "more test");
  Process first = common(), second = common();
  first.arguments.data.data_path = {folder / "a"};
  second.arguments.data.data_path = {folder / "a" / "1.txt", folder / "a" / "2.txt"};
  EXPECT_THAT(ends(first, second), Each(""));
  second.arguments.data.data_path = {folder / "b"};
  const auto texts = ends(first, second);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_THAT(texts[0],
              ::testing::StartsWith("ranks do not train the same: --data-path, content: rank 0 has 18 bytes in 2 "
                                    "files with the digest "));
}

}  // namespace
}  // namespace loom::train
