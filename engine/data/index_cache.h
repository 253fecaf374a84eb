// Indices of a data set, kept in a file: built once, then mapped by every process of the host.
//
// File      docs/formats.md, "Caches of indices". Its name has a digest of the description, the text of everything that
//           the indices depend on; the text itself is in the file and is compared.
// Builder   one at a time (io::OutputLock beside the file); the others wait for it, but no longer than `longest_wait`,
//           and then find the file. It appears whole or not at all.
// Damaged   a file with a wrong checksum, size or description is built again, with a warning.
// Threads   safe from any number of threads and processes. The returned arrays are constant.
// Errors    ConfigError with the flag and the path: the folder cannot be made or written, the wait was too long.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/core/error.h"

namespace loom::data {

using IndexVector = std::variant<std::vector<std::int16_t>, std::vector<std::int32_t>, std::vector<std::int64_t>>;

// Arrays that lie in memory or in a mapped file.
class IndexArrays {
 public:
  IndexArrays() = default;
  explicit IndexArrays(std::vector<IndexVector> arrays);
  // Arrays that `owner` keeps alive; each begins at a multiple of 8 bytes.
  IndexArrays(std::shared_ptr<const void> owner, std::vector<std::span<const std::byte>> arrays)
      : owner_(std::move(owner)), arrays_(std::move(arrays)) {}

  std::size_t size() const { return arrays_.size(); }
  std::span<const std::byte> bytes(std::size_t array) const { return arrays_.at(array); }
  template <class T>
  std::span<const T> get(std::size_t array) const {
    const auto bytes = arrays_.at(array);
    require(bytes.size() % sizeof(T) == 0, "{} bytes as items of {}", bytes.size(), sizeof(T));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  std::shared_ptr<const void> owner_;
  std::vector<std::span<const std::byte>> arrays_;
};

struct IndexCache {
  std::filesystem::path folder;  // empty: no cache
  std::string flag = "--data-cache-path";
  // A folder that a user named must be writable. Otherwise the indices stay in memory, with a warning.
  bool must_write = true;
  std::chrono::milliseconds longest_wait = std::chrono::minutes(10);
};

// The arrays of the file FOLDER/DIGEST-NAME.index, or what `build` gives, which is written there. `item_bytes`: what
// one item of each array has; a file with others is damaged.
IndexArrays cached_indices(const IndexCache& cache, const std::string& name, const std::string& description,
                           const std::vector<std::uint64_t>& item_bytes,
                           const std::function<std::vector<IndexVector>()>& build);

// Where they are kept.
std::filesystem::path cache_file(const IndexCache& cache, const std::string& name, const std::string& description);

}  // namespace loom::data
