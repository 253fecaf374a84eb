// Promise: a model is found by model_id, then architectures[0], then model_type; where none leads to one, the error
//          lists what there is.
// World:   hubs of the test's own; the library's global one.
#include "models/hub/model_hub.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/models/own_models.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

class Named final : public nn::Module {
 public:
  explicit Named(std::string name) : name_(std::move(name)) {}
  std::string_view type_name() const override { return name_; }

 protected:
  nn::Value forward(const nn::Args& args) override { return args.tensor(0); }

 private:
  const std::string name_;
};

ModelHub::Builder named(const std::string& name) {
  return [name](const ConfigReader&) { return std::make_shared<Named>(name); };
}

ModelHub hub_of(const std::vector<std::string>& names) {
  ModelHub hub;
  for (const std::string& name : names) hub.add({name}, named(name));
  return hub;
}

ConfigReader json(const std::string& text) { return ConfigReader::from_json(text, "config.json"); }

std::string found(const ModelHub& hub, const std::string& text) {
  return std::string(hub.build(json(text))->type_name());
}

TEST(ModelHub, LooksUpInOrder) {
  const ModelHub hub = hub_of({"by_id", "ByArchitecture", "by_type"});
  EXPECT_EQ(found(hub, R"({"model_id": "by_id", "architectures": ["ByArchitecture"], "model_type": "by_type"})"),
            "by_id");
  EXPECT_EQ(found(hub, R"({"architectures": ["ByArchitecture", "Other"], "model_type": "by_type"})"), "ByArchitecture");
  EXPECT_EQ(found(hub, R"({"architectures": ["Other"], "model_type": "by_type"})"), "by_type");
  EXPECT_EQ(found(hub, R"({"model_type": "by_type"})"), "by_type");
}

TEST(ModelHub, ListsWhatIsRegisteredWhenNothingIsFound) {
  const ModelHub hub = hub_of({"my_model", "MyModelForCausalLM"});
  const auto refusal = [&](const std::string& text) {
    return test::message_of<ConfigError>([&] { hub.build(json(text)); });
  };
  EXPECT_EQ(refusal(R"({"model_id": "my_mode", "model_type": "my_model"})"),
            "config.json: load model from config failed: model_id 'my_mode' is not registered; registered are "
            "MyModelForCausalLM, my_model; did you mean 'my_model'?");
  EXPECT_EQ(refusal(R"({"architectures": ["MyModelForCausalLn"], "model_type": "other"})"),
            "config.json: load model from config failed: architectures[0] 'MyModelForCausalLn' and model_type 'other' "
            "are not registered; registered are MyModelForCausalLM, my_model; did you mean 'MyModelForCausalLM'?");
  EXPECT_EQ(refusal(R"({"model_type": "quite_another_thing"})"),
            "config.json: load model from config failed: model_type 'quite_another_thing' is not registered; "
            "registered are MyModelForCausalLM, my_model");
  EXPECT_EQ(refusal("{}"),
            "config.json: load model from config failed: none of model_id, architectures and model_type is given; "
            "registered are MyModelForCausalLM, my_model");
}

TEST(ModelHub, RefusesANameThatIsRegisteredTwice) {
  const ModelHub hub = hub_of({"my_model", "my_model"});
  EXPECT_EQ(test::message_of<ConfigError>([&] { hub.build(json(R"({"model_type": "my_model"})")); }),
            "config.json: load model from config failed: 'my_model' is registered 2 times; give each model a name of "
            "its own");
}

TEST(ModelHub, BuildersReadTheWholeConfiguration) {
  ModelHub hub;
  hub.add({"own"}, [](const ConfigReader& config) {
    auto model = std::make_shared<test::OwnModel>(static_cast<int>(config.count("num_layers")));
    config.refuse_unread();
    return model;
  });
  const auto folder = test::fresh_folder();
  const auto right = test::write_file(folder / "right.yaml", "model_id: own\nnum_layers: 2\n");
  EXPECT_NE(hub.build(right)->find("layers.1"), nullptr);
  const auto wrong = test::write_file(folder / "wrong.yaml", "model_id: own\nnum_layers: 2\nlayer: 3\n");
  EXPECT_THAT(test::message_of<ConfigError>([&] { hub.build(wrong); }),
              ::testing::StartsWith(wrong.string() + ":3:1: unknown key 'layer'"));
}

// One line beside a model; the order in which files are initialised does not matter.
const RegisterModel kOwnModel({"own_model_of_this_test"}, named("OwnModelOfThisTest"));

TEST(GlobalHub, HoldsTheLibrarysModelsAndTheUsers) {
  EXPECT_THAT(ModelHub::global().names(),
              IsSupersetOf({"GPT2LMHeadModel", "InternVLChatModel", "InternVLForConditionalGeneration",
                            "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "gpt2",
                            "internvl", "llama", "own_model_of_this_test", "qwen2", "qwen3", "qwen3_moe"}));
  EXPECT_EQ(found(ModelHub::global(), R"({"model_id": "own_model_of_this_test"})"), "OwnModelOfThisTest");
}

TEST(GlobalHub, BuildsAHuggingFaceFolder) {
  const auto folder = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits/qwen2";
  EXPECT_EQ(ModelHub::global().build(folder)->type_name(), "Qwen2ForCausalLM");
}

}  // namespace
}  // namespace loom::models
