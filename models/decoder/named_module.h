// NamedModule: a module whose class name depends on the family it serves ("Qwen2DecoderLayer", "LlamaDecoderLayer").
#pragma once

#include <string>
#include <string_view>

#include "engine/nn/module.h"

namespace loom::models {

class NamedModule : public nn::Module {
 public:
  explicit NamedModule(std::string type_name) : type_name_(std::move(type_name)) {}
  std::string_view type_name() const final { return type_name_; }

 private:
  const std::string type_name_;
};

}  // namespace loom::models
