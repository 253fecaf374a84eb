// Promise: --untie-embeddings-and-output-weights gives the output layer a parameter of its own, and both find the
//          stored weights.
// World:   no rank; parameters on the meta device; a folder with one tensor.
#include "models/hf/untie.h"

#include <gmock/gmock.h>

#include "engine/nn/layers.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using ::testing::IsEmpty;

class Holder final : public nn::Module {
 public:
  std::string_view type_name() const override { return "Holder"; }
  nn::ParamSlot& tie(const std::string& name, const nn::ParamSlot& other) { return register_tied(name, other); }
  template <class M>
  M& add(const std::string& name, std::shared_ptr<M> child) {
    return register_module(name, std::move(child));
  }

 protected:
  nn::Value forward(const nn::Args&) override { return {}; }
};

io::HfWeights weights_with(const std::string& name) {
  const auto folder = test::fresh_folder();
  const std::string header = "{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}";
  test::write_file(folder / "model.safetensors", test::safetensors_header(header) + std::string(8, '\0'));
  return io::HfWeights(folder);
}

TEST(Untie, SeparatesWhatIsTiedToAnEmbedding) {
  Holder model;
  auto& embed = model.add("embed", std::make_shared<nn::Embedding>(8, 4, 0.5));
  auto& head = model.add("lm_head", std::make_shared<Holder>());
  nn::ParamSlot& weight = head.tie("weight", embed.weight);
  embed.weight.value.set_requires_grad(true);
  const auto untied = untie_embeddings_and_output_weights(model);
  ASSERT_EQ(untied.size(), 1u);
  EXPECT_EQ(untied[0].path, "lm_head.weight");
  EXPECT_EQ(untied[0].tied_path, "embed.weight");
  EXPECT_FALSE(weight.value.is_same(embed.weight.value));
  EXPECT_EQ(weight.value.shape(), (Shape{8, 4}));
  EXPECT_TRUE(weight.value.is_meta());
  EXPECT_TRUE(weight.value.requires_grad());
  EXPECT_THAT(untie_embeddings_and_output_weights(model), IsEmpty());
}

TEST(Untie, LeavesOtherTies) {
  Holder model;
  auto& first = model.add("first", std::make_shared<nn::Linear>(4, 4, false, 0.5));
  auto& second = model.add("second", std::make_shared<Holder>());
  nn::ParamSlot& weight = second.tie("weight", first.weight);
  EXPECT_THAT(untie_embeddings_and_output_weights(model), IsEmpty());
  EXPECT_TRUE(weight.value.is_same(first.weight.value));
}

TEST(Untie, OneStoredTensorServesBoth) {
  const Untied tie{"lm_head.weight", "model.embed.weight"};
  for (const char* stored : {"model.embed.weight", "embed.weight"}) {
    io::HfWeights weights = weights_with(stored);
    share_stored(weights, tie);
    EXPECT_EQ(weights.find("lm_head.weight"), weights.find(stored)) << stored;
  }
  io::HfWeights head_only = weights_with("lm_head.weight");
  share_stored(head_only, tie);
  EXPECT_EQ(head_only.find("model.embed.weight"), head_only.find("lm_head.weight"));
}

TEST(Untie, WhereNothingIsStoredNothingIsShared) {
  io::HfWeights weights = weights_with("other");
  share_stored(weights, {"lm_head.weight", "model.embed.weight"});
  EXPECT_EQ(weights.names(), std::vector<std::string>{"other"});
}

}  // namespace
}  // namespace loom::models
