#include "engine/multimodal/collator.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "engine/core/error.h"
#include "engine/data/token_batches.h"

namespace loom::multimodal {
namespace {

using data::TokenId;

// A row of a batch: its tokens, and how many of them are the sample's.
struct Row {
  std::vector<TokenId> ids;
  std::vector<TokenId> labels;
  std::size_t own = 0;
};

void put_row(const Row& row, TokenId pad, TokenId pad_label, std::span<TokenId> ids, std::span<TokenId> targets,
             std::span<std::int32_t> mask) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i < row.ids.size() ? row.ids[i] : pad;
    mask[i] = i < row.own ? 1 : 0;
    const bool last = i + 1 == ids.size();
    targets[i] = last ? kNotLearnt : i + 1 < row.labels.size() ? row.labels[i + 1] : pad_label;
  }
}

std::span<std::int32_t> row_of(const Tensor& tensor, std::size_t row) {
  const auto length = static_cast<std::size_t>(tensor.shape()[1]);
  return {tensor.data<std::int32_t>() + row * length, length};
}

// Adds "pixel_values" and its grids.
class PicturesOfBatch {
 public:
  PicturesOfBatch(const CollatorOptions& options, std::string values, std::string grids)
      : options_(options), values_name_(std::move(values)), grids_name_(std::move(grids)) {}

  void add(Patches patches) { patches_.push_back(std::move(patches)); }
  bool empty() const { return patches_.empty(); }

  void put_into(data::Batch& batch) const {
    if (empty()) return;
    std::int64_t row_elems = 1;
    for (const std::int64_t size : options_.row_shape) row_elems *= size;
    std::int64_t elems = 0;
    for (const Patches& patches : patches_) elems += static_cast<std::int64_t>(patches.values.size());
    require(elems % row_elems == 0, "{} values of pictures in rows of {}", elems, row_elems);
    std::vector<std::int64_t> shape{elems / row_elems};
    shape.insert(shape.end(), options_.row_shape.begin(), options_.row_shape.end());
    const Tensor values = Tensor::host(Shape(shape), DType::kF32, values_name_);
    auto* to = values.data<float>();
    for (const Patches& patches : patches_) to = std::ranges::copy(patches.values, to).out;
    batch.values.emplace_back(values_name_, values);
    if (options_.has_grids) batch.values.emplace_back(grids_name_, grids());
  }

 private:
  Tensor grids() const {
    const Tensor grids = Tensor::host({static_cast<std::int64_t>(patches_.size()), 3}, DType::kI64, grids_name_);
    auto* to = grids.data<std::int64_t>();
    for (const Patches& patches : patches_) {
      for (const std::int64_t size : {patches.grid.t, patches.grid.h, patches.grid.w}) *to++ = size;
    }
    return grids;
  }

  const CollatorOptions& options_;
  const std::string values_name_;
  const std::string grids_name_;
  std::vector<Patches> patches_;
};

std::vector<Row> rows_of(std::vector<ReadSample>& samples) {
  std::vector<Row> rows;
  for (ReadSample& sample : samples) {
    const std::size_t own = sample.text.ids.size();
    rows.push_back({std::move(sample.text.ids), std::move(sample.text.labels), own});
  }
  return rows;
}

}  // namespace

Collator::Collator(CollatorOptions options, WhitePicture white)
    : options_(std::move(options)), white_(std::move(white)) {
  require(options_.multiple_of > 0, "rows of a multiple of {}", options_.multiple_of);
}

data::Batch Collator::collate(std::vector<ReadSample> samples) const {
  require(!samples.empty(), "a batch of no sample");
  PicturesOfBatch images(options_, "pixel_values", "image_grid_thw");
  PicturesOfBatch videos(options_, "pixel_values_videos", "video_grid_thw");
  std::vector<float> seconds;
  for (ReadSample& sample : samples) {
    for (Patches& image : sample.images) images.add(std::move(image));
    for (Patches& video : sample.videos) videos.add(std::move(video));
    for (const double second : sample.second_per_grid) seconds.push_back(static_cast<float>(second));
  }
  std::vector<Row> rows = rows_of(samples);
  if (images.empty() && videos.empty()) {
    images.add(white_.patches);
    Row& first = rows.front();
    first.ids.insert(first.ids.end(), white_.ids.begin(), white_.ids.end());
    first.labels.resize(first.ids.size(), kNotLearnt);
  }
  std::size_t longest = 1;
  for (const Row& row : rows) longest = std::max(longest, row.ids.size());
  const auto multiple = static_cast<std::size_t>(options_.multiple_of);
  const auto length = static_cast<std::int64_t>((longest + multiple - 1) / multiple * multiple);
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor ids = Tensor::host({count, length}, DType::kI32, "input_ids");
  const Tensor targets = Tensor::host({count, length}, DType::kI32, "targets");
  const Tensor mask = Tensor::host({count, length}, DType::kI32, "attention_mask");
  const TokenId pad_label = options_.learns_padding ? options_.pad : kNotLearnt;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    put_row(rows[row], options_.pad, pad_label, row_of(ids, row), row_of(targets, row), row_of(mask, row));
  }
  data::Batch batch{{{"input_ids", ids}, {"targets", targets}, {"attention_mask", mask}}};
  images.put_into(batch);
  videos.put_into(batch);
  if (!videos.empty()) {
    const Tensor per_grid =
        Tensor::host({static_cast<std::int64_t>(seconds.size())}, DType::kF32, "second_per_grid_ts");
    std::ranges::copy(seconds, per_grid.data<float>());
    batch.values.emplace_back("second_per_grid_ts", per_grid);
  }
  return batch;
}

data::TokenCounts count_tokens(const data::Batch& batch) { return data::count_targets(batch); }

}  // namespace loom::multimodal
