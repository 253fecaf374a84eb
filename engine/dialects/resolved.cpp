#include "engine/dialects/resolved.h"

#include "engine/dialects/reading.h"
#include "engine/job/foreign.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::dialects {

namespace {

job::Value value_in(const job::Key& key, const Resolved& resolved) {
  const auto& schedule = resolved.job.schedule;
  if (key.name() == "--global-batch-size" && schedule.global_batch_size == 0) {
    return std::int64_t{schedule.micro_batch_size} * resolved.world / resolved.config.context_ranks();
  }
  return key.get(resolved.job);
}

// All ranks as their number.
sharding::Fsdp2Config with_size(const Resolved& resolved) {
  sharding::Fsdp2Config config = resolved.config;
  if (config.sharding_size == sharding::Fsdp2Config::kAllRanks) config.sharding_size = resolved.world;
  return config;
}

}  // namespace

job::Job unwritten_job() {
  job::Job job;
  job.kernels.fused = nn::KernelOptions::pytorch();
  return job;
}

Resolved resolve(const Translation& translation, const Context& context) {
  Resolved resolved;
  for (const Setting& setting : translation.flags) {
    const job::Key* positive = job::find_key(setting.name);
    const job::Key& key = positive != nullptr ? *positive : *job::find_key("!" + setting.name);
    if (key.kind == job::Kind::kToggle && key.outcome == job::Outcome::kBuilt) {
      key.set(resolved.job, positive != nullptr);
    } else if (key.outcome == job::Outcome::kBuilt) {
      key.set(resolved.job, job::read_value(key, setting.words));
    } else {
      resolved.job.written.foreign.emplace_back(key.name(), setting.words.empty() ? "" : setting.words.back());
    }
  }
  if (translation.config) {
    resolved.config = *translation.config;
    resolved.has_config = true;
  }
  resolved.world = context.world_given ? context.world : translation.world.value_or(context.world);
  return resolved;
}

std::vector<std::string> differences(const Resolved& one, const Resolved& other) {
  std::vector<std::string> names;
  for (const job::Key& key : job::keys()) {
    if (key.name() == "--fsdp2-config-path") continue;
    if (value_in(key, one) != value_in(key, other)) names.emplace_back(key.name());
  }
  for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) {
    if (!sharding::same_value(key, with_size(one), with_size(other))) names.emplace_back(key.name);
  }
  return names;
}

std::string value_of(const Resolved& resolved, std::string_view flag) {
  const job::Key& key = *job::find_key(flag);
  const job::Value value = key.get(resolved.job);
  if (std::holds_alternative<job::None>(value)) return "null";
  if (const auto* on = std::get_if<bool>(&value)) return *on ? "true" : "false";
  const job::Texts words = job::words_of(key, value);
  if (key.kind == job::Kind::kTexts || key.kind == job::Kind::kNumbers) return yaml_text(words);
  return words.empty() || words.front().empty() ? "null" : yaml_text(words.front());
}

}  // namespace loom::dialects
