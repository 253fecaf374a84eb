#include "engine/comm/exchange.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/core/rng.h"

namespace loom::comm {

namespace {

// Every member's `bytes`, in rank order.
std::vector<char> exchange(ProcessGroup& group, const char* own, std::size_t bytes, std::string_view tag) {
  std::vector<char> all(bytes * static_cast<std::size_t>(group.size()));
  const GatherPart part{own, all.data(), bytes};
  group.all_gather(kHostLane, {&part, 1}, tag);
  return all;
}

template <class T>
std::vector<T> exchange_value(ProcessGroup& group, const T& own, std::string_view tag) {
  const std::vector<char> bytes = exchange(group, reinterpret_cast<const char*>(&own), sizeof own, tag);
  std::vector<T> values(static_cast<std::size_t>(group.size()));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace

bool all_have_the_same(ProcessGroup& group, const std::string& own, std::string_view tag) {
  const auto digests = exchange_value<std::uint64_t>(group, stream_key(0, own), tag);
  return std::all_of(digests.begin(), digests.end(), [&](std::uint64_t d) { return d == digests[0]; });
}

std::vector<std::vector<std::string>> exchange_lines(ProcessGroup& group, const std::string& own,
                                                     std::string_view tag) {
  const auto sizes = exchange_value<std::uint64_t>(group, own.size(), tag);
  const std::size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = own;
  padded.resize(longest);
  const std::vector<char> all = exchange(group, padded.data(), longest, tag);
  std::vector<std::vector<std::string>> lines;
  for (std::size_t r = 0; r < sizes.size(); ++r) lines.push_back(split_lines({all.data() + r * longest, sizes[r]}));
  return lines;
}

}  // namespace loom::comm
