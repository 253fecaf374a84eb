// What lies in a folder, seen without following links; renaming and removing directories so that a crash leaves one
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
  int failed = 0;               // errno, where it cannot be looked at: kOther

  // "is a symbolic link, which is not followed".
  std::string description() const;
};

Entry entry_at(const std::filesystem::path& path);

// Which directory a path names: of another one that is put in its place it is another number. None where there is none.
struct DirectoryIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;

  bool operator==(const DirectoryIdentity&) const = default;
};
std::optional<DirectoryIdentity> directory_at(const std::filesystem::path& path);

// The names in a folder; empty where there is none. ConfigError where it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

// The iteration of "iter_0000010"; nothing for a name that no iteration gives.
std::optional<std::int64_t> iteration_of(const std::string& directory_name);

// ".iter_0000010.tmp-0123456789abcdef", a name that nobody can foresee.
std::string temporary_name(const std::string& directory_name);
// Of such a name, and of a temporary of the tracker.
bool is_temporary(const std::string& name);

// To disk: a file's bytes, or the names in a directory. Neither is reached through a link.
void flush_file(const std::filesystem::path& path);
void flush_directory(const std::filesystem::path& path);

// A text as a file of ours, whole or not at all, on disk when this returns.
void write_text_durably(const std::filesystem::path& path, const std::string& text);

void rename_directory(const std::filesystem::path& from, const std::filesystem::path& to);
// With everything in it; a link in it is removed, not followed.
void remove_directory(const std::filesystem::path& path);

// False where the file system cannot exchange two names in one step.
bool exchange_names(const std::filesystem::path& one, const std::filesystem::path& other);
// Puts the directory `from` where `to` is. What was at `to` is then at `from`, or at `to`'s temporary_name() where
// `exchange` cannot; the result is that path, empty when nothing was there.
std::filesystem::path replace_directory(
    const std::filesystem::path& from, const std::filesystem::path& to,
    const std::function<bool(const std::filesystem::path&, const std::filesystem::path&)>& exchange = exchange_names);

}  // namespace loom::checkpoint
