// chat_texts: reads lines of JSON {template, tokens, messages, tools, documents, add_generation_prompt, variables} from
// standard input, and writes for each a line {"rendered": TEXT}, {"error": MESSAGE of raise_exception} or
// {"error_other": MESSAGE}. The time of strftime_now() is 2024-07-26 13:05:09.
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "engine/text/template/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

std::tm fixed_time() {
  std::tm time{};
  strptime("2024-07-26 13:05:09", "%Y-%m-%d %H:%M:%S", &time);
  return time;
}

Json answer_of(const Json& question) {
  loom::data::ChatOptions options;
  options.tools = question.at("tools");
  options.documents = question.at("documents");
  options.add_generation_prompt = question.at("add_generation_prompt").get<bool>();
  options.variables = question.at("variables");
  options.now = fixed_time();
  loom::data::TokenTexts tokens;
  for (const auto& [name, text] : question.at("tokens").items()) tokens.emplace(name, text.get<std::string>());
  try {
    const auto chat =
        loom::data::ChatTemplate::from_text(question.at("template").get<std::string>(), "template", tokens);
    return {{"rendered", chat.render(question.at("messages"), options)}};
  } catch (const loom::data::ChatRefusal& refusal) {
    return {{"error", refusal.message()}};
  } catch (const loom::ConfigError& error) {
    return {{"error_other", error.what()}};
  }
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) std::cout << answer_of(Json::parse(line)).dump() << "\n";
  return 0;
}
