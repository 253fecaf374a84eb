#include "recompute/recorded.h"

#include <utility>

#include "recompute/frame.h"

namespace loom::recompute {

nn::Value run_recorded(const CheckpointOptions& options, const nn::Module::Run& inner, nn::Args args) {
  return std::make_shared<Frame>(options, inner, args)->run_first(std::move(args));
}

}  // namespace loom::recompute
