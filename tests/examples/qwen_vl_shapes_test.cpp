// Promise: from pictures and data.json to a Qwen2-VL that names what it has not seen: drawn pictures, training over two
//          ranks, the saved folder, a resumed run, and a question about a picture; a wrong file is refused by name.
// World:   the built programs, as docs/multimodal.md runs them.
#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kExample = std::string(LOOM_SOURCE_DIR) + "/examples/qwen_vl_shapes/";
const std::string kModel = kExample + "model";

class QwenVlShapes : public ::testing::Test {
 protected:
  static constexpr int kPictures = 256;

  QwenVlShapes() {
    const Outcome drawn = folder_.run_command({MAKE_PICTURES, "drawn", std::to_string(kPictures + 4), kModel});
    EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
    hide_last_pictures();
  }

  // Those that the model is asked about are not among those that it learns.
  void hide_last_pictures() {
    auto samples = nlohmann::ordered_json::parse(folder_.read("drawn/shapes.json"));
    while (samples.size() > kPictures) {
      questions_.insert(questions_.begin(), samples.back());
      samples.erase(samples.size() - 1);
    }
    folder_.write("drawn/shapes.json", samples.dump());
  }

  Words train(const std::string& iterations, const Words& more = {}) const {
    return Words{"train",
                 "--model-config",
                 kModel + "/config.json",
                 "--mm-data",
                 "drawn/data.json",
                 "--use-torch-fsdp2",
                 "--fsdp2-config-path",
                 kExample + "fsdp2_config.yaml",
                 "--nproc-per-node",
                 "2",
                 "--micro-batch-size",
                 "8",
                 "--lr",
                 "3e-3",
                 "--train-iters",
                 iterations} +
           more;
  }

  ProgramFolder folder_;
  std::vector<nlohmann::ordered_json> questions_;
};

TEST_F(QwenVlShapes, AreNamedByAModelThatLearntOthers) {
  const Outcome trained = folder_.run(train("220", {"--save", "named"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("256 conversations with 256 pictures for train, 256 in an epoch"));
  const auto lines = folder_.metrics("named/metrics.jsonl");
  ASSERT_EQ(lines.size(), 220u);
  EXPECT_NEAR(lines.front().at("loss"), std::log(264), 0.5);
  for (const char* file : {"named/tokenizer.json", "named/preprocessor_config.json", "named/config.json"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_.path(file))) << file;
  }
  for (const auto& question : questions_) {
    const std::string picture = question.at("images").at(0), answer = question.at("messages").at(1).at("content");
    const Outcome said = folder_.run({"generate", "named", "--image", "drawn/" + picture, "--prompt", "What is it?"});
    ASSERT_EQ(said.exit_code, 0) << said.err;
    EXPECT_EQ(said.out, "What is it?" + answer + "\n") << picture;
  }
}

TEST_F(QwenVlShapes, GoOnFromACheckpoint) {
  const Outcome whole = folder_.run(train("6", {"--metrics-path", "whole.jsonl"}));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const Outcome first = folder_.run(train(
      "6", {"--save", "checkpoints", "--save-interval", "3", "--exit-interval", "3", "--metrics-path", "first.jsonl"}));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Outcome rest = folder_.run(train("6", {"--load", "checkpoints", "--metrics-path", "rest.jsonl"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  const auto all = folder_.metrics("whole.jsonl"), last = folder_.metrics("rest.jsonl");
  ASSERT_EQ(last.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(last[i].at("loss"), all[i + 3].at("loss")) << i;
}

// The same model as MindSpeed-MM's model.json describes it.
constexpr const char* kModelJson = R"({
  "model_id": "qwen2vl", "img_context_token_id": 261, "video_token_id": 262, "vision_start_token_id": 259,
  "vision_end_token_id": 260,
  "image_encoder": {
    "vision_encoder": {"model_id": "qwen2vit", "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 128,
      "num_attention_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "freeze": false},
    "vision_projector": {"model_id": "lnmlp", "input_size": 32, "hidden_size": 64, "ffn_hidden_size": 128}},
  "text_decoder": {"model_id": "qwen2lm", "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128,
    "num_attention_heads": 4, "num_query_groups": 2, "vocab_size": 264, "max_position_embeddings": 512,
    "layernorm_epsilon": 1e-06, "rope_theta": 1000000.0, "mrope_section": [2, 3, 3],
    "untie_embeddings_and_output_weights": false}})";

TEST_F(QwenVlShapes, AreLearntByTheModelOfAModelJson) {
  auto json = nlohmann::ordered_json::parse(kModelJson);
  folder_.write("model.json", json.dump());
  for (const char* tower : {"vision_encoder", "vision_projector"}) json["image_encoder"][tower]["freeze"] = true;
  folder_.write("frozen.json", json.dump());
  const auto with_file = [&](const char* file, const std::string& name) {
    Words words = train("2", {"--metrics-path", name + ".jsonl"});
    const auto at = std::find(words.begin(), words.end(), "--model-config");
    at[0] = "--mm-model";
    at[1] = file;
    return words;
  };
  const auto of_plan = [&](Words words) {
    words.front() = "plan";
    const Outcome planned = folder_.run(words + Words{"--json", "-"});
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    return nlohmann::json::parse(planned.out);
  };

  const Outcome usual = folder_.run(train("2", {"--metrics-path", "usual.jsonl"}));
  ASSERT_EQ(usual.exit_code, 0) << usual.err;
  const Outcome whole = folder_.run(with_file("model.json", "whole"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(folder_.metrics("whole.jsonl").at(i).at("loss"), folder_.metrics("usual.jsonl").at(i).at("loss")) << i;
  }
  const auto plan = of_plan(with_file("model.json", "whole"));
  EXPECT_EQ(plan.at("trained_parameters"), plan.at("parameters"));
  EXPECT_THAT(whole.out,
              HasSubstr(fmt::format("of {} parameters on 2 ranks", plan.at("parameters").get<std::int64_t>())));

  const Outcome frozen = folder_.run(with_file("frozen.json", "frozen"));
  ASSERT_EQ(frozen.exit_code, 0) << frozen.err;
  EXPECT_EQ(folder_.metrics("frozen.jsonl").at(0).at("loss"), folder_.metrics("usual.jsonl").at(0).at("loss"));
  EXPECT_NE(folder_.metrics("frozen.jsonl").at(1).at("loss"), folder_.metrics("usual.jsonl").at(1).at("loss"));
  // An embedding of 264 x 64, two layers of 37,120 (queries, keys and values with biases, three matrices of the MLP,
  // two norms), and the last norm.
  EXPECT_EQ(of_plan(with_file("frozen.json", "frozen")).at("trained_parameters"), 264 * 64 + 2 * 37120 + 64);
}

TEST_F(QwenVlShapes, AreRefusedWhereTheyDoNotFit) {
  const auto refusal = [&](const Words& words) {
    const Outcome outcome = folder_.run(words);
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.err;
  };
  folder_.write("drawn/pictures/3.ppm", "no picture");
  EXPECT_THAT(refusal(train("1")), HasSubstr("pictures/3.ppm"));
  EXPECT_THAT(refusal({"train", "--model-config", std::string(LOOM_SOURCE_DIR) + "/configs/models/qwen2.5_7b.yaml",
                       "--mm-data", "drawn/data.json"}),
              AllOf(HasSubstr("--mm-data has pictures"), HasSubstr("qwen2, takes none")));
  EXPECT_THAT(refusal(train("1", {"--data-path", "drawn/shapes.json"})),
              HasSubstr("--data-path and --mm-data are both given"));
}

}  // namespace
}  // namespace loom::test
