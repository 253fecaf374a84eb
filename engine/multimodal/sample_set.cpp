#include "engine/multimodal/sample_set.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"

namespace loom::multimodal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTile = 64;  // samples of a piece of parallel work

}  // namespace

std::unique_ptr<data::TokenEncoder> EncoderPool::take() const {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<data::TokenEncoder> encoder = std::move(free_.back());
      free_.pop_back();
      return encoder;
    }
  }
  return std::make_unique<data::TokenEncoder>(tokenizer_);
}

void EncoderPool::give(std::unique_ptr<data::TokenEncoder> encoder) const {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(encoder));
}

std::vector<fs::path> SampleSet::frames_of(const Video& video) const {
  const std::vector<fs::path> all = video.folder.empty()
                                        ? std::vector<fs::path>(video.frames.begin(), video.frames.end())
                                        : frames_of_folder(video.folder);
  std::vector<fs::path> frames;
  for (const std::int64_t at : chosen_frames(std::ssize(all), std::nullopt, tools_->video)) {
    frames.push_back(all[static_cast<std::size_t>(at)]);
  }
  return frames;
}

bool SampleSet::fits(const Conversation& sample) const {
  tools_->encoder.check(sample);
  if (sample.images.empty() && sample.videos.empty() && !tools_->encoder.may_refuse_texts()) return true;
  std::vector<Grid> images, videos;
  for (const std::string& image : sample.images) {
    images.push_back(tools_->pictures->size_of(image, std::ssize(sample.images)));
  }
  for (const Video& video : sample.videos) videos.push_back(tools_->pictures->size_of_video(frames_of(video)));
  return tools_->pool.with([&](data::TokenEncoder& encoder) {
    return tools_->encoder.encode(sample, {images, videos}, encoder).has_value();
  });
}

void SampleSet::add(std::vector<Conversation> samples, std::int64_t times, DropCounter& drops) {
  std::vector<char> fit(samples.size());
  const std::size_t tiles = (samples.size() + kTile - 1) / kTile;
  parallel_for(static_cast<std::int64_t>(tiles), [&](std::int64_t tile) {
    const std::size_t begin = static_cast<std::size_t>(tile) * kTile;
    for (std::size_t i = begin; i < std::min(begin + kTile, samples.size()); ++i) fit[i] = fits(samples[i]) ? 1 : 0;
  });
  const std::size_t before = samples_.size();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (fit[i] != 0) {
      samples_.push_back(std::move(samples[i]));
    } else {
      drops.add(DropReason::kCutPictures, samples[i]);
    }
  }
  const auto added = static_cast<std::int64_t>(samples_.size() - before);
  if (added == 0) return;
  const auto all = checked_multiply(added, times);
  std::int64_t count = 0;
  if (!all || __builtin_add_overflow(count_, *all, &count)) {
    config_error("{} samples, {} times, are too many; lower repeat_time", added, times);
  }
  parts_.push_back({count_, before, added});
  count_ = count;
}

SampleSet SampleSet::split_off(std::span<const std::int64_t> numbers) {
  require(count_ == std::ssize(samples_), "a set with repeated samples is split");
  SampleSet other(tools_);
  std::vector<Conversation> kept;
  auto next = numbers.begin();
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const bool moves = next != numbers.end() && std::cmp_equal(*next, i);
    if (moves) ++next;
    (moves ? other.samples_ : kept).push_back(std::move(samples_[i]));
  }
  samples_ = std::move(kept);
  for (SampleSet* set : {this, &other}) {
    set->count_ = std::ssize(set->samples_);
    set->parts_ = {{0, 0, set->count_}};
  }
  return other;
}

std::int64_t SampleSet::pictures() const {
  std::int64_t count = 0;
  for (const Conversation& sample : samples_) count += std::ssize(sample.images) + std::ssize(sample.videos);
  return count;
}

const Conversation& SampleSet::sample(std::int64_t number) const {
  require(0 <= number && number < count_, "sample {} of {}", number, count_);
  const Part& part = *std::prev(std::ranges::upper_bound(parts_, number, {}, &Part::first));
  return samples_[part.sample + static_cast<std::size_t>((number - part.first) % part.samples)];
}

ReadSample SampleSet::read(const Conversation& sample) const {
  ReadSample read;
  std::vector<Grid> images, videos;
  for (const std::string& image : sample.images) {
    read.images.push_back(tools_->pictures->read(image, std::ssize(sample.images)));
    images.push_back(read.images.back().grid);
  }
  for (const Video& video : sample.videos) {
    read.videos.push_back(tools_->pictures->read_video(frames_of(video)));
    videos.push_back(read.videos.back().grid);
    read.second_per_grid.push_back(second_per_grid(tools_->video));
  }
  auto text = tools_->pool.with([&](data::TokenEncoder& encoder) {
    return tools_->encoder.encode(sample, {images, videos}, encoder);
  });
  if (!text) {
    config_error("{}: its pictures have grown since the start, and the cut-off takes tokens of them; start again",
                 sample.place());
  }
  read.text = std::move(*text);
  return read;
}

data::Batch SampleSet::batch(std::span<const std::int64_t> numbers) const {
  std::vector<ReadSample> samples;
  for (const std::int64_t number : numbers) samples.push_back(read(sample(number)));
  return tools_->collator.collate(std::move(samples));
}

}  // namespace loom::multimodal
