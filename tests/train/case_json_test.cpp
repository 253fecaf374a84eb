// Promise: of a reference case every value has to be read; what was not is named with its file, once for each pattern,
//          but for commentary.
#include "tests/support/case_json.h"

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace loom::test {
namespace {

CaseJson file_of(std::string_view text) { return {nlohmann::json::parse(text), "curve.json"}; }

TEST(CaseJson, NamesTheKeysThatWereNotRead) {
  const CaseJson file = file_of(R"({"optimizer": {"lr": 0.1, "dampening": 0.5, "betas": [0.9, 0.95]},
                                    "curve": [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]})");
  const double lr = file.at("optimizer").at("lr");
  EXPECT_EQ(lr, 0.1);
  EXPECT_EQ(file.at("optimizer").at("betas").at(0).get<double>(), 0.9);
  for (const CaseJson& step : file.at("curve").elements()) EXPECT_GT(step.at("loss").get<double>(), 0);
  EXPECT_EQ(file.unread(),
            "curve.json: this program does not use 'curve[].step', 'optimizer.betas[]', 'optimizer.dampening'");
  check_steps(file.at("curve"));
  EXPECT_EQ(file.unread({"betas"}), "curve.json: this program does not use 'optimizer.dampening'");
  EXPECT_EQ(message_of<std::runtime_error>([&] { file.check_all_read({"betas"}); }), file.unread({"betas"}));
  EXPECT_EQ(file.at("optimizer").value("dampening", 0.0), 0.5);
  EXPECT_EQ(file.unread({"betas"}), "");
}

TEST(CaseJson, ToLookForAKeyIsNotToReadIt) {
  const CaseJson file = file_of(R"({"schedule": {"style": "WSD"}, "empty": {}, "none": null, "what": "words"})");
  EXPECT_TRUE(file.contains("schedule"));
  EXPECT_EQ(file.at("schedule").size(), 1U);
  EXPECT_EQ(file.at("schedule").dump(), R"({"style":"WSD"})");
  EXPECT_EQ(file.value("missing", 7), 7);
  EXPECT_EQ(file.unread(), "curve.json: this program does not use 'none', 'schedule.style'");
  EXPECT_TRUE(file.at("none").is_null());
  EXPECT_TRUE(file.at("schedule").at("style") == "WSD");
  EXPECT_EQ(file.unread(), "");
}

TEST(CaseJson, AConvertedValueIsReadAsAWhole) {
  const CaseJson file = file_of(R"({"prompt": [1, 2, 3], "yaml": {"a": 1, "b": [2]}})");
  EXPECT_EQ(file.at("prompt").get<std::vector<int>>(), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(file.at("yaml").raw().size(), 2U);
  EXPECT_EQ(file.unread(), "");
}

TEST(CaseJson, ACurveHasEveryStepFromTheFirstOn) {
  EXPECT_EQ(message_of<std::runtime_error>([] { check_steps(file_of(R"([{"step": 1}, {"step": 3}])")); }),
            "entry 2 of the curve is of step 3; it has to have every step from 1 on");
}

}  // namespace
}  // namespace loom::test
