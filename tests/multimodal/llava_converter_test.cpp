// Promise: LLaVA's instructions become MLLM demo format; samples without their picture are left out, and an output that
//          exists is refused before any work.
// World:   a folder of the test with one picture.
#include "engine/multimodal/llava_converter.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/multimodal/mllm_file.h"
#include "tests/support/files.h"

namespace loom::multimodal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Llava : public ::testing::Test {
 protected:
  Llava() { test::write_file(folder_ / "coco/train2017/a.jpg", "x"); }
  LlavaSummary convert(const std::string& json) {
    test::write_file(folder_ / "llava.json", json);
    return convert_llava(options_);
  }
  std::string refusal(const std::string& json) {
    return test::message_of<ConfigError>([&] { convert(json); });
  }

  const std::filesystem::path folder_ = test::fresh_folder();
  LlavaConversion options_{folder_ / "coco", folder_ / "llava.json", folder_ / "out/deep/mllm.json"};
};

const std::string kTurns =
    R"("conversations":[{"from":"human","value":"<image>\nwas ist das?"},{"from":"gpt","value":"日本"}])";

TEST_F(Llava, BecomesMllmDemoFormat) {
  const auto summary = convert("[{\"id\": \"1\", \"image\": \"a.jpg\"," + kTurns + "}, {\"image\": \"\"," + kTurns +
                               "}, {" + kTurns + "}, {\"image\": \"b.jpg\"," + kTurns + "}]");
  EXPECT_EQ(summary.written, 3);
  EXPECT_EQ(summary.without_image, 2);
  EXPECT_EQ(summary.skipped, 1);
  EXPECT_THAT(summary.first_skipped, ElementsAre((folder_ / "coco/./train2017/b.jpg").string()));
  const std::string text = test::read_file(options_.output_json_path);
  const auto json = nlohmann::json::parse(text);
  ASSERT_EQ(json.size(), 3U);
  EXPECT_EQ(json[0]["images"], nlohmann::json::array({"./train2017/a.jpg"}));
  EXPECT_EQ(json[1]["images"], nlohmann::json::array());
  EXPECT_EQ(json[2]["images"], nlohmann::json::array());
  EXPECT_EQ(json[0]["messages"][1], (nlohmann::json{{"role", "assistant"}, {"content", "日本"}}));
  EXPECT_THAT(text, HasSubstr("日本"));  // not escaped
}

TEST_F(Llava, IsReadableByItsOwnerAlone) {
  convert("[]");
  EXPECT_EQ(test::read_file(options_.output_json_path), "[]\n");
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(options_.output_json_path).permissions(), perms::owner_read | perms::owner_write);
}

TEST_F(Llava, CanBeReadBack) {
  convert("[{\"image\": \"a.jpg\"," + kTurns + "}]");
  const auto read = read_conversations(
      {.files = {options_.output_json_path}, .picture_folder = folder_ / "coco", .attr = mllm_demo_attr()});
  ASSERT_EQ(read.samples.size(), 1U);
  EXPECT_EQ(read.samples[0].messages[0].content, "<image>\nwas ist das?");
}

TEST_F(Llava, RefusesOtherRolesWithTheLine) {
  EXPECT_EQ(refusal("[\n{\"conversations\":[{\"from\":\"system\",\"value\":\"a\"}]}]"),
            (folder_ / "llava.json").string() + ":2: conversations[0].from is system; use human or gpt");
  EXPECT_FALSE(std::filesystem::exists(options_.output_json_path));
}

TEST_F(Llava, RefusesMalformedSamples) {
  EXPECT_THAT(refusal("[{\"image\": 3," + kTurns + "}]"),
              HasSubstr("llava.json:1: image is 3; use the name of a file"));
  EXPECT_THAT(refusal("[{}]"), HasSubstr("the sample has no list 'conversations'"));
  EXPECT_THAT(refusal(R"([{"conversations":[{"from":"human"}]}])"), HasSubstr("conversations[0] has no text 'value'"));
  EXPECT_THAT(refusal(R"([{"conversations":[1]}])"), HasSubstr("conversations[0] is 1; use an object"));
}

TEST_F(Llava, RefusesAnExistingOutputBeforeAnyWork) {
  test::write_file(options_.output_json_path, "old");
  // The input is malformed too, which is not seen.
  EXPECT_EQ(refusal("no JSON"),
            "--output_json_path: " + options_.output_json_path.string() + " exists; remove it, or give another path");
  EXPECT_EQ(test::read_file(options_.output_json_path), "old");
}

TEST_F(Llava, EndsWithoutOutputWhereItIsStopped) {
  test::write_file(folder_ / "llava.json", "[{" + kTurns + "}]");
  EXPECT_THROW(convert_llava(options_, [] { throw Error("stop"); }), Error);
  EXPECT_FALSE(std::filesystem::exists(options_.output_json_path));
}

}  // namespace
}  // namespace loom::multimodal
