// ModelHub: maps the name in a model's configuration to the code that builds it.
//
//   const models::RegisterModel kMyModel({"my_model", "MyModelForCausalLM"}, [](const models::ConfigReader& config) {
//     return std::make_shared<MyModel>(config);
//   });
//
// Names    looked up in this order: `model_id`, which must be registered if it is given; `architectures[0]`;
//          `model_type`. A model is registered under any of the three.
// Global   ModelHub::global() holds this library's models and those registered beside their code, as above, before main
//          begins; after that it is only read, by any thread. The order in which files are initialised does not
//          matter. Tests use hubs of their own.
// Errors   ConfigError "FILE: load model from config failed: ..." that lists the registered names and the nearest one;
//          also for a name that was registered twice, on look-up.
// Source   MindSpeed-MM, models/transformers/modelhub.py and custom_model_registry.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"
#include "models/hub/config_reader.h"

namespace loom::models {

// The facts about a model that are needed before it is built.
struct ModelFacts {
  std::int64_t vocab_size = 0;        // token ids it takes; 0: not in the configuration
  std::int64_t longest_sequence = 0;  // tokens of a sequence it takes; 0: not in the configuration
  std::string config_json;            // the config.json of a saved model
};

class ModelHub {
 public:
  // Every parameter on the meta device, as modules register them.
  using Builder = std::function<std::shared_ptr<nn::Module>(const ConfigReader& config)>;
  using Describer = std::function<ModelFacts(const ConfigReader& config)>;

  // An empty hub.
  ModelHub() = default;

  // Registers `builder` under each of the names. Without `describer`, the facts are the configuration's own
  // keys vocab_size and max_position_embeddings, and the unchanged configuration.
  void add(const std::vector<std::string>& names, Builder builder, Describer describer = nullptr);
  std::vector<std::string> names() const;  // sorted

  std::shared_ptr<nn::Module> build(const ConfigReader& config) const;
  // From a folder's config.json, a .json or a .yaml file.
  std::shared_ptr<nn::Module> build(const std::filesystem::path& path) const;

  ModelFacts facts(const ConfigReader& config) const;
  ModelFacts facts(const std::filesystem::path& path) const;

  static ModelHub& global();

 private:
  struct Entry {
    Builder builder;
    Describer describer;
    int times = 0;  // registered
  };
  const Entry* find(const ConfigReader& config) const;
  const Entry& at(const ConfigReader& config) const;
  [[noreturn]] void reject(const ConfigReader& config) const;

  std::map<std::string, Entry, std::less<>> entries_;
};

// Registers a model for the program's life. One beside each model, at namespace scope, in a file that the program
// links.
class RegisterModel {
 public:
  RegisterModel(const std::vector<std::string>& names, ModelHub::Builder builder, ModelHub& hub = ModelHub::global()) {
    hub.add(names, std::move(builder));
  }
};

}  // namespace loom::models
