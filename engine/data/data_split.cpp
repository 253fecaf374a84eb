#include "engine/data/data_split.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

constexpr std::string_view kNumber = ".0123456789";
constexpr std::string_view kBetween = ",;:/ \t[]()";

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  config_error("--split '{}': {}; give three numbers of 0 or more, as in 969,30,1", shown_text(text), why);
}

double number_of(const std::string& text, std::string_view word) {
  const auto number = parse_number<double>(word);
  if (!number) refuse(text, fmt::format("'{}' is not a number", word));
  return *number;
}

std::vector<double> numbers_of(const std::string& text) {
  if (const auto at = text.find_first_not_of(std::string(kNumber) + std::string(kBetween)); at != std::string::npos) {
    refuse(text, fmt::format("character {} has no meaning here", at + 1));
  }
  std::vector<double> numbers;
  for (std::size_t begin = 0; (begin = text.find_first_of(kNumber, begin)) != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_not_of(kNumber, begin), text.size());
    numbers.push_back(number_of(text, std::string_view(text).substr(begin, end - begin)));
    begin = end;
  }
  return numbers;
}

}  // namespace

std::string_view name_of(DataSplit split) {
  constexpr PerSplit<std::string_view> kNames{"train", "valid", "test"};
  return kNames[place_of(split)];
}

PerSplit<std::optional<SplitShare>> parse_split(const std::string& text) {
  std::vector<double> weights = numbers_of(text);
  if (weights.size() > kDataSplits.size()) refuse(text, fmt::format("it has {} numbers", weights.size()));
  weights.resize(kDataSplits.size());
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (!(sum > 0) || !std::isfinite(sum)) refuse(text, fmt::format("its numbers sum to {}", sum));
  PerSplit<std::optional<SplitShare>> shares;
  double begin = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double end = begin + weights[i] / sum;
    if (end > begin) shares[i] = SplitShare{begin, end};
    begin = end;
  }
  return shares;
}

SequenceRange range_of(const SplitShare& share, std::int64_t sequences) {
  const auto place = [&](double part) {
    return std::min(sequences, static_cast<std::int64_t>(std::nearbyint(part * static_cast<double>(sequences))));
  };
  return {place(share.begin), place(share.end)};
}

}  // namespace loom::data
