#include "engine/text/preprocess/packing.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "engine/core/error.h"

namespace loom::data {
namespace {

constexpr std::array<std::string_view, 3> kPackedKeys = {"input_ids", "attention_mask", "labels"};

TokenId filling(std::string_view key, const PackedLine& line) {
  if (key == "input_ids") return line.pad;
  if (key == "labels") return kIgnoredLabel;
  return line.neat ? 0 : 1;
}

std::vector<TokenId> packed_ids(std::string_view key, std::size_t index, std::span<const SampleIds> samples,
                                const PackedLine& line) {
  std::vector<TokenId> ids;
  ids.reserve(static_cast<std::size_t>(line.seq_length));
  const bool numbered = line.neat && key == "attention_mask";
  TokenId number = 0;
  for (const SampleIds& sample : samples) {
    ++number;
    const std::vector<TokenId>& part = sample.at(index);
    if (numbered) {
      ids.insert(ids.end(), part.size(), number);
    } else {
      ids.insert(ids.end(), part.begin(), part.end());
    }
  }
  const auto used = static_cast<std::int64_t>(ids.size());
  require(used < line.seq_length, "a packed line of {} has {} ids; its sequence length is {}", key, used,
          line.seq_length);
  ids.resize(static_cast<std::size_t>(line.seq_length), filling(key, line));
  return ids;
}

}  // namespace

bool can_pack(std::span<const std::string> keys) {
  return keys.size() == kPackedKeys.size() && std::ranges::is_permutation(keys, kPackedKeys);
}

std::vector<std::vector<std::int64_t>> pack_bins(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  std::map<std::int64_t, std::vector<std::int64_t>> left;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    require(lengths[i] >= 0 && lengths[i] <= capacity, "sample {} of {} ids does not fit into a bin of {}", i,
            lengths[i], capacity);
    left[lengths[i]].push_back(static_cast<std::int64_t>(i));
  }
  std::vector<std::vector<std::int64_t>> bins;
  while (!left.empty()) {
    std::vector<std::int64_t>& bin = bins.emplace_back();
    std::int64_t room = capacity;
    for (auto next = left.upper_bound(room); next != left.begin(); next = left.upper_bound(room)) {
      const auto largest = std::prev(next);
      bin.push_back(largest->second.back());
      room -= largest->first;
      largest->second.pop_back();
      if (largest->second.empty()) left.erase(largest);
    }
  }
  return bins;
}

void cut_sample(SampleIds& sample, std::int64_t length) {
  for (std::vector<TokenId>& ids : sample) {
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(length)));
  }
}

SampleIds pack_bin(std::span<const std::string> keys, std::span<const SampleIds> samples, const PackedLine& line) {
  require(can_pack(keys), "samples of these keys are not packed");
  SampleIds packed;
  for (std::size_t i = 0; i < keys.size(); ++i) packed.push_back(packed_ids(keys[i], i, samples, line));
  return packed;
}

}  // namespace loom::data
