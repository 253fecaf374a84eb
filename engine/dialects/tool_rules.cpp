#include "engine/dialects/tool_rules.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <limits>

#include "engine/config/document.h"
#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/dialects/native_patterns.h"
#include "engine/job/key.h"
#include "engine/objective/stage.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::dialects {
namespace {

// The last part of "model.layers.{*}" is no name of a module.
std::string_view prefix_of(std::string_view pattern) { return pattern.substr(0, pattern.find_first_of("{*?")); }

}  // namespace

void derive_hook_modules(Reading& r, std::string_view hooks, std::string_view groups) {
  const job::Texts patterns = r.texts(groups);
  const auto is_above = [&](const std::string& hook) {
    return std::ranges::any_of(patterns, [&](const auto& group) { return group.starts_with(hook + "."); });
  };
  if (std::ranges::any_of(r.texts(hooks), is_above)) set_patterns(r, "hook_modules", hooks);
}

void derive_prefetch_order(Reading& r, std::string_view groups, std::string_view forward, std::string_view backward) {
  const job::Texts patterns = r.texts(groups);
  if (patterns.size() < 2 || (r.whole(forward) == 0 && r.whole(backward) == 0)) return;
  const bool one_container = std::ranges::all_of(patterns, [&](const std::string& p) {
    return !prefix_of(p).empty() && prefix_of(p) == prefix_of(patterns.front());
  });
  if (!one_container) r.set_key("prefetch_order", "list", groups);
}

// --- Rules of several dialects

std::int64_t product(std::initializer_list<std::int64_t> degrees) {
  std::int64_t all = 1;
  for (const std::int64_t degree : degrees) {
    all = checked_multiply(all, degree).value_or(std::numeric_limits<std::int64_t>::max());
  }
  return all;
}

std::int64_t derive_ring(Reading& r, std::string_view size, std::string_view rotate) {
  const std::int64_t ranks = r.whole(size);
  if (ranks < 1) {
    r.refuse(size, "use a whole number of at least 1");
    return 1;
  }
  if (ranks == 1) return ranks;
  const std::string method = r.text(rotate);
  if (method != "allgather" && method != "alltoall") {
    r.refuse(rotate, "use allgather or alltoall");
    return ranks;
  }
  r.set_key("ring_attention_size", fmt::to_string(ranks), size);
  r.set_key("ring_rotate_method", method, rotate);
  return ranks;
}

std::optional<std::string> ring_size(const Resolved& r) { return fmt::to_string(r.config.ring_attention_size); }

std::optional<std::string> ring_rotation(const Resolved& r) {
  if (r.config.ring_attention_size == 1) return std::nullopt;
  return r.config.ring_rotate_method == sharding::RotateMethod::kAllToAll ? "alltoall" : "allgather";
}

void derive_batch(Reading& r, std::string_view micro, std::string_view accumulation, std::int64_t shared) {
  const std::int64_t ranks = r.world() / std::max<std::int64_t>(1, shared);
  const auto word = r.word_of("--micro-batch-size");
  const std::int64_t size = word ? parse_number<std::int64_t>(*word).value_or(0) : r.whole(micro);
  const std::int64_t steps = r.is_given(accumulation) ? r.whole(accumulation) : 1;
  if (steps < 1) return r.refuse(accumulation, "use a whole number of at least 1");
  constexpr std::int64_t kMost = 1'000'000'000;
  if (size < 1 || size > kMost || steps > kMost || size * steps > kMost / std::max<std::int64_t>(1, ranks))
    return;  // refused as a flag
  r.set_flag("--global-batch-size", {fmt::to_string(size * steps * ranks)}, accumulation);
}

std::optional<std::int64_t> samples_of(const Reading& r) {
  const auto prefix = r.word_of("--data-path");
  if (!prefix) return std::nullopt;
  // What preprocessing made of conversations has a pair for each key.
  for (const char* suffix :
       {".idx", "_input_ids_document.idx", "_packed_input_ids_document.idx", "_text_document.idx"}) {
    std::ifstream file(*prefix + suffix, std::ios::binary);
    char head[26] = {};
    if (!file.read(head, sizeof(head)) || std::string_view(head, 9) != std::string_view("MMIDIDX\0\0", 9)) continue;
    std::int64_t count = 0;
    for (int i = 7; i >= 0; --i) count = count << 8 | static_cast<unsigned char>(head[18 + i]);
    return count;
  }
  return std::nullopt;
}

void derive_epochs(Reading& r, std::string_view key, double epochs) {
  const auto samples = samples_of(r);
  const auto batch = r.word_of("--global-batch-size");
  if (!samples || !batch) {
    if (r.context().flag("--train-iters")) return;
    return r.miss(key, fmt::format("the steps of {} epochs follow from the data; give --train-iters N", epochs));
  }
  const std::int64_t steps_of_one =
      *samples / std::max<std::int64_t>(1, parse_number<std::int64_t>(*batch).value_or(1));
  const auto steps = static_cast<std::int64_t>(epochs) * steps_of_one;
  if (steps < 1) return r.refuse(key, fmt::format("{} samples are less than a batch of {}", *samples, *batch));
  r.set_flag("--train-iters", {fmt::to_string(steps)}, key);
  r.note(
      fmt::format("{}: {} epochs of {} samples in batches of {} are {} steps", key, epochs, *samples, *batch, steps));
}

bool names_norms_and_biases(const job::Texts& modules, const job::Texts& parameters) {
  bool norms = false, biases = false;
  for (const job::Texts* texts : {&modules, &parameters}) {
    for (const std::string& text : *texts) {
      const bool is_norm = text.find("norm") != std::string::npos || text.find("Norm") != std::string::npos;
      const bool is_bias = text.find("bias") != std::string::npos;
      if (!is_norm && !is_bias) return false;
      norms |= is_norm;
      biases |= is_bias;
    }
  }
  return norms && biases;
}

bool has_hf_weights(const std::filesystem::path& folder) {
  std::error_code none;
  if (std::filesystem::exists(folder / "model.safetensors.index.json", none)) return true;
  for (std::filesystem::directory_iterator at(folder, none), end; !none && at != end; at.increment(none)) {
    if (at->path().extension() == ".safetensors") return true;
  }
  return false;
}

void find_model_class(Reading& r, const std::string& id, const std::string& folder, std::string_view key) {
  const std::vector<std::string>& built = r.context().models.names;
  const auto is_built = [&](const std::string& name) {
    return built.empty() || std::ranges::find(built, name) != built.end();
  };
  std::string type, architecture;
  try {
    const std::filesystem::path file = model_file(folder);
    const config::Value configuration = config::parse_json(config::read_text(file, "config.json"), file.string());
    const config::Value* name = configuration.find("model_type");
    const config::Value* classes = configuration.find("architectures");
    if (name != nullptr && name->is_scalar()) type = name->scalar();
    if (classes != nullptr && !classes->items().empty()) architecture = classes->items().front().scalar();
  } catch (const ConfigError&) {
    // The model's own reader says what is wrong with it, where the job needs it.
  }
  if (!id.empty() && !type.empty() && id != type && is_built(id)) {
    r.refuse(key, fmt::format("model_type is {} in {}; write that, or remove model_id", shown_text(type),
                              shown_text(folder)));
  }
  std::string name = !id.empty() ? id : !architecture.empty() ? architecture : type;
  r.to().model_is_built = name.empty() || is_built(name) || (id.empty() && is_built(type));
  r.to().model_class = std::move(name);
}

void derive_dataset(Reading& r, std::string_view dataset, std::string_view folder, std::string_view chat_template) {
  const std::string given = r.text(dataset);
  if (r.context().flag("--data-path") || given.empty()) return;
  std::error_code none;
  for (const char* suffix : {".idx", "_input_ids_document.idx", "_packed_input_ids_document.idx"}) {
    if (std::filesystem::exists(given + suffix, none)) return r.set_flag("--data-path", {given}, dataset);
  }
  const std::string place = r.text(folder), words = r.text(chat_template);
  const auto tokenizer = r.word_of("--tokenizer-name-or-path").value_or("TOKENIZER");
  r.note(
      fmt::format("{}: training reads pairs .bin/.idx; make them with shardloom preprocess{}{} --output-prefix DATA "
                  "--tokenizer-name-or-path {}{}{}, and give --data-path DATA",
                  dataset, place.empty() ? " --input " : fmt::format(" --dataset-dir {} --input ", shown_text(place)),
                  shown_text(given), shown_text(tokenizer), words.empty() ? "" : " --prompt-type ", shown_text(words)));
}

// --- Words for writing

Said key_text(const Resolved& r, std::string_view name) {
  const sharding::Fsdp2Key& key = sharding::fsdp2_key(name);
  if (sharding::same_value(key, r.config, {})) return std::nullopt;
  return key.write(r.config);
}

int ranks_that_shard(const Resolved& r) {
  const int size = r.config.sharding_size;
  return size == sharding::Fsdp2Config::kAllRanks ? std::max(1, r.world / r.config.tensor_parallel_size) : size;
}

Said wrapped_text(const Resolved& r) {
  if (r.config.sub_modules_to_wrap.empty()) return std::nullopt;
  std::vector<sharding::WrapEntry> entries;
  for (const sharding::ModulePattern& pattern : sharding::patterns_of(r.config.sub_modules_to_wrap)) {
    entries.push_back({.modules = {pattern}, .is_one_group = false, .reshard_after_forward = std::nullopt});
  }
  return sharding::text_of(entries);
}

Said boolean_text(const Said& text) { return text == "true" || text == "false" ? text : std::nullopt; }

Said switch_text(bool on) { return on ? Said("true") : std::nullopt; }

Said loss_type_text(const Resolved& r) {
  using enum objective::LossReduction;
  if (r.job.objective.stage == objective::Stage::kOrm || r.job.objective.loss_reduction == kMicroBatch) {
    return std::nullopt;
  }
  return r.job.objective.loss_reduction == kPerSample ? "per_sample_loss" : "per_token_loss";
}

Said no_decay_text(const Resolved& r, std::string_view both, const job::Texts& names) {
  if (value_of(r, "--no-weight-decay-on-norms-and-biases") == "true") return std::string(both);
  return names.empty() ? std::nullopt : Said(yaml_text(names));
}

Said lr_scaling_text(const Resolved& r) {
  job::Texts rules;
  for (const std::string& rule : r.job.optimizer.lr_scaling_plan) {
    const std::size_t equals = rule.rfind('=');
    if (equals == rule.npos) return std::nullopt;
    rules.push_back(fmt::format("{{match: {}, scale: {}}}", yaml_text(std::string_view(rule).substr(0, equals)),
                                yaml_text(std::string_view(rule).substr(equals + 1))));
  }
  return rules.empty() ? std::nullopt : Said(fmt::format("[{}]", fmt::join(rules, ", ")));
}

Said chunked(const Resolved& r, std::string_view name) {
  return r.config.chunk_mbs_modules.empty() ? std::nullopt : key_text(r, name);
}

Said model_text(const Resolved& r) {
  if (r.job.model.init_from_hf_path) return value_of(r, "--init-from-hf-path");
  if (!r.job.model.model_config || r.job.model.model_config->filename() != "config.json") return std::nullopt;
  const auto folder = r.job.model.model_config->parent_path();
  return yaml_text(folder.empty() ? "." : folder.string());
}

Said attention_text(const Resolved& r) {
  if (r.job.kernels.fused.flash_attn) return "flash_attention_2";
  return r.job.kernels.set == train::KernelSet::kPytorch ? Said("eager") : Said("flash_attention_2");
}

Said data_text(const Resolved& r) {
  if (r.job.data.data_path.size() != 1) return std::nullopt;
  return yaml_text(r.job.data.data_path.front().string());
}

Said stage_text(const Resolved& r, const std::vector<std::pair<std::string_view, std::string_view>>& words,
                std::string_view without) {
  if (!r.job.objective.stage) return std::string(without);
  const std::string_view word = objective::row_of(r.job.objective.stage).word;
  const auto found = std::ranges::find(words, word, &std::pair<std::string_view, std::string_view>::first);
  return found == words.end() ? std::string(without) : std::string(found->second);
}

Said decay_ratio(const Resolved& r) {
  const auto& schedule = r.job.schedule;
  if (schedule.lr_decay_iters == 0) return std::nullopt;
  return fmt::to_string(static_cast<double>(schedule.lr_decay_iters) / static_cast<double>(schedule.train_iters));
}

Said accumulation_text(const Resolved& r) {
  const int shared = r.config.context_ranks() * r.config.tensor_parallel_size;
  const std::int64_t unit = std::int64_t{r.job.schedule.micro_batch_size} * r.world / shared;
  const std::int64_t batch = r.job.schedule.global_batch_size;
  if (batch == 0 || unit == 0 || batch % unit != 0) return std::nullopt;
  return fmt::to_string(batch / unit);
}

Said save_format(const Resolved& r) {
  if (!r.job.checkpoint.save) return std::nullopt;
  return r.job.checkpoint.ckpt_format_word == "hf" ? "hf" : "dcp";
}

Said of_muon(const Resolved& r, std::string_view flag) {
  return r.job.optimizer.kind == train::OptimizerKind::kMuon ? Said(value_of(r, flag)) : std::nullopt;
}

Said of_profile(const Resolved& r, std::string_view flag) {
  return r.job.profile.enabled ? Said(value_of(r, flag)) : std::nullopt;
}

}  // namespace loom::dialects
