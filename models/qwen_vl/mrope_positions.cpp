#include "models/qwen_vl/mrope_positions.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"

namespace loom::models {
namespace {

// The pictures or the videos of a batch, in reading order.
class Blocks {
 public:
  Blocks(const char* what, std::int64_t id, std::vector<VisionGrid> grids)
      : what_(what), id_(id), grids_(std::move(grids)) {}

  std::int64_t id() const { return id_; }
  bool is_empty() const { return next_ == grids_.size(); }
  std::size_t number() const { return next_; }
  VisionGrid take(std::int64_t row, std::int64_t token) {
    if (is_empty()) {
      config_error(
          "input_ids has a token with id {} at [{}, {}], behind the last {}: there are {} grids; write one token for "
          "each feature of a {}",
          id_, row, token, what_, grids_.size(), what_);
    }
    return grids_[next_++];
  }
  [[noreturn]] void reject(std::int64_t row, std::int64_t token, std::int64_t found, std::int64_t features) const {
    config_error(
        "{} {} has {} features, but input_ids has {} tokens with id {} from [{}, {}] on; write one token for each "
        "feature",
        what_, next_ - 1, features, found, id_, row, token);
  }
  void check_end() const {
    if (is_empty()) return;
    config_error(
        "there are {} grids of {}s, but input_ids has tokens of {} alone (id {}); write one token for each feature",
        grids_.size(), what_, next_, id_);
  }

 private:
  const char* what_;
  const std::int64_t id_;
  const std::vector<VisionGrid> grids_;
  std::size_t next_ = 0;
};

std::vector<VisionGrid> single_frames(const std::vector<VisionGrid>& videos) {
  std::vector<VisionGrid> frames;
  for (const VisionGrid& video : videos) {
    frames.insert(frames.end(), static_cast<std::size_t>(std::max<std::int64_t>(video.t, 0)), {1, video.h, video.w});
  }
  return frames;
}

std::vector<std::int64_t> as_int64(const Tensor& ids) {
  if (ids.dtype() == DType::kI64) return ids.to_vector<std::int64_t>();
  const std::vector<std::int32_t> narrow = ids.to_vector<std::int32_t>();
  return {narrow.begin(), narrow.end()};
}

class Walk {
 public:
  Walk(const Tensor& input_ids, const Tensor& attention_mask, const VisionInputs& inputs, const QwenVlConfig& config)
      : config_(config),
        inputs_(inputs),
        ids_(as_int64(input_ids)),
        mask_(attention_mask.defined() ? as_int64(attention_mask) : std::vector<std::int64_t>(ids_.size(), 1)),
        length_(input_ids.shape()[1]),
        tokens_(std::ssize(ids_)),
        images_("picture", config.image_token_id, inputs.images),
        videos_("video", config.video_token_id,
                config.version == QwenVlVersion::k3 ? single_frames(inputs.videos) : inputs.videos),
        positions_(static_cast<std::size_t>(3 * tokens_), 1) {}

  MropePositions run() {
    MropePositions result;
    for (std::int64_t row = 0; row * length_ < tokens_; ++row) result.deltas.push_back(walk_row(row));
    images_.check_end();
    videos_.check_end();
    result.ids = Tensor::host({3, tokens_ / length_, length_}, DType::kI32, "position ids");
    std::ranges::copy(positions_, result.ids.data<std::int32_t>());
    return result;
  }

 private:
  std::int64_t walk_row(std::int64_t row) {
    std::int64_t next = 0, count = 0;
    for (std::int64_t s = 0; s < length_;) {
      const std::int64_t at = row * length_ + s;
      Blocks* blocks = blocks_of(at);
      if (mask_[static_cast<std::size_t>(at)] == 0) {
        s += blocks == nullptr ? 1 : features_of(*blocks, row, s, 0).count();
        continue;
      }
      const std::int64_t taken = blocks == nullptr ? put_text(at, next) : put_block(*blocks, row, s, next);
      s += taken;
      count += taken;
    }
    return next - count;
  }

  Blocks* blocks_of(std::int64_t at) {
    const std::int64_t id = ids_[static_cast<std::size_t>(at)];
    return id == images_.id() ? &images_ : id == videos_.id() ? &videos_ : nullptr;
  }

  std::int64_t put_text(std::int64_t at, std::int64_t& next) {
    put(at, {next, next, next});
    ++next;
    return 1;
  }

  // A picture or video in tokens.
  struct Features {
    std::int64_t t, h, w;
    std::int64_t count() const { return t * h * w; }
  };
  // The next one, whose tokens lie from [row, s] on and have `mask`.
  Features features_of(Blocks& blocks, std::int64_t row, std::int64_t s, std::int64_t mask) const {
    const VisionGrid grid = blocks.take(row, s);
    const std::int64_t merge = config_.vision.spatial_merge_size;
    const Features features{grid.t, grid.h / merge, grid.w / merge};
    std::int64_t found = 0;
    while (found < features.count() && s + found < length_ && is_of(blocks, row * length_ + s + found, mask)) ++found;
    if (found != features.count() || found == 0) blocks.reject(row, s, found, features.count());
    return features;
  }

  // The number of its tokens.
  std::int64_t put_block(Blocks& blocks, std::int64_t row, std::int64_t s, std::int64_t& next) {
    const std::size_t number = blocks.number();
    const auto [t, h, w] = features_of(blocks, row, s, 1);
    std::int64_t largest = next - 1;
    for (std::int64_t i = 0; i < t * h * w; ++i) {
      const VisionGrid place{next + time_of(i / (h * w), &blocks == &videos_, number), next + i / w % h, next + i % w};
      put(row * length_ + s + i, place);
      largest = std::max({largest, place.t, place.h, place.w});
    }
    next = largest + 1;
    return t * h * w;
  }

  bool is_of(const Blocks& blocks, std::int64_t at, std::int64_t mask) const {
    return ids_[static_cast<std::size_t>(at)] == blocks.id() && mask_[static_cast<std::size_t>(at)] == mask;
  }

  std::int64_t time_of(std::int64_t frame, bool is_video, std::size_t number) const {
    if (config_.version != QwenVlVersion::k2_5 || !is_video) return frame;
    const float seconds = inputs_.second_per_grid.empty() ? 1 : inputs_.second_per_grid.at(number);
    const float second = static_cast<float>(frame) * seconds;  // rounded, as a tensor's
    return static_cast<std::int64_t>(std::floor(second * static_cast<float>(config_.vision.tokens_per_second)));
  }

  void put(std::int64_t at, const VisionGrid& place) {
    const std::int64_t axes[] = {place.t, place.h, place.w};
    for (std::int64_t axis = 0; axis < 3; ++axis) {
      positions_[static_cast<std::size_t>(axis * tokens_ + at)] = static_cast<std::int32_t>(axes[axis]);
    }
  }

  const QwenVlConfig& config_;
  const VisionInputs& inputs_;
  const std::vector<std::int64_t> ids_;
  const std::vector<std::int64_t> mask_;
  const std::int64_t length_;
  const std::int64_t tokens_;
  Blocks images_;
  Blocks videos_;
  std::vector<std::int32_t> positions_;
};

}  // namespace

MropePositions mrope_positions(const Tensor& input_ids, const Tensor& attention_mask, const VisionInputs& inputs,
                               const QwenVlConfig& config) {
  const Shape& s = input_ids.shape();
  check_model(s.ndim() == 2, "input_ids {}, expected [batch, sequence]", to_string(s));
  if (attention_mask.defined()) {
    check_model(attention_mask.dtype() == DType::kI32 && attention_mask.shape() == s,
                "attention_mask is {} {}; int32 {} is needed", name(attention_mask.dtype()),
                to_string(attention_mask.shape()), to_string(s));
  }
  check_model(inputs.second_per_grid.empty() || inputs.second_per_grid.size() == inputs.videos.size(),
              "second_per_grid_ts has {} numbers for {} videos; one each is needed", inputs.second_per_grid.size(),
              inputs.videos.size());
  check_grids(inputs.images, config.vision.spatial_merge_size);
  check_grids(inputs.videos, config.vision.spatial_merge_size);
  if (input_ids.raw() == nullptr || s.numel() == 0) {
    return {Tensor::empty({3, s[0], s[1]}, DType::kI32, device::MemCategory::kActivation, "position ids"),
            std::vector<std::int64_t>(static_cast<std::size_t>(s[0]), 0)};
  }
  return Walk(input_ids, attention_mask, inputs, config).run();
}

}  // namespace loom::models
