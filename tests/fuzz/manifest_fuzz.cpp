// shardloom_manifest.json: what is read is written again and read again the same; every file lies in the directory; the
// shares of any number of ranks are all the bytes, each once.
#include <algorithm>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/manifest_check.h"
#include "tests/fuzz/fuzz.h"

namespace {

void check_shares(const loom::checkpoint::Manifest& manifest, int members) {
  using namespace loom;
  std::vector<std::int64_t> read(manifest.files.size(), 0);
  for (int index = 0; index < members; ++index) {
    for (const checkpoint::FilePart& part : checkpoint::share_of(manifest, index, members)) {
      if (part.begin != read.at(part.file) || part.bytes <= 0) fuzz::found("a share that is out of order", "");
      read[part.file] += part.bytes;
    }
  }
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (read[i] != manifest.files[i].size_bytes) fuzz::found("bytes that no rank reads", manifest.files[i].name);
  }
}

}  // namespace

LOOM_FUZZ_TARGET(manifest) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const auto manifest = checkpoint::parse_manifest(fuzz::text_of(data, size), "shardloom_manifest.json");
    for (const checkpoint::ManifestFile& file : manifest.files) {
      const bool inside = std::filesystem::path(file.name).filename() == file.name && file.name != "..";
      if (!inside || file.size_bytes < 0) fuzz::found("a file that is not in the directory", file.name);
    }
    const std::string text = checkpoint::to_json(manifest);
    auto again = checkpoint::parse_manifest(text, "again");
    if (checkpoint::to_json(again) != text) fuzz::found("a manifest that is written as another one", text);
    for (const int members : {1, 2, 7}) check_shares(manifest, members);
  });
}
