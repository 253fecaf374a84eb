#include "recompute/checkpoint.h"

#include "engine/tensor/autograd.h"
#include "recompute/recorded.h"
#include "recompute/reentrant.h"

namespace loom::recompute {
namespace {

// That a module is checkpointed.
struct Mark {};

}  // namespace

bool is_checkpointed(const nn::Module& module) { return module.attachment<Mark>() != nullptr; }

nn::Value checkpointed(const nn::Module& owner, const CheckpointOptions& options, const nn::Module::Run& run,
                       nn::Args args) {
  if (!autograd::grad_enabled()) return run(std::move(args));
  return options.use_reentrant ? run_reentrant(owner, options, run, std::move(args))
                               : run_recorded(options, run, std::move(args));
}

void checkpoint(nn::Module& module, const CheckpointOptions& options) {
  if (!module.has_forward()) {
    config_error("recompute of '{}': a {} has no forward of its own; name its items: '{}.{{*}}'", options.path,
                 module.type_name(), options.path);
  }
  if (is_checkpointed(module)) {
    config_error("recompute of '{}' was requested twice; each module can be recomputed once", options.path);
  }
  if (options.use_reentrant && options.keep != Keep::kNothing) {
    config_error(
        "recompute of '{}' keeps results of operators, which use_reentrant: true cannot; use use_reentrant: false",
        options.path);
  }
  module.attach(std::make_shared<Mark>());
  module.wrap_call([&module, options](const nn::Module::Run& inner, nn::Args args) {
    return checkpointed(module, options, inner, std::move(args));
  });
}

}  // namespace loom::recompute
