#include "engine/checkpoint/manifest.h"

#include <fmt/format.h>

#include "engine/checkpoint/file_list.h"
#include "engine/config/document.h"

namespace loom::checkpoint {
namespace {

constexpr std::int64_t kFormatVersion = 1;

CheckpointId read_id(const config::Section& document) {
  const config::Value* iteration = document.given("iteration");
  if (iteration != nullptr && iteration->is_null()) return kRelease;
  return {read_whole(document, "iteration")};
}

}  // namespace

std::string CheckpointId::directory_name() const {
  return iteration ? fmt::format("iter_{:07}", *iteration) : "release";
}

std::string CheckpointId::text() const { return iteration ? fmt::to_string(*iteration) : "release"; }

std::string to_json(const Manifest& manifest) {
  return fmt::format("{{\"format_version\": {}, \"iteration\": {}, \"files\": {}}}\n", kFormatVersion,
                     manifest.id.iteration ? manifest.id.text() : "null", files_json(manifest.files));
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& shown) {
  const config::Section document(config::parse_json(text, shown.string()), config::UnknownKeys::kRefused);
  if (const std::int64_t version = read_whole(document, "format_version"); version != kFormatVersion) {
    document.reject("format_version", "this program reads version {}; use a newer program", kFormatVersion);
  }
  document.has("iteration");
  Manifest manifest{.id = read_id(document), .files = read_files(document)};
  document.refuse_unread();
  return manifest;
}

}  // namespace loom::checkpoint
