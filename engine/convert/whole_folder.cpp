#include "engine/convert/whole_folder.h"

#include <system_error>

#include "engine/checkpoint/directories.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

fs::path without_links(const fs::path& place) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(fs::absolute(place, error), error);
  if (!whole.has_filename()) whole = whole.parent_path();  // "out/"
  return whole;
}

}  // namespace

void refuse_taken(const std::string& flag, const fs::path& place) {
  std::error_code error;
  if (!fs::exists(place, error)) return;
  if (!fs::is_directory(place, error)) {
    config_error("{}: {} is a file; give a folder that is new or empty", flag, place.string());
  }
  const auto names = names_in(place);
  if (names.empty()) return;
  config_error("{}: {} holds {} already ({} entries); give a folder that is new or empty", flag, place.string(),
               shown_text(names.front()), names.size());
}

WholeFolder::WholeFolder(const std::string& flag, const fs::path& place) : place_(without_links(place)) {
  refuse_taken(flag, place_);
  const fs::path beside = place_.parent_path() / temporary_name(place_.filename().string());
  std::error_code error;
  fs::create_directories(beside, error);
  if (error) {
    config_error("{}: cannot make the folder {}: {}; give a folder that can be written", flag, beside.string(),
                 error.message());
  }
  temporary_ = beside;
}

WholeFolder::~WholeFolder() {
  if (temporary_.empty()) return;
  try {
    remove_directory(temporary_);
  } catch (const Error& error) {
    logger().warn("{}; it is half of a folder, and no longer needed", error.what());
  }
}

void WholeFolder::commit() {
  flush_directory(temporary_);
  rename_directory(temporary_, place_);
  temporary_.clear();
  flush_directory(place_.parent_path());
}

}  // namespace loom::checkpoint
