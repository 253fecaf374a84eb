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
  raise<InvariantError>("the batch has no '{}'; it has {}", name, fmt::join(names, ", "));
}

Batch DataIterator::next() {
  if (taken_) config_error("forward_step took a second batch; it gets one micro-batch for each call");
  taken_ = true;
  return (*loader_)(samples_);
}

}  // namespace loom::data
