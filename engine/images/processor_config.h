// The picture's part of a Hugging Face folder: preprocessor_config.json, or "image_processor" in processor_config.json,
// as the options of patches.h or tiles.h.
//
// Types    Qwen2VLImageProcessor (Qwen2-VL, Qwen2.5-VL, Qwen3-VL): patches. GotOcr2ImageProcessor, CLIPImageProcessor
//          and CLIPFeatureExtractor (InternVL): tiles. The endings Fast and Pil make no difference: resizing is
//          Pillow's.
// Limits   min_pixels and max_pixels, or size.shortest_edge and size.longest_edge; the former win.
// Tiles    size is the side of a tile. GotOcr2: crop_to_patches, true for InternVLProcessor, else false by default.
//          CLIP: InternVL's own code cuts tiles and ignores do_center_crop, and so does this; crop_size must be size.
// Unknown  keys are refused, and so are values that no option has: do_resize false, do_rescale false, another
//          rescale_factor than 1/255, do_convert_rgb false, do_pad true, resample other than 0 (nearest), 2
//          (bilinear), 3 (bicubic). do_normalize false is mean 0 and std 1.
// Errors   ConfigError with file, key, value and what is allowed.
// Source   transformers 5.23.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <variant>

#include "engine/images/normalise.h"
#include "engine/images/patches.h"
#include "engine/images/tiles.h"

namespace loom::images {

struct ImageProcessor {
  std::string type;  // as in the file
  std::variant<PatchOptions, TileOptions> options;
  // Of PatchOptions too.
  Channels mean = kClipMean;
  Channels std = kClipStd;

  // Null for the other kind.
  const PatchOptions* patches() const { return std::get_if<PatchOptions>(&options); }
  const TileOptions* tiles() const { return std::get_if<TileOptions>(&options); }
};

// Of a folder, or of the file itself.
ImageProcessor read_image_processor(const std::filesystem::path& path);

// The same of a Qwen-VL's folder. ConfigError for another type, with `otherwise` behind it.
PatchOptions read_patch_options(const std::filesystem::path& folder, std::string_view otherwise);

// The same of an InternVL's folder: the processor, whose tiles() are not null.
ImageProcessor read_tile_processor(const std::filesystem::path& folder, std::string_view otherwise);

// Of a file's text, which messages call `name`.
ImageProcessor parse_image_processor(std::string_view text, const std::string& name);

}  // namespace loom::images
