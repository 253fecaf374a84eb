#include "engine/job/saved_arguments.h"

#include <utility>

#include "engine/job/key.h"

namespace loom::job {
namespace {

using io::PlainValue;

template <class Items, class Make>
PlainValue list_of(const Items& items, Make make) {
  if (items.empty()) return {};
  std::vector<PlainValue> values;
  for (const auto& item : items) values.push_back(make(item));
  return PlainValue::list(std::move(values));
}

struct Plain {
  PlainValue operator()(const None&) const { return {}; }
  PlainValue operator()(bool on) const { return PlainValue::boolean(on); }
  PlainValue operator()(std::int64_t number) const { return PlainValue::whole(number); }
  PlainValue operator()(double number) const { return PlainValue::real(number); }
  PlainValue operator()(const std::string& text) const { return PlainValue::text(text); }
  PlainValue operator()(const Texts& texts) const { return list_of(texts, PlainValue::text); }
  PlainValue operator()(const Numbers& numbers) const { return list_of(numbers, PlainValue::whole); }
};

PlainValue value_of(const Key& key, const Job& job) {
  const Value value = key.get(job);
  if (key.agreement == Agreement::kContent) return PlainValue::boolean(!std::holds_alternative<None>(value));
  return std::visit(Plain{}, value);
}

// Keys of DPO and SimPO set the same value.
void add_preference(train::SavedArguments& to, const objective::PreferenceOptions& preference) {
  to.push_back({"--dpo-loss-type, --simpo-loss-type", PlainValue::whole(static_cast<int>(preference.loss_type))});
  to.push_back({"--dpo-beta, --simpo-beta", PlainValue::real(preference.beta)});
  to.push_back({"--dpo-label-smoothing, --simpo-label-smoothing", PlainValue::real(preference.label_smoothing)});
  to.push_back({"--gamma-beta-ratio", PlainValue::real(preference.gamma_beta_ratio)});
  to.push_back({"--pref-ftx", PlainValue::real(preference.pref_ftx)});
}

}  // namespace

train::SavedArguments saved_arguments(const Job& job) {
  train::SavedArguments saved;
  for (const Key& key : keys()) {
    if (key.is_saved != nullptr && key.is_saved(job)) saved.push_back({std::string(key.name()), value_of(key, job)});
  }
  saved.push_back({"--data-path, weights", list_of(data::data_weights(job.data), PlainValue::text)});
  saved.push_back(
      {"--no-check-for-nan-in-loss-and-grad", PlainValue::boolean(!job.optimizer.check_for_nan_in_loss_and_grad)});
  if (job.data.is_pairwise_dataset) add_preference(saved, job.objective.preference);
  return saved;
}

}  // namespace loom::job
