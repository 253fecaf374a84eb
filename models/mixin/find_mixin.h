// The mixin of a model, found through its class. Private to models/mixin.
//
// A mixin that the class inherits more than once (through two of its bases), or without `public`, cannot be reached by
// a cast: the model would train as if it had none, its hooks never called. Both are errors that name the class.
#pragma once

#include <string_view>
#include <typeinfo>

#include "engine/nn/module.h"

namespace loom::models {

// ConfigError when the class of `model` has the base `mixin` (called `name`) although a cast does not get there.
void check_unreachable(const nn::Module& model, const std::type_info& mixin, std::string_view name);

// Null for a model whose class does not inherit it.
template <class Mixin>
Mixin* find_mixin(nn::Module& model, std::string_view name) {
  auto* found = dynamic_cast<Mixin*>(&model);
  if (found == nullptr) check_unreachable(model, typeid(Mixin), name);
  return found;
}

}  // namespace loom::models
