#include "models/hf/hf_folder.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/spelling.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_file.h"
#include "engine/io/json_text.h"
#include "engine/nn/absent.h"
#include "engine/nn/path_aliases.h"
#include "engine/nn/state_dict.h"
#include "models/decoder/reward_model.h"
#include "models/hf/fill_box.h"
#include "models/hf/folder_files.h"
#include "models/hf/published_names.h"
#include "models/lora/lora.h"

namespace loom::models {
namespace {

// Values are converted in pieces of at most this size.
constexpr std::int64_t kPieceBytes = 4 << 20;

// One parameter: its slots' paths, each followed by its other names, and the part of it that is here. Or a persistent
// buffer.
struct Parameter {
  std::vector<std::string> paths;
  nn::LocalTensor local;
};

std::vector<Parameter> parameters_of(nn::Module& root) {
  std::vector<Parameter> parameters;
  std::unordered_map<const void*, std::size_t> index;
  const auto lora = lora_of(root);
  for (auto& [path, slot] : root.named_slots()) {
    if (lora != nullptr && lora->is_adapter(path)) continue;  // folders of models have none (adapter_folder.h)
    const auto [found, is_new] = index.try_emplace(slot->value.id(), parameters.size());
    if (is_new) parameters.push_back({{}, slot->local()});
    std::vector<std::string>& paths = parameters[found->second].paths;
    paths.push_back(path);
    for (std::string& name : nn::other_names(root, path)) paths.push_back(std::move(name));
  }
  for (auto& [path, buffer] : nn::persistent_buffers(root)) {
    parameters.push_back({{path}, {buffer, nn::ShardSpec::whole(buffer.shape())}});
  }
  return parameters;
}

// "transformer.wte.weight" -> "wte.weight": the name in a folder saved without its head.
std::string_view without_first(std::string_view path) { return path.substr(path.find('.') + 1); }

// A stored tensor and where its rows go: from row `row` on into the parameter itself, or into the matrix of one expert.
struct Source {
  const io::StoredTensor* stored = nullptr;
  std::optional<ExpertPart> part{};
  std::int64_t row = 0;
};

// A parameter or buffer with the sources of its values.
struct Match {
  nn::LocalTensor local;
  std::vector<Source> sources;
};

const io::StoredTensor* find_stored(const std::vector<std::string>& paths, const io::HfWeights& weights) {
  for (const std::string& path : paths) {
    if (const auto* stored = weights.find(path)) return stored;
    if (const auto* stored = weights.find(mixtral_spelling(path))) return stored;
  }
  for (const std::string& path : paths) {
    if (const auto* stored = weights.find(without_first(path))) return stored;
  }
  return nullptr;
}

void check_stored(const Shape& expected, const io::StoredTensor& stored, const io::HfWeights& weights) {
  if (stored.shape != expected) {
    config_error("{}: tensor '{}': config.json says {}, the safetensors file has {}; they are of different models",
                 weights.folder().string(), stored.name, to_string(expected), to_string(stored.shape));
  }
  if (!is_floating(stored.dtype)) {
    config_error("{}: tensor '{}' is {}; parameters are read from fp32, bf16, fp16 or fp64", weights.folder().string(),
                 stored.name, name(stored.dtype));
  }
}

[[noreturn]] void reject_missing(const std::string& path, const Shape& shape, const io::HfWeights& weights) {
  const std::vector<std::string> stored_names = weights.names();
  const auto near = nearest_spelling(path, stored_names);
  config_error("{}: tensor '{}' {} is missing from the safetensors file, which has {} tensors{}",
               weights.folder().string(), path, to_string(shape), stored_names.size(),
               near ? fmt::format("; the nearest is '{}'", *near) : "");
}

// A stage of a pipeline, whose whole model was checked: what is left over is other stages'.
bool is_stage(const nn::Module& root) {
  return std::ranges::any_of(root.named_modules(), [](const auto& entry) { return nn::is_absent(*entry.second); });
}

[[noreturn]] void reject_left_over(const std::vector<std::string>& names, const io::HfWeights& weights) {
  config_error(
      "{}: the model of config.json has no '{}' ({} such in the safetensors file); they are of different models",
      weights.folder().string(), names.front(), names.size());
}

// The tensor that has the parameter among others, or under a name of OpenGVLab's.
std::optional<Source> find_published(const Parameter& parameter, const io::HfWeights& weights) {
  for (const std::string& path : parameter.paths) {
    const StoredPart part = internvl_chat_part(path);
    const io::StoredTensor* stored = weights.find(part.name);
    if (stored == nullptr) continue;
    Shape shape = parameter.local.shard.global_shape;
    const std::int64_t rows = shape.ndim() == 0 ? 0 : shape[0];
    if (part.parts > 1) shape[0] = rows * part.parts;
    check_stored(shape, *stored, weights);
    return Source{stored, {}, part.part * rows};
  }
  return std::nullopt;
}

// An expert parameter's tensors when the folder has one for each expert; empty when it has none of them.
std::vector<Source> find_per_expert(const Parameter& parameter, const io::HfWeights& weights) {
  std::vector<Source> sources;
  std::vector<ExpertPart> parts = expert_parts(parameter.paths.front(), parameter.local.shard.global_shape);
  const ExpertPart* missing = nullptr;
  for (ExpertPart& part : parts) {
    const io::StoredTensor* stored = find_stored({part.name, internvl_chat_part(part.name).name}, weights);
    if (stored != nullptr) {
      check_stored(part.shape, *stored, weights);
      sources.push_back({stored, part});
    } else if (missing == nullptr) {
      missing = &part;
    }
  }
  if (!sources.empty() && missing != nullptr) reject_missing(missing->name, missing->shape, weights);
  return sources;
}

std::vector<Source> find_sources(const Parameter& parameter, const io::HfWeights& weights) {
  const Shape& shape = parameter.local.shard.global_shape;
  if (const io::StoredTensor* stored = find_stored(parameter.paths, weights)) {
    check_stored(shape, *stored, weights);
    return {{stored}};
  }
  if (const auto published = find_published(parameter, weights)) return {*published};
  std::vector<Source> sources = find_per_expert(parameter, weights);
  if (sources.empty()) reject_missing(parameter.paths.front(), shape, weights);
  return sources;
}

// A reward model may begin with the weights of a decoder: its head is then drawn, and the decoder's is ignored.
bool is_drawn_head(const Parameter& parameter, const io::HfWeights& weights) {
  return parameter.paths.front() == kRewardHeadWeight && weights.find(kRewardHeadWeight) == nullptr;
}

// DeepSeek-V3's folders have a layer behind the last one, which predicts a second token; the model is built without it.
bool is_of_second_token(nn::Module& root, std::string_view name) {
  const nn::Module* layers = root.find("model.layers");
  return layers != nullptr && root.type_name() == architecture(DecoderFamily::kDeepseekV3) &&
         name.starts_with(fmt::format("model.layers.{}.", layers->children().size()));
}

// Every parameter with its tensors; throws unless the two sets are the same.
std::vector<Match> match(nn::Module& root, const io::HfWeights& weights) {
  const std::vector<Parameter> parameters = parameters_of(root);
  std::unordered_set<std::string_view> known;
  std::vector<Match> matches;
  const bool is_reward = is_reward_model(root);
  if (is_reward) known.insert("lm_head.weight");
  for (const Parameter& parameter : parameters) {
    if (is_reward && is_drawn_head(parameter, weights)) continue;
    matches.push_back({parameter.local, find_sources(parameter, weights)});
    for (const Source& source : matches.back().sources) known.insert(source.stored->name);
    known.insert(parameter.paths.begin(), parameter.paths.end());
  }
  std::vector<std::string> left_over = weights.names();
  std::erase_if(left_over, [&](const std::string& name) {
    return known.contains(name) || is_stored_buffer(name) || is_of_second_token(root, name);
  });
  if (!left_over.empty() && !is_stage(root)) reject_left_over(left_over, weights);
  return matches;
}

// Fills the part of one expert's projection that is in the box [experts, rows, columns].
void fill_expert_part(const nn::LocalTensor& local, const io::StoredTensor& stored, const ExpertPart& part) {
  const Shape& shape = local.value.shape();
  const Offset& at = local.shard.offset;
  if (part.expert < at[0] || part.expert >= at[0] + shape[0]) return;
  const std::int64_t begin = std::max(at[1], part.row);
  const std::int64_t end = std::min(at[1] + shape[1], part.row + part.shape[0]);
  if (begin >= end) return;
  const Tensor matrix = local.value.rows(part.expert - at[0], 1).view({shape[1], shape[2]});
  fill_box(matrix.rows(begin - at[1], end - begin), {begin - part.row, at[2]}, stored);
}

void fill_local(const nn::LocalTensor& local, const std::vector<Source>& sources) {
  require(box_fits(local.shard.global_shape, local.shard.offset, local.value.shape()), "'{}' into a box {}",
          sources.front().stored->name, nn::describe(local.shard, local.value.shape()));
  for (const Source& source : sources) {
    if (source.part) {
      fill_expert_part(local, *source.stored, *source.part);
      continue;
    }
    nn::fill_parts(local, source.stored->name, [&](const nn::LocalTensor& box) {
      Offset offset = box.shard.offset;
      if (!offset.empty()) offset[0] += source.row;
      fill_box(box.value, offset, *source.stored);
    });
  }
}

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// The published names of the config.json's family, which stores one tensor per expert.
PublishedNames published_naming(std::string_view config_json) {
  return published_names_of_type(io::parse_ordered_json(config_json, "config.json").value("model_type", ""));
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes())};
}

// The whole parameter `path` under its name, or under its experts'.
void add_tensors(const std::string& path, const Tensor& tensor, std::optional<PublishedNames> names,
                 std::vector<io::TensorToWrite>& files) {
  std::vector<ExpertPart> parts;
  if (names) parts = expert_parts(path, tensor.shape());
  const std::string name = names ? published_part(*names, path).name : path;
  if (parts.empty()) files.push_back({name, tensor.dtype(), tensor.shape(), bytes_of(tensor)});
  std::size_t at = 0;
  for (ExpertPart& part : parts) {
    const std::size_t size = part.shape.numel() * element_bytes(tensor.dtype());
    files.push_back(
        {published_part(*names, part.name).name, tensor.dtype(), part.shape, bytes_of(tensor).subspan(at, size)});
    at += size;
  }
}

// The tensor whose rows are those of several parameters.
io::TensorToWrite fused(const std::string& name, PublishedNames names, const NamedTensors& tensors) {
  std::vector<std::span<const std::byte>> parts;
  io::TensorToWrite file{name, DType::kF32, {}, {}};
  for (const std::string& path : paths_of_published(names, name)) {
    const auto found = std::ranges::find(tensors, path, &NamedTensors::value_type::first);
    require(found != tensors.end(), "'{}' is written with '{}', which is not given", name, path);
    const Tensor& part = found->second;
    Shape shape = part.shape();
    if (!parts.empty()) shape[0] += file.shape[0];
    file.dtype = part.dtype();
    file.shape = shape;
    parts.push_back(bytes_of(part));
  }
  file.content = [parts](const io::ByteSink& sink) { std::ranges::for_each(parts, sink); };
  return file;
}

}  // namespace

void fill_box(const Tensor& target, Offset offset, const io::StoredTensor& stored) {
  const auto fill_piece = [&](const Tensor& part) {
    const Tensor piece = Tensor::host(part.shape(), stored.dtype, stored.name);
    stored.read_box(offset, part.shape(),
                    {static_cast<std::byte*>(piece.raw()), static_cast<std::size_t>(piece.nbytes())});
    part.copy_from(piece);
  };
  if (target.shape().ndim() == 0) return fill_piece(target);
  const std::int64_t rows = target.shape()[0];
  const std::int64_t row_bytes = target.shape().row_elems() * element_bytes(stored.dtype);
  const std::int64_t piece_rows = std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(1, row_bytes));
  for (std::int64_t row = 0; row < rows; row += piece_rows) {
    const Tensor part = target.rows(row, std::min(piece_rows, rows - row));
    fill_piece(part);
    offset[0] += part.shape()[0];
  }
}

void check_weights(nn::Module& root, const io::HfWeights& weights) { match(root, weights); }

void load_weights(nn::Module& root, const io::HfWeights& weights) {
  for (const auto& [local, sources] : match(root, weights)) fill_local(local, sources);
}

ExpertSpelling expert_spelling(const io::HfWeights& weights) {
  for (const std::string& name : weights.names()) {
    if (name.ends_with(".experts.gate_up_proj")) return ExpertSpelling::kFused;
  }
  return ExpertSpelling::kPerExpert;
}

void write_hf_folder(const std::filesystem::path& folder, std::string_view config_json, bool tied,
                     const std::vector<std::pair<std::string, Tensor>>& tensors, ExpertSpelling experts) {
  std::filesystem::create_directories(folder);
  std::vector<io::TensorToWrite> files;
  std::optional<PublishedNames> names;
  if (experts == ExpertSpelling::kPerExpert) names = published_naming(config_json);
  for (const auto& [path, tensor] : tensors) {
    if (tied && path == "lm_head.weight") continue;
    const StoredPart part = published_part(names.value_or(PublishedNames::kPaths), path);
    if (part.parts == 1) add_tensors(path, tensor, names, files);
    if (part.parts > 1 && part.part == 0) files.push_back(fused(part.name, *names, tensors));
  }
  io::write_safetensors(folder / "model.safetensors", std::move(files));
  io::write_text(folder / "config.json", config_json);
  io::remove_earlier_shards(folder);
}

void write_hf_folder(const std::filesystem::path& folder, const DecoderConfig& config,
                     const std::vector<std::pair<std::string, Tensor>>& tensors, ExpertSpelling experts) {
  write_hf_folder(folder, to_json(config), config.tie_word_embeddings, tensors, experts);
}

void write_hf_folder(const std::filesystem::path& folder, const InternVLConfig& config,
                     const std::vector<std::pair<std::string, Tensor>>& tensors, ExpertSpelling experts) {
  write_hf_folder(folder, to_json(config), config.text.tie_word_embeddings, tensors, experts);
}

}  // namespace loom::models
