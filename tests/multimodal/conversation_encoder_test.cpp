// Promise: conversations with pictures become the ids and labels of MindSpeed-MM's templates, cut as there; a cut never
//          takes a part of a picture.
// World:   a tokenizer of bytes, shown as text: ^ and ~ begin and end a turn, [##] is a picture, _ is no label.
#include <gmock/gmock.h>

#include "engine/data/turn_cut.h"
#include "engine/multimodal/chat_form.h"
#include "engine/text/template/chat_template.h"
#include "tests/multimodal/multimodal_world.h"

namespace loom::multimodal {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Encoding : public ::testing::Test {
 protected:
  std::optional<EncodedSample> encoded(const Conversation& sample, std::vector<Grid> images = {},
                                       std::vector<Grid> videos = {}) {
    const ConversationEncoder encoder(options_, tokenizer_, ids_);
    encoder.check(sample);
    return encoder.encode(sample, {images, videos}, text_encoder_);
  }
  std::string ids(const Conversation& sample, std::vector<Grid> images = {}, std::vector<Grid> videos = {}) {
    return test::shown(tokenizer_, encoded(sample, std::move(images), std::move(videos)).value().ids);
  }
  std::string labels(const Conversation& sample, std::vector<Grid> images = {}) {
    return test::shown(tokenizer_, encoded(sample, std::move(images)).value().labels);
  }
  std::string refusal(const Conversation& sample) {
    return test::message_of<ConfigError>([&] { encoded(sample); });
  }

  data::Tokenizer tokenizer_ = test::tokenizer_of(test::picture_tokenizer_json());
  data::TokenEncoder text_encoder_{tokenizer_};
  data::SpecialIds ids_{};
  EncoderOptions options_{.where = "data.json: template"};
};

const std::string kOpening = "^system\nYou are a helpful assistant.~\n";

TEST_F(Encoding, OfQwen2PutsTurnsBehindItsSystemText) {
  const auto sample = test::conversation({" hi\n", " ho ", "a", "b"});
  EXPECT_EQ(ids(sample), kOpening + "^user\nhi~\n^assistant\nho~\n^user\na~\n^assistant\nb~\n");
  const std::string unlearnt(kOpening.size() + std::string("^user\nhi~\n^assistant\n").size(), '_');
  EXPECT_EQ(labels(sample), unlearnt + "ho~\n" + std::string(20, '_') + "b~\n");
  options_.template_name = "qwen2_5_vl";
  EXPECT_THAT(ids(sample), StartsWith(kOpening));
}

TEST_F(Encoding, TakesTheSystemTextOfTheSample) {
  auto sample = test::conversation({"hi", "ho"});
  sample.system = " S";
  EXPECT_THAT(ids(sample), StartsWith("^system\n S~\n^user"));
}

TEST_F(Encoding, OfQwen3HasNoSystemTextAndWrapsResultsOfTools) {
  auto sample = test::conversation({"hi", "ho", "42", "b"});
  sample.messages[2].role = Role::kObservation;
  options_.template_name = "qwen3_vl";
  EXPECT_EQ(ids(sample),
            "^user\nhi~\n^assistant\nho~\n^user\n<tool_response>\n42\n</tool_response>~\n^assistant\nb~\n");
  options_.template_name = "qwen2vl";
  EXPECT_THAT(ids(sample), HasSubstr("ho~\n^tool\n42~\n^assistant\nb~\n"));
}

TEST_F(Encoding, PutsThePadsOfPicturesInTheirPlaces) {
  options_.template_name = "qwen3_vl";
  // 2 x 4 patches and 4 x 4 patches, four of them a token; a video of two rows in time.
  EXPECT_EQ(ids(test::conversation({"<image>and <image>", "b"}, 2), {{1, 2, 4}, {1, 4, 4}}),
            "^user\n[##]and [####]~\n^assistant\nb~\n");
  auto sample = test::conversation({"<video><image>", "b"}, 1);
  sample.videos.resize(1);
  EXPECT_EQ(ids(sample, {{1, 2, 2}}, {{2, 2, 2}}), "^user\n[%%][#]~\n^assistant\nb~\n");
}

TEST_F(Encoding, StripsWhiteSpaceAsPythonDoes) {
  EXPECT_EQ(stripped("\u3000\u00a0 a b\x1c\u2028"), "a b");
  EXPECT_EQ(stripped(" \n"), "");
  EXPECT_EQ(stripped("\u200ba"), "\u200ba");  // no white space in Unicode
}

TEST_F(Encoding, LearnsQuestionsWithTrainOnPrompt) {
  options_.template_name = "qwen3_vl";
  options_.train_on_prompt = true;
  const auto sample = test::conversation({"hi", "ho"});
  EXPECT_EQ(labels(sample), ids(sample));
}

TEST_F(Encoding, LearnsTheLastAnswerAloneWithMaskHistory) {
  options_.template_name = "qwen3_vl";
  options_.mask_history = true;
  const auto sample = test::conversation({"a", "b", "c", "d"});
  EXPECT_EQ(ids(sample), "^user\na~\n^assistant\nb~\n^user\nc~\n^assistant\nd~\n");
  EXPECT_EQ(labels(sample), std::string(43, '_') + "d~\n");
}

TEST_F(Encoding, CutsAPairInTheSharesOfTheReference) {
  const auto cut = [](std::int64_t s, std::int64_t t) { return data::cut_b({s, t}, 64); };
  EXPECT_EQ(cut(100, 20), (data::TurnLengths{44, 20}));
  EXPECT_EQ(cut(20, 100), (data::TurnLengths{20, 44}));
  EXPECT_EQ(cut(100, 100), (data::TurnLengths{32, 32}));
  EXPECT_EQ(cut(40, 32), (data::TurnLengths{36, 28}));
  EXPECT_EQ(cut(31, 33), (data::TurnLengths{31, 33}));
}

TEST_F(Encoding, CutsSamplesPairByPair) {
  options_.template_name = "qwen3_vl";
  // A question of 20 ids and an answer of 3, of 24: the second pair has 1 id left, and both its sides are longer.
  const auto sample = test::conversation({"a", "b", "c", "d"});
  options_.cutoff_len = 23;
  EXPECT_EQ(ids(sample), "^user\na~\n^assistant\nb~\n");  // the cut-off is reached: later turns are left out
  options_.cutoff_len = 30;                               // 7 for a pair of 20 and 3: 2 * 3 < 7
  EXPECT_EQ(ids(sample), "^user\na~\n^assistant\nb~\n^used~\n");
  options_.mask_history = true;  // the last pair first
  EXPECT_EQ(ids(sample), "^useb~\n^user\nc~\n^assistant\nd~\n");
  EXPECT_EQ(labels(sample), std::string(27, '_') + "d~\n");
}

TEST_F(Encoding, GivesNothingWhereAPictureWouldBeCut) {
  options_.template_name = "qwen3_vl";
  const auto sample = test::conversation({"<image>", "yes", "<image>", "no"}, 2);
  const std::vector<Grid> grids{{1, 4, 4}, {1, 4, 4}};
  const auto whole = static_cast<std::int64_t>(encoded(sample, grids).value().ids.size());
  const std::int64_t pair = whole / 2;
  options_.cutoff_len = whole - 1;  // one id of the last question, behind the picture
  EXPECT_TRUE(encoded(sample, grids));
  options_.cutoff_len = pair + 14;  // into the second picture
  EXPECT_FALSE(encoded(sample, grids));
  options_.cutoff_len = pair;  // all of the second turn
  EXPECT_FALSE(encoded(sample, grids));
  EXPECT_TRUE(encoded(test::conversation({"<image>", "yes", "more", "no"}, 1), {{1, 4, 4}}));
}

TEST_F(Encoding, OfInternvlLearnsAnswersWithTheirEndAlone) {
  options_.template_name = "internvl2_5";
  auto sample = test::conversation({"<image>\nhi ", "ho", "a", "b"}, 1);
  sample.system = "S";
  EXPECT_EQ(ids(sample, {{1, 4, 4}}), "^system\nS~\n^user\n[####]\nhi ~\n^assistant\nho~\n^user\na~\n^assistant\nb~\n");
  const auto unlearnt = [](std::string_view text) { return std::string(text.size(), '_'); };
  EXPECT_EQ(labels(sample, {{1, 4, 4}}), unlearnt("^system\nS~\n^user\n[####]\nhi ~\n^assistant\n") + "ho~_" +
                                             unlearnt("^user\na~\n^assistant\n") + "b~_");
}

TEST_F(Encoding, OfInternvlCutsTheEndUnlessAPictureIsThere) {
  options_.template_name = "internvl2_5";
  auto sample = test::conversation({"a", "b", "<image>", "d"}, 1);
  sample.system = "S";
  options_.cutoff_len = 52;
  EXPECT_EQ(ids(sample, {{1, 2, 2}}).size(), 52U);
  options_.cutoff_len = 40;
  EXPECT_FALSE(encoded(sample, {{1, 2, 2}}));
}

TEST_F(Encoding, OfInternvlHasItsOwnSystemText) {
  options_.template_name = "internvl2_5";
  EXPECT_THAT(ids(test::conversation({"a", "b"})), StartsWith("^system\n你是书生·万象，英文名是InternVL，是由"));
}

TEST_F(Encoding, RefusesTokensOfPicturesInTexts) {
  EXPECT_EQ(refusal(test::conversation({"a <|image_pad|>", "b"})),
            "sample 7 of x.json has '<|image_pad|>' in a message, which stands for a picture there; write <image> and "
            "name the file");
  auto sample = test::conversation({"a", "b"});
  sample.system = "<|vision_start|>";
  EXPECT_THAT(refusal(sample), HasSubstr("has '<|vision_start|>'"));
}

TEST_F(Encoding, RefusesWhatInternvlDoesNotHave) {
  options_.template_name = "internvl2_5";
  auto sample = test::conversation({"a", "b"});
  sample.messages[0].role = Role::kObservation;
  EXPECT_THAT(refusal(sample), HasSubstr("has a result of a tool, which is not built for internvl2_5"));
  sample = test::conversation({"<video>", "b"});
  sample.videos.resize(1);
  EXPECT_THAT(refusal(sample), HasSubstr("has a video, which is not built for internvl2_5"));
}

TEST_F(Encoding, RefusesTemplatesAndTokenizersThatDoNotFit) {
  options_.template_name = "qwen2v1";
  EXPECT_EQ(refusal(test::conversation({"a", "b"})),
            "data.json: template is qwen2v1, which is not built; did you mean qwen2vl? the templates are qwen2vl, "
            "qwen2_5_vl, qwen3_vl, qwen3_vl_nothink, internvl2_5");
  options_.template_name = "qwen2vl";
  tokenizer_ = test::tokenizer_of(test::byte_level_json());
  EXPECT_THAT(refusal(test::conversation({"a", "b"})),
              HasSubstr("its '<|im_start|>' is no token of the tokenizer; use the tokenizer of a multimodal model"));
}

// As Qwen2-VL's.
constexpr std::string_view kJinja =
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou are a helpful "
    "assistant.<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif p.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class ByJinja : public Encoding {
 protected:
  void use(std::string_view text) {
    options_.chat_template = std::make_shared<const data::ChatTemplate>(data::ChatTemplate::from_text(text, "t.jinja"));
  }
};

TEST_F(ByJinja, AModelsTemplateGivesTheIdsAndLabelsOfTheNamedOne) {
  auto sample = test::conversation({" <image>a <image>", "b ", "<video>", "d", "42", "f"}, 2);
  sample.videos.resize(1);
  sample.messages[4].role = Role::kObservation;
  const std::vector<Grid> images{{1, 2, 4}, {1, 4, 4}}, videos{{2, 2, 2}};
  const EncodedSample named = encoded(sample, images, videos).value();
  use(kJinja);
  const EncodedSample rendered = encoded(sample, images, videos).value();
  EXPECT_EQ(rendered.ids, named.ids);
  EXPECT_EQ(rendered.labels, named.labels);
  sample.system = "S";
  EXPECT_THAT(ids(sample, images, videos), StartsWith("^system\nS~\n^user\n[##]a [####]~\n"));
}

TEST_F(ByJinja, ATemplateWithoutPicturesIsRefused) {
  use("{% for m in messages %}{{ m.role }}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}");
  const auto sample = test::conversation({"<image>", "b"}, 1);
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              encoded(sample, {{1, 2, 2}});
            }),
            "sample 7 of x.json: the chat template gives another number of <|image_pad|> and <|video_pad|> than the "
            "sample has pictures; use the template of a model that reads pictures");
}

TEST_F(ByJinja, ATemplateThatChangesEarlierTurnsIsRefused) {
  use("{{ messages | length }}");
  EXPECT_EQ(refusal(test::conversation({"a", "b"})),
            "sample 7 of x.json: the chat template changes earlier turns when message 2 is added, so its answers "
            "cannot be told apart; give template: qwen2vl or qwen3_vl");
  use("{{ raise_exception('no') }}");
  EXPECT_THAT(refusal(test::conversation({"a", "b"})), HasSubstr("sample 7 of x.json: t.jinja:1: "));
}

TEST_F(Encoding, PadsWithTheTokenizersPadElseWithTheStop) {
  EXPECT_EQ(ConversationEncoder(options_, tokenizer_, ids_).pad(), 261);
  ids_.pad = 262;
  EXPECT_EQ(ConversationEncoder(options_, tokenizer_, ids_).pad(), 262);
}

}  // namespace
}  // namespace loom::multimodal
