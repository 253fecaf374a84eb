#include "engine/text/preprocess/sample_store.h"

#include <cstring>

#include "engine/core/error.h"

namespace loom::data {

// In the file: of each key the number of its ids, then the ids.
void SampleStore::add(const SampleIds& sample) {
  require(sample.size() == keys_, "a sample of {} keys instead of {}", sample.size(), keys_);
  begins_.push_back(file_.size());
  lengths_.push_back(std::ssize(sample.front()));
  for (const auto& ids : sample) {
    const auto count = static_cast<std::int32_t>(ids.size());
    file_.append(std::as_bytes(std::span(&count, 1)));
    file_.append(std::as_bytes(std::span(ids)));
  }
}

SampleIds SampleStore::read(std::int64_t sample) {
  const auto i = static_cast<std::size_t>(sample);
  const std::uint64_t end = i + 1 < begins_.size() ? begins_[i + 1] : file_.size();
  std::vector<std::byte> bytes(end - begins_[i]);
  file_.read(begins_[i], bytes);
  SampleIds ids(keys_);
  const std::byte* at = bytes.data();
  for (auto& list : ids) {
    std::int32_t count = 0;
    std::memcpy(&count, at, sizeof count);
    list.resize(static_cast<std::size_t>(count));
    std::memcpy(list.data(), at + sizeof count, list.size() * sizeof(TokenId));
    at += sizeof count + list.size() * sizeof(TokenId);
  }
  return ids;
}

}  // namespace loom::data
