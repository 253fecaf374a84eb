// tokenizer_parity DIR: ids and texts are those of Hugging Face's library.
//
// Every subfolder of DIR with an encodings.json is a case: a list of {text, ids, decoded}. Encoding each text without
// added special tokens gives its ids, decoding these gives `decoded`, at once and token by token; all exactly.
#include <algorithm>

#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"

namespace loom::tokenizer_parity {
namespace {

using Ids = std::vector<data::TokenId>;

struct Encoding {
  std::string text;
  Ids ids;
  std::string decoded;
};

std::vector<Encoding> read_encodings(const std::filesystem::path& file) {
  const test::CaseJson entries = test::read_case(file);
  std::vector<Encoding> encodings;
  for (const test::CaseJson& entry : entries.elements()) {
    encodings.push_back(
        {entry.at("text").get<std::string>(), entry.at("ids").get<Ids>(), entry.at("decoded").get<std::string>()});
  }
  entries.check_all_read();
  return encodings;
}

std::string streamed(const data::Tokenizer& tokenizer, const Ids& ids) {
  data::TokenStream stream(tokenizer);
  std::string text;
  for (const data::TokenId id : ids) text += stream.push(id);
  return text + stream.finish();
}

// What is wrong with an encoding; empty when nothing is.
std::string problem_of(const data::Tokenizer& tokenizer, data::TokenEncoder& encoder, const Encoding& expected) {
  Ids ids;
  encoder.encode(expected.text, ids, {.add_special_tokens = false});
  const auto differ = std::ranges::mismatch(ids, expected.ids);
  if (differ.in1 != ids.end() || differ.in2 != expected.ids.end()) {
    return fmt::format("'{}' gives {} ids, {} expected; they differ at {}", shown_text(expected.text), ids.size(),
                       expected.ids.size(), differ.in1 - ids.begin());
  }
  if (tokenizer.decode(ids) != expected.decoded)
    return fmt::format("'{}' is decoded as another text", shown_text(expected.text));
  if (streamed(tokenizer, ids) != expected.decoded)
    return fmt::format("'{}' is streamed as another text", shown_text(expected.text));
  return "";
}

void run_case(const std::filesystem::path& folder, test::ParityReport& report) {
  const std::string name = folder.filename();
  const auto tokenizer = data::Tokenizer::from_file(folder);
  data::TokenEncoder encoder(tokenizer);
  const auto encodings = read_encodings(folder / "encodings.json");
  std::size_t ids = 0;
  for (const Encoding& encoding : encodings) {
    const std::string problem = problem_of(tokenizer, encoder, encoding);
    if (!problem.empty()) return report.failed(name, problem);
    ids += encoding.ids.size();
  }
  if (ids == 0) return report.failed(name, "encodings.json has no ids");
  report.passed(name, fmt::format("{} texts, {} ids", encodings.size(), ids));
}

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  for (const auto& each : test::case_folders(folder, "encodings.json")) {
    try {
      run_case(each, report);
    } catch (const std::exception& error) {
      report.failed(each.filename().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::tokenizer_parity

int main_of_tokenizer_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "tokenizer_parity", loom::tokenizer_parity::run);
}
