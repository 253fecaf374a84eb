// Promise: a program that registers a model of its own plans it by name, with the commands of shardloom.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/cli/program.h"
#include "engine/nn/layers.h"
#include "models/hub/model_hub.h"
#include "tests/support/files.h"

namespace loom::cli {
namespace {

class Twin final : public nn::Module {
 public:
  explicit Twin(std::int64_t hidden) {
    register_module("embed", std::make_shared<nn::Embedding>(64, hidden, 0.02));
    register_module("head", std::make_shared<nn::Linear>(hidden, 64, false, 0.02));
  }
  std::string_view type_name() const override { return "Twin"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return (*find("head"))((*find("embed"))(args.tensor(0))); }
};

const models::RegisterModel kRegistered({"registered_here"}, [](const models::ConfigReader& config) {
  return std::make_shared<Twin>(config.count("hidden_size"));
});

TEST(ProgramMain, PlansAModelThatThisProgramRegistered) {
  const std::filesystem::path folder = test::fresh_folder();
  const std::string model = test::write_file(folder / "twin.yaml", "model_id: registered_here\nhidden_size: 32\n");
  const std::string fsdp2 =
      test::write_file(folder / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, head]\n");
  const std::string json = folder / "plan.json";
  const std::vector<const char*> words{"mine",
                                       "plan",
                                       "--model-config",
                                       model.c_str(),
                                       "--device",
                                       "h200",
                                       "--use-torch-fsdp2",
                                       "--fsdp2-config-path",
                                       fsdp2.c_str(),
                                       "--world-size",
                                       "512",
                                       "--json",
                                       json.c_str()};
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(program_main(static_cast<int>(words.size()), words.data()), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              ::testing::StartsWith("Twin of 4.096 K parameters on 512 x h200"));
  const auto plan = nlohmann::json::parse(test::read_file(json));
  EXPECT_EQ(plan["parameters"], 2 * 64 * 32);
  EXPECT_EQ(plan["mode"], "1 x 512: shards over 512, replicates over 1");
}

TEST(ProgramMain, EndsWithTwoForACommandThatIsNone) {
  const char* const words[] = {"mine", "plann"};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(program_main(2, words), 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "shardloom: 'plann' is not a command; did you mean plan?\n");
}

}  // namespace
}  // namespace loom::cli
