#include "engine/train/reference_model.h"

#include "engine/core/error.h"
#include "engine/core/rank_context.h"

namespace loom::train {
namespace {

struct Reference {
  nn::Module* model = nullptr;
};

Reference& slot() { return RankContext::current().slot<Reference>(); }

}  // namespace

nn::Module& reference_model() {
  nn::Module* const model = slot().model;
  if (model == nullptr) config_error("there is no reference model; set has_reference_model in PretrainCallbacks");
  return *model;
}

void set_reference_model(nn::Module* model) { slot().model = model; }

}  // namespace loom::train
