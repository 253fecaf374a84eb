// Promise: ignored_modules of transformers' files is a regular expression of whole paths.
// World:   a decoder of two layers. Compiled with LOOM_TEXT, which has regular expressions.
#include "tests/dialects/models.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

Asked with_model(Asked asked = {}) {
  asked.flags["--model-config"] = (qwen3_folder() / "config.json").string();
  return asked;
}

TEST(Transformers, IgnoredModulesAreARegularExpression) {
  const Asked asked = with_model({.file = "f.json"});
  EXPECT_EQ(
      key_in(read(R"({"version": 2, "ignored_modules": ".*norm"})", asked), "ignored_modules"),
      "[model.layers.0.self_attn.q_norm, model.layers.0.self_attn.k_norm, model.layers.0.input_layernorm, "
      "model.layers.0.post_attention_layernorm, model.layers.1.self_attn.q_norm, model.layers.1.self_attn.k_norm, "
      "model.layers.1.input_layernorm, model.layers.1.post_attention_layernorm, model.norm]");
}

}  // namespace
}  // namespace loom::dialects
