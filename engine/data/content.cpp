#include "engine/data/content.h"

#include <algorithm>

#include "engine/core/digest.h"
#include "engine/data/byte_dataset.h"
#include "engine/io/mapped_file.h"

namespace loom::data {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
constexpr std::int64_t kBlockBytes = 16384;

// Every `stretch` bytes, a block.
std::uint64_t digest_of(std::span<const std::byte> bytes, std::int64_t stretch, std::uint64_t before) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  before = digest(&size, sizeof size, before);
  for (std::int64_t at = 0; at < size; at += stretch) {
    const std::int64_t count = std::min(kBlockBytes, size - at);
    before = digest(bytes.data() + at, static_cast<std::size_t>(count), before);
  }
  return before;
}

}  // namespace

Content content_of(std::span<const std::filesystem::path> paths) {
  std::vector<io::MappedFile> files;
  Content content;
  for (const std::filesystem::path& path : data_files({paths.begin(), paths.end()})) {
    content.bytes += static_cast<std::int64_t>(files.emplace_back(path).bytes().size());
  }
  content.files = static_cast<std::int64_t>(files.size());
  content.digest = kDigestSeed;
  const std::int64_t stretch = kBlockBytes * std::max<std::int64_t>(1, (content.bytes + kMostBytes - 1) / kMostBytes);
  for (const io::MappedFile& file : files) content.digest = digest_of(file.bytes(), stretch, content.digest);
  return content;
}

}  // namespace loom::data
