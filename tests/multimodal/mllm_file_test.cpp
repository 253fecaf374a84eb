// Promise: MLLM demo format and other rows of ShareGPT's kind become conversations; placeholders match files, and what
//          is malformed or missing is refused with file, line and sample before training.
// World:   small files of the test; pictures are files of any content.
#include "engine/multimodal/mllm_file.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::multimodal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MllmFile : public ::testing::Test {
 protected:
  MllmFile() {
    for (const char* name : {"a.png", "b.png", "frames/1.png"}) test::write_file(folder_ / name, "x");
  }
  Conversations read(const std::string& json, const DatasetAttr& attr = mllm_demo_attr()) {
    return read_all({test::write_file(folder_ / "x.json", json)}, attr);
  }
  Conversations read_all(std::vector<std::filesystem::path> files, const DatasetAttr& attr = mllm_demo_attr()) {
    return read_conversations({.files = std::move(files),
                               .picture_folder = folder_,
                               .max_samples = max_samples_,
                               .attr = attr,
                               .adds_image = adds_image_});
  }
  std::string refusal(const std::string& json, const DatasetAttr& attr = mllm_demo_attr()) {
    std::string text = test::message_of<ConfigError>([&] { read(json, attr); });
    for (auto at = text.find(folder_.string()); at != text.npos; at = text.find(folder_.string())) {
      text.replace(at, folder_.string().size(), "DIR");
    }
    return text;
  }
  static std::string sample(const std::string& question, const std::string& more = "") {
    return R"({"messages":[{"role":"user","content":")" + question + R"("},{"role":"assistant","content":"yes"}])" +
           more + "}";
  }

  std::filesystem::path folder_ = test::fresh_folder();
  std::optional<std::int64_t> max_samples_;
  bool adds_image_ = false;
};

TEST_F(MllmFile, GivesTurnsWithTheirPictures) {
  const auto data = read(R"([{"images": ["a.png", "b.png"], "videos": ["frames"], "messages": [
      {"role": "system", "content": "be brief"},
      {"role": "user", "content": "<image> and <image>?"}, {"role": "assistant", "content": "yes"},
      {"role": "user", "content": "<video>"}, {"role": "assistant", "content": "no"}]}])");
  ASSERT_THAT(data.samples, SizeIs(1));
  const Conversation& sample = data.samples.front();
  EXPECT_EQ(sample.system, "be brief");
  ASSERT_THAT(sample.messages, SizeIs(4));
  EXPECT_EQ(sample.messages[1].role, Role::kAssistant);
  EXPECT_EQ(sample.messages[2].content, "<video>");
  EXPECT_THAT(sample.images, ElementsAre((folder_ / "a.png").string(), (folder_ / "b.png").string()));
  EXPECT_EQ(sample.videos.at(0).folder, (folder_ / "frames").string());
  EXPECT_EQ(sample.place(), "sample 0 of " + (folder_ / "x.json").string());
}

TEST_F(MllmFile, TakesListsOfFramesAndOnePath) {
  const auto data = read("[" + sample("<image><video>", R"(,"images":"a.png","videos":[["a.png","b.png"]])") + "]");
  EXPECT_THAT(data.samples.at(0).images, SizeIs(1));
  EXPECT_THAT(data.samples.at(0).videos.at(0).frames, SizeIs(2));
}

TEST_F(MllmFile, ReadsLinesAndSeveralFilesUpToTheFirstSamples) {
  const auto lines = test::write_file(folder_ / "x.jsonl", sample("1") + "\n" + sample("2") + "\n" + sample("3"));
  const auto list = test::write_file(folder_ / "y.json", "[" + sample("4") + "," + sample("5") + "]");
  EXPECT_THAT(read_all({lines, list}).samples, SizeIs(5));
  max_samples_ = 4;
  const auto data = read_all({lines, list});
  ASSERT_THAT(data.samples, SizeIs(4));
  EXPECT_EQ(data.samples[3].messages[0].content, "4");
  EXPECT_EQ(data.samples[3].number, 0);
}

TEST_F(MllmFile, ReadsOtherColumnsAndTags) {
  DatasetAttr attr{.system = "sys", .images = "pics"};  // ShareGPT's names otherwise
  const auto data = read(R"([{"sys": "S", "pics": [], "conversations": [{"from": "human", "value": "a"},
      {"from": "gpt", "value": "b"}, {"from": "observation", "value": "c"}, {"from": "gpt", "value": "d"}]}])",
                         attr);
  EXPECT_EQ(data.samples.at(0).system, "S");
  EXPECT_EQ(data.samples.at(0).messages.at(2).role, Role::kObservation);
}

TEST_F(MllmFile, CountsPathsOutsideOfItsFolder) {
  const auto elsewhere = test::write_file(folder_.string() + "_else/c.png", "x");
  const auto data = read_conversations(
      {.files = {test::write_file(folder_ / "x.json",
                                  "[" + sample("<image>", R"(,"images":[")" + elsewhere.string() + R"("])") + "]")},
       .picture_folder = "relative",
       .attr = mllm_demo_attr()});
  // An absolute path joined to a folder is itself, and is there.
  EXPECT_EQ(data.outside, 0);
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  const auto moved = read_conversations(
      {.files = {test::write_file(folder_ / "y.json", "[" + sample("<image>", R"(,"images":["a.png"])") + "]")},
       .picture_folder = "frames",
       .attr = mllm_demo_attr()});
  std::filesystem::current_path(here);
  EXPECT_EQ(moved.outside, 1);
  EXPECT_EQ(moved.first_outside, "a.png");
  EXPECT_THAT(moved.samples.at(0).images, ElementsAre("a.png"));
}

TEST_F(MllmFile, RefusesAnotherNumberOfPlaceholdersThanFiles) {
  EXPECT_EQ(refusal("[" + sample("a") + ",\n" + sample("<image> <image>", R"(,"images":["a.png"])") + "]"),
            "DIR/x.json:2: sample 1: 2 <image> in its messages, and 1 file in 'images'; write one for each file");
  EXPECT_EQ(refusal("[" + sample("a", R"(,"images":["a.png","b.png"])") + "]"),
            "DIR/x.json:1: sample 0: 0 <image> in its messages, and 2 files in 'images'; write one for each file");
  EXPECT_EQ(refusal("[" + sample("<audio>") + "]"),
            "DIR/x.json:1: sample 0: 1 <audio> in its messages, and 0 files in a column that attr does not name; "
            "write one for each file");
}

TEST_F(MllmFile, RefusesAPictureThatIsNotThere) {
  EXPECT_EQ(refusal("[" + sample("<image>", R"(,"images":["none.png"])") + "]"),
            "DIR/x.json:1: sample 0: images[0] is none.png, and there is neither DIR/none.png nor none.png; put the "
            "file there, or leave the sample out");
  EXPECT_THAT(refusal("[" + sample("<image>", R"(,"images":["frames"])") + "]"), HasSubstr("use the path of a file"));
  EXPECT_THAT(refusal("[" + sample("<image>", R"(,"images":[7])") + "]"), HasSubstr("images[0] is 7; use a path"));
}

TEST_F(MllmFile, RefusesMalformedRows) {
  EXPECT_THAT(refusal(R"([{"images": []}])"), HasSubstr("no column 'messages', which has the conversation"));
  EXPECT_THAT(refusal(R"([{"messages": 1}])"), HasSubstr("messages is 1; use a list of messages"));
  EXPECT_THAT(refusal(R"([{"messages": [{"role": "user"}]}])"), HasSubstr("messages[0] has no 'content'"));
  EXPECT_THAT(refusal(R"([{"messages": [{"role": "user", "content": null}]}])"),
              HasSubstr("messages[0].content is null; use a text"));
  EXPECT_THAT(refusal(R"([{"messages": ["a"]}])"), HasSubstr(R"(messages[0] is "a"; use an object)"));
}

TEST_F(MllmFile, RefusesWhatIsNotBuilt) {
  DatasetAttr attr = mllm_demo_attr();
  attr.audios = "audios";
  attr.tools = "tools";
  attr.function_tag = "call";
  EXPECT_THAT(refusal("[" + sample("a", R"(,"audios":["x.wav"])") + "]", attr), HasSubstr("names audio"));
  EXPECT_THAT(refusal("[" + sample("a", R"(,"tools":"[1]")") + "]", attr), HasSubstr("names tools"));
  EXPECT_THAT(refusal(R"([{"messages": [{"role": "call", "content": "f"}]}])", attr), HasSubstr("calls a function"));
  EXPECT_THAT(read("[" + sample("a", R"(,"audios":[],"tools":"")") + "]", attr).samples, SizeIs(1));
}

TEST_F(MllmFile, CountsSamplesWhoseTurnsDoNotAlternate) {
  const auto data = read(R"([{"messages": []},
      {"messages": [{"role": "user", "content": "a"}]},
      {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]},
      {"messages": [{"role": "user", "content": "a"}, {"role": "null", "content": "b"}]}])");
  EXPECT_THAT(data.samples, IsEmpty());
  EXPECT_EQ(data.rows, 4);
  const std::string file = (folder_ / "x.json").string();
  EXPECT_THAT(data.drops.lines(),
              ElementsAre(fmt::format("left out 2 samples: the number of turns is odd, or there is none; sample 0 of "
                                      "{0}, sample 1 of {0}",
                                      file),
                          fmt::format("left out 2 samples: questions and answers do not take turns; sample 2 of {0}, "
                                      "sample 3 of {0}",
                                      file)));
}

TEST_F(MllmFile, AddsThePlaceholderOfInternvlsOnlyPicture) {
  adds_image_ = true;
  const std::string image = R"(,"images":["a.png"])";
  EXPECT_EQ(read("[" + sample("what?", image) + "]").samples.at(0).messages[0].content, "<image>\nwhat?");
  EXPECT_EQ(read("[" + sample("what <image>?", image) + "]").samples.at(0).messages[0].content, "what <image>?");
  EXPECT_EQ(read("[" + sample("what?") + "]").samples.at(0).messages[0].content, "what?");
}

TEST_F(MllmFile, FindsDataSetsInTheirFolderOrAsWritten) {
  const auto one = test::write_file(folder_ / "one.json", "[]");
  const auto two = test::write_file(folder_ / "two.json", "[]");
  EXPECT_THAT(data_files("one.json," + two.string(), folder_, "dataset"), ElementsAre(one, two));
  EXPECT_THAT(test::message_of<ConfigError>([&] { data_files("one.json,", folder_, "dataset"); }),
              HasSubstr("dataset is 'one.json,', with an empty name"));
  EXPECT_THAT(test::message_of<ConfigError>([&] { data_files("three.json", folder_, "dataset"); }),
              HasSubstr("dataset names three.json, and there is neither "));
}

TEST_F(MllmFile, RefusesOtherKindsOfFiles) {
  EXPECT_THAT(test::message_of<ConfigError>([&] { read_all({test::write_file(folder_ / "x.csv", "a,b\n")}); }),
              HasSubstr("x.csv: conversations are read from .json, .jsonl and .parquet"));
}

}  // namespace
}  // namespace loom::multimodal
