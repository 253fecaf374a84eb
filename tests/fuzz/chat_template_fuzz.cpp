// Chat templates: the input is a template, rendered for a fixed conversation with little work allowed, which bounds the
// time too (-timeout).
#include <nlohmann/json.hpp>

#include "engine/core/shown_text.h"
#include "engine/text/template/chat_template.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr const char* kMessages = R"([
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": " Zürich <b>1</b>\n天気 "},
  {"role": "assistant", "content": "<think>\nhm\n</think>\n\n4", "tool_calls": [
    {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [true, null, 2.5]}}}]},
  {"role": "tool", "content": "{\"t\": 21.5}"}])";
constexpr const char* kTools = R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])";

}  // namespace

LOOM_FUZZ_TARGET(chat_template) {
  using namespace loom;
  static const auto messages = nlohmann::ordered_json::parse(kMessages);
  data::ChatOptions options;
  options.tools = nlohmann::ordered_json::parse(kTools);
  options.add_generation_prompt = true;
  options.now = std::tm{};
  options.most_work = 300'000;
  options.most_output_bytes = std::size_t{1} << 20U;
  return fuzz::answered_or_refused([&] {
    const auto chat = data::ChatTemplate::from_text(fuzz::text_of(data, size), "t.jinja", {{"bos_token", "<s>"}});
    const std::string text = chat.render(messages, options);
    if (invalid_utf8(text)) fuzz::found("rendered to what is no UTF-8", "");
    if (text.size() > options.most_output_bytes) fuzz::found("more output than allowed", "");
    if (chat.render(messages, options) != text) fuzz::found("rendered to another text the second time", "");
  });
}
