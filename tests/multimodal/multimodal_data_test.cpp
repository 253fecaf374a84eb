// Promise: a data.json and its files become loaders whose batches hold the samples of MindSpeed-MM's sampler; samples
//          that cannot be trained on are left out and counted when the data is opened.
// World:   a folder of the test: a tokenizer of bytes, pictures that are texts of two sizes, small data sets.
#include "engine/multimodal/multimodal_data.h"

#include <gmock/gmock.h>
#include <thread>

#include "engine/multimodal/torch_permutation.h"
#include "tests/multimodal/multimodal_world.h"

namespace loom::multimodal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Numbers = std::vector<std::int64_t>;

class Opened : public ::testing::Test {
 protected:
  Opened() {
    test::write_file(folder_ / "tok/tokenizer.json", test::picture_tokenizer_json().dump());
    test::write_file(folder_ / "tok/tokenizer_config.json", R"({"pad_token": "<|endoftext|>"})");
    test::write_file(folder_ / "small.png", "2 2");
    test::write_file(folder_ / "large.png", "8 8");
    config_.where = "data.json";
    config_.text = {.template_name = "qwen3_vl", .dataset = "x.json", .dataset_dir = folder_, .cutoff_len = 64};
    config_.pictures.model_name_or_path = folder_ / "tok";
    config_.attr = mllm_demo_attr();
    config_.loader.drop_last = true;
    job_.pictures = std::make_shared<test::TextPictures>();
  }

  static std::string sample(const std::string& question, const std::string& image = "") {
    return R"({"images":[)" + (image.empty() ? "" : "\"" + image + "\"") +
           R"(],"messages":[{"role":"user","content":")" + question + R"("},{"role":"assistant","content":"yes"}]})";
  }
  void write(const std::string& name, const std::vector<std::string>& samples) {
    test::write_file(folder_ / name, fmt::format("[{}]", fmt::join(samples, ",\n")));
  }
  // Samples whose question is their number.
  void write_numbered(const std::string& name, int count) {
    std::vector<std::string> samples;
    for (int i = 0; i < count; ++i) samples.push_back(sample(std::to_string(i)));
    write(name, samples);
  }
  MultimodalData open() { return open_multimodal_data(config_, job_); }

  // The questions of a batch.
  static std::vector<std::string> questions(const data::Batch& batch) {
    const Tensor& ids = batch["input_ids"];
    const auto all = ids.to_vector<std::int32_t>();
    const auto length = static_cast<std::size_t>(ids.shape()[1]);
    std::vector<std::string> found;
    for (std::size_t row = 0; row < all.size(); row += length) {
      std::string text;
      for (std::size_t i = row + 6; all[i] < 256; ++i) text += static_cast<char>(all[i]);  // behind "^user\n"
      found.push_back(text);
    }
    return found;
  }
  static std::vector<std::string> texts(const Numbers& numbers) {
    std::vector<std::string> result;
    for (const std::int64_t number : numbers) result.push_back(std::to_string(number));
    return result;
  }

  std::filesystem::path folder_ = test::fresh_folder();
  DataConfig config_;
  MultimodalJob job_;
};

TEST_F(Opened, MakesBatchesOfTextsAndPictures) {
  write("x.json", {sample("a<image>", "small.png"), sample("b<image>", "large.png")});
  job_.micro_batch_size = 2;
  const auto data = open();
  EXPECT_EQ(data.train_samples, 2);
  EXPECT_EQ(data.loaders.about, "2 conversations with 2 pictures for train, 2 in an epoch");
  EXPECT_THAT(data.loaders.warnings, IsEmpty());
  const data::Batch batch = data.loaders.train(Numbers{0, 1});
  EXPECT_THAT(questions(batch), ElementsAre("a", "b"));
  EXPECT_EQ(batch["pixel_values"].shape(), (Shape{4 + 64, 1}));
  EXPECT_THAT(batch["image_grid_thw"].to_vector<std::int64_t>(), ElementsAre(1, 2, 2, 1, 8, 8));
  const auto ids = batch["input_ids"].to_vector<std::int32_t>();
  EXPECT_EQ(std::ranges::count(ids, 265), 1 + 16);                                      // image pads
  EXPECT_EQ(ids.at(static_cast<std::size_t>(batch["input_ids"].shape()[1]) - 1), 262);  // the tokenizer's padding
  EXPECT_EQ(data.loaders.count_tokens(batch).scored, 2 * 5);  // "yes", <|im_end|>, end of line
  EXPECT_TRUE(data.loaders.valid == nullptr);
}

TEST_F(Opened, GivesRanksTheSamplesOfTheSampler) {
  write_numbered("x.json", 11);
  config_.loader.shuffle = true;
  job_.micro_batch_size = 2;
  job_.data_ranks = 2;
  job_.micro_batches = 2;
  const auto data = open();
  EXPECT_EQ(data.epoch_samples, 8);
  const Numbers order = torch_permutation(10, 0), next = torch_permutation(10, 1);
  // A step is 8 samples: rank 1 has the numbers from 4 on, its second micro-batch those from 6 on.
  EXPECT_EQ(questions(data.loaders.train(Numbers{0, 1})), texts({order[0], order[2]}));
  EXPECT_EQ(questions(data.loaders.train(Numbers{6, 7})), texts({order[5], order[7]}));
  EXPECT_EQ(questions(data.loaders.train(Numbers{12, 13})), texts({next[1], next[3]}));
  EXPECT_EQ(data.loaders.place(12), fmt::format("sample {} of {}", next[1], (folder_ / "x.json").string()));
}

TEST_F(Opened, CountsSamplesThatAreLeftOut) {
  write("x.json", {sample("a<image>", "large.png"), sample(std::string(60, 'q') + "<image>", "large.png"),
                   R"({"messages":[{"role":"assistant","content":"b"}]})", sample(std::string(200, 'q'))});
  const auto data = open();
  EXPECT_EQ(data.train_samples, 2);  // a text alone may be cut
  const std::string file = (folder_ / "x.json").string();
  EXPECT_THAT(data.loaders.warnings,
              ElementsAre("left out 1 sample: questions and answers do not take turns; sample 2 of " + file,
                          "left out 1 sample: the cut-off would cut the tokens of pictures; sample 1 of " + file));
  EXPECT_EQ(data.loaders.place(1), "sample 3 of " + file);
}

TEST_F(Opened, RefusesAPictureThatIsNotThereBeforeTraining) {
  write("x.json", {sample("a"), sample("b<image>", "none.png")});
  EXPECT_THAT(test::message_of<ConfigError>([&] { open(); }), HasSubstr("x.json:2: sample 1: images[0] is none.png"));
  test::write_file(folder_ / "none.png", "no size");
  EXPECT_THAT(test::message_of<ConfigError>([&] { open(); }), HasSubstr("none.png: no picture"));
}

TEST_F(Opened, RefusesAPictureThatGrewSinceTheOpening) {
  write("x.json", {sample("a<image>", "small.png")});
  const auto data = open();
  test::write_file(folder_ / "small.png", "20 20");
  EXPECT_THAT(test::message_of<ConfigError>([&] { data.loaders.train(Numbers{0}); }),
              HasSubstr("x.json: its pictures have grown since the start"));
}

TEST_F(Opened, EvaluatesOnItsOwnFilesInTheirOrder) {
  write_numbered("x.json", 4);
  write_numbered("v.json", 3);
  config_.text.val_dataset = "v.json";
  config_.text.val_max_samples = 2;
  config_.text.val_rate = 0.5;
  config_.loader.shuffle = true;
  const auto data = open();
  EXPECT_EQ(data.train_samples, 4);
  EXPECT_EQ(data.valid_samples, 2);
  EXPECT_THAT(questions(data.loaders.valid(Numbers{0, 1, 2})), ElementsAre("0", "1", "0"));
  EXPECT_THAT(data.loaders.warnings, ElementsAre("data.json: val_dataset counts, and val_rate has no effect"));
}

TEST_F(Opened, KeepsAShareForEvaluation) {
  write_numbered("x.json", 10);
  config_.text.val_rate = 0.25;
  job_.seed = 1;
  const auto data = open();
  EXPECT_EQ(data.train_samples, 7);
  EXPECT_EQ(data.valid_samples, 3);
  // torch's permutation of 10 by the seed 1 begins with 5, 6, 1.
  EXPECT_THAT(questions(data.loaders.valid(Numbers{0, 1, 2})), ElementsAre("1", "5", "6"));
  EXPECT_THAT(questions(data.loaders.train(Numbers{0, 1, 2, 3, 4, 5, 6})),
              ElementsAre("0", "2", "3", "4", "7", "8", "9"));
}

TEST_F(Opened, RefusesDataThatFillsNoBatch) {
  write_numbered("x.json", 3);
  job_.data_ranks = 4;
  EXPECT_THAT(test::message_of<ConfigError>([&] { open(); }),
              HasSubstr("data.json: the data for train has 3 samples, and a micro-batch of 1 on 4 ranks takes 4"));
}

TEST_F(Opened, ReadsVideosOfFramesWithTheirTimes) {
  for (const char* name : {"v/1.png", "v/2.png", "v/3.png"}) test::write_file(folder_ / name, "2 2");
  write("x.json", {R"({"videos":["v"],"messages":[{"role":"user","content":"a<video>"},
                      {"role":"assistant","content":"b"}]})"});
  config_.attr.videos = "videos";
  config_.pictures.video = {.fps = 4, .maxlen = 8};
  const data::Batch batch = open().loaders.train(Numbers{0});
  EXPECT_THAT(batch["video_grid_thw"].to_vector<std::int64_t>(), ElementsAre(2, 2, 2));
  EXPECT_THAT(batch["second_per_grid_ts"].to_vector<float>(), ElementsAre(0.5F));
  EXPECT_TRUE(batch.find("pixel_values").is_none());
}

TEST_F(Opened, GivesATextAWhitePicture) {
  write("x.json", {sample("a")});
  const data::Batch batch = open().loaders.train(Numbers{0});
  EXPECT_THAT(batch["image_grid_thw"].to_vector<std::int64_t>(), ElementsAre(1, 4, 4));
  const auto mask = batch["attention_mask"].to_vector<std::int32_t>();
  EXPECT_EQ(std::ranges::count(mask, 1), 25);  // "^user\na~\n^assistant\nyes~\n"
}

TEST_F(Opened, RepeatsAndCutsDataSetsOfInternvl) {
  const auto item = [](int number) {
    return fmt::format(R"({{"image":"small.png","conversations":[{{"from":"human","value":"{}"}},)"
                       R"({{"from":"gpt","value":"b"}}]}})",
                       number);
  };
  write("a.json", {item(0), item(1), item(2)});
  write("b.json", {item(3), item(4)});
  config_.type = DatasetType::kMultimodal;
  config_.internvl.template_name = "internvl2_5";
  config_.internvl.tokenizer = folder_ / "tok";
  config_.internvl.files = {{(folder_ / "a.json").string(), folder_, 0.7}, {(folder_ / "b.json").string(), folder_, 2}};
  config_.text.cutoff_len = 1024;
  const auto data = open();
  EXPECT_EQ(data.train_samples, 2 + 4);  // int(3 * 0.7), and 2 twice
  std::vector<std::string> places;
  for (std::int64_t i = 0; i < 6; ++i) places.push_back(data.loaders.place(i).substr(0, 8));
  EXPECT_THAT(places, ElementsAre("sample 0", "sample 1", "sample 0", "sample 1", "sample 0", "sample 1"));
  const data::Batch batch = data.loaders.train(Numbers{0});
  EXPECT_FALSE(batch.find("pixel_values").is_none());
  EXPECT_TRUE(batch.find("image_grid_thw").is_none());
  const auto ids = batch["input_ids"].to_vector<std::int32_t>();
  EXPECT_EQ(std::ranges::count(ids, 269), 1);  // <IMG_CONTEXT>
}

TEST_F(Opened, GivesSeveralThreadsTheSameBatches) {
  write_numbered("x.json", 64);
  config_.loader.shuffle = true;
  job_.micro_batch_size = 4;
  const auto data = open();
  const auto read = [&] {
    std::vector<std::string> all;
    for (std::int64_t first = 0; first < 128; first += 4) {
      for (auto& text : questions(data.loaders.train(Numbers{first, first + 1, first + 2, first + 3}))) {
        all.push_back(std::move(text));
      }
    }
    return all;
  };
  const auto expected = read();
  std::vector<std::vector<std::string>> found(4);
  std::vector<std::thread> threads;
  for (auto& own : found) threads.emplace_back([&] { own = read(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : found) EXPECT_EQ(own, expected);
}

TEST_F(Opened, TakesATemplateInJinjaBeforeTheNamedOneAndTheModelsOwnLast) {
  write("x.json", {sample("a")});
  const auto text = [&] {
    const auto ids = open().loaders.train(Numbers{0})["input_ids"].to_vector<std::int32_t>();
    return test::shown(test::tokenizer_of(test::picture_tokenizer_json()), {ids.begin(), ids.begin() + 10});
  };
  const std::string by_name = text();
  EXPECT_EQ(by_name, "^user\na~\n^");
  test::write_file(folder_ / "tok/chat_template.jinja",
                   "{% for m in messages %}{{ m.content }}, the model's;{% endfor %}");
  EXPECT_EQ(text(), by_name);
  config_.text.template_name = "";
  EXPECT_EQ(text(), "a, the mod");
  config_.text.template_name = "qwen3_vl";
  config_.text.chat_template =
      test::write_file(folder_ / "t.jinja", "{% for m in messages %}{{ m.content }}, the file's;{% endfor %}").string();
  EXPECT_EQ(text(), "a, the fil");
}

TEST_F(Opened, RefusesTemplatesThatDoNotFit) {
  write_numbered("x.json", 2);
  config_.text.template_name = "";
  EXPECT_THAT(test::message_of<ConfigError>([&] { open(); }), HasSubstr("has no chat template; write qwen2vl"));
  config_.text.template_name = "internvl2_5";
  EXPECT_THAT(test::message_of<ConfigError>([&] { open(); }), HasSubstr("write qwen2vl or qwen3_vl"));
  // Without a picture too, when the data is opened.
  config_.text.chat_template = test::write_file(folder_ / "t.jinja", "{{ messages | length }}").string();
  EXPECT_THAT(test::message_of<ConfigError>([&] { open(); }), HasSubstr("changes earlier turns"));
}

}  // namespace
}  // namespace loom::multimodal
