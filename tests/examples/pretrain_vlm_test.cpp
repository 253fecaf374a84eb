// Promise: pretrain_vlm learns to caption images under the migration guide's YAML as it is written, with the vision
//          tower left out of training and of sharding.
// World:   the built example with its model; two ranks as threads.
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kExample = std::string(LOOM_SOURCE_DIR) + "/examples/pretrain_vlm/";
const Words kRun{"--config",
                 kExample + "model.yaml",
                 "--seq-length",
                 "35",
                 "--micro-batch-size",
                 "8",
                 "--lr",
                 "3e-3",
                 "--use-torch-fsdp2",
                 "--fsdp2-config-path",
                 kExample + "fsdp2_config.yaml"};
constexpr double kCaptions = 16;
constexpr double kCaptionBytes = 32;

// The bytes of the vision tower's tensors in a model.safetensors, one after another.
std::string tower_of(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const auto header = nlohmann::json::parse(file.substr(sizeof(length), length));
  std::string bytes;
  for (const auto& [name, tensor] : header.items()) {
    if (!name.starts_with("model.vision_tower.")) continue;
    const std::size_t begin = tensor.at("data_offsets").at(0);
    const std::size_t end = tensor.at("data_offsets").at(1);
    bytes += file.substr(sizeof(length) + length + begin, end - begin);
  }
  return bytes;
}

TEST(PretrainVlm, TellsImagesApartUnderTheGuidesYaml) {
  const ProgramFolder folder;
  const Outcome outcome =
      folder.run(kRun + Words{"--nproc-per-node", "2", "--train-iters", "200", "--eval-iters", "4"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const auto lines = folder.metrics("metrics.jsonl");
  ASSERT_EQ(lines.size(), 200u);
  EXPECT_NEAR(lines.front().at("loss"), std::log(256), 0.5);
  // Who knows all captions but sees no image cannot get below this.
  const double blind = std::log(kCaptions) / kCaptionBytes;
  EXPECT_LT(lines.back().at("held_out_loss"), 0.6 * blind);
}

TEST(PretrainVlm, PrintsTheGroupsUnderTheNamesOfTheFile) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--nproc-per-node", "2", "--train-iters", "1"});
  for (const char* part :
       {"1 x 2: shards over 2, replicates over 1", "as text_decoder.embedding", "as text_decoder.rotary_pos_emb",
        "as text_decoder.decoder.layers.0", "as text_decoder.decoder.layers.1", "as text_decoder.output_layer",
        "(root) owns model.multi_modal_projector.", "2 of the modules recomputed in backward, reentrant"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("vision_tower")));
}

TEST(PretrainVlm, LeavesTheVisionTowerAsItIs) {
  const ProgramFolder folder;
  const auto save = [&](const std::string& iterations, const std::string& ranks, const std::string& name) {
    const Outcome outcome = folder.run(kRun + Words{"--nproc-per-node", ranks, "--global-batch-size", "16",
                                                    "--train-iters", iterations, "--save", name});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return tower_of(folder.read(name + "/model.safetensors"));
  };
  const std::string tower = save("1", "2", "one");
  EXPECT_FALSE(tower.empty());
  EXPECT_EQ(save("5", "2", "five"), tower);
  EXPECT_EQ(save("1", "1", "single"), tower);
}

TEST(PretrainVlm, TeachesItsFlags) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("--config TEXT=examples/pretrain_vlm/model.yaml"));
  EXPECT_THAT(outcome.out, HasSubstr("Example:\n  pretrain_vlm --use-torch-fsdp2 "));
}

TEST(PretrainVlm, SaysWhichSequenceLengthFits) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run({"--config", kExample + "model.yaml"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err, "pretrain_vlm: --seq-length is 128, but an image with its caption takes 35; use that\n");
}

}  // namespace
}  // namespace loom::test
