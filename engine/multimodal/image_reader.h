// Readers of picture files, for the data of Qwen-VL and of InternVL.
//
// Qwen      the limits of the data (image_max_pixels, ...) come first, with MindSpeed-MM's filter (engine/images/
//           preclamp.h); then the processor of the model's folder (preprocessor_config.json).
// InternVL  tiles of image_size pixels (engine/images/tiles.h); of several pictures of a sample each has its part of
//           max_dynamic_patch. Pad2Square comes first where the pipeline has it.
// Threads   any number at once.
// Errors    ConfigError with the file of the picture, or of the processor.
#pragma once

#include <memory>

#include "engine/multimodal/data_config.h"
#include "engine/multimodal/picture_reader.h"

namespace loom::multimodal {

// Of the configuration's dataset_type.
std::shared_ptr<const PictureReader> make_image_reader(const DataConfig& config);

}  // namespace loom::multimodal
