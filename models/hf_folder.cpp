#include "models/hf_folder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/spelling.h"
#include "engine/nn/path_aliases.h"
#include "engine/tensor/io/atomic_file.h"
#include "engine/tensor/io/safetensors.h"

namespace loom::models {
namespace {

// Values are converted in pieces of at most this size.
constexpr std::int64_t kPieceBytes = 4 << 20;

// One parameter: its slots' paths, each followed by its other names, and the first of the slots.
struct Parameter {
  std::vector<std::string> paths;
  nn::ParamSlot* slot = nullptr;
};

std::vector<Parameter> parameters_of(nn::Module& root) {
  std::vector<Parameter> parameters;
  std::unordered_map<const void*, std::size_t> index;
  for (auto& [path, slot] : root.named_slots()) {
    const auto [found, is_new] = index.try_emplace(slot->value.id(), parameters.size());
    if (is_new) parameters.push_back({{}, slot});
    std::vector<std::string>& paths = parameters[found->second].paths;
    paths.push_back(path);
    for (std::string& name : nn::other_names(root, path)) paths.push_back(std::move(name));
  }
  return parameters;
}

// "transformer.wte.weight" -> "wte.weight": the name in a folder saved without its head.
std::string_view without_first(std::string_view path) { return path.substr(path.find('.') + 1); }

const io::StoredTensor* find_stored(const Parameter& parameter, const io::HfWeights& weights) {
  for (const std::string& path : parameter.paths) {
    if (const auto* stored = weights.find(path)) return stored;
  }
  for (const std::string& path : parameter.paths) {
    if (const auto* stored = weights.find(without_first(path))) return stored;
  }
  return nullptr;
}

bool is_stored_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 3> kEndings{".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

void check_stored(const Parameter& parameter, const io::StoredTensor& stored, const io::HfWeights& weights) {
  const Shape& expected = parameter.slot->global_shape;
  if (stored.shape != expected) {
    config_error("{}: tensor '{}': config.json says {}, the safetensors file has {}; they are of different models",
                 weights.folder().string(), stored.name, to_string(expected), to_string(stored.shape));
  }
  if (!is_floating(stored.dtype)) {
    config_error("{}: tensor '{}' is {}; parameters are read from fp32, bf16, fp16 or fp64", weights.folder().string(),
                 stored.name, name(stored.dtype));
  }
}

[[noreturn]] void reject_missing(const Parameter& parameter, const io::HfWeights& weights) {
  const std::vector<std::string> stored_names = weights.names();
  const auto near = nearest_spelling(parameter.paths.front(), stored_names);
  config_error("{}: tensor '{}' {} is missing from the safetensors file, which has {} tensors{}",
               weights.folder().string(), parameter.paths.front(), to_string(parameter.slot->global_shape),
               stored_names.size(), near ? fmt::format("; the nearest is '{}'", *near) : "");
}

[[noreturn]] void reject_left_over(const std::vector<std::string>& names, const io::HfWeights& weights) {
  config_error(
      "{}: the model of config.json has no '{}' ({} such in the safetensors file); they are of different models",
      weights.folder().string(), names.front(), names.size());
}

using Match = std::pair<nn::ParamSlot*, const io::StoredTensor*>;

// Every parameter's first slot with its tensor; throws unless the two sets are the same.
std::vector<Match> match(nn::Module& root, const io::HfWeights& weights) {
  const std::vector<Parameter> parameters = parameters_of(root);
  std::unordered_set<std::string_view> known;
  std::vector<Match> matches;
  for (const Parameter& parameter : parameters) {
    const io::StoredTensor* stored = find_stored(parameter, weights);
    if (stored == nullptr) reject_missing(parameter, weights);
    check_stored(parameter, *stored, weights);
    known.insert(stored->name);
    known.insert(parameter.paths.begin(), parameter.paths.end());
    matches.emplace_back(parameter.slot, stored);
  }
  std::vector<std::string> left_over = weights.names();
  std::erase_if(left_over, [&](const std::string& name) { return known.contains(name) || is_stored_buffer(name); });
  if (!left_over.empty()) reject_left_over(left_over, weights);
  return matches;
}

void fill_slot(const nn::ParamSlot& slot, const io::StoredTensor& stored) {
  const Shape& shape = slot.value.shape();
  require(shape.ndim() >= 1 && shape.row_elems() == stored.shape.row_elems() && slot.row_begin >= 0 &&
              (shape[0] == 0 || slot.row_begin + shape[0] <= stored.shape[0]),
          "'{}': rows [{}, {}) of {} into {}", stored.name, slot.row_begin, slot.row_begin + shape[0],
          to_string(stored.shape), to_string(shape));
  const std::int64_t row_bytes = stored.shape.row_elems() * static_cast<std::int64_t>(element_bytes(stored.dtype));
  const std::int64_t piece_rows = std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(1, row_bytes));
  for (std::int64_t row = 0; row < shape[0]; row += piece_rows) {
    const Tensor target = slot.value.rows(row, std::min(piece_rows, shape[0] - row));
    const auto bytes = stored.rows(slot.row_begin + row, slot.row_begin + row + target.shape()[0]);
    const Tensor piece = Tensor::host(target.shape(), stored.dtype, stored.name);
    std::memcpy(piece.raw(), bytes.data(), bytes.size());
    target.copy_from(piece);
  }
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace

void check_weights(nn::Module& root, const io::HfWeights& weights) { match(root, weights); }

void load_weights(nn::Module& root, const io::HfWeights& weights) {
  for (const auto& [slot, stored] : match(root, weights)) fill_slot(*slot, *stored);
}

void write_hf_folder(const std::filesystem::path& folder, const DecoderConfig& config,
                     const std::vector<std::pair<std::string, Tensor>>& tensors) {
  std::filesystem::create_directories(folder);
  std::vector<io::TensorToWrite> files;
  for (const auto& [name, tensor] : tensors) {
    if (config.tie_word_embeddings && name == "lm_head.weight") continue;
    const std::span bytes(static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes()));
    files.push_back({name, tensor.dtype(), tensor.shape(), bytes});
  }
  io::write_safetensors(folder / "model.safetensors", std::move(files));
  write_text(folder / "config.json", to_json(config));
}

}  // namespace loom::models
