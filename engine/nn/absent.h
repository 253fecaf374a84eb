// Absent: in the place of a module that another rank has (a layer of another stage of a pipeline). It has no
// parameters and cannot be called: the code of its parent asks is_absent() first. A tie ends where it takes a module's
// place.
#pragma once

#include "engine/nn/module.h"

namespace loom::nn {

class Absent final : public Module {
 public:
  std::string_view type_name() const override { return "Absent"; }
  bool has_forward() const override { return false; }

 protected:
  Value forward(const Args&) override { return {}; }  // has_forward() is false: never called
};

inline bool is_absent(const Module& module) { return dynamic_cast<const Absent*>(&module) != nullptr; }

}  // namespace loom::nn
