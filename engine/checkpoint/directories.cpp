#include "engine/checkpoint/directories.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <string_view>
#include <sys/stat.h>

#include "engine/checkpoint/manifest.h"
#include "engine/core/descriptor.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/io/atomic_file.h"
#include "engine/io/output_target.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;
using io::reason_of;

constexpr std::size_t kRandomDigits = 16;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

void flush(const fs::path& path, int flags) {
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags));
  if (descriptor.get() < 0) raise<Error>("{}: cannot open: {}", path.string(), reason_of(errno));
  if (::fsync(descriptor.get()) == 0) return;
  const bool is_unknown_to_file_system = (flags & O_DIRECTORY) != 0 && errno == EINVAL;
  if (!is_unknown_to_file_system) raise<Error>("{}: cannot write: {}", path.string(), reason_of(errno));
}

}  // namespace

std::string Entry::description() const {
  switch (kind) {
    case Kind::kNone:
      return "is not there";
    case Kind::kFile:
      return "is a file";
    case Kind::kDirectory:
      return "is a directory";
    case Kind::kLink:
      return "is a symbolic link, which is not followed";
    case Kind::kOther:
      break;
  }
  return failed == 0 ? "is neither a file nor a directory" : fmt::format("cannot be read: {}", reason_of(failed));
}

Entry entry_at(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    return {.kind = Entry::Kind::kOther, .failed = errno};
  }
  if (S_ISLNK(status.st_mode)) return {.kind = Entry::Kind::kLink};
  if (S_ISDIR(status.st_mode)) return {.kind = Entry::Kind::kDirectory};
  if (!S_ISREG(status.st_mode)) return {.kind = Entry::Kind::kOther};
  return {.kind = Entry::Kind::kFile, .size_bytes = status.st_size};
}

std::optional<DirectoryIdentity> directory_at(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return std::nullopt;
  return DirectoryIdentity{status.st_dev, status.st_ino};
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) names.push_back(at->path().filename());
  if (error && error != std::errc::no_such_file_or_directory) {
    config_error("{}: cannot read: {}", folder.string(), error.message());
  }
  return names;
}

std::optional<std::int64_t> iteration_of(const std::string& directory_name) {
  constexpr std::string_view kPrefix = "iter_";
  if (!directory_name.starts_with(kPrefix)) return std::nullopt;
  const auto iteration = parse_number<std::int64_t>(std::string_view(directory_name).substr(kPrefix.size()));
  if (!iteration || *iteration < 0) return std::nullopt;
  if (CheckpointId{*iteration}.directory_name() != directory_name) return std::nullopt;
  return iteration;
}

std::string temporary_name(const std::string& directory_name) {
  std::random_device random;
  return fmt::format(".{}.tmp-{:08x}{:08x}", directory_name, random(), random());
}

bool is_temporary(const std::string& name) {
  constexpr std::string_view kOfTracker = ".latest_checkpointed_iteration.txt.";
  constexpr std::string_view kEnd = ".tmp";
  const std::string_view text = name;
  if (text.starts_with(kOfTracker) && text.ends_with(kEnd) &&
      text.size() == kOfTracker.size() + kRandomDigits + kEnd.size()) {
    return is_hex(text.substr(kOfTracker.size(), kRandomDigits));
  }
  const std::size_t middle = name.rfind(".tmp-");
  if (!text.starts_with('.') || middle == std::string::npos || middle == 0) return false;
  const std::string of = name.substr(1, middle - 1);
  const std::string_view random = text.substr(middle + kEnd.size() + 1);
  return random.size() == kRandomDigits && is_hex(random) && (of == "release" || iteration_of(of));
}

void flush_file(const fs::path& path) { flush(path, 0); }
void flush_directory(const fs::path& path) { flush(path, O_DIRECTORY); }

// An error that AtomicFile attributes to the user is here a failure of the file system: the path is ours.
void write_text_durably(const fs::path& path, const std::string& text) {
  try {
    io::write_text(path, text);
  } catch (const ConfigError& error) {
    throw Error(rank_prefix() + error.what());
  }
}

void rename_directory(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  raise<Error>("{}: cannot rename to {}: {}", from.string(), to.filename().string(), reason_of(errno));
}

void remove_directory(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) raise<Error>("{}: cannot remove: {}", path.string(), error.message());
}

bool exchange_names(const fs::path& one, const fs::path& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  raise<Error>("{}: cannot rename to {}: {}", one.string(), other.filename().string(), reason_of(errno));
}

fs::path replace_directory(const fs::path& from, const fs::path& to,
                           const std::function<bool(const fs::path&, const fs::path&)>& exchange) {
  if (entry_at(to).kind == Entry::Kind::kNone) {
    rename_directory(from, to);
    return {};
  }
  if (exchange(from, to)) return from;
  const fs::path aside = to.parent_path() / temporary_name(to.filename());
  rename_directory(to, aside);
  try {
    rename_directory(from, to);
  } catch (const Error&) {
    rename_directory(aside, to);
    throw;
  }
  return aside;
}

}  // namespace loom::checkpoint
