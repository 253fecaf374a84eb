#include "engine/data/sft_data.h"

#include <fmt/core.h>
#include <memory>

namespace loom::data {

SftData open_sft_data(const SftDataOptions& options) {
  SftData data;
  const IndexCache cache{.folder = options.cache_path, .longest_wait = options.longest_wait};
  const auto open = [&](DataSplit split, const std::string& flag, const std::shared_ptr<const SftFiles>& files,
                        const SplitShare& share) {
    const auto& samples = options.samples[place_of(split)];
    if (samples && *samples <= 0) return;
    const bool is_empty = range_of(share, files->line_count()).size() == 0;
    if (is_empty && options.prefix && split != DataSplit::kTrain && samples) return;
    data[place_of(split)].emplace(flag, files, split, share, samples, options.sample, cache);
  };
  if (options.prefix) {
    const auto shares = parse_split(options.split);
    const auto files = std::make_shared<const SftFiles>("--data-path", *options.prefix, options.kind);
    for (const DataSplit split : kDataSplits) {
      if (const auto& share = shares[place_of(split)]) open(split, "--data-path", files, *share);
    }
    return data;
  }
  for (const DataSplit split : kDataSplits) {
    const auto& prefix = options.prefixes[place_of(split)];
    if (!prefix) continue;
    const std::string flag = fmt::format("--{}-data-path", name_of(split));
    open(split, flag, std::make_shared<const SftFiles>(flag, *prefix, options.kind), {});
  }
  return data;
}

}  // namespace loom::data
