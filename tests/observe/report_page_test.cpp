// Promise: a report is one file that asks for nothing, whatever texts it carries; where it cannot be written is said
//          before the run.
#include "engine/observe/report_page.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/observe/report_run.h"
#include "tests/support/files.h"

namespace loom::observe {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kDataBegins = R"(<script type="application/json" id="data">)";

std::string data_of(const std::string& page) {
  const std::size_t begin = page.find(kDataBegins) + kDataBegins.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(ReportPage, CarriesHostileTextAsItIs) {
  const ordered_json data{{"report", "plan"},
                          {"model", "</script><script>alert(1)</script>"},
                          {"mode", "<!-- @CHARTS@ @DATA@ & \"quotes\" 'x' \xe2\x80\xa8 \xc3\xa9"}};
  const std::string inlined = data_of(report_page(data));
  EXPECT_EQ(ordered_json::parse(inlined), data);
  EXPECT_THAT(inlined, Not(HasSubstr("<")));
  EXPECT_THAT(inlined, Not(HasSubstr("&")));
  EXPECT_TRUE(std::ranges::all_of(inlined, [](char c) { return c >= ' ' && c < 127; })) << inlined;
}

TEST(ReportPage, BytesThatAreNoTextBecomeReplacementCharacters) {
  const std::string inlined = data_of(report_page({{"model", "a\xff z"}}));
  EXPECT_EQ(ordered_json::parse(inlined).at("model"), "a\xef\xbf\xbd z");
}

TEST(ReportPage, AsksForNothingOutside) {
  const std::string page = report_page({{"report", "plan"}});
  EXPECT_THAT(page,
              HasSubstr("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"));
  for (const char* outside : {" src=", "<link", "@import", "url(", "fetch(", "XMLHttpRequest", "import("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page, HasSubstr("Chart.js v3"));
  EXPECT_THAT(page, HasSubstr("Released under the MIT License"));
}

TEST(ReportPage, AllNumbersGoThroughOneFormatter) {
  // toFixed, toPrecision and toExponential are the formatter's.
  std::size_t uses = 0;
  const std::string page = report_page({});
  const std::size_t ours = page.find("// --- Numbers and words");
  ASSERT_NE(ours, std::string::npos);
  const std::size_t elements = page.find("// --- Elements.");
  for (const char* raw : {"toFixed", "toPrecision", "toExponential", "toLocaleString"}) {
    EXPECT_EQ(page.find(raw, elements), std::string::npos) << raw;
    uses += page.find(raw, ours) != std::string::npos;
  }
  EXPECT_GT(uses, 0u);
}

TEST(ReportPath, IsMadeAndCheckedBeforeTheRun) {
  const auto folder = test::fresh_folder();
  check_report_path(folder / "new/report.html");
  EXPECT_TRUE(std::filesystem::is_empty(folder / "new"));
  write_report(folder / "new/report.html", {{"report", "plan"}});
  EXPECT_THAT(test::read_file(folder / "new/report.html"), ::testing::StartsWith("<!DOCTYPE html>"));

  EXPECT_EQ(test::message_of<ConfigError>([&] { check_report_path(folder / "new"); }),
            "--report: cannot write " + (folder / "new").string() + ": Is a directory; give the path of a file");
  EXPECT_EQ(test::message_of<ConfigError>([&] { check_report_path(folder / "new/report.html/deeper.html"); }),
            "--report: cannot write " + (folder / "new/report.html/deeper.html").string() +
                ": Not a directory; give the path of a file");
}

// --- The steps of a long run

TEST(ThinnedSteps, KeepEveryNthTheLastAndEvaluations) {
  std::vector<ordered_json> lines;
  for (int step = 1; step <= 20; ++step) lines.push_back({{"step", step}});
  lines[10]["held_out_loss"] = 1.5;
  std::vector<int> kept;
  for (const ordered_json& line : thinned_steps(lines, 5)) kept.push_back(line.at("step"));
  EXPECT_THAT(kept, ::testing::ElementsAre(1, 5, 9, 11, 13, 17, 20));
  EXPECT_EQ(thinned_steps(lines, 20).size(), 20u);
}

}  // namespace
}  // namespace loom::observe
