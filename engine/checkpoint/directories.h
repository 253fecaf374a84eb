// Entries of a folder, without following links; renaming and removing directories so that a crash leaves one
// whole. Private to engine.
//
// Errors   Error "PATH: cannot VERB: REASON".
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace loom::checkpoint {

struct Entry {
  enum class Kind : std::uint8_t { kNone, kFile, kDirectory, kLink, kOther };

  Kind kind = Kind::kNone;
  std::int64_t size_bytes = 0;  // of a file
  int failed = 0;               // errno if it cannot be examined: kOther

  // "is a symbolic link, which is not followed".
  std::string description() const;
};

Entry entry_at(const std::filesystem::path& path);

// Identifies the directory at a path: another directory at the same path has another number. None if there is none.
struct DirectoryIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;

  bool operator==(const DirectoryIdentity&) const = default;
};
std::optional<DirectoryIdentity> directory_at(const std::filesystem::path& path);

// The names in a folder; empty if there is no folder. ConfigError if it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

// The iteration of "iter_0000010"; nothing for any other name.
std::optional<std::int64_t> iteration_of(const std::string& directory_name);

// ".iter_0000010.tmp-0123456789abcdef", an unpredictable name.
std::string temporary_name(const std::string& directory_name);
// Whether it is such a name, or the name of a temporary tracker.
bool is_temporary(const std::string& name);

// Flushes a file's bytes, or the names in a directory, to disk. Neither is reached through a link.
void flush_file(const std::filesystem::path& path);
void flush_directory(const std::filesystem::path& path);

// Writes a text as a file of the store, whole or not at all; it is on disk when this returns.
void write_text_durably(const std::filesystem::path& path, const std::string& text);

void rename_directory(const std::filesystem::path& from, const std::filesystem::path& to);
// Removes it with its contents; a link in it is removed, not followed.
void remove_directory(const std::filesystem::path& path);

// False if the file system cannot exchange two names in one step.
bool exchange_names(const std::filesystem::path& one, const std::filesystem::path& other);
// Puts the directory `from` at `to`. The former directory at `to` is then at `from`, or at `to`'s temporary_name() if
// `exchange` cannot; returns that path, empty if there was none.
std::filesystem::path replace_directory(
    const std::filesystem::path& from, const std::filesystem::path& to,
    const std::function<bool(const std::filesystem::path&, const std::filesystem::path&)>& exchange = exchange_names);

}  // namespace loom::checkpoint
