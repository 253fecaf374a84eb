#include "models/decoder/reward_model.h"

#include "engine/core/error.h"
#include "engine/io/json_text.h"
#include "engine/nn/layers.h"
#include "models/mixin/new_parameters.h"
#include "sharding/tensor/tensor_plan.h"

namespace loom::models {
namespace {

using nn::Value;

constexpr std::string_view kCausalEndings[] = {"ForCausalLM", "LMHeadModel"};
constexpr std::string_view kRewardEnding = "ForSequenceClassification";

std::string reward_class(std::string_view causal) {
  for (const std::string_view ending : kCausalEndings) {
    if (causal.ends_with(ending)) causal.remove_suffix(ending.size());
  }
  if (causal.ends_with(kRewardEnding)) return std::string(causal);
  return std::string(causal).append(kRewardEnding);
}

class RewardModel final : public nn::Module, public NewParameters {
 public:
  RewardModel(std::string type_name, const std::string& body_name, std::shared_ptr<nn::Module> body,
              std::int64_t hidden_size, double init_std)
      : type_name_(std::move(type_name)),
        body_(register_module(body_name, std::move(body))),
        score_(
            register_module(std::string(kRewardHead), std::make_shared<nn::Linear>(hidden_size, 1, false, init_std))) {}
  std::string_view type_name() const override { return type_name_; }

  void init_new_parameters(std::uint64_t seed, const nn::KeptValues& kept) override {
    for (auto& [path, slot] : named_slots()) {
      if (path == kRewardHeadWeight && !kept.contains(slot->value.id())) {
        nn::write_normal(*slot, path, seed, slot->init.std);
      }
    }
  }

 protected:
  Value forward(const nn::Args& args) override { return score_(body_->call(args)); }

 private:
  const std::string type_name_;
  nn::Child<nn::Module> body_;
  nn::Child<nn::Module> score_;
};

}  // namespace

std::shared_ptr<nn::Module> make_reward_model(const std::shared_ptr<nn::Module>& causal) {
  const auto& parts = causal->children();
  const bool has_head = parts.size() == 2 && parts[1].first == "lm_head";
  if (!has_head) {
    config_error(
        "{} is not a decoder with an output layer, which the head of a reward model replaces; use one of the families "
        "Qwen2, Qwen3, Llama and GPT-2",
        causal->type_name());
  }
  nn::ParamSlot* weight = nullptr;
  for (auto& [path, slot] : parts[1].second->named_slots()) {
    if (path == "weight") weight = slot;
  }
  require(weight != nullptr, "an output layer without weight");
  auto model = std::make_shared<RewardModel>(reward_class(causal->type_name()), parts[0].first, parts[0].second,
                                             weight->shard.global_shape[1], weight->init.std);
  if (const auto plan = causal->attachment<sharding::TensorPlan>()) {
    auto own = std::make_shared<sharding::TensorPlan>(*plan);
    own->output.clear();
    own->head = kRewardHead;
    model->attach(std::move(own));
  }
  return model;
}

bool is_reward_model(const nn::Module& model) { return dynamic_cast<const RewardModel*>(&model) != nullptr; }

std::string reward_config(const std::string& config_json, std::optional<std::int64_t> pad_token_id) {
  auto config = io::parse_ordered_json(config_json, "config.json");
  auto& names = config["architectures"];
  if (names.is_array() && !names.empty() && names[0].is_string()) names[0] = reward_class(names[0].get<std::string>());
  config["id2label"] = {{"0", "LABEL_0"}};
  config["label2id"] = {{"LABEL_0", 0}};
  const bool names_pad = config.contains("pad_token_id") && !config["pad_token_id"].is_null();
  if (!names_pad && pad_token_id) config["pad_token_id"] = *pad_token_id;
  return config.dump(2) + "\n";
}

}  // namespace loom::models
