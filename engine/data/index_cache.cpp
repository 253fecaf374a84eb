#include "engine/data/index_cache.h"

#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/core/digest.h"
#include "engine/core/is_there.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/io/atomic_file.h"
#include "engine/io/checksum.h"
#include "engine/io/mapped_file.h"
#include "engine/io/output_lock.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic{"SLINDEX\0", 8};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kAlignment = 8;

// Precedes the description and lists the content of the file.
struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t crc32c;  // of all that follows these 16 bytes
  std::uint64_t description_bytes;
  std::uint64_t arrays;
};
static_assert(sizeof(Header) == 32);

struct ArrayEntry {
  std::uint64_t item_bytes;
  std::uint64_t items;
};

constexpr std::size_t kSummedFrom = 16;

std::size_t padding(std::size_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Everything behind the checksum, piece by piece.
template <class Sink>
void for_each_piece(const Header& header, const std::string& description, const std::vector<ArrayEntry>& entries,
                    const IndexArrays& arrays, Sink&& sink) {
  constexpr std::byte kZeros[kAlignment] = {};
  const auto padded = [&](std::span<const std::byte> bytes) {
    sink(bytes);
    sink(std::span(kZeros, padding(bytes.size())));
  };
  sink(bytes_of(header).subspan(kSummedFrom));
  sink(std::as_bytes(std::span(entries)));
  padded(std::as_bytes(std::span(description)));
  for (std::size_t i = 0; i < arrays.size(); ++i) padded(arrays.bytes(i));
}

void write_indices(const fs::path& path, const std::string& description, const std::vector<std::uint64_t>& item_bytes,
                   const IndexArrays& arrays) {
  Header header{{}, kVersion, 0, description.size(), arrays.size()};
  std::memcpy(header.magic, kMagic.data(), kMagic.size());
  std::vector<ArrayEntry> entries;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    entries.push_back({item_bytes[i], arrays.bytes(i).size() / item_bytes[i]});
  }
  for_each_piece(header, description, entries, arrays,
                 [&](std::span<const std::byte> bytes) { header.crc32c = io::crc32c(bytes, header.crc32c); });
  io::AtomicFile file(path);
  file.write(bytes_of(header).first(kSummedFrom));
  for_each_piece(header, description, entries, arrays, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

// A file of indices, checked; nothing, and why, where it is damaged.
class IndexFile {
 public:
  explicit IndexFile(const fs::path& path)
      : file_(std::make_shared<const io::MappedFile>(path)), rest_(file_->bytes()) {}

  std::optional<IndexArrays> arrays(const std::string& description, const std::vector<std::uint64_t>& item_bytes) {
    const auto* header = take<Header>(1);
    if (header == nullptr || std::memcmp(header->magic, kMagic.data(), kMagic.size()) != 0) return no("no index file");
    if (header->version != kVersion) return no("of another version");
    if (io::crc32c(file_->bytes().subspan(kSummedFrom)) != header->crc32c) return no("its checksum is not right");
    const auto* entry = take<ArrayEntry>(header->arrays);
    const auto* text = take<char>(header->description_bytes);
    if (entry == nullptr || text == nullptr || header->arrays != item_bytes.size())
      return no("its sizes are not right");
    if (std::string_view(text, header->description_bytes) != description) return no("of other data");
    std::vector<std::span<const std::byte>> arrays;
    for (const std::uint64_t bytes : item_bytes) {
      if (entry->item_bytes != bytes || entry->items > rest_.size() / bytes) return no("its sizes are not right");
      arrays.emplace_back(take<std::byte>(entry->items * bytes), entry->items * bytes);
      ++entry;
    }
    return IndexArrays(file_, std::move(arrays));
  }

  const std::string& why_not() const { return why_not_; }

 private:
  // The next `count` items, and what fills them up to the alignment; null where they are not there.
  template <class T>
  const T* take(std::uint64_t count) {
    if (count > rest_.size() / sizeof(T)) return nullptr;
    const auto* items = reinterpret_cast<const T*>(rest_.data());
    const std::size_t bytes = count * sizeof(T);
    rest_ = rest_.subspan(std::min(rest_.size(), bytes + padding(bytes)));
    return items;
  }

  std::nullopt_t no(std::string why) {
    why_not_ = std::move(why);
    return std::nullopt;
  }

  std::shared_ptr<const io::MappedFile> file_;
  std::span<const std::byte> rest_;
  std::string why_not_;
};

// The content of an intact file; a damaged file is reported and treated as missing.
std::optional<IndexArrays> read_indices(const fs::path& path, const std::string& description,
                                        const std::vector<std::uint64_t>& item_bytes) {
  if (!is_there(path)) return {};
  IndexFile file(path);
  std::optional<IndexArrays> arrays = file.arrays(description, item_bytes);
  if (!arrays) log_warning("{}: this cache is damaged ({}) and is built again", path.string(), file.why_not());
  return arrays;
}

void make_folder(const IndexCache& cache) {
  std::error_code error;
  fs::create_directories(cache.folder, error);
  if (error) {
    config_error("{} '{}': cannot make the folder: {}; give a folder that can be written", cache.flag,
                 escaped(cache.folder.string()), error.message());
  }
}

// The file that another builder made while this one waited for its turn, or a new one.
IndexArrays read_or_build(const IndexCache& cache, const fs::path& path, const std::string& description,
                          const std::vector<std::uint64_t>& item_bytes,
                          const std::function<std::vector<IndexVector>()>& build) {
  make_folder(cache);
  const auto lock = io::OutputLock::of_file_in_turn(cache.flag, path, cache.longest_wait);
  if (auto found = read_indices(path, description, item_bytes)) return *found;
  write_indices(path, description, item_bytes, IndexArrays(build()));
  IndexFile written(path);
  auto arrays = written.arrays(description, item_bytes);
  if (!arrays) raise<Error>("{}: it was just written, and is {}", path.string(), written.why_not());
  return *arrays;
}

}  // namespace

IndexArrays::IndexArrays(std::vector<IndexVector> arrays) {
  auto owner = std::make_shared<const std::vector<IndexVector>>(std::move(arrays));
  for (const IndexVector& array : *owner) {
    arrays_.push_back(std::visit([](const auto& items) { return std::as_bytes(std::span(items)); }, array));
  }
  owner_ = std::move(owner);
}

fs::path cache_file(const IndexCache& cache, const std::string& name, const std::string& description) {
  return cache.folder / fmt::format("{:016x}-{}.index", digest(description.data(), description.size()), name);
}

IndexArrays cached_indices(const IndexCache& cache, const std::string& name, const std::string& description,
                           const std::vector<std::uint64_t>& item_bytes,
                           const std::function<std::vector<IndexVector>()>& build) {
  if (cache.folder.empty()) return IndexArrays(build());
  const fs::path path = cache_file(cache, name, description);
  if (auto found = read_indices(path, description, item_bytes)) return *found;
  if (cache.must_write) return read_or_build(cache, path, description, item_bytes, build);
  try {
    return read_or_build(cache, path, description, item_bytes, build);
  } catch (const ConfigError& error) {
    log_warning("{}; the indices stay in memory, and every process builds its own", error.what());
  }
  return IndexArrays(build());
}

}  // namespace loom::data
