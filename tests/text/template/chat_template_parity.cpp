// chat_template_parity DIR: conversations as text are those of Transformers and Jinja2.
//
// Every NAME.json of DIR with `renderings` is a case: its template, the special tokens, and for each rendering the
// conversation (list `in`, number `index` of conversations.json), tools or none, and variables. The text is `rendered`
// exactly; or the template refuses with the message `error`; or (`error_other`) Python refused, and so do we.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "engine/core/shown_text.h"
#include "engine/text/template/chat_template.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"

namespace loom::chat_template_parity {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Case = test::BasicCaseJson<Json>;

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error(file.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(stream), {}};
}

data::ChatTemplate template_of(const fs::path& folder, const Case& file) {
  data::TokenTexts tokens;
  for (const char* name : {"bos_token", "eos_token"}) {
    if (file.contains(name) && !file.at(name).is_null()) tokens.emplace(name, file.at(name).get<std::string>());
  }
  const std::string path = file.at("template").get<std::string>();
  return data::ChatTemplate::from_text(read_text(folder / path), path, tokens);
}

struct Outcome {
  std::string kind;  // as the reference names it
  std::string text;
};

Outcome outcome_of(const data::ChatTemplate& chat, const Json& conversations, const Case& file, const Case& rendering) {
  data::ChatOptions options;
  if (rendering.at("tools").get<bool>()) options.tools = conversations.at("tools");
  options.add_generation_prompt = rendering.at("add_generation_prompt").get<bool>();
  options.variables = rendering.at("variables").raw();
  options.variables.update(file.at("fixed_variables").raw());
  const Json& messages =
      conversations.at(rendering.at("in").get<std::string>()).at(rendering.at("index").get<std::size_t>());
  try {
    return {"rendered", chat.render(messages, options)};
  } catch (const data::ChatRefusal& refusal) {
    return {"error", refusal.message()};
  } catch (const ConfigError& error) {
    return {"error_other", error.what()};
  }
}

// What is wrong with a rendering; empty when nothing is.
std::string problem_of(const Outcome& outcome, const Case& rendering) {
  if (rendering.contains("error_other")) return outcome.kind == "rendered" ? "is rendered, and Python refused" : "";
  const std::string kind = rendering.contains("error") ? "error" : "rendered";
  if (outcome.kind != kind) return fmt::format("gives {} '{}'", outcome.kind, shown_text(outcome.text));
  const auto expected = rendering.at(kind).get<std::string>();
  if (outcome.text == expected) return "";
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(outcome.text, expected).in1 - outcome.text.begin());
  return fmt::format("differs at byte {}: '{}', expected '{}'", at,
                     shown_text(outcome.text.substr(std::min(at, outcome.text.size()), 60)),
                     shown_text(expected.substr(std::min(at, expected.size()), 60)));
}

void run_case(const fs::path& path, const Case& file, const Json& conversations, test::ParityReport& report) {
  const std::string name = path.stem().string();
  const auto chat = template_of(path.parent_path(), file);
  std::size_t refused = 0;
  for (const Case& rendering : file.at("renderings").elements()) {
    const std::string problem = problem_of(outcome_of(chat, conversations, file, rendering), rendering);
    if (!problem.empty()) {
      return report.failed(
          name, fmt::format("{} {}, tools {}, prompt {}, variables {}: {}", rendering.at("in").dump(),
                            rendering.at("index").dump(), rendering.at("tools").dump(),
                            rendering.at("add_generation_prompt").dump(), rendering.at("variables").dump(), problem));
    }
    refused += rendering.contains("rendered") ? 0 : 1;
  }
  if (file.at("renderings").empty()) return report.failed(name, "it has no renderings");
  file.check_all_read({"exact", "error_other"});  // Python's own words for its refusal
  report.passed(name, fmt::format("{} renderings, {} of them refused", file.at("renderings").size(), refused));
}

int run(const fs::path& folder) {
  test::ParityReport report;
  const Json conversations = Json::parse(read_text(folder / "conversations.json"));
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const auto& path : files) {
    try {
      const Case file = test::read_case<Json>(path);
      if (file.contains("renderings")) run_case(path, file, conversations, report);
    } catch (const std::exception& error) {
      report.failed(path.stem().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::chat_template_parity

int main_of_chat_template_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "chat_template_parity", loom::chat_template_parity::run);
}
