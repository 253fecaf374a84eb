// WeightInitMixin: initial values of a model by module class, for models whose parameters do not define their own.
//
//   class MyModel : public nn::Module, public models::FSDP2Mixin, public models::WeightInitMixin { ... };
//
// Rules      weight of a class with "norm" in its name (any case): 1; a parameter with "bias" in its name: 0; every
//            other one: N(0, std^2). An embedding's padding row is drawn like the others.
// Order      without grad, children before their parent, each module once.
// Warning    the init of a parameter's registration (the init_std of a layer) does not count; if the rules write
//            something else, rank 0 logs one warning that names the first such parameter.
// Override   _init_weights for modules of your own; call the base for the rest. normal_, zeros_ and ones_ write a slot.
// Values     by global element index (engine/nn/init.h): they do not depend on ranks, replicas or the device.
// Without    a model without this mixin uses the rule that each parameter was registered with (nn::Init).
// Threads    the rank's host thread.
// Source     MindSpeed-MM, models/transformers/base_model.py.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/nn/init.h"
#include "engine/nn/module.h"

namespace loom::models {

class WeightInitMixin {
 public:
  static constexpr double kStd = 0.02;

  virtual ~WeightInitMixin() = default;

  // Writes this rank's rows of every parameter except those in `kept`. Precondition: parameters have bytes; the class
  // is an nn::Module too (ConfigError).
  void init_weights(std::uint64_t seed, const nn::KeptValues& kept = {});

 protected:
  virtual void _init_weights(nn::Module& module, double std = kStd);

  // --- for _init_weights, whose module owns the slot ---
  void normal_(nn::ParamSlot& slot, double std);
  void zeros_(nn::ParamSlot& slot);
  void ones_(nn::ParamSlot& slot);

 private:
  // The state of the running init_weights().
  struct Run {
    std::uint64_t seed = 0;
    std::unordered_map<const void*, std::string> first_path;  // for parameters to be written
    std::vector<std::string> overruled;                       // by the rules: the registered and the written value
  };
  void write(nn::ParamSlot& slot, const nn::Init& rule);
  // Its first path; none for kept values. ConfigError outside of init_weights().
  const std::string* path_of(const nn::ParamSlot& slot) const;

  Run* run_ = nullptr;
};

}  // namespace loom::models
