#include "engine/dialects/dialect.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/dialects/row.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::dialects {
namespace {

using config::Value;

struct Names {
  Dialect dialect;
  std::string_view word;
  std::string_view title;
};
constexpr Names kNames[] = {{Dialect::kFlat, "flat", "fsdp2_config.yaml"},
                            {Dialect::kNative, "native", "MindSpeed-MM (six sections)"},
                            {Dialect::kLlm, "llm", "MindSpeed-LLM (train_fsdp2.py)"},
                            {Dialect::kGptArgs, "gpt_args", "MindSpeed-MM (gpt_args)"},
                            {Dialect::kAccelerate, "accelerate", "accelerate"},
                            {Dialect::kTransformers, "transformers", "transformers (fsdp_config)"},
                            {Dialect::kDeepSpeed, "deepspeed", "DeepSpeed"},
                            {Dialect::kTorchtitan, "torchtitan", "torchtitan"}};

const Names& names_of(Dialect dialect) { return *std::ranges::find(kNames, dialect, &Names::dialect); }

// The first member, at most two levels down, whose dotted key is one of `keys`; "x.*" is any key of x.
const Value* first_of(const Value& file, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const std::size_t dot = key.find('.');
    const Value* found = file.find(key.substr(0, dot));
    if (found != nullptr && dot != std::string_view::npos) found = found->find(key.substr(dot + 1));
    if (found != nullptr) return found;
  }
  return nullptr;
}

bool has_all(const Value& file, std::initializer_list<std::string_view> keys) {
  return std::ranges::all_of(keys, [&](auto key) { return file.find(key) != nullptr; });
}

bool is_flat_key(const std::string& key) {
  if (is_fsdp2_key(key)) return true;
  std::string flag = "--" + key;
  std::ranges::replace(flag, '_', '-');
  return job::find_key(flag) != nullptr;
}

// A key of transformers, with or without its prefix.
bool is_fsdp_config_key(std::string_view key) {
  if (key.starts_with("fsdp_")) key.remove_prefix(5);
  return std::ranges::find(transformers_table().rows, key, &Row::key) != transformers_table().rows.end();
}

bool is_fsdp_config(const Value& file) {
  if (first_of(file, {"sharding_size", "fsdp_config", "distributed_type", "compute_environment"}) != nullptr)
    return false;
  const bool has_own =
      first_of(file, {"fsdp_version", "auto_wrap_policy", "fsdp_auto_wrap_policy", "transformer_layer_cls_to_wrap",
                      "fsdp_transformer_layer_cls_to_wrap"}) != nullptr;
  if (has_own) return true;
  const bool all = std::ranges::all_of(file.items(), [](const Value& v) { return is_fsdp_config_key(v.key()); });
  return all &&
         first_of(file, {"version", "activation_checkpointing", "fsdp_activation_checkpointing", "fsdp"}) != nullptr;
}

struct Sign {
  Dialect dialect;
  const Value* key;
};

// Signs of the dialects that have sections: what only one of the two has. `training` decides where nothing else does.
const Value* sign_of_llm(const Value& file) {
  return first_of(file, {"optimization", "parallel.fsdp_size", "parallel.fsdp_modules", "parallel.ep_size",
                         "parallel.cp_size", "parallel.tp_size", "parallel.cp_type", "parallel.fsdp_implementation"});
}
const Value* sign_of_native(const Value& file) {
  return first_of(file, {"parallel.fsdp_plan", "parallel.fully_shard_parallel_size", "features", "tools"});
}
const Value* training_of_llm(const Value& file) {
  return first_of(file, {"training.output_dir", "training.per_device_train_batch_size", "training.max_steps",
                         "training.num_train_epochs", "training.stage"});
}
const Value* training_of_native(const Value& file) {
  return first_of(file, {"training.train_iters", "training.micro_batch_size", "data.dataset_param"});
}

void refuse_two(const Value& one, Dialect first, const Value& other, Dialect second) {
  config_error("{}: '{}' is a key of {}, and '{}' at line {} is a key of {}; keep one of the two dialects in a file",
               other.place().key.text(), other.path(), title_of(second), one.path(), one.place().key.line,
               title_of(first));
}

void refuse_formats(const Value& file) {
  const Value* fsdp = file.find("fsdp_config");
  const Value* axolotl = first_of(file, {"base_model", "fsdp_version"});
  if (fsdp != nullptr && axolotl != nullptr) {
    config_error(
        "{}: '{}' beside fsdp_config is a key of axolotl, whose files are not read; write the accelerate file it makes",
        axolotl->place().key.text(), axolotl->key());
  }
  if (const Value* factory = first_of(file, {"finetuning_type", "cutoff_len"})) {
    config_error(
        "{}: '{}' is a key of LLaMA-Factory, whose files are not read; give the file of accelerate or DeepSpeed that it "
        "starts with, and flags of shardloom train",
        factory->place().key.text(), factory->key());
  }
}

void refuse_layer_zero(const Value& file) {
  const Value* key = first_of(file, {"zero3_size", "transformer_layers", "limit_all_gathers"});
  if (key == nullptr) return;
  config_error(
      "{}: '{}' is a key of MindSpeed's LayerZeRO (FSDP1), which is not built; write sharding_size in the place of "
      "zero3_size, and sub_modules_to_wrap in that of transformer_layers",
      key->place().key.text(), key->key());
}

std::optional<Sign> first_sign(const Value& file, bool is_json) {
  const auto sign = [&](Dialect dialect, std::initializer_list<std::string_view> keys) {
    const Value* key = first_of(file, keys);
    return key == nullptr ? std::nullopt : std::optional(Sign{dialect, key});
  };
  if (is_json) {
    auto found = sign(Dialect::kDeepSpeed, {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"});
    if (found) return found;
  }
  if (auto found = sign(Dialect::kGptArgs, {"gpt_args"})) return found;
  if (auto found = sign(Dialect::kAccelerate, {"distributed_type"})) return found;
  if (has_all(file, {"compute_environment"})) {
    if (auto found = sign(Dialect::kAccelerate, {"fsdp_config", "parallelism_config"})) return found;
  }
  refuse_formats(file);
  return std::nullopt;
}

}  // namespace

std::string_view word_of(Dialect dialect) { return names_of(dialect).word; }
std::string_view title_of(Dialect dialect) { return names_of(dialect).title; }

std::optional<Dialect> dialect_of(std::string_view word) {
  const auto* const found = std::ranges::find(kNames, word, &Names::word);
  return found == std::end(kNames) ? std::nullopt : std::optional(found->dialect);
}

bool is_fsdp2_key(std::string_view key) {
  return std::ranges::any_of(sharding::fsdp2_keys(),
                             [&](const sharding::Fsdp2Key& known) { return known.name == key; });
}

bool has_sign(const Value& file, bool is_json) {
  if (is_fsdp_config(file)) return true;
  if (std::ranges::any_of(file.items(), [](const Value& member) { return is_fsdp2_key(member.key()); })) return false;
  refuse_layer_zero(file);
  return first_sign(file, is_json) || sign_of_llm(file) != nullptr || sign_of_native(file) != nullptr ||
         training_of_llm(file) != nullptr || training_of_native(file) != nullptr;
}

Dialect recognise(const Value& file, bool is_json) {
  const Value* llm = sign_of_llm(file);
  const Value* native = sign_of_native(file);
  if (llm == nullptr && native == nullptr) {
    llm = training_of_llm(file);
    native = training_of_native(file);
  }
  if (const auto sign = first_sign(file, is_json)) {
    const bool has_sections = sign->dialect != Dialect::kGptArgs && (llm != nullptr || native != nullptr);
    if (has_sections) {
      refuse_two(*sign->key, sign->dialect, llm != nullptr ? *llm : *native,
                 llm != nullptr ? Dialect::kLlm : Dialect::kNative);
    }
    return sign->dialect;
  }
  if (llm != nullptr && native != nullptr) refuse_two(*llm, Dialect::kLlm, *native, Dialect::kNative);
  if (llm != nullptr) return Dialect::kLlm;
  if (native != nullptr) return Dialect::kNative;
  if (is_fsdp_config(file)) return Dialect::kTransformers;
  refuse_layer_zero(file);
  if (std::ranges::any_of(file.items(), [](const Value& v) { return is_flat_key(v.key()); })) return Dialect::kFlat;
  for (const std::string_view section : {"parallel", "model", "data", "training"}) {
    if (file.find(section) != nullptr) return Dialect::kNative;
  }
  std::vector<std::string_view> titles;
  for (const Names& names : kNames) titles.push_back(names.title);
  const Value& first = file.items().front();
  config_error("{}: '{}' is a key of no dialect that is read; these are {}", first.place().key.text(),
               shown_text(first.key()), fmt::join(titles, ", "));
}

}  // namespace loom::dialects
