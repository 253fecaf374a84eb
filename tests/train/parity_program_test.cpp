// Promise: a reference program fails a case with a key that it does not use, naming file and key, and skips the ranks
//          that a case does not divide by, by their number.
// World:   the built programs on copies of reference cases, changed by a key.
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <string>
#include <sys/wait.h>
#include <utility>

#include "tests/support/files.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A folder FAMILY/case whose curve.json is that of `from`, changed; its base stands beside the family.
fs::path changed_case(const std::string& family, const std::string& from,
                      const std::function<void(nlohmann::json&)>& change) {
  const fs::path references = fs::path(LOOM_SOURCE_DIR) / "tests/reference";
  const fs::path folder = fresh_folder();
  fs::create_directories(folder / family);
  fs::create_directory_symlink(references / "training", folder / "training");
  fs::copy(references / family / from, folder / family / "case");
  nlohmann::json curve = nlohmann::json::parse(read_file(folder / family / "case/curve.json"));
  change(curve);
  write_file(folder / family / "case/curve.json", curve.dump());
  return folder / family;
}

// Exit status and output of the program on the folder.
std::pair<int, std::string> run(const std::string& program, const fs::path& folder) {
  const fs::path out = folder.parent_path() / "out.txt";
  const int status =
      std::system(fmt::format("timeout 240 '{}' '{}' > '{}' 2>&1", program, folder.string(), out.string()).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out)};
}

TEST(AReferenceProgram, FailsACaseWithAKeyThatItDoesNotUse) {
  const fs::path folder = changed_case("optim", "sgd_momentum", [](nlohmann::json& curve) {
    curve["scenario"]["optimizer"]["maximize"] = true;
    curve["curve"][4]["momentum"] = 0.5;
  });
  const auto [status, out] = run(OPTIMIZER_PARITY, folder);
  EXPECT_EQ(status, 1);
  for (const char* ranks : {"1 rank", "2 ranks", "4 ranks"}) {
    EXPECT_THAT(out,
                HasSubstr(fmt::format("case, {}: FAILED, curve.json: this program does not use 'curve[].momentum', "
                                      "'scenario.optimizer.maximize'\n",
                                      ranks)));
  }
  EXPECT_THAT(out, HasSubstr("0 passed, 3 failed, 0 skipped\n"));
}

TEST(AReferenceProgram, FailsACaseOnLogitsWithAKeyThatItDoesNotUse) {
  const fs::path folder = fresh_folder();
  fs::create_directories(folder / "moe");
  fs::copy(fs::path(LOOM_SOURCE_DIR) / "tests/reference/moe/routing", folder / "moe/routing");
  const fs::path file = folder / "moe/routing/case.json";
  nlohmann::json cases = nlohmann::json::parse(read_file(file));
  cases["cases"][2]["base"] = 2;
  write_file(file, cases.dump());
  const auto [status, out] = run(MOE_PARITY, folder / "moe");
  EXPECT_EQ(status, 1);
  EXPECT_THAT(out, HasSubstr("routing/2 z_loss: FAILED, case.json: this program does not use 'base'\n"));
  EXPECT_THAT(out, HasSubstr("7 passed, 1 failed, 0 skipped\n"));
}

// The folder pipelines with one case of orders, changed.
std::pair<int, std::string> run_changed_order(const std::function<void(nlohmann::json&)>& change) {
  const fs::path from =
      fs::path(LOOM_SOURCE_DIR) / "tests/reference/pipelines/orders/torch_interleaved_1f1b_p2v2m4.json";
  nlohmann::json order = nlohmann::json::parse(read_file(from));
  change(order);
  const fs::path folder = fresh_folder() / "pipelines";
  write_file(folder / "orders/case.json", order.dump());
  return run(PIPELINE_PARITY, folder);
}

TEST(AReferenceProgram, FailsAnOrderWithATokenOrAFigureThatDiffers) {
  const auto [tokens, of_tokens] = run_changed_order([](auto& order) { order["order"][1] = "1F0 1F1 3F0 3F1"; });
  EXPECT_EQ(tokens, 1);
  EXPECT_THAT(of_tokens, HasSubstr("case: FAILED, order of rank 1: token 3 is 3B0, not 3F1\n"));
  const auto [figure, of_figure] = run_changed_order([](auto& order) { order["expect"]["bubble"] = 0.1; });
  EXPECT_EQ(figure, 1);
  EXPECT_THAT(of_figure, HasSubstr("case: FAILED, expect bubble is 0.1111"));
}

TEST(AReferenceProgram, FailsAnOrderWithAKeyThatItDoesNotUse) {
  const auto [status, out] = run_changed_order([](nlohmann::json& order) {
    order["options"]["swap"] = true;
    order["expect"]["lowered"]["bytes"] = 1;
  });
  EXPECT_EQ(status, 1);
  EXPECT_THAT(out, HasSubstr("case: FAILED, case.json: this program does not use 'expect.lowered.bytes', "
                             "'options.swap'\n0 passed, 1 failed, 0 skipped\n"));
}

TEST(AReferenceProgram, FailsAnOrderThatItsReferenceRefuses) {
  const auto [status, out] = run_changed_order([](nlohmann::json& order) { order["refused"] = "too short"; });
  EXPECT_EQ(status, 1);
  EXPECT_THAT(out, HasSubstr("case: FAILED, it is accepted, and the reference refuses it\n"));
}

// Two ranks would have one and a half pairs each.
TEST(AReferenceProgram, SkipsTheRanksThatACaseDoesNotDivideBy) {
  const fs::path folder = changed_case("posttrain", "simpo", [](nlohmann::json& curve) { curve["pairs"] = 3; });
  const auto [status, out] = run(POSTTRAIN_PARITY, folder);
  EXPECT_EQ(status, 1);
  for (const char* grain : {"fast", "pytorch"}) {
    for (const int ranks : {2, 4}) {
      EXPECT_THAT(out, HasSubstr(fmt::format("case {} {} ranks: skipped, its 3 pairs do not divide by {} ranks\n",
                                             grain, ranks, ranks)));
    }
  }
  EXPECT_THAT(out, ::testing::Not(HasSubstr("internal")));
}

}  // namespace
}  // namespace loom::test
