// explain_parity DIR: every text of errors.json below the folder gives its kind and its fields, alone and in a log.
//
// Agrees   all fields of the file are there with their values; figures of memory as printed, to the byte.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/explain/log_reader.h"
#include "tests/support/files.h"
#include "tests/support/parity_report.h"

namespace loom::test::explain_parity {
namespace {

using Json = nlohmann::json;

// What differs; empty when nothing does.
std::string difference(const explain::ErrorReport& report, const Json& wanted) {
  if (explain::kind_of(report) != wanted.at("kind").get<std::string>())
    return fmt::format("it is {}", explain::kind_of(report));
  const auto fields = explain::to_json(report).at("fields");
  for (const auto& [key, value] : wanted.at("fields").items()) {
    if (!fields.contains(key)) return fmt::format("{} is missing", key);
    if (fields.at(key) != value) return fmt::format("{} is {}, not {}", key, fields.at(key).dump(), value.dump());
  }
  return "";
}

void compare(const std::string& name, const Json& wanted, ParityReport& report) {
  const std::string text = wanted.at("text");
  const explain::LogTexts alone = explain::read_text(text);
  const explain::LogTexts in_log = explain::read_text("starting\n2024-12-06T18:44:12.715Z " + text + "\nends\n" + text);
  if (alone.reports.size() != 1 || in_log.reports.size() != 1) {
    report.failed(name, fmt::format("{} reports, {} in a log", alone.reports.size(), in_log.reports.size()));
    return;
  }
  std::string found = difference(alone.reports.front(), wanted);
  if (found.empty()) found = difference(in_log.reports.front(), wanted);
  if (found.empty() && in_log.reports.front().line != 2) found = "it is not in line 2";
  found.empty() ? report.passed(name, fmt::format("{} fields", wanted.at("fields").size()))
                : report.failed(name, found);
}

int run(const std::filesystem::path& folder) {
  ParityReport report;
  for (const auto& found : case_folders_below(folder, "errors.json")) {
    std::size_t number = 0;
    for (const Json& wanted : Json::parse(read_file(found / "errors.json"))) {
      compare(fmt::format("{}: {}", number++, wanted.at("kind").get<std::string>()), wanted, report);
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::test::explain_parity

int main_of_explain_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "explain_parity", loom::test::explain_parity::run);
}
