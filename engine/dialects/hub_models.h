// The models of the program's hub, for files that name modules or classes.
#pragma once

#include "engine/dialects/model_tree.h"

namespace loom::dialects {

// Those of models::ModelHub::global(). Loading builds a model without bytes, on a rank of its own.
Models hub_models();

}  // namespace loom::dialects
