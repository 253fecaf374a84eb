// Promise: the chat template of a model's folder is found and rendered with its tokens; what is wrong is refused with
//          the file.
#include "engine/text/template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using test::fresh_folder;
using test::message_of;
using test::write_file;

const Json kMessages = Json::parse(R"([{"role": "user", "content": "hi"}])");

fs::path folder_with(const Json& config) {
  const fs::path folder = fresh_folder();
  write_file(folder / "tokenizer_config.json", config.dump());
  return folder;
}

TEST(ChatFolder, ReadsTheTemplateAndTheTokensOfTheConfig) {
  const fs::path folder =
      folder_with({{"chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}"},
                   {"bos_token", "<s>"},
                   {"eos_token", {{"content", "</s>"}, {"lstrip", false}}},
                   {"pad_token", nullptr}});
  const auto chat = ChatTemplate::from_folder(folder);
  EXPECT_EQ(chat.render(kMessages), "<s>hi</s>");
  EXPECT_EQ(chat.token("bos_token"), "<s>");
  EXPECT_EQ(chat.token("pad_token"), std::nullopt);
}

TEST(ChatFolder, TakesToolUseWhereToolsAreGiven) {
  const Json list = Json::parse(
      R"([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}])");
  const auto chat = ChatTemplate::from_folder(folder_with({{"chat_template", list}}));
  EXPECT_EQ(chat.render(kMessages), "plain");
  ChatOptions options;
  options.tools = Json::parse(R"([{"type": "function"}])");
  EXPECT_EQ(chat.render(kMessages, options), "1 tools");
}

TEST(ChatFolder, AFileOfItsOwnComesFirst) {
  const fs::path folder = folder_with({{"chat_template", "config"}});
  write_file(folder / "chat_template.jinja", "file\n");
  fs::create_directory(folder / "additional_chat_templates");
  write_file(folder / "additional_chat_templates" / "tool_use.jinja", "tools");
  const auto chat = ChatTemplate::from_folder(folder);
  EXPECT_EQ(chat.render(kMessages), "file");
  ChatOptions options;
  options.tools = Json::array();
  EXPECT_EQ(chat.render(kMessages, options), "tools");
}

TEST(ChatFolder, SaysWhatIsMissingOrWrong) {
  const fs::path empty = fresh_folder();
  EXPECT_EQ(message_of<ConfigError>([&] { ChatTemplate::from_folder(empty); }),
            empty.string() +
                ": there is no chat template, neither as chat_template.jinja nor as chat_template of "
                "tokenizer_config.json; give the folder of a model that was trained on conversations");
  const fs::path number = folder_with({{"chat_template", 5}});
  EXPECT_EQ(message_of<ConfigError>([&] { ChatTemplate::from_folder(number); }),
            (number / "tokenizer_config.json").string() + ": chat_template is 5; use a text");
  const fs::path broken = folder_with({{"chat_template", "a\n{{ b"}});
  EXPECT_EQ(message_of<ConfigError>([&] { ChatTemplate::from_folder(broken); }),
            (broken / "tokenizer_config.json").string() +
                ": chat_template:2: found the end of the template where '}}' is expected");
  const fs::path unnamed = folder_with({{"chat_template", Json::parse(R"([{"name": "x", "template": ""}])")}});
  EXPECT_EQ(
      message_of<ConfigError>([&] { ChatTemplate::from_folder(unnamed); }),
      (unnamed / "tokenizer_config.json").string() + ": chat_template has no template named 'default'; name one so");
}

TEST(ChatRender, GivesTheMessageOfTheTemplate) {
  const auto chat = ChatTemplate::from_text("\n{{ raise_exception('no\n' ~ messages[0].role) }}", "t.jinja");
  try {
    chat.render(kMessages);
    FAIL();
  } catch (const ChatRefusal& refusal) {
    EXPECT_EQ(refusal.message(), "no\nuser");
    EXPECT_STREQ(refusal.what(), R"(t.jinja:2: the template refuses this conversation: no\nuser)");
  }
}

TEST(ChatRender, RefusesWhatIsNoConversation) {
  const auto chat = ChatTemplate::from_text("{{ tools }}{{ documents }}", "t.jinja");
  const auto message = [&](const Json& messages, const ChatOptions& options = {}) {
    return message_of<ConfigError>([&] { chat.render(messages, options); });
  };
  EXPECT_EQ(message("hi"), "messages: found string where a list of objects is expected");
  EXPECT_EQ(message(Json::parse(R"([{}, 5])")), "messages[1]: found number where an object is expected");
  ChatOptions options;
  options.tools = Json::object();
  EXPECT_EQ(message(kMessages, options), "tools: found object where a list of objects is expected");
  EXPECT_EQ(message(Json::parse(R"([{"n": 18446744073709551615}])")),
            "t.jinja:1: the number 18446744073709551615 has more than 63 bits; write it as text");
  EXPECT_EQ(chat.render(kMessages), "NoneNone");
}

TEST(ChatRender, VariablesWinAndTheTimeCanBeGiven) {
  const auto chat = ChatTemplate::from_text("{{ bos_token }} {{ enable_thinking }} {{ strftime_now('%Y-%m-%d') }}",
                                            "t.jinja", {{"bos_token", "<s>"}});
  ChatOptions options;
  options.variables = {{"bos_token", "B"}, {"enable_thinking", false}};
  options.now = std::tm{};
  options.now->tm_year = 124;
  options.now->tm_mday = 2;
  EXPECT_EQ(chat.render(kMessages, options), "B False 2024-01-02");
}

TEST(ChatRender, ReasoningIsGivenUnderTheNameThatTemplatesRead) {
  const auto chat = ChatTemplate::from_text("{{ messages[0].reasoning_content }}{{ messages[0] | tojson }}", "t.jinja");
  EXPECT_EQ(chat.render(Json::parse(R"([{"role": "assistant", "reasoning": "r"}])")),
            R"(r{"thinking": "r", "role": "assistant", "reasoning": "r", "reasoning_content": "r"})");
}

}  // namespace
}  // namespace loom::data
