// SampleSet: conversations that can be read and encoded, by number. Private to engine/multimodal.
//
// Numbers  0 to count() - 1, over parts of samples that may be repeated (repeat_time).
// Threads  const functions are safe from any number of threads.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/multimodal/collator.h"
#include "engine/multimodal/conversation.h"
#include "engine/multimodal/conversation_encoder.h"
#include "engine/multimodal/picture_reader.h"
#include "engine/multimodal/video_frames.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace loom::multimodal {

// TokenEncoders that threads take in turn: each keeps a cache.
class EncoderPool {
 public:
  explicit EncoderPool(data::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  template <class Use>
  auto with(Use&& use) const {
    std::unique_ptr<data::TokenEncoder> encoder = take();
    auto result = use(*encoder);
    give(std::move(encoder));
    return result;
  }

 private:
  std::unique_ptr<data::TokenEncoder> take() const;
  void give(std::unique_ptr<data::TokenEncoder> encoder) const;

  const data::Tokenizer tokenizer_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<data::TokenEncoder>> free_;
};

// What encodes and reads the samples of all parts.
struct SampleTools {
  std::shared_ptr<const PictureReader> pictures;
  ConversationEncoder encoder;
  EncoderPool pool;
  VideoOptions video;
  Collator collator;
};

class SampleSet {
 public:
  explicit SampleSet(std::shared_ptr<const SampleTools> tools) : tools_(std::move(tools)) {}

  // Adds samples `times` times, without those whose cut would take tokens of pictures: these are counted.
  void add(std::vector<Conversation> samples, std::int64_t times, DropCounter& drops);
  // Moves the samples with these numbers, in ascending order, to another set. Before: nothing is repeated.
  SampleSet split_off(std::span<const std::int64_t> numbers);

  std::int64_t count() const { return count_; }
  std::int64_t pictures() const;  // of all samples, each counted once
  const Conversation& sample(std::int64_t number) const;
  data::Batch batch(std::span<const std::int64_t> numbers) const;

 private:
  struct Part {
    std::int64_t first = 0;  // number
    std::size_t sample = 0;
    std::int64_t samples = 0;
  };
  ReadSample read(const Conversation& sample) const;
  bool fits(const Conversation& sample) const;
  std::vector<std::filesystem::path> frames_of(const Video& video) const;

  std::shared_ptr<const SampleTools> tools_;
  std::vector<Conversation> samples_;
  std::vector<Part> parts_;
  std::int64_t count_ = 0;
};

}  // namespace loom::multimodal
