// Collator: the micro-batch of some encoded samples and their pictures, as a data::Batch of the host.
//
// Batch       input_ids, targets, attention_mask       int32 [B, S]
//             pixel_values                             fp32 [rows, row_shape...], of all images in reading order
//             image_grid_thw                           int64 [images, 3]
//             pixel_values_videos, video_grid_thw      the same for videos
//             second_per_grid_ts                       fp32 [videos]
//             Parts of images or of videos are there only if the batch has one; grids only with has_grids.
// Targets     labels moved by one: target i is the label of token i + 1, and -100 in the last place.
// Padding     on the right, to the longest sample rounded up to a multiple of `multiple_of`: pad id, mask 0, target
//             -100, or the pad id where padding is learnt (ignore_pad_token_for_loss: false).
// White       a batch with neither image nor video gets a white picture of 64 x 64 pixels, so that every rank runs the
//             vision tower and its collectives: its tokens stand behind those of sample 0, mask 0, target -100. No
//             token of the sample attends to them, and nothing is learnt there. InternVL's batches get it too.
// Threads     const functions are safe from any number of threads.
// Source      mindspeed_mm/data/dataloader/data_collator.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/step.h"
#include "engine/multimodal/conversation_encoder.h"
#include "engine/multimodal/picture_reader.h"

namespace loom::multimodal {

inline constexpr std::int64_t kWhitePixels = 64;

// A sample as it is read.
struct ReadSample {
  EncodedSample text;
  std::vector<Patches> images;
  std::vector<Patches> videos;
  std::vector<double> second_per_grid;  // of each video
};

// The white picture, and its tokens.
struct WhitePicture {
  Patches patches;
  std::vector<data::TokenId> ids;
};

struct CollatorOptions {
  data::TokenId pad = 0;
  std::int64_t multiple_of = 8;  // of S
  bool learns_padding = false;
  bool has_grids = true;
  std::vector<std::int64_t> row_shape = {};  // of pixel_values, behind the rows
};

class Collator {
 public:
  Collator(CollatorOptions options, WhitePicture white);

  // Before: at least one sample.
  data::Batch collate(std::vector<ReadSample> samples) const;

 private:
  CollatorOptions options_;
  WhitePicture white_;
};

// The tokens that a batch learns (targets other than -100), and all of it: data::DataLoaders::count_tokens.
data::TokenCounts count_tokens(const data::Batch& batch);

}  // namespace loom::multimodal
