// Promise: a chat becomes the ids that its template says, slot by slot; a file of templates that is malformed, or does
//          not fit the tokenizer, is refused with file, template, key and next step.
// World:   a tokenizer of bytes; small templates, and those that are shipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/share_folder.h"
#include "engine/text/preprocess/prompt_template.h"
#include "engine/text/preprocess/template_file.h"
#include "tests/text/preprocess/handler_world.h"

namespace loom::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Templates : public test::HandlerWorld {
 protected:
  Templates() {
    options_.handler_name = "SharegptStyleInstructionHandler";
    options_.prompt_type = "t";
  }
  void one(const std::string& members) { templates(R"([{"name": "t", )" + members + "}]"); }

  static std::string chat(std::initializer_list<std::string> contents, const std::string& more = "") {
    std::string messages;
    int number = 0;
    for (const std::string& content : contents) {
      const char* role = number++ % 2 == 0 ? "human" : "gpt";
      messages += fmt::format(R"({}{{"from":"{}","value":"{}"}})", messages.empty() ? "" : ",", role, content);
    }
    return R"({"conversations":[)" + messages + "]" + more + "}";
  }
  std::string labels(const std::string& json) { return shown(sample(json).at(2)); }
};

TEST_F(Templates, EncodeEachSlotByItself) {
  options_.prompt_type = "qwen";
  const std::string parts[] = {"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
                               "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "ho"};
  std::vector<TokenId> expected;
  for (const std::string& part : parts) encoder_.encode(part, expected, {.add_special_tokens = false});
  expected.push_back(*tokenizer_.find("<|im_end|>"));
  EXPECT_EQ(sample(chat({"hi", "ho"})).at(0), expected);
  EXPECT_EQ(handler().special_ids().eos, tokenizer_.find("<|im_end|>"));
  EXPECT_EQ(handler().special_ids().pad, tokenizer_.find("<|im_end|>"));
}

TEST_F(Templates, PutAConversationBeforeTheAnswerThatIsToCome) {
  one(R"("format_prefix": {"slots": [["bos_token"]]}, "format_separator": {"slots": ["|"]},
         "format_user": {"slots": ["U:{{content}};"]}, "format_system": {"slots": ["S:{{content}};"]},
         "stop_words": ["<step>"])");
  test::write_file(folder_ / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const PromptTemplate prompts(options_.prompt_type_path, "t", EnableThinking::kNone, tokenizer_, folder_);
  const std::vector<std::string> said{"a", "b", "c"};
  EXPECT_EQ(shown(prompts.ids("be good", said, encoder_)), "<s>S:be good;U:a;b</s>|U:c;");
  EXPECT_EQ(shown(prompts.ids("", std::span(said).first(1), encoder_)), "<s>U:a;");
  EXPECT_EQ(prompts.ends(), (std::vector<TokenId>{*tokenizer_.find("</s>"), *tokenizer_.find("<step>")}));
}

TEST_F(Templates, PutOpeningAndSeparatorsAroundTurns) {
  one(R"("format_prefix": {"slots": [["bos_token"], {"token": "<step>"}]}, "format_separator": {"slots": ["|"]},
         "format_user": {"slots": ["U{{idx}}:", "{{content}};"]}, "format_system": {"slots": ["S:{{content}};"]},
         "default_system": ["be ", "good"])");
  EXPECT_EQ(input(chat({"a", "b", "c", "d"})), "<s><step>S:be good;U0:a;b</s>|U1:c;d</s>");
  EXPECT_EQ(labels(chat({"a", "b", "c", "d"})), "_________________b</s>______d</s>");
}

TEST_F(Templates, LearnAnswersAndTheirEnd) {
  one(R"("format_user": {"slots": ["U{{content}}:"]})");
  EXPECT_EQ(labels(chat({"ask", "yes"})), "_____yes</s>");
  EXPECT_EQ(shown(sample(chat({"ask", "yes"})).at(1)), std::string(9, '\x01'));
}

TEST_F(Templates, LearnOneEndWhereEosIsEfficient) {
  one(R"("format_user": {"slots": ["U{{content}}:"]}, "efficient_eos": true)");
  EXPECT_EQ(input(chat({"a", "b", "c", "d"})), "Ua:bUc:d</s>");
  EXPECT_EQ(labels(chat({"a", "b", "c", "d"})), "___b</s>__d</s>");
}

TEST_F(Templates, PutTheSystemTextOfLlama2IntoTheFirstMessage) {
  one(R"("template_class": "Llama2Template", "format_user": {"slots": [["bos_token"], "[{{content}}{{idx}}]"]},
         "format_system": {"slots": ["<{{content}}>"]})");
  options_.map_keys = R"({"system": "system"})";
  EXPECT_EQ(input(chat({"a", "b", "c", "d"}, R"(,"system":"S")")), "<s>[<S>a{{idx}}]b</s><s>[c{{idx}}]d</s>");
  EXPECT_EQ(input(chat({"a", "b"})), "<s>[a{{idx}}]b</s>");
}

TEST_F(Templates, PutNothingIntoWhatAUserWrites) {
  one(R"("format_user": {"slots": ["{{content}}/{{idx}}"]})");
  EXPECT_EQ(input(chat({"{{idx}}{{content}}", "b"})), "{{idx}}{{content}}/0b</s>");
}

TEST_F(Templates, ShowCallsAndWhatTheyGave) {
  const std::string record = R"({"conversations":[{"from":"human","value":"?"},
      {"from":"function_call","value":"{\"name\": \"f\", \"arguments\": {\"x\": [1, 2.0], \"é\": \"\\n\"}}"},
      {"from":"observation","value":"3"},{"from":"gpt","value":"!"}]})";
  one(R"("format_observation": {"slots": ["O{{content}}"]})");
  EXPECT_EQ(input(record), "?Action: f\nAction Input: {\"x\": [1, 2.0], \"é\": \"\\n\"}</s>O3!</s>");
  handler_.reset();
  one(R"("format_function": {"slots": ["<{{content}}>"]})");
  EXPECT_THAT(input(record), HasSubstr(R"(<{"name": "f", "arguments")"));
  handler_.reset();
  one(R"("efficient_eos": true)");
  EXPECT_EQ(refusal(R"({"conversations":[{"from":"human","value":"?"},{"from":"function_call","value":"f[1]"}]})"),
            "a.jsonl:1: a function call is no JSON: 'f[1]'; write JSON");
  EXPECT_EQ(refusal(R"({"conversations":[{"from":"human","value":"?"},{"from":"function_call","value":"[1]"}]})"),
            "a.jsonl:1: a function call is '[1]'; use {\"name\": NAME, \"arguments\": {...}}");
}

TEST_F(Templates, ShowToolsBehindTheSystemText) {
  options_.prompt_type = "qwen3";
  options_.map_keys = R"({"tools": "tools"})";
  const std::string tools =
      R"([{"name":"f","description":"d","parameters":{"type":"object","required":["x"],"properties":
      {"x":{"type":"string","description":"dx","enum":["p","q"]},"y":{"type":"array","items":{"type":"int"}}}}},
      {"type":"function","function":{"name":"g"}}])";
  const std::string text = input(chat({"a", "b"}, R"(,"system":"S","tools":)" + tools));
  EXPECT_THAT(text,
              HasSubstr("<|im_start|>system\nThese tools can be called:\n> Tool Name: f\nTool Description: d\nTool "
                        "Args:\n  - x (string, required): dx, should be one of [p, q]\n  - y (array): , where each "
                        "item should be int\n\n> Tool Name: g\nTool Description: \nTool Args:\n\nTo call a tool"));
  EXPECT_THAT(text, HasSubstr("one of [f, g]"));
  EXPECT_EQ(input(chat({"a", "b"}, R"(,"tools":"")")), input(chat({"a", "b"})));
  EXPECT_EQ(refusal(chat({"a", "b"}, R"(,"tools":"{")")), "a.jsonl:1: the text of tools is no JSON: '{'; write JSON");
  EXPECT_EQ(refusal(chat({"a", "b"}, R"(,"tools":[{"x":1}])")),
            "a.jsonl:1: a tool is '{\"x\": 1}'; use an object with name, description and parameters");
}

class Thoughts : public Templates {
 protected:
  Thoughts() { one(R"("template_class": "ReasoningTemplate", "format_user": {"slots": ["U{{content}}:"]})"); }
};

TEST_F(Thoughts, AreBehindThePromptUnlessTheyAreEnabled) {
  const std::string record = chat({"a", "b"});
  EXPECT_EQ(input(record), "Ua:<think>\n\n</think>\n\nb</s>");
  EXPECT_EQ(labels(record), "______________________b</s>");
  handler_.reset();
  options_.enable_thinking = EnableThinking::kTrue;
  EXPECT_EQ(input(record), "Ua:<think>\n\n</think>\n\nb</s>");
  EXPECT_EQ(labels(record), "___<think>\n\n</think>\n\nb</s>");
}

TEST_F(Thoughts, AreTakenOutWhereTheyAreDisabled) {
  const std::string record = chat({"a", R"(<think>\nx\n</think>\n\n\nb<think>\ny\n</think>\n\nc)"});
  EXPECT_EQ(input(record), "Ua:<think>\nx\n</think>\n\n\nb<think>\ny\n</think>\n\nc</s>");
  handler_.reset();
  options_.enable_thinking = EnableThinking::kFalse;
  EXPECT_EQ(input(record), "Ua:<think>\n\n</think>\n\nbc</s>");
}

TEST_F(Thoughts, OfEarlierTurnsAreNotInPairs) {
  options_.handler_name = "SharegptStylePairwiseHandler";
  const std::string earlier = R"(<think>\nx\n</think>\n\nb)";
  const std::string record =
      chat({"a", earlier, "c"}, R"(,"chosen":{"from":"gpt","value":"y"},"rejected":{"from":"gpt","value":"n"})");
  EXPECT_EQ(input(record), "Ua:b</s>Uc:<think>\n\n</think>\n\ny</s>");
  EXPECT_EQ(shown(sample(record).at(3)), std::string(27, '_') + "n</s>");
}

TEST_F(Templates, CutTurnsThatAreTooLong) {
  one(R"("format_user": {"slots": ["{{content}}"]}, "format_assistant": {"slots": ["{{content}}"]})");
  options_.seq_length = 10;
  EXPECT_EQ(input(chat({"123456", "abcdef"})), "12345abcde");
  EXPECT_EQ(input(chat({"123456", "abc", "xyz", "klm"})), "123456abck");
  EXPECT_EQ(input(chat({"12345", "abcde", "x", "y"})), "12345abcde");
  handler_.reset();
  options_.neat_pack = true;
  EXPECT_EQ(input(chat({"123456", "abcdef"})), "12345abcd");
  handler_.reset();
  options_.neat_pack = false;
  one(R"("format_assistant": {"slots": ["{{content}}"]}, "template_class": "LFDefaultTemplate")");
  EXPECT_EQ(input(chat({"123456", "abcdef"})), "12345abcd");
  EXPECT_EQ(input(chat({"123456", "ab"})), "123456ab");
  EXPECT_EQ(input(chat({"123456789", "ab"})), "1234567ab");
}

// --- files ---

TEST(TemplateFile, ShippedTemplatesAreRead) {
  const auto path = *config::share_folder() / "configs/finetune/templates.json";
  std::vector<std::string> names;
  for (const TemplateText& text : parse_templates(test::read_file(path), "templates.json")) names.push_back(text.name);
  EXPECT_THAT(names, ElementsAre("empty", "default", "alpaca", "chatml", "qwen", "qwen_r1", "qwen_math_r1", "qwen_lf",
                                 "qwen3", "llama2", "llama3", "deepseek2", "deepseek2-lite", "deepseek3", "mistral",
                                 "mixtral", "gemma", "baichuan2", "glm4", "intern2"));
  EXPECT_EQ(read_template("", "llama2").template_class, TemplateClass::kLlama2);
}

TEST(TemplateFile, DefaultsAreFilledIn) {
  const TemplateText text = parse_templates(R"([{"name": "x", "format_user": {"slots": ["U{{content}}"]}}])", "t")[0];
  EXPECT_EQ(text.observation, text.user);
  EXPECT_THAT(text.assistant, ElementsAre(Slot{Slot::Kind::kText, "{{content}}"}, Slot{Slot::Kind::kEos}));
  EXPECT_THAT(text.function, ElementsAre(Slot{Slot::Kind::kText, "Action: {{name}}\nAction Input: {{arguments}}"},
                                         Slot{Slot::Kind::kEos}));
  EXPECT_EQ(parse_templates(R"([{"name": "x", "efficient_eos": true}])", "t")[0].assistant.size(), 1U);
}

// The message about a template "x" with these members.
std::string refusal_of(const std::string& members) {
  const std::string json = R"([{"name": "x", )" + members + "}]";
  return test::message_of<ConfigError>([&] { parse_templates(json, "t.json"); });
}

TEST(TemplateFile, NamesSlotsThatAreNone) {
  EXPECT_EQ(refusal_of(R"("format_user": {"slots": ["a"]})"),
            "t.json: template x: format_user.slots is a list; no slot has {{content}}; put it at the message's place");
  EXPECT_EQ(
      refusal_of(R"("format_user": {"slots": ["{{content}}", 3]})"),
      "t.json: template x: format_user.slots[1] is 3; use a text, [\"bos_token\"], [\"eos_token\"] or {\"token\": "
      "TOKEN}");
  EXPECT_EQ(
      refusal_of(R"("format_prefix": {"slots": [["eod_token"]]})"),
      "t.json: template x: format_prefix.slots[0][0] is \"eod_token\"; use bos_token or eos_token, or {\"token\": "
      "TOKEN} for another one");
  EXPECT_EQ(refusal_of(R"("format_prefix": {"slots": [["bos_token", "eos_token"]]})"),
            "t.json: template x: format_prefix.slots[0] is a list; 2 entries are no slot; use [\"bos_token\"] or "
            "[\"eos_token\"]");
  EXPECT_EQ(
      refusal_of(R"("format_separator": {"slots": ["{{content}}"]})"),
      "t.json: template x: format_separator.slots[0] is \"{{content}}\"; nothing is put into this format; take the "
      "placeholder out");
  EXPECT_EQ(refusal_of(R"("format_function": {"slots": ["{{name}}"]})"),
            "t.json: template x: format_function.slots is a list; no slot has {{content}}, and not both {{name}} and "
            "{{arguments}} are there; put them in");
}

TEST(TemplateFile, NamesMembersThatAreNotRead) {
  EXPECT_THAT(
      refusal_of(R"("format_users": {})"),
      HasSubstr("t.json: template x: format_users is not read by Shardloom; the keys here are name, format_user"));
  EXPECT_EQ(refusal_of(R"("template_class": "Jinja")"),
            "t.json: template x: template_class is \"Jinja\"; use Template, Llama2Template, LFDefaultTemplate or "
            "ReasoningTemplate");
  EXPECT_EQ(refusal_of(R"("replace_eos": true)"),
            "t.json: template x: replace_eos is true; eos becomes the first of stop_words, and none is there; name it");
  EXPECT_EQ(
      refusal_of(R"("template_class": "Llama2Template", "format_system": {"slots": [["bos_token"], "{{content}}"]})"),
      "t.json: template x: format_system is an object; Llama2Template puts the system text into the user's message; "
      "use one slot, a text");
  EXPECT_EQ(refusal_of(R"("efficient_eos": 1)"), "t.json: template x: efficient_eos is 1; use true or false");
  EXPECT_EQ(test::message_of<ConfigError>([] { parse_templates(R"([{"name":"a"},{"name":"a"}])", "t.json"); }),
            "t.json: [1].name is \"a\"; a template before it has this name; keep one");
  EXPECT_EQ(test::message_of<ConfigError>([] { parse_templates("{}", "t.json"); }),
            "t.json: the document is an object; use a list");
}

TEST_F(Templates, AreFoundByName) {
  templates(R"([{"name": "one"}, {"name": "two", "format_user": 3}])");
  options_.prompt_type = "tow";
  EXPECT_EQ(refusal(),
            "--prompt-type is 'tow', which is no template of t.json; did you mean two? its templates are one, two");
  options_.prompt_type = "two";
  EXPECT_EQ(refusal(), "t.json: template two: format_user is 3; use an object");
  options_.prompt_type_path = folder_ / "none.json";
  EXPECT_EQ(refusal(), "--prompt-type-path is none.json, which is no file; give a templates.json");
}

TEST_F(Templates, FitTheTokenizer) {
  options_.prompt_type = "llama3";
  EXPECT_THAT(refusal(),
              HasSubstr("template llama3 has the stop word '<|eot_id|>', which is no token of the tokenizer; "
                        "use a template that fits it, or add the word to added_tokens of tokenizer.json"));
  options_.prompt_type = "t";
  one(R"("format_prefix": {"slots": [{"token": "<no>"}]})");
  EXPECT_EQ(refusal(),
            "t.json: template t has the slot {\"token\": '<no>'}, which is no token of the tokenizer; use a "
            "template that fits it");
  ids_.eos = std::nullopt;
  one(R"("default_system": "")");
  EXPECT_EQ(refusal(),
            "t.json: template t ends answers with eos, and the tokenizer has none; write eos_token into "
            "tokenizer_config.json");
  one(R"("efficient_eos": true)");
  EXPECT_EQ(refusal(),
            "t.json: template t ends samples with eos (efficient_eos), and the tokenizer has none; write "
            "eos_token into tokenizer_config.json");
  ids_.bos = std::nullopt;
  one(R"("format_prefix": {"slots": [["bos_token"]]}, "format_assistant": {"slots": ["{{content}}"]})");
  EXPECT_EQ(input(chat({"a", "b"})), "ab");
  EXPECT_EQ(refusal(R"({"conversations":[{"from":"human","value":"?"},{"from":"function_call","value":"{}"}]})"),
            "a.jsonl:1: a function call ends with eos, and the tokenizer has none; write eos_token into "
            "tokenizer_config.json");
  handler_.reset();
  options_.enable_thinking = EnableThinking::kTrue;
  EXPECT_EQ(refusal(),
            "--enable-thinking is true, and t.json: template t is of class Template; only a ReasoningTemplate "
            "has thoughts: take the flag out");
}

}  // namespace
}  // namespace loom::data
