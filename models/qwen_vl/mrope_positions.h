// M-RoPE: a position in time, height and width for each token of text with pictures and videos.
//
// Rule     text runs on in all three axes, from the largest position so far + 1 (0 at the start). A picture or video of
//          t x h x w tokens begins there, at p: its tokens have (p + time, p + row, p + column), row by row, frame by
//          frame. time is the frame's number; in Qwen2.5-VL floor(frame * second_per_grid * tokens_per_second).
//          Qwen3-VL's frames are pictures of their own, with text between them.
// Padding  positions where attention_mask is 0 are 1 and count as nothing; a picture may lie there (the white one of a
//          batch of text).
// Delta    what a row's next position is beyond the number of its tokens that are not padding.
// Errors   ConfigError where the ids of pictures and their grids do not agree: row and token, both numbers.
// Source   the papers' rule, as in transformers 4.45; later versions go on behind a video at start + max(h, w).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensor/tensor.h"
#include "models/qwen_vl/qwen_vl_config.h"
#include "models/qwen_vl/vision_grid.h"

namespace loom::models {

struct VisionInputs {
  std::vector<VisionGrid> images;
  std::vector<VisionGrid> videos;
  std::vector<float> second_per_grid{};  // of each video; empty: 1
};

struct MropePositions {
  Tensor ids;                        // int32 [3,B,S] of the host; without values in a dry run
  std::vector<std::int64_t> deltas;  // of each row
};

// input_ids int32 or int64 [B,S] of the host; attention_mask int32 [B,S], or undefined: no padding.
MropePositions mrope_positions(const Tensor& input_ids, const Tensor& attention_mask, const VisionInputs& inputs,
                               const QwenVlConfig& config);

}  // namespace loom::models
