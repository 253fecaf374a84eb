// ModelTree: the modules of a model as files name them: paths, classes, parameters.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::dialects {

struct TreeModule {
  std::string path;             // "model.layers.0.self_attn"; the root is not among them
  std::string class_name;       // "Qwen3Attention"
  bool has_forward = true;      // false: a list of modules
  std::int64_t parameters = 0;  // of its whole subtree
};

class ModelTree {
 public:
  // `modules`: in pre-order.
  // `aliases`: other names of paths, which the model declares.
  ModelTree(std::vector<TreeModule> modules, bool ties_output, std::vector<std::string> aliases = {});

  const std::vector<TreeModule>& modules() const { return modules_; }  // pre-order
  const std::vector<std::string>& aliases() const { return aliases_; }
  bool ties_output() const { return ties_output_; }  // the output layer holds the embedding's parameter
  std::vector<std::string> classes() const;          // each once, sorted
  std::vector<std::string> paths_of_class(std::string_view name) const;
  std::vector<std::string> children_of(std::string_view path) const;  // their last names
  // The class of the layers, as transformers' _no_split_modules has it; empty where there are none.
  std::string layer_class() const;
  std::string embedding() const;   // path of the input embedding; empty where there is none
  std::string final_norm() const;  // of the norm behind the layers
  std::string output() const;      // of the output layer

 private:
  std::vector<TreeModule> modules_;
  std::vector<std::string> aliases_;
  bool ties_output_ = false;
};

// The models that a program knows. Empty: files are read without one.
struct Models {
  std::vector<std::string> names = {};  // classes and model types that are built
  // By a configuration; none where the file is not there or its class is not built.
  std::function<std::optional<ModelTree>(const std::filesystem::path& configuration)> load = {};
  std::function<ModelTree(const std::filesystem::path& graph)> load_graph = {};  // of a recorded model
};

// The configuration that a value of --model-config or --init-from-hf-path means: a folder's, a preset's, or the file.
std::filesystem::path model_file(const std::string& given);

// Entries of one container as one pattern: "model.layers.{*}", where all are there.
std::vector<std::string> patterns_of(const std::vector<std::string>& paths, const ModelTree& model);

}  // namespace loom::dialects
