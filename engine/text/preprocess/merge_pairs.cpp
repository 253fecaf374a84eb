#include "engine/text/preprocess/merge_pairs.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/preprocess/pair_outputs.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

// The pairs of one key; mapped, so that they stay what they were.
using Group = std::vector<io::IndexedDataset>;

void check_pair(const fs::path& prefix) {
  std::error_code none;
  for (const fs::path& file : {io::bin_path(prefix), io::idx_path(prefix)}) {
    if (fs::exists(file, none)) continue;
    config_error("--input: {} is not there, but its other half is; a pair is a .bin and an .idx",
                 escaped(file.string()));
  }
}

// Sorted by name, as Python sorts them.
std::vector<fs::path> prefixes_of(const fs::path& folder, const std::string& key) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    const bool half = name.extension() == ".bin" || name.extension() == ".idx";
    std::error_code none;
    if (!half || name.stem().string().find(key) == std::string::npos || !entry.is_regular_file(none)) continue;
    names.insert(name.stem().string());
  }
  if (names.empty()) {
    config_error("--merge-group-keys: no pair in {} has '{}' in its name; give a part of the names to merge",
                 escaped(folder.string()), shown_text(key));
  }
  std::vector<fs::path> prefixes;
  for (const std::string& name : names) {
    prefixes.push_back(folder / name);
    check_pair(prefixes.back());
  }
  return prefixes;
}

std::vector<Group> open_groups(const fs::path& folder, const std::vector<std::string>& keys) {
  std::error_code none;
  if (!fs::is_directory(folder, none)) {
    config_error("--input: {} is no folder; give the folder with the pairs to merge", escaped(folder.string()));
  }
  std::vector<Group> groups;
  for (const std::string& key : keys) {
    Group& group = groups.emplace_back();
    for (const fs::path& prefix : prefixes_of(folder, key)) group.emplace_back(prefix);
  }
  return groups;
}

PairOutputs open_outputs(const PreprocessOptions& options, const std::vector<Group>& groups) {
  std::vector<PairOutputs::Kind> kinds;
  NamedInputs inputs;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const io::IndexedDataset& first = groups[i].front();
    kinds.push_back({options.merge_group_keys[i], first.dtype(),
                     first.has_modes() ? io::IndexedWriter::Modes::kOnePerSequence : io::IndexedWriter::Modes::kNone});
    for (const io::IndexedDataset& pair : groups[i]) {
      inputs.emplace_back("--input", io::bin_path(pair.prefix()));
      inputs.emplace_back("--input", io::idx_path(pair.prefix()));
    }
  }
  return {options.output_prefix, kinds, inputs};
}

}  // namespace

PreprocessSummary merge_pairs(const PreprocessOptions& options, const PreprocessWatcher& watch) {
  const std::vector<Group> groups = open_groups(options.input, options.merge_group_keys);
  PairOutputs outputs = open_outputs(options, groups);
  PreprocessProgress progress;
  for (const Group& group : groups) {
    for (const io::IndexedDataset& pair : group) progress.all_bytes += pair.bytes().size();
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const io::IndexedDataset& pair : groups[i]) {
      outputs.writer(i).add_all(pair, [&](std::int64_t bytes) {
        progress.done_bytes += static_cast<std::uint64_t>(bytes);
        if (watch) watch(progress);
      });
      pair.check_unchanged();
      outputs.count_tokens(i, pair.token_count());
    }
  }
  return {.records = 0, .input_bytes = progress.all_bytes, .pairs = outputs.commit(), .dropped = {}};
}

}  // namespace loom::data
