#include <algorithm>
#include <fmt/core.h>
#include <map>
#include <optional>
#include <set>

#include "engine/checkpoint/manifest_check.h"
#include "engine/convert/convert.h"
#include "engine/convert/dcp/names.h"
#include "engine/convert/find_checkpoint.h"
#include "engine/convert/hf/adapters.h"
#include "engine/convert/hf/assets.h"
#include "engine/convert/hf/hf_output.h"
#include "engine/convert/tensor_compare.h"
#include "engine/convert/whole_folder.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/output_plan.h"
#include "models/decoder/expert_weights.h"
#include "models/hf/folder_files.h"
#include "models/hf/published_names.h"
#include "models/lora/adapter_folder.h"

namespace loom::checkpoint {
namespace {

bool is_equal(const SourceTensor& a, const SourceTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && compare(a, b).elements == 0;
}

// The names of the folder's weights.
models::PublishedNames published_names(const Assets& assets) {
  if (assets.names()) return models::published_names_in(*assets.names());
  const models::PublishedNames names = models::published_names_of_type(assets.model_type());
  // A folder without names gets Mixtral's experts as the model holds them.
  return names == models::PublishedNames::kMixtral ? models::PublishedNames::kPaths : names;
}

using Tie = std::pair<std::string, std::string>;  // target, source

// The user's, by names of the checkpoint.
std::vector<Tie> ties_of(const DcpToHf& options) {
  std::vector<Tie> ties;
  for (const auto& [target, source] : options.ties) {
    ties.emplace_back(options.names.to_dcp(target), options.names.to_dcp(source));
  }
  return ties;
}

// The output layer and the embedding, which may be one tensor; none where config.json says that they are not.
std::optional<Tie> embedding_tie(const DcpToHf& options, const Assets& assets, const TensorList& model) {
  if (assets.ties_embeddings() == false) return std::nullopt;
  std::set<std::string> heads;
  std::set<std::string> embeddings;
  const auto look = [&](const std::string& name) {
    if (name.ends_with("lm_head.weight")) heads.insert(name);
    if (name.ends_with("embed_tokens.weight") || name.ends_with("wte.weight")) embeddings.insert(name);
  };
  for (const SourceTensor& tensor : model.tensors()) look(tensor.name);
  if (assets.names()) {
    for (const std::string& name : *assets.names()) {
      look(options.names.to_dcp(models::paths_of_published(published_names(assets), name).front()));
    }
  }
  if (heads.size() != 1 || embeddings.size() != 1) return std::nullopt;
  return Tie(*heads.begin(), *embeddings.begin());
}

// Which tensors of the checkpoint the Hugging Face folder gets, under which names.
class Export {
 public:
  Export(const DcpToHf& options, const Assets& assets, const TensorList& model, std::string checkpoint)
      : options_(options),
        assets_(assets),
        model_(model),
        checkpoint_(std::move(checkpoint)),
        published_(published_names(assets)),
        ties_(ties_of(options)),
        fused_(options.fused_linear_names) {
    const auto tie = embedding_tie(options, assets, model);
    if (!tie || std::ranges::find(ties_, *tie) != ties_.end()) return;
    const SourceTensor* const head = model.find(tie->first);
    const SourceTensor* const embedding = model.find(tie->second);
    if (head != nullptr && embedding != nullptr && !is_equal(*head, *embedding)) {
      untied_ = tie;
    } else {
      ties_.push_back(*tie);
    }
  }

  std::vector<OutputTensor> outputs() {
    if (assets_.names()) {
      for (const std::string& name : *assets_.names()) add_wanted(name);
      for (const SourceTensor& tensor : model_.tensors()) check_unused(tensor);
    } else {
      for (const SourceTensor& tensor : model_.tensors()) add_unnamed(tensor);
      add_explicit_ties();
    }
    refuse_mismatch(mismatch_, model_.names(), checkpoint_, assets_.wanted_by());
    fused_.refuse_unmet(checkpoint_, model_.names());
    return std::move(outputs_);
  }
  // The model was trained with an output layer of its own, and config.json does not say so.
  bool is_untied() const { return untied_.has_value(); }

 private:
  // --- the assets say which names there are

  void add_wanted(const std::string& hf_name) {
    const std::vector<std::string> paths = models::paths_of_published(published_, hf_name);
    if (paths.size() > 1) return add_joined(hf_name, paths);
    const std::string name = options_.names.to_dcp(paths.front());
    if (const SourceTensor* tensor = model_.find(name)) return add(*tensor, hf_name);
    for (const auto& [target, source] : ties_) {
      if (name != target && name != source) continue;
      if (const SourceTensor* tensor = model_.find(name == target ? source : target)) return add(*tensor, hf_name);
    }
    if (add_expert(hf_name, name) || models::is_stored_buffer(hf_name)) return;
    mismatch_.missing.push_back({hf_name, name});
  }

  // A tensor whose rows are those of several parameters, `paths`.
  void add_joined(const std::string& hf_name, const std::vector<std::string>& paths) {
    OutputTensor output{hf_name, DType::kF32, {}, {}};
    for (const std::string& path : paths) {
      const std::string name = options_.names.to_dcp(path);
      const SourceTensor* tensor = model_.find(name);
      if (tensor == nullptr) {
        mismatch_.missing.push_back({hf_name, name});
        continue;
      }
      if (!output.parts.empty()) check_joins(output, *tensor);
      Shape shape = tensor->shape;
      if (!output.parts.empty()) shape[0] += output.shape[0];
      output.dtype = tensor->dtype;
      output.shape = shape;
      output.parts.push_back(whole(*tensor, name).parts.front());
      used_.insert(tensor->name);
    }
    if (output.parts.size() == paths.size()) put(std::move(output));
  }

  void check_joins(const OutputTensor& output, const SourceTensor& next) const {
    const SourceTensor& first = *output.parts.front().from;
    if (first.shape.ndim() > 0 && first.shape == next.shape && first.dtype == next.dtype) return;
    config_error("{}: '{}' is {} {} and '{}' is {} {}; '{}' of the folder needs one shape and dtype for both",
                 checkpoint_, shown_text(first.name), name(first.dtype), to_string(first.shape), shown_text(next.name),
                 name(next.dtype), to_string(next.shape), shown_text(output.name));
  }

  // One expert's projection, of a tensor that holds those of all experts.
  bool add_expert(const std::string& hf_name, const std::string& name) {
    if (expert_parts_.empty()) {
      for (const SourceTensor& tensor : model_.tensors()) {
        for (models::ExpertPart& part : models::expert_parts(tensor.name, tensor.shape)) {
          std::string part_name = part.name;
          expert_parts_.emplace(std::move(part_name), std::pair(&tensor, std::move(part)));
        }
      }
    }
    const auto found = expert_parts_.find(name);
    if (found == expert_parts_.end()) return false;
    const auto& [tensor, part] = found->second;
    OutputTensor output{hf_name, tensor->dtype, part.shape, {}};
    output.parts.push_back({tensor, {part.expert, part.row, 0}, {1, part.shape[0], part.shape[1]}});
    used_.insert(tensor->name);
    put(std::move(output));
    return true;
  }

  // A second name of a tensor that is written is left out, as long as it has the same values.
  void check_unused(const SourceTensor& tensor) {
    if (used_.contains(tensor.name)) return;
    if (untied_ && (tensor.name == untied_->first || tensor.name == untied_->second)) {
      const std::string hf_name = options_.names.to_hf(tensor.name).value_or(options_.names.hf_prefix + tensor.name);
      return add(tensor, models::published_part(published_, hf_name).name);
    }
    for (const auto& [target, source] : ties_) {
      if (tensor.name != target && tensor.name != source) continue;
      const SourceTensor* other = model_.find(tensor.name == target ? source : target);
      if (other != nullptr && used_.contains(other->name) && is_equal(tensor, *other)) return;
    }
    mismatch_.unexpected.push_back(tensor.name);
  }

  // --- they do not

  void add_unnamed(const SourceTensor& tensor) {
    if (is_second_name(tensor)) return;
    const auto hf_name = options_.names.to_hf(tensor.name);
    if (hf_name) {
      const models::StoredPart part = models::published_part(published_, *hf_name);
      if (part.parts == 1) return add(tensor, part.name);
      // Once for all its parts.
      if (!used_.contains(tensor.name)) add_joined(part.name, models::paths_of_published(published_, part.name));
      return;
    }
    if (!options_.names.hf_prefix.empty()) {
      config_error(
          "--hf-prefix {} without --dcp-prefix: which names had it is not known; give --model-assets-dir a folder with "
          "model.safetensors.index.json",
          shown_text(options_.names.hf_prefix));
    }
    mismatch_.unexpected.push_back(tensor.name);
  }

  bool is_second_name(const SourceTensor& tensor) const {
    if (assets_.ties_embeddings() != true && options_.ties.empty()) return false;
    return std::ranges::any_of(ties_, [&](const auto& tie) {
      const SourceTensor* source = tie.first == tensor.name ? model_.find(tie.second) : nullptr;
      return source != nullptr && is_equal(tensor, *source);
    });
  }

  // Targets that the checkpoint does not have.
  void add_explicit_ties() {
    for (const auto& [target, source] : options_.ties) {
      if (model_.find(options_.names.to_dcp(target)) != nullptr) continue;
      const SourceTensor* tensor = model_.find(options_.names.to_dcp(source));
      if (tensor != nullptr) {
        add(*tensor, target);
      } else {
        mismatch_.missing.push_back({source, options_.names.to_dcp(source)});
      }
    }
  }

  // --- both

  void add(const SourceTensor& tensor, const std::string& hf_name) {
    OutputTensor output = whole(tensor, hf_name);
    if (tensor.shape.ndim() == 2 && fused_.has(hf_name)) output.shape = split_experts(tensor);
    used_.insert(tensor.name);
    put(std::move(output));
  }

  void put(OutputTensor output) {
    if (options_.dtype && is_floating(output.dtype)) output.dtype = *options_.dtype;
    outputs_.push_back(std::move(output));
  }

  Shape split_experts(const SourceTensor& tensor) const {
    const auto experts = assets_.experts();
    if (!experts) {
      config_error(
          "--fused-linear-names: {} has none of num_experts, num_local_experts, n_routed_experts; add the one "
          "of the model",
          (options_.model_assets_dir / "config.json").string());
    }
    const std::int64_t rows = tensor.shape[0];
    if (*experts < 1 || rows % *experts != 0) {
      config_error("--fused-linear-names: '{}' {} has {} rows, which {} experts of {} do not divide",
                   shown_text(tensor.name), to_string(tensor.shape), rows, *experts,
                   (options_.model_assets_dir / "config.json").string());
    }
    return {*experts, rows / *experts, tensor.shape[1]};
  }

  const DcpToHf& options_;
  const Assets& assets_;
  const TensorList& model_;
  const std::string checkpoint_;
  const models::PublishedNames published_;
  std::vector<Tie> ties_;
  std::optional<Tie> untied_;  // the two have different values
  FusedNames fused_;
  std::map<std::string, std::pair<const SourceTensor*, models::ExpertPart>> expert_parts_;
  std::set<std::string> used_;
  std::vector<OutputTensor> outputs_;
  NameMismatch mismatch_;
};

TensorList model_of(const io::DcpFolder& folder, const std::filesystem::path& path) {
  TensorList model = below(tensors_of(folder), "model.");
  if (!model.tensors().empty()) return model;
  const auto& items = folder.metadata().items;
  config_error("--load-dir: {} has no tensor below 'model.' among its {} items{}; it is no checkpoint of a model",
               path.string(), items.size(),
               items.empty() ? "" : fmt::format(", which begin with '{}'", shown_text(items.front().name)));
}

// The folders, tested before anything is computed.
void open_output(const DcpToHf& options, const FoundCheckpoint& found) {
  io::OutputPlan plan;
  plan.reads("--load-dir", options.load_dir);
  plan.reads("--load-dir", found.path);
  plan.reads("--model-assets-dir", options.model_assets_dir);
  plan.writes_folder("--save-dir", options.save_dir);
  plan.check();
  refuse_taken("--save-dir", options.save_dir);
  plan.prepare();
}

Converted convert_found(const DcpToHf& options, const FoundCheckpoint& found, const CopyWatcher& watcher) {
  const Assets assets(options.model_assets_dir);
  io::DcpFolder folder(found.path);
  check_whole(folder);
  const TensorList model = model_of(folder, found.path);
  const auto adapter_config = adapter_config_of(folder);
  Export exported(options, assets, model, found.path.string());
  const Shards shards = adapter_config
                            ? Shards{{models::kAdapterWeightsFile, adapter_outputs(options, assets, model, found.path)}}
                            : shards_of(exported.outputs(), options.shard_bytes, assets);
  open_output(options, found);
  const auto add_adapter_config = [&](const std::filesystem::path& made) {
    write_adapter_config(made, *adapter_config, found.path);
  };
  Converted done = adapter_config ? write_whole_folder(options.save_dir, shards, watcher, add_adapter_config)
                                  : write_hf_folder(options.save_dir, shards, assets, watcher, exported.is_untied());
  done.left_out = static_cast<std::int64_t>(folder.metadata().items.size() - model.tensors().size());
  return done;
}

}  // namespace

Converted convert(const DcpToHf& options, const CopyWatcher& watcher) {
  return read_found(options.load_dir, "--load-dir",
                    [&](const FoundCheckpoint& found) { return convert_found(options, found, watcher); });
}

}  // namespace loom::checkpoint
