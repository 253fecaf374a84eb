// Promise: a question about pictures becomes the prompt of the model's own code: tiles or patches, placeholders as many
//          as features, turns; and InternVL answers it with the tokens of transformers, in a chat too.
// World:   tests/reference/vision: a tiny InternVLChatModel with a tokenizer of bytes; folders made of its files.
#include "engine/talk/picture_prompt.h"

#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/init.h"
#include "engine/talk/chat.h"
#include "engine/talk/growing_text.h"
#include "models/decoder/decoder.h"
#include "models/generation/session.h"
#include "models/hf/hf_folder.h"
#include "models/internvl/internvl.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"
#include "tests/support/world.h"

namespace loom::talk {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::StartsWith;

const fs::path kVision = fs::path(LOOM_SOURCE_DIR) / "tests/reference/vision";
const fs::path kCase = kVision / "internvl";

Json read_json(const fs::path& file) { return Json::parse(std::ifstream(file)); }

fs::path picture(int number) { return kVision / fmt::format("images/{}.png", number); }

PicturePrompt prompt_of(const fs::path& folder, const std::vector<fs::path>& pictures, const std::string& question) {
  DecodingArguments arguments;
  arguments.model_dir = folder;
  const Words words(arguments, models::load_internvl_config(folder).text, "the prompt");
  return picture_prompt(folder, pictures, question, words);
}

// The reference's folder without its weights, with a change of this file.
fs::path folder_with(const std::string& file, const std::function<void(Json&)>& change) {
  const fs::path folder = test::fresh_folder();
  for (const char* name : {"config.json", "preprocessor_config.json", "tokenizer.json"}) {
    fs::copy_file(kCase / name, folder / name);
  }
  Json json = read_json(folder / file);
  change(json);
  test::write_file(folder / file, json.dump());
  return folder;
}

std::string refused(const fs::path& folder) {
  const std::string message = test::message_of<ConfigError>([&] { prompt_of(folder, {picture(2)}, "What is it?"); });
  EXPECT_THAT(message, StartsWith(folder.string()));
  return message.substr(folder.string().size());
}

TEST(InternVLPrompt, IsThatOfTransformersAndSoIsTheAnswer) {
  const test::OneRank rank;
  const Json given = read_json(kCase / "case.json").at("generation");
  const std::vector<int> numbers = given.at("pictures");
  std::vector<fs::path> pictures;
  for (const int number : numbers) pictures.push_back(picture(number));
  const PicturePrompt prompt = prompt_of(kCase, pictures, given.at("question"));
  EXPECT_EQ(prompt.ids, given.at("prompt").get<Tokens>());

  const models::InternVLConfig config = models::load_internvl_config(kCase);
  const auto model = models::build_internvl(config);
  nn::materialize(*model);
  models::load_weights(*model, io::HfWeights(kCase));
  models::GenerationSession session(*model, config.text);
  const Tokens wanted = given.at("tokens");
  const auto made = session.generate({prompt.ids}, {.max_new_tokens = std::ssize(wanted), .inputs = prompt.inputs});
  Tokens answer = made.front().tokens;
  answer.erase(answer.begin(), answer.begin() + std::ssize(prompt.ids));
  EXPECT_EQ(answer, wanted);
}

// The turns of internvl2_5 as a template of texts, as OpenGVLab's folders have them.
constexpr const char* kTemplate =
    "<|im_start|>system\n你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态"
    "大语言模型。<|im_end|>\n{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\\n' }}";

struct PictureTalk {
  std::vector<std::string> answers;
  std::string saved;
};

// The reference's question about its pictures, a line about them, and the question without them; on rank 0.
PictureTalk talk_on(int ranks, const fs::path& folder, const Json& given) {
  const models::InternVLConfig config = models::load_internvl_config(folder);
  ChatArguments arguments;
  arguments.model_dir = folder;
  const Words words(arguments, config.text, "the conversation");
  const ChatPrompt prompt(arguments, words);
  const models::DecodingOptions options{.max_new_tokens = std::ssize(given.at("tokens"))};
  const auto of_rank = [&](RankContext&, comm::World& world) {
    const auto model = models::build_internvl(config);
    nn::materialize(*model);
    models::load_weights(*model, io::HfWeights(kCase));
    models::GenerationSession session(*model, config.text);
    Turns turns(session, world, options);
    PictureTalk talk;
    if (world.rank() != 0) {
      turns.follow();
      return talk;
    }
    Chat chat(arguments, config.text, words, prompt, turns);
    const auto say = [&](const std::string& line) {
      chat.say(
          line, [&, &answer = talk.answers.emplace_back()](std::string_view more) { answer += more; },
          [] { return false; });
    };
    for (const int number : given.at("pictures")) chat.show_picture(picture(number));
    say(given.at("question"));
    say("And now?");
    talk.saved = chat.json();
    chat.clear();
    say(given.at("question"));
    turns.end();
    return talk;
  };
  return test::of_each_rank(ranks, of_rank).front();
}

TEST(PictureChat, AnswersAboutThePicturesOfItsTurnsOnAnyNumberOfRanks) {
  const Json given = read_json(kCase / "case.json").at("generation");
  const fs::path folder = folder_with("config.json", [](Json&) {});
  test::write_file(folder / "chat_template.jinja", kTemplate);
  const PictureTalk talk = talk_on(1, folder, given);
  DecodingArguments arguments;
  arguments.model_dir = folder;
  const Words words(arguments, models::load_internvl_config(folder).text, "the prompt");
  GrowingText wanted(words, given.at("prompt").get<Tokens>(), {});
  std::string text;
  for (const std::int32_t token : given.at("tokens").get<Tokens>()) text += wanted.push(token);
  EXPECT_EQ(talk.answers.front(), text + wanted.finish());
  EXPECT_NE(talk.answers.back(), talk.answers.front()) << "/clear forgets the pictures";
  EXPECT_EQ(talk_on(2, folder, given).answers, talk.answers);

  const Json saved = Json::parse(talk.saved);
  EXPECT_EQ(saved.at("images"), (Json{picture(0).string(), picture(3).string()}));
  EXPECT_EQ(saved.at("messages").at(0).at("content"), "<image><image>What is it?");
  EXPECT_EQ(saved.at("messages").at(2).at("content"), "And now?");
}

TEST(PictureChat, RefusesPicturesForAModelOfText) {
  const fs::path folder = fs::path(LOOM_SOURCE_DIR) / "tests/reference/logits/qwen2";
  test::of_each_rank(1, [&](RankContext&, comm::World& world) {
    const models::DecoderConfig config = models::load_decoder_config(folder);
    const auto model = models::build_decoder(config);
    models::GenerationSession session(*model, config);
    const models::DecodingOptions options;
    Turns turns(session, world, options);
    ChatArguments arguments;
    arguments.model_dir = folder;
    arguments.chat_template = kCase / "config.json";  // any text is one
    const Words words(arguments, config, "the conversation");
    Chat chat(arguments, config, words, ChatPrompt(arguments, words), turns);
    EXPECT_THAT(test::message_of<ConfigError>([&] { chat.show_picture(picture(2)); }),
                StartsWith(folder.string() + " is no model that reads pictures; "));
    return 0;
  });
}

// (byte / 255 - mean) / std of the tiles of Pillow.
TEST(InternVLPrompt, HasThePixelsOfItsTiles) {
  const io::SafetensorsFile expected(kCase / "expected.safetensors");
  const Json processor = read_json(kCase / "preprocessor_config.json");
  const std::vector<float> mean = processor.at("image_mean"), std = processor.at("image_std");
  for (int number = 0; number < 6; ++number) {
    const io::StoredTensor& stored = expected.at(fmt::format("tiles.{}", number));
    const Tensor made = prompt_of(kCase, {picture(number)}, "?").inputs.at(0).second.tensor();
    ASSERT_EQ(made.shape(), stored.shape);
    const std::size_t plane = static_cast<std::size_t>(stored.shape[2] * stored.shape[3]);
    for (std::size_t i = 0; i < stored.bytes.size(); ++i) {
      const std::size_t channel = i / plane % 3;
      const auto byte = static_cast<float>(std::to_integer<int>(stored.bytes[i]));
      ASSERT_NEAR(made.data<float>()[i], (byte / 255 - mean[channel]) / std[channel], 1e-5) << number << ", " << i;
    }
  }
}

TEST(InternVLPrompt, HasTheTurnsOfTheConfigurationsTemplate) {
  const fs::path folder = folder_with("config.json", [](Json& json) { json["template"] = "Hermes-2"; });
  const data::Tokenizer tokenizer = data::Tokenizer::from_file(folder);
  EXPECT_EQ(prompt_of(folder, {picture(2)}, "What?").ids,
            tokenizer.encode(
                "<|im_start|>system\n你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, "
                "是一个有用无害的人工智能助手。<|im_end|><|im_start|>user\n<img><IMG_CONTEXT><IMG_CONTEXT>"
                "<IMG_CONTEXT><IMG_CONTEXT></img>\nWhat?<|im_end|><|im_start|>assistant\n",
                {.add_special_tokens = false}));
}

// The layout of transformers: the folder's template has a place for a picture, its processor the size of tiles.
TEST(InternVLPrompt, OfTransformersLayoutGoesByTheFoldersTemplateAndProcessor) {
  models::InternVLConfig config = models::load_internvl_config(kCase);
  config.chat.reset();
  config.vision.image_size = 28;
  const fs::path folder = folder_with("preprocessor_config.json", [](Json& json) {
    json = {{"image_processor_type", "GotOcr2ImageProcessorFast"},
            {"processor_class", "InternVLProcessor"},
            {"size", {{"height", 42}, {"width", 42}}},
            {"min_patches", 1},
            {"max_patches", 1}};
  });
  test::write_file(folder / "config.json", models::to_json(config));
  test::write_file(
      folder / "chat_template.jinja",
      "{% for m in messages %}[{{ m.role }}]{% for c in m.content %}{% if c.type == 'image' %}<IMG_CONTEXT>\n"
      "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}[assistant]");
  const PicturePrompt prompt = prompt_of(folder, {picture(2)}, "What?");
  // 42 x 42 pixels: 6 x 6 patches, 9 tokens.
  std::string text = "[user]<img>";
  for (int i = 0; i < 9; ++i) text += "<IMG_CONTEXT>";
  EXPECT_EQ(prompt.ids, data::Tokenizer::from_file(folder).encode(text + "</img>\nWhat?[assistant]",
                                                                  {.add_special_tokens = false}));
  EXPECT_EQ(prompt.inputs.at(0).second.tensor().shape(), (Shape{1, 3, 42, 42}));
}

TEST(InternVLPrompt, RefusesFilesThatDoNotFitTogether) {
  EXPECT_EQ(refused(folder_with("config.json", [](Json& json) { json["template"] = "phi3-chat"; })),
            "/config.json: template is phi3-chat, whose turns are not built for questions about pictures; built are "
            "internvl2_5 and Hermes-2");
  EXPECT_EQ(refused(folder_with("config.json", [](Json& json) { json["image_token_id"] = 7; })),
            "/config.json: image_token_id is 7, and the tokenizer has <IMG_CONTEXT> as 261; write image_token_id: 261");
  EXPECT_EQ(
      refused(folder_with("tokenizer.json", [](Json& json) { json["added_tokens"].at(3)["content"] = "<picture>"; })),
      ": the tokenizer has no token <img>, which pictures need; use the files of one model");
  EXPECT_EQ(refused(folder_with("preprocessor_config.json",
                                [](Json& json) {
                                  json = {{"image_processor_type", "Qwen2VLImageProcessor"}};
                                })),
            "/preprocessor_config.json: image_processor_type is Qwen2VLImageProcessor, and the model is an InternVL, "
            "which reads tiles; copy the file of the published model");
}

TEST(PicturePrompt, RefusesAModelOfTextAlone) {
  const fs::path folder = fs::path(LOOM_SOURCE_DIR) / "tests/reference/logits/qwen2";
  DecodingArguments arguments;
  arguments.model_dir = folder;
  const Words words(arguments, models::load_decoder_config(folder), "the prompt");
  EXPECT_EQ(test::message_of<ConfigError>([&] { picture_prompt(folder, {picture(2)}, "What?", words); }),
            folder.string() +
                " is no model that reads pictures; they are built for qwen2_vl, qwen2_5_vl, qwen3_vl, internvl and "
                "internvl_chat");
}

}  // namespace
}  // namespace loom::talk
