// Hugging Face folders of tests: the tiny reference models, and folders made of a few tensors.
//
// LOOM_SOURCE_DIR is set by the test's CMakeLists.txt.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/convert/convert.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/support/files.h"

namespace loom::checkpoint_test {

namespace fs = std::filesystem;

inline const fs::path kReference = fs::path(LOOM_SOURCE_DIR) / "tests/reference";

// A tensor of a test: its bytes are those of `values` in its dtype.
struct Named {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::string bytes;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// fp32: first, first + 1, ...
inline Named counting(const std::string& name, const Shape& shape, float first = 0) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(first + static_cast<float>(i));
  return {name, DType::kF32, shape, bytes_of(values)};
}

inline void write_weights(const fs::path& file, const std::vector<Named>& tensors) {
  fs::create_directories(file.parent_path());
  std::vector<io::TensorToWrite> content;
  for (const Named& tensor : tensors) {
    content.push_back({tensor.name, tensor.dtype, tensor.shape, std::as_bytes(std::span(tensor.bytes))});
  }
  io::write_safetensors(file, std::move(content));
}

// A folder with config.json and one file of weights.
inline fs::path hf_folder(const fs::path& folder, const std::string& config, const std::vector<Named>& tensors) {
  test::write_file(folder / "config.json", config);
  write_weights(folder / "model.safetensors", tensors);
  return folder;
}

inline checkpoint::Converted to_dcp(const fs::path& from, const fs::path& to, checkpoint::HfToDcp options = {}) {
  options.hf_dir = from;
  options.dcp_dir = to;
  return convert(options);
}

inline checkpoint::Converted to_hf(const fs::path& from, const fs::path& to, const fs::path& assets,
                                   checkpoint::DcpToHf options = {}) {
  options.load_dir = from;
  options.save_dir = to;
  options.model_assets_dir = assets;
  return convert(options);
}

// name -> "fp32 [2, 3]" and bytes, of a file.
inline std::map<std::string, std::pair<std::string, std::string>> contents(const fs::path& file) {
  std::map<std::string, std::pair<std::string, std::string>> contents;
  const io::SafetensorsFile opened(file);
  for (const io::StoredTensor& tensor : opened.tensors()) {
    contents[tensor.name] = {std::string(name(tensor.dtype)) + " " + to_string(tensor.shape),
                             std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size())};
  }
  return contents;
}

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

}  // namespace loom::checkpoint_test
