// MultimodalData: the loaders of conversations with pictures, as a data.json describes them.
//
// Opening     reads all conversations and the heads of all pictures: samples whose turns do not alternate, and those
//             whose cut would take tokens of pictures, are left out, counted in a warning with their first places. A
//             file that is not there is an error then, not while training.
// Train       numbers become samples by RandomBatchSampler: each rank and micro-batch has what MindSpeed-MM's has. Of a
//             run that goes on with another number of ranks or micro-batches, samples of the current epoch may come
//             twice or not at all, as there.
// Valid       val_dataset, or the share val_rate of the data: with N samples the first ceil(N rate) of torch's
//             permutation by the job's seed, which training leaves out; numpy's draws of MindSpeed-MM differ. In the
//             order of the files, again from the front behind the last one.
// Encoding    each sample when it is read; nothing is cached.
// Memory      the texts of all samples, and a batch for each rank.
// Threads     loaders are called by several ranks' threads at once.
// Errors      ConfigError with the sample's place; from loaders too: a picture that changed since the opening.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/data/step.h"
#include "engine/multimodal/data_config.h"
#include "engine/multimodal/picture_reader.h"

namespace loom::multimodal {

// The job's part of the data.
struct MultimodalJob {
  std::shared_ptr<const PictureReader> pictures;
  std::int64_t micro_batch_size = 1;
  std::int64_t data_ranks = 1;
  std::int64_t micro_batches = 1;       // of a step, on each rank
  std::int64_t length_multiple_of = 8;  // of a batch's rows; ranks that share sequences need a multiple of theirs
  std::uint64_t seed = 1234;            // of val_rate's choice
};

struct MultimodalData {
  data::DataLoaders loaders;
  std::int64_t train_samples = 0;
  std::int64_t epoch_samples = 0;  // train_samples without those that fill no batch of all ranks
  std::int64_t valid_samples = 0;
};

MultimodalData open_multimodal_data(const DataConfig& config, const MultimodalJob& job);

// The tokenizer's folder.
const std::filesystem::path& tokenizer_folder(const DataConfig& config);

}  // namespace loom::multimodal
