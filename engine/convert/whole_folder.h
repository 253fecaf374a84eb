// WholeFolder: a folder that appears with all its contents, or not at all. Private to engine/convert.
//
// Place    it is made beside its place, under an unpredictable name with a dot, and renamed at the end.
// Refused  a place that is taken, except by an empty folder.
// Left     an object destroyed before commit() removes its files.
// Threads  one thread at a time.
// Errors   ConfigError for the place; Error if the file system fails.
#pragma once

#include <filesystem>
#include <string>

namespace loom::checkpoint {

class WholeFolder {
 public:
  // `flag` begins the messages.
  WholeFolder(const std::string& flag, const std::filesystem::path& place);
  ~WholeFolder();
  WholeFolder(const WholeFolder&) = delete;
  WholeFolder& operator=(const WholeFolder&) = delete;

  // The directory for its files.
  const std::filesystem::path& path() const { return temporary_; }
  void commit();

 private:
  const std::filesystem::path place_;  // without links
  std::filesystem::path temporary_;
};

// ConfigError unless `place` is free or an empty folder.
void refuse_taken(const std::string& flag, const std::filesystem::path& place);

}  // namespace loom::checkpoint
