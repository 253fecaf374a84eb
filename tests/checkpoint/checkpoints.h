// Checkpoints of tests: two small files each, written through the store.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/io/checksum.h"
#include "tests/support/files.h"

namespace loom::checkpoint_test {

inline checkpoint::ManifestFile write_listed(const std::filesystem::path& directory, const std::string& name,
                                             std::string_view text) {
  test::write_file(directory / name, text);
  return {name, static_cast<std::int64_t>(text.size()), io::crc32c(std::as_bytes(std::span(text)))};
}

// What `text` makes of the files of an iteration: "__0_0.distcp" and ".metadata".
inline checkpoint::Manifest write_files(const std::filesystem::path& directory, const checkpoint::CheckpointId& id,
                                        std::string_view text) {
  return {id, {write_listed(directory, "__0_0.distcp", text), write_listed(directory, ".metadata", "index")}};
}

inline void save(checkpoint::CheckpointStore& store, const checkpoint::CheckpointId& id,
                 std::string_view text = "one") {
  const std::filesystem::path directory = store.begin(id);
  store.commit(write_files(directory, id, text));
}

inline void save_all(const std::filesystem::path& folder, const std::vector<std::int64_t>& iterations) {
  checkpoint::CheckpointStore store(folder);
  for (const std::int64_t iteration : iterations) save(store, {iteration});
}

}  // namespace loom::checkpoint_test
