#include <algorithm>
#include <fmt/ranges.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/preprocess/columns.h"
#include "engine/text/preprocess/handlers.h"
#include "engine/text/preprocess/packing.h"
#include "engine/text/preprocess/tool_text.h"

namespace loom::data {
namespace {

const std::string kInput = "input";
const std::string kValue = "value";

// A text with a placeholder behind each step; the label at the i-th placeholder is the i-th reward token.
class ProcessRewardHandler : public Handler {
 public:
  explicit ProcessRewardHandler(const HandlerParts& parts) : ids_(parts.ids), rewards_(parts.options.reward_tokens) {
    TokenEncoder encoder(parts.tokenizer);
    placeholder_ = one_token(parts.options.placeholder_token, "--placeholder-token", encoder);
    for (const std::string& token : rewards_) one_token(token, "--reward-tokens", encoder);
    if (!ids_.pad) ids_.pad = ids_.eos;
    if (!parts.options.append_eod) return;
    config_error(
        "--append-eod is given, and samples of AlpacaStyleProcessRewardHandler end as their text does; take "
        "the flag out");
  }

  const std::vector<std::string>& keys() const override {
    static const std::vector<std::string> keys = {"input_ids", "labels", "attention_mask"};
    return keys;
  }
  bool is_pretrain() const override { return false; }
  const SpecialIds& special_ids() const override { return ids_; }
  void check_columns(std::span<const Record> records) const override {
    check_wanted(std::vector<WantedColumn>{{kInput, "text with placeholders"}, {kValue, "reward tokens"}}, records,
                 "AlpacaStyleProcessRewardHandler");
  }

  Converted sample_of(const Record& record, TokenEncoder& encoder) const override {
    const std::string text = text_of(record, kInput);
    const RecordJson* values = value_of(record, kValue);
    if (text.empty() || values == nullptr) return {std::nullopt, DropReason::kEmptyColumn};
    std::vector<TokenId> ids;
    encoder.encode(text, ids, {.add_special_tokens = false});
    std::vector<TokenId> labels(ids.size(), kIgnoredLabel);
    const std::vector<TokenId> rewards = rewards_of(record, *values, encoder);
    const auto steps = static_cast<std::size_t>(std::ranges::count(ids, placeholder_));
    if (steps != rewards.size()) {
      config_error("{}: column 'input' has {} placeholders, and column 'value' {} reward tokens; write one for each",
                   record.where, steps, rewards.size());
    }
    auto reward = rewards.begin();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == placeholder_) labels[i] = *reward++;
    }
    std::vector<TokenId> mask(ids.size(), 1);
    return {SampleIds{std::move(ids), std::move(labels), std::move(mask)}, std::nullopt};
  }

 private:
  static TokenId one_token(const std::string& text, const std::string& place, TokenEncoder& encoder) {
    std::vector<TokenId> ids;
    encoder.encode(text, ids, {.add_special_tokens = false});
    if (ids.size() == 1) return ids.front();
    config_error("{}: '{}' is {} tokens; use a text that is one token of the tokenizer", place, shown_text(text),
                 ids.size());
  }

  std::vector<TokenId> rewards_of(const Record& record, const RecordJson& values, TokenEncoder& encoder) const {
    if (!values.is_array()) refuse_value(record, "column 'value'", values, "use a list of reward tokens");
    std::vector<TokenId> ids;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string place = fmt::format("column 'value'[{}]", i);
      if (values[i].is_structured() || values[i].is_null()) refuse_value(record, place, values[i], "use a text");
      const std::string token = values[i].is_string() ? values[i].get<std::string>() : python_json(values[i]);
      if (!rewards_.empty() && std::ranges::find(rewards_, token) == rewards_.end()) {
        refuse_value(record, place, values[i],
                     fmt::format("--reward-tokens are {}; use one of them", fmt::join(rewards_, ", ")));
      }
      ids.push_back(one_token(token, record.where + ": " + place, encoder));
    }
    return ids;
  }

  SpecialIds ids_;
  TokenId placeholder_ = 0;
  std::vector<std::string> rewards_;
};

}  // namespace

std::unique_ptr<Handler> make_process_reward(const HandlerParts& parts) {
  return std::make_unique<ProcessRewardHandler>(parts);
}

}  // namespace loom::data
