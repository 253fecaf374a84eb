// Sends what a model is called with beside the tokens to all ranks: pictures. Private to engine/talk.
//
// Collective over the group. Memory of a receiving rank: the pixels once.
#pragma once

#include "engine/comm/process_group.h"
#include "engine/nn/value.h"

namespace loom::talk {

// `inputs` of rank 0, as PictureModel::inputs() makes them; empty, or pixel_values and perhaps image_grid_thw.
nn::ValueDict shared_inputs(const nn::ValueDict& inputs, comm::ProcessGroup& everyone);

}  // namespace loom::talk
