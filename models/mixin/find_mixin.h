// Finds the mixin of a model through its class. Private to models/mixin.
//
// A mixin that the class inherits more than once (through two of its bases), or without `public`, cannot be reached by
// a cast: the model would train without it, and its hooks would never be called. Both are errors that name the class.
#pragma once

#include <string_view>
#include <typeinfo>

#include "engine/nn/module.h"

namespace loom::models {

// ConfigError if the class of `model` has the base `mixin` (called `name`) but a cast does not reach it.
void check_unreachable(const nn::Module& model, const std::type_info& mixin, std::string_view name);

// Null for a model whose class does not inherit it.
template <class Mixin>
Mixin* find_mixin(nn::Module& model, std::string_view name) {
  auto* found = dynamic_cast<Mixin*>(&model);
  if (found == nullptr) check_unreachable(model, typeid(Mixin), name);
  return found;
}

}  // namespace loom::models
