#include "engine/data/step.h"

#include <fmt/ranges.h>

#include "engine/core/error.h"

namespace loom::data {

const nn::Value& Batch::at(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const auto& [key, value] : values) {
    if (key == name) return value;
    names.push_back(key);
  }
  model_error("the batch has no '{}'; it has {}; give it in the DataLoader, or ask for what is there", name,
              names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace loom::data
