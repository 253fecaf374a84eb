// Promise: each handler writes the keys and ids of its name; a record that gives no sample is dropped with a reason; a
//          value of another type, and flags that do not fit, are refused with place and next step.
// World:   a tokenizer of bytes; records by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/logged.h"
#include "tests/text/preprocess/handler_world.h"

namespace loom::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Handlers : public test::HandlerWorld {
 protected:
  Handlers() {
    templates(
        R"([{"name": "t", "format_user": {"slots": ["U{{content}}:"]}, "format_system": {"slots": ["S{{content}};"]}}])");
  }
  void use(const std::string& name) {
    handler_.reset();
    options_ = {};
    options_.handler_name = name;
    if (name.find("Pretrain") != name.npos || name.find("Reward") != name.npos) return;
    options_.prompt_type = "t";
    options_.prompt_type_path = folder_ / "t.json";
  }
  std::string wanted(const std::string& json) {
    const std::vector<Record> records = {test::record_of(json)};
    return test::message_of<ConfigError>([&] { handler().check_columns(records); });
  }
};

// --- texts ---

TEST_F(Handlers, WriteTexts) {
  use("GeneralPretrainHandler");
  options_.json_keys = {"text", "title"};
  options_.append_eod = true;
  EXPECT_TRUE(handler().is_pretrain());
  EXPECT_EQ(shown(sample(R"({"text": "a", "title": "b"})").at(1)), "b</s>");
  EXPECT_TRUE(sample(R"({"text": "", "title": "b"})").at(0).empty());
  EXPECT_EQ(dropped(R"({"text": "", "title": null})"), DropReason::kEmptyColumn);
  EXPECT_EQ(refusal(R"({"text": 5})"), "a.jsonl:1: column 'text' is 5; use a text");
  EXPECT_EQ(
      wanted(R"({"text": "a", "n": 1})"),
      "a.jsonl:1: no column 'title' here, nor in the 1 records from here on; it is the column for 'text', named by "
      "--json-keys; the columns here are text, n");
}

TEST_F(Handlers, NameTheRecordOfATextThatIsNotEncoded) {
  use("GeneralPretrainHandler");
  Record record = test::record_of("{}");
  record.columns["text"] = "a\xff";
  EXPECT_EQ(test::message_of<ConfigError>([&] { handler().convert(record, encoder_); }),
            "a.jsonl:1: the text is no UTF-8 at byte 1 of 2; convert it to UTF-8");
}

TEST_F(Handlers, PadTexts) {
  use("GeneralPretrainHandler");
  options_.pad_to_multiple_of = 4;
  const TokenId padding = static_cast<TokenId>(tokenizer_.size());
  EXPECT_THAT(sample(R"({"text": "ab"})").at(0), ElementsAre('a', 'b', padding, padding));
  EXPECT_THAT(sample(R"({"text": "abcd"})").at(0), testing::SizeIs(8));
  handler_.reset();
  options_.append_eod = true;
  EXPECT_THAT(sample(R"({"text": "abc"})").at(0), ElementsAre('a', 'b', 'c', 261));
  EXPECT_THAT(sample(R"({"text": "ab"})").at(0), ElementsAre('a', 'b', padding, 261));
}

TEST_F(Handlers, FrameInstructionsForPretraining) {
  use("AlpacaPretrainHandler");
  EXPECT_THAT(input(R"({"instruction": "Do", "input": "it", "output": "done"})"),
              HasSubstr("### Instruction:\nDo\n\n### Input:\nit\n\n### Response: ASSISTANT: done"));
  EXPECT_THAT(input(R"({"instruction": "Do", "output": null})"),
              HasSubstr("Do\n\n###None\n\n### Response: ASSISTANT: None"));
  EXPECT_THAT(wanted(R"({"text": "a"})"), StartsWith("a.jsonl:1: no column 'instruction' here"));
  use("SharegptPretrainHandler");
  options_.json_keys = {"conversations"};
  EXPECT_EQ(input(R"({"conversations": [{"from":"a","value":"x"},{"from":"b"},{"value":"y"}]})"), "xy");
  EXPECT_EQ(refusal(R"({"conversations": "x"})"), "a.jsonl:1: column 'conversations' is \"x\"; use a list of messages");
  EXPECT_EQ(refusal(R"({"conversations": [{"value": [1]}]})"),
            "a.jsonl:1: column 'conversations'[0].value is a list; use a text");
}

// --- alpaca ---

TEST_F(Handlers, PutHistoryBeforeTheQuestion) {
  use("AlpacaStyleInstructionHandler");
  options_.map_keys = R"({"history": "old", "system": "system"})";
  options_.append_eod = true;
  EXPECT_THAT(handler().keys(), ElementsAre("input_ids", "attention_mask", "labels"));
  EXPECT_FALSE(handler().is_pretrain());
  const std::string record =
      R"({"instruction": "a", "input": "b", "output": "c", "old": [["1", "2"], ["3", "4"]], "system": "x"})";
  EXPECT_EQ(input(record), "Sx;U1:2</s>U3:4</s>Ua\nb:c</s></s>");
  EXPECT_EQ(shown(sample(record).at(2)), "______2</s>___4</s>_____c</s></s>");
  EXPECT_EQ(input(R"({"instruction": "a", "output": "c"})"), "Ua:c</s></s>");
  EXPECT_EQ(input(R"({"instruction": "", "input": null, "output": ""})"), "U:</s></s>");
  EXPECT_EQ(input(R"({"instruction": "a", "output": ["c"]})"), "Ua:c</s></s>");
}

TEST_F(Handlers, DropRecordsWithoutOneAnswer) {
  use("AlpacaStyleInstructionHandler");
  EXPECT_EQ(dropped(R"({"instruction": "a", "input": ""})"), DropReason::kNoResponse);
  EXPECT_EQ(dropped(R"({"instruction": "a", "output": null})"), DropReason::kNoResponse);
  EXPECT_EQ(dropped(R"({"instruction": "a", "output": []})"), DropReason::kNoResponse);
  EXPECT_EQ(dropped(R"({"instruction": "a", "output": ["b", "c"]})"), DropReason::kNoResponse);
  EXPECT_EQ(words_of(DropReason::kNoResponse), "no response, or several");
}

TEST_F(Handlers, NameColumnsThatDoNotFit) {
  use("AlpacaStyleInstructionHandler");
  options_.map_keys = R"({"history": "history"})";
  EXPECT_EQ(refusal(R"({"instruction": 3, "output": "b"})"), "a.jsonl:1: column 'instruction' is 3; use a text");
  EXPECT_EQ(refusal(R"({"instruction": "a", "output": {}})"), "a.jsonl:1: column 'output' is an object; use a text");
  EXPECT_EQ(refusal(R"({"instruction": "a", "output": "b", "history": "x"})"),
            "a.jsonl:1: column 'history' is \"x\"; use a list of [prompt, answer]");
  EXPECT_EQ(refusal(R"({"instruction": "a", "output": "b", "history": [["x", "y"], ["z"]]})"),
            "a.jsonl:1: column 'history'[1] is a list; use a list of two texts, a prompt and its answer");
  EXPECT_EQ(
      wanted(R"({"instruction": "a", "output": "b", "history": []})"),
      "a.jsonl:1: no column 'input' here, nor in the 1 records from here on; it is the column for 'query', named by "
      "--map-keys; the columns here are instruction, output, history");
}

std::string map_refusal(data::HandlerOptions options, const std::string& map, const Tokenizer& tokenizer) {
  options.map_keys = map;
  return test::message_of<ConfigError>([&] { make_handler(options, tokenizer, {260, 261, {}, {}, {}}); });
}

TEST_F(Handlers, NameMapsThatDoNotFit) {
  use("AlpacaStyleInstructionHandler");
  const auto refused = [&](const std::string& map) { return map_refusal(options_, map, tokenizer_); };
  EXPECT_EQ(refused("{"), "--map-keys: not valid JSON (at byte 2 of 1)");
  EXPECT_EQ(refused("[]"), "--map-keys: the document is a list; use an object");
  EXPECT_EQ(
      refused(R"({"promt": "a"})"),
      "--map-keys: promt is no key of this handler; its keys are response, prompt, query, history, system, chosen, "
      "rejected");
  EXPECT_EQ(refused(R"({"prompt": 1})"), "--map-keys: prompt is 1; use a text");
  EXPECT_EQ(refused(R"({"response": ""})"),
            "--map-keys: response is switched off, and no sample is without it; name its column");
  use("SharegptStyleInstructionHandler");
  EXPECT_EQ(
      refused(R"({"tags": {"user": "u"}})"),
      "--map-keys: tags: user is no tag; tags are role_tag, content_tag, user_tag, assistant_tag, observation_tag, "
      "function_tag, system_tag");
  EXPECT_EQ(refused(R"({"tags": {"role_tag": null}})"),
            "--map-keys: tags: role_tag is empty; messages need it: name it, or leave it out for its default");
}

// --- messages ---

TEST_F(Handlers, ReadMessagesThatAlternate) {
  use("SharegptStyleInstructionHandler");
  options_.map_keys = R"({"system": "system", "tags": {"user_tag": "me"}})";
  EXPECT_EQ(
      input(R"({"conversations": [{"from":"system","value":"x"},{"from":"me","value":"a"},{"from":"gpt","value":"b"}],
                      "system": "y"})"),
      "Sx;Ua:b</s>");
  EXPECT_EQ(input(R"({"conversations": [{"from":"me","value":"a"},{"from":"gpt","value":""}], "system": "y"})"),
            "Sy;Ua:</s>");
}

TEST_F(Handlers, DropChatsOutOfOrder) {
  use("SharegptStyleInstructionHandler");
  const auto reason = [&](const std::string& messages) { return dropped(R"({"conversations": [)" + messages + "]}"); };
  const std::string user = R"({"from":"human","value":"a"})";
  const std::string gpt = R"({"from":"gpt","value":"b"})";
  EXPECT_EQ(reason(user), DropReason::kTurnOrder);
  EXPECT_EQ(reason(gpt + "," + user), DropReason::kTurnOrder);
  EXPECT_EQ(reason(user + "," + user), DropReason::kTurnOrder);
  EXPECT_EQ(reason(user + R"(,{"from":"bot","value":"b"})"), DropReason::kTurnOrder);
  EXPECT_EQ(reason(user + "," + gpt + R"(,{"from":"system","value":"b"},)" + gpt), DropReason::kTurnOrder);
  EXPECT_EQ(reason(user + R"(,{"from":"gpt","value":null})"), DropReason::kEmptyColumn);
  EXPECT_EQ(reason(R"({"from":"human"},)" + gpt), DropReason::kEmptyColumn);
  EXPECT_EQ(reason(R"({"from":"system","value":"b"})"), DropReason::kNoPrompt);
  EXPECT_EQ(reason(""), DropReason::kNoPrompt);
  EXPECT_EQ(dropped(R"({"conversations": null})"), DropReason::kNoPrompt);
}

TEST_F(Handlers, NameMessagesThatAreNone) {
  use("SharegptStyleInstructionHandler");
  EXPECT_EQ(refusal(R"({"conversations": "x"})"), "a.jsonl:1: column 'conversations' is \"x\"; use a list of messages");
  EXPECT_EQ(refusal(R"({"conversations": ["x"]})"), "a.jsonl:1: column 'conversations'[0] is \"x\"; use an object");
  EXPECT_EQ(
      refusal(R"({"conversations": [{"from":"human","value":"a"},{"role":"gpt"}]})"),
      "a.jsonl:1: column 'conversations'[1] has no 'from', which says whose message it is; write it, or name its tag "
      "in --map-keys: role_tag");
  EXPECT_EQ(refusal(R"({"conversations": [{"from":"human","value":{}}]})"),
            "a.jsonl:1: column 'conversations'[0].value is an object; use a text");
  EXPECT_THAT(wanted(R"({"messages": []})"), StartsWith("a.jsonl:1: no column 'conversations' here"));
}

TEST_F(Handlers, ReadMessagesOfOpenAI) {
  use("OpenAIInstructionHandler");
  const auto messages = [](const std::string& list) { return R"({"messages": [)" + list + "]}"; };
  const std::string ask = R"({"role":"user","content":"a"},)";
  EXPECT_EQ(input(messages(R"({"role":"system","content":"x"},)" + ask + R"({"role":"assistant","content":"b"})")),
            "Sx;Ua:b</s>");
  EXPECT_EQ(input(messages(ask + R"({"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},
                                    {"role":"tool","content":"c"},{"role":"assistant","content":"d"})")),
            "Ua:</s>Uc:d</s>");
  EXPECT_EQ(dropped(messages(ask + R"({"role":"user","content":"b"})")), DropReason::kTurnOrder);
  EXPECT_EQ(dropped(messages(ask + ask + R"({"role":"assistant","content":"b"})")), DropReason::kTurnOrder);
  EXPECT_EQ(dropped(messages(R"({"role":"assistant","content":"b"})")), DropReason::kTurnOrder);
  EXPECT_EQ(dropped(messages(ask + R"({"role":"critic","content":"b"})")), DropReason::kTurnOrder);
}

// --- pairs, prompts, rewards ---

TEST_F(Handlers, WritePairs) {
  use("AlpacaStylePairwiseHandler");
  EXPECT_THAT(handler().keys(),
              ElementsAre("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"));
  const std::string record = R"({"instruction": "a", "input": "", "chosen": "yes", "rejected": "no"})";
  EXPECT_EQ(input(record), "Ua:yes</s>");
  EXPECT_EQ(shown(sample(record).at(1)), "___yes</s>");
  EXPECT_EQ(shown(sample(record).at(2)), "Ua:no</s>");
  EXPECT_EQ(shown(sample(record).at(3)), "___no</s>");
  const std::string lists = R"({"instruction": "a", "chosen": ["yes", "1"], "rejected": ["no", "2"]})";
  EXPECT_EQ(shown(sample(lists).at(2)), "Ua:no</s>");
  EXPECT_EQ(dropped(R"({"instruction": "a", "chosen": "yes", "rejected": null})"), DropReason::kNoResponse);
  EXPECT_EQ(refusal(R"({"instruction": "a", "chosen": 1, "rejected": "b"})"),
            "a.jsonl:1: column 'chosen' is 1; use a text");
}

TEST_F(Handlers, WritePairsOfMessages) {
  use("SharegptStylePairwiseHandler");
  const auto record = [](const std::string& chosen, const std::string& more = "") {
    return R"({"conversations": [{"from":"human","value":"a"})" + more + R"(], "chosen": )" + chosen +
           R"(, "rejected": {"from":"gpt","value":"no"}})";
  };
  EXPECT_EQ(input(record(R"({"from":"gpt","value":"yes"})")), "Ua:yes</s>");
  EXPECT_EQ(dropped(record(R"({"from":"human","value":"yes"})")), DropReason::kTurnOrder);
  EXPECT_EQ(dropped(record(R"({"from":"gpt","value":"yes"})", R"(,{"from":"gpt","value":"b"})")),
            DropReason::kTurnOrder);
  EXPECT_EQ(dropped(record("null")), DropReason::kNoResponse);
  EXPECT_EQ(refusal(record("\"yes\"")), "a.jsonl:1: column 'chosen' is \"yes\"; use an object");
}

TEST_F(Handlers, WritePrompts) {
  use("PPOAlpacaStyleInstructionHandler");
  options_.map_keys = R"({"history": "h"})";
  const std::string record = R"({"instruction": "a", "input": "", "output": "b", "h": [["1", "2"]], "key": "k"})";
  EXPECT_THAT(handler().keys(), ElementsAre("input_ids", "attention_mask"));
  EXPECT_EQ(input(record), "U1:Ua:");
  use("R1AlpacaStyleInstructionHandler");
  options_.map_keys = R"({"history": "h"})";
  options_.dataset_additional_keys = {"labels", "key"};
  EXPECT_THAT(handler().keys(), ElementsAre("input_ids", "attention_mask", "labels", "key"));
  EXPECT_EQ(input(record), "U1:2</s>Ua:");
  EXPECT_EQ(shown(sample(record).at(2)), "b");
  EXPECT_EQ(shown(sample(record).at(3)), "k");
  EXPECT_EQ(dropped(R"({"instruction": "a", "output": "b"})"), DropReason::kEmptyColumn);
  EXPECT_THAT(
      wanted(R"({"instruction": "a", "input": "", "output": "b", "h": []})"),
      HasSubstr("no column 'key' here, nor in the 1 records from here on; it is the column for 'additional key', "
                "named by --dataset-additional-keys"));
  handler_.reset();
  options_.dataset_additional_keys = {"input_ids"};
  EXPECT_EQ(refusal(), "--dataset-additional-keys names 'input_ids', which is written already; take it out");
}

TEST_F(Handlers, WriteRewardsAtPlaceholders) {
  use("AlpacaStyleProcessRewardHandler");
  options_.placeholder_token = "<step>";
  options_.reward_tokens = {"<good>", "<bad>"};
  const std::string record = R"({"input": "a<step>b<step>", "value": ["<good>", "<bad>"]})";
  EXPECT_THAT(handler().keys(), ElementsAre("input_ids", "labels", "attention_mask"));
  EXPECT_EQ(input(record), "a<step>b<step>");
  EXPECT_EQ(shown(sample(record).at(1)), "_<good>_<bad>");
  EXPECT_EQ(dropped(R"({"input": "", "value": []})"), DropReason::kEmptyColumn);
  EXPECT_EQ(refusal(R"({"input": "a<step>", "value": ["<ugly>"]})"),
            "a.jsonl:1: column 'value'[0] is \"<ugly>\"; --reward-tokens are <good>, <bad>; use one of them");
  EXPECT_EQ(refusal(R"({"input": "a<step>", "value": []})"),
            "a.jsonl:1: column 'input' has 1 placeholders, and column 'value' 0 reward tokens; write one for each");
  EXPECT_EQ(refusal(R"({"input": "a<step>", "value": "<good>"})"),
            "a.jsonl:1: column 'value' is \"<good>\"; use a list of reward tokens");
  handler_.reset();
  options_.reward_tokens = {};
  EXPECT_EQ(shown(sample(R"({"input": "<step>", "value": [1]})").at(1)), "1");
  EXPECT_EQ(refusal(R"({"input": "<step>", "value": ["12"]})"),
            "a.jsonl:1: column 'value'[0]: '12' is 2 tokens; use a text that is one token of the tokenizer");
  handler_.reset();
  options_.placeholder_token = "<no>";
  EXPECT_EQ(refusal(), "--placeholder-token: '<no>' is 4 tokens; use a text that is one token of the tokenizer");
}

// --- names and flags ---

TEST_F(Handlers, SayWhatHasNoEffect) {
  const test::Logged logged;
  use("AlpacaStylePairwiseHandler");
  options_.append_eod = true;
  handler();
  use("OpenAIInstructionHandler");
  const std::string record = R"({"messages": [{"role":"user","content":"a"},
      {"role":"assistant","content":"b","tool_calls":[{"id":"1"}]}]})";
  sample(record);
  sample(record);
  EXPECT_EQ(logged.text(),
            "warning: --append-eod has no effect on AlpacaStylePairwiseHandler: its samples end as its template says\n"
            "warning: a.jsonl:1: column 'messages'[1] has tool_calls; no template here shows them: such messages have "
            "their content only\n");
}

TEST_F(Handlers, AreKnownByName) {
  use("AlpacaStyleInstuctionHandler");
  EXPECT_THAT(refusal(),
              StartsWith("--handler-name is 'AlpacaStyleInstuctionHandler', which is no handler; did you mean "
                         "AlpacaStyleInstructionHandler? handlers are GeneralPretrainHandler, "));
  use("MOSSInstructionHandler");
  EXPECT_THAT(refusal(),
              StartsWith("--handler-name is MOSSInstructionHandler, a handler of MindSpeed-LLM for one model or "
                         "data set, which Shardloom does not have; handlers are"));
  use("");
  EXPECT_THAT(refusal(), StartsWith("--handler-name is missing; handlers are"));
  EXPECT_EQ(handler_names().size(), 13U);
  use("LlamaFactoryInstructionHandler");
  EXPECT_THAT(refusal(), StartsWith("LlamaFactoryInstructionHandler reads the data sets of a dataset_info.json"));
}

TEST_F(Handlers, RefuseFlagsThatDoNotFit) {
  use("GeneralPretrainHandler");
  options_.prompt_type = "qwen";
  EXPECT_EQ(refusal(), "--prompt-type is qwen, and GeneralPretrainHandler uses no template; take the flag out");
  use("GeneralPretrainHandler");
  options_.map_keys = "{}";
  EXPECT_EQ(refusal(),
            "--map-keys is given, and GeneralPretrainHandler has columns of fixed meaning; take the flag out");
  use("GeneralPretrainHandler");
  options_.json_keys = {"a", "a"};
  EXPECT_EQ(refusal(), "--json-keys names 'a' twice; keep one");
  use("GeneralPretrainHandler");
  options_.json_keys = {"../../x"};
  EXPECT_EQ(refusal(),
            "--json-keys has '../../x', which would be a part of a file's name and has a '/'; rename the column");
  use("GeneralPretrainHandler");
  options_.json_keys = {std::string("a\0b", 3)};
  EXPECT_EQ(refusal(),
            "--json-keys has 'a\\x00b', which would be a part of a file's name and has a '\\0'; rename the column");
  use("GeneralPretrainHandler");
  options_.append_eod = true;
  ids_.eos = std::nullopt;
  EXPECT_EQ(refusal(),
            "--append-eod is given, and the tokenizer has no eos; write eos_token into tokenizer_config.json");
  ids_.eos = 261;
  use("AlpacaStyleInstructionHandler");
  options_.prompt_type.reset();
  EXPECT_EQ(refusal(),
            "--handler-name is AlpacaStyleInstructionHandler, which puts records into a template; name one by "
            "--prompt-type");
  use("AlpacaStyleInstructionHandler");
  options_.seq_length = 1;
  EXPECT_EQ(refusal(), "--seq-length is 1; use 2 or more");
  use("AlpacaStyleInstructionHandler");
  options_.dataset_additional_keys = {"x"};
  EXPECT_THAT(refusal(), StartsWith("--dataset-additional-keys is given, and AlpacaStyleInstructionHandler keeps no"));
  use("AlpacaStyleInstructionHandler");
  options_.reward_tokens = {"x"};
  EXPECT_THAT(refusal(), StartsWith("--reward-tokens is given, and AlpacaStyleInstructionHandler writes no rewards"));
}

}  // namespace
}  // namespace loom::data
