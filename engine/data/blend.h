// Several data sets drawn from by weights.
//
// Source   megatron/core/datasets: utils.py, helpers.cpp, blended_megatron_dataset_builder.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace loom::data {

struct DataBlend {
  std::vector<std::filesystem::path> prefixes;  // of .bin/.idx pairs
  std::optional<std::vector<double>> weights;   // one a prefix, above 0; none: by the number of their samples
};

// The words of a flag: a prefix, several prefixes, or a weight in front of each. ConfigError that names the flag: no
// word, weights in front of some only, a weight that is not above 0.
DataBlend parse_blend(const std::string& flag, const std::vector<std::string>& words);

// The weights divided by their sum, which is taken as numpy takes it (pairwise), so that the quotients have its bits.
std::vector<double> normalized(std::span<const double> weights);

// Sample s of the blend is sample `sample[s]` of data set `dataset[s]`.
struct BlendIndex {
  std::vector<std::int16_t> dataset;
  std::vector<std::int64_t> sample;
};

// Each sample comes from the data set that is furthest behind its share: the largest w_d * max(s, 1) - taken_d, the
// lowest d of equals. Data sets of weight 0 are passed over. O(size * data sets).
// Before: weights of sum 1, at least one above 0 unless size is 0; fewer than 32767.
BlendIndex blend_by_weight(std::span<const double> weights, std::int64_t size);
// The same with weights in the ratio of the sizes, until every sample was taken once.
BlendIndex blend_all(std::span<const std::int64_t> sizes);

}  // namespace loom::data
