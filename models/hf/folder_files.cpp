#include "models/hf/folder_files.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "engine/core/error.h"
#include "engine/io/atomic_file.h"
#include "engine/io/json_text.h"
#include "engine/io/mapped_file.h"

namespace loom::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 8> kTokenizer{
    "merges.txt",     "sentencepiece.bpe.model", "spiece.model", "tiktoken.model",
    "tokenizer.json", "tokenizer.model",         "vocab.json",   "vocab.txt"};
constexpr std::array<std::string_view, 10> kCarriedToo{
    "added_tokens.json",     "chat_template.jinja",           "chat_template.json",    "generation_config.json",
    "image_processor.json",  "preprocessor_config.json",      "processor_config.json", "special_tokens_map.json",
    "tokenizer_config.json", "video_preprocessor_config.json"};

template <class Names>
std::vector<std::string> present(const fs::path& folder, const Names& names) {
  std::vector<std::string> found;
  std::error_code none;
  for (const std::string_view name : names) {
    if (fs::is_regular_file(folder / name, none)) found.emplace_back(name);
  }
  return found;
}

void copy_whole(const fs::path& from, const fs::path& to) { io::write_text(to, file_text(from)); }

// The spelling of transformers' torch_dtype.
std::string_view torch_name(DType dtype) {
  if (dtype == DType::kBF16) return "bfloat16";
  if (dtype == DType::kF16) return "float16";
  return dtype == DType::kF64 ? "float64" : "float32";
}

void set_dtype(Json& config, DType dtype) {
  bool said = false;
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (!config.contains(key)) continue;
    said = true;
    if (config[key] != torch_name(dtype)) config[key] = torch_name(dtype);
  }
  if (!said && dtype != DType::kF32) config["torch_dtype"] = torch_name(dtype);
}

}  // namespace

std::vector<std::string> tokenizer_files(const fs::path& folder) { return present(folder, kTokenizer); }

bool has_tokenizer(const fs::path& folder) {
  std::error_code unreadable;
  return fs::exists(folder / "tokenizer.json", unreadable);
}

void refuse_unread_tokenizer(const fs::path& folder, bool bytes_as_tokens, std::string_view what,
                             std::string_view advice) {
  const std::vector<std::string> files = tokenizer_files(folder);
  if (files.empty() || bytes_as_tokens) return;
  config_error(
      "{} has a tokenizer ({}), and {} would be read as bytes, 0 to 255, which are other tokens of this model; {}add "
      "--bytes-as-tokens if that is meant",
      folder.string(), fmt::join(files, ", "), what, advice);
}

void carry_files(const fs::path& from, const fs::path& to) {
  std::error_code none;
  if (fs::equivalent(from, to, none)) return;
  std::vector<std::string> names = present(from, kTokenizer);
  for (std::string& name : present(from, kCarriedToo)) names.push_back(std::move(name));
  if (names.empty()) return;
  fs::create_directories(to);
  for (const std::string& name : names) copy_whole(from / name, to / name);
}

std::optional<DType> main_dtype(const io::HfWeights& weights) {
  std::map<DType, std::int64_t> elements;
  for (const std::string& name : weights.names()) {
    const io::StoredTensor& stored = weights.at(name);
    if (is_floating(stored.dtype)) elements[stored.dtype] += stored.shape.numel();
  }
  const auto most = std::ranges::max_element(elements, {}, &std::pair<const DType, std::int64_t>::second);
  if (most == elements.end()) return std::nullopt;
  return most->first;
}

DType main_dtype(const std::vector<std::pair<std::string, Tensor>>& tensors) {
  const auto largest = std::ranges::max_element(tensors, {}, [](const auto& entry) { return entry.second.numel(); });
  return largest == tensors.end() ? DType::kF32 : largest->second.dtype();
}

bool is_stored_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 3> kEndings{".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string file_text(const fs::path& path) {
  const io::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string edited_config(const std::string& config_json, const ConfigEdits& edits) {
  const Json given = io::parse_ordered_json(config_json, "config.json");
  Json config = given;
  if (edits.untied) {
    config["tie_word_embeddings"] = false;
    for (const char* section : {"text_config", "llm_config"}) {
      if (config.contains(section)) config[section]["tie_word_embeddings"] = false;
    }
  }
  if (edits.dtype) set_dtype(config, *edits.dtype);
  return config == given ? config_json : config.dump(2) + "\n";
}

}  // namespace loom::models
