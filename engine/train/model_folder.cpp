#include "engine/train/model_folder.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/core/error.h"
#include "engine/io/atomic_file.h"
#include "engine/io/hf_weights.h"
#include "engine/io/safetensors.h"

namespace loom::train {
namespace {

std::string config_of(const TrainArguments& arguments) {
  const auto path = *arguments.init_from_hf_path / "config.json";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!arguments.untie_embeddings_and_output_weights) return text;
  auto config = nlohmann::ordered_json::parse(text);
  config["tie_word_embeddings"] = false;
  return config.dump(2) + "\n";
}

}  // namespace

void save_model_folder(const std::filesystem::path& folder, const TrainArguments& arguments,
                       const std::vector<std::pair<std::string, Tensor>>& tensors) {
  std::filesystem::create_directories(folder);
  std::vector<io::TensorToWrite> stored;
  for (const auto& [name, tensor] : tensors) {
    const std::span bytes(static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes()));
    stored.push_back({name, tensor.dtype(), tensor.shape(), bytes});
  }
  io::write_safetensors(folder / "model.safetensors", std::move(stored));
  io::remove_earlier_shards(folder);
  if (!arguments.init_from_hf_path) return;
  io::write_text(folder / "config.json", config_of(arguments));
}

}  // namespace loom::train
