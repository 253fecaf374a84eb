// NewParameters: implemented by a model that adds parameters to a pretrained one, such as a head, which the stored
// weights may therefore lack.
//
//   class MyScorer : public nn::Module, public models::NewParameters { ... };
//
// Order    init_on_device() (fsdp2_mixin.h) calls init_new_parameters() before the loader, which may overwrite values.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>

#include "engine/nn/init.h"

namespace loom::models {

class NewParameters {
 public:
  virtual ~NewParameters() = default;

  // Writes this rank's rows of the added parameters, except those in `kept`. Precondition: they have bytes.
  virtual void init_new_parameters(std::uint64_t seed, const nn::KeptValues& kept) = 0;
};

}  // namespace loom::models
