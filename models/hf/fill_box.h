// Private to models.
#pragma once

#include "engine/core/box.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/tensor/tensor.h"

namespace loom::models {

// Reads the box of `stored` that begins at `offset` and has the shape of `target` into it, converted piece by piece.
void fill_box(const Tensor& target, Offset offset, const io::StoredTensor& stored);

}  // namespace loom::models
