// WholeFolder: a folder that appears with everything in it, or not at all. Private to engine/convert.
//
// Place    it is made beside its place, under a name with a dot that nobody can foresee, and renamed at the end.
// Refused  a place where something lies already, but for an empty folder.
// Left     an object that is destroyed before commit() removes what it has made.
// Threads  one thread at a time.
// Errors   ConfigError for the place; Error where the file system fails.
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

  // Where its files are to be written.
  const std::filesystem::path& path() const { return temporary_; }
  void commit();

 private:
  const std::filesystem::path place_;  // without links
  std::filesystem::path temporary_;
};

// ConfigError unless nothing, or an empty folder, is at `place`.
void refuse_taken(const std::string& flag, const std::filesystem::path& place);

}  // namespace loom::checkpoint
