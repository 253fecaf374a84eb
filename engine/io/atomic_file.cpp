#include "engine/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <span>
#include <sys/stat.h>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/write_all.h"

namespace loom::io {
namespace {

constexpr std::size_t kLongestShownName = 200;  // of a file, in the name of its temporary: a name has at most 255 bytes

[[noreturn]] void cannot_write(const std::filesystem::path& path, int code) {
  raise<Error>("{}: cannot write: {}", path.string(), reason_of(code));
}

[[noreturn]] void cannot_create(const std::filesystem::path& path, int code) {
  config_error("{}: cannot create: {}", path.string(), reason_of(code));
}

std::string temporary_name(const std::string& name) {
  std::random_device random;
  return fmt::format(".{}.{:08x}{:08x}.tmp", name.substr(0, kLongestShownName), random(), random());
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), target_(resolve_output(path_)) {
  if (target_.kind != OutputTarget::Kind::kFile) {
    fd_ = open_straight(target_, path_);
    return;
  }
  const std::filesystem::path folder = target_.path.has_parent_path() ? target_.path.parent_path() : ".";
  folder_ = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) cannot_create(path_, errno);
  try {
    make_temporary();
  } catch (...) {
    ::close(folder_);
    throw;
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    if (folder_ >= 0) ::unlinkat(folder_, temporary_.c_str(), 0);
  }
  if (folder_ >= 0) ::close(folder_);
}

void AtomicFile::make_temporary() {
  const std::string name = target_.path.filename().string();
  if (::faccessat(folder_, name.c_str(), W_OK, AT_EACCESS) != 0 && errno != ENOENT) cannot_create(path_, errno);
  temporary_ = temporary_name(name);
  fd_ = ::openat(folder_, temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd_ < 0) cannot_create(path_, errno);
  take_permissions();
}

// Owner and permissions of the file that will be replaced, as far as this user may give them.
void AtomicFile::take_permissions() {
  struct stat old {};
  if (::fstatat(folder_, target_.path.filename().c_str(), &old, AT_SYMLINK_NOFOLLOW) != 0) return;
  constexpr mode_t kPermissions = 0777;
  if (::fchown(fd_, old.st_uid, old.st_gid) != 0 && ::fchown(fd_, static_cast<uid_t>(-1), old.st_gid) != 0) {
    ::fchmod(fd_, old.st_mode & kPermissions & ~mode_t{070});  // another group gets nothing that its own had
    return;
  }
  ::fchmod(fd_, old.st_mode & kPermissions);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  require(fd_ >= 0, "write to '{}' after commit", path_.string());
  if (const int error = write_all(fd_, bytes).error; error != 0) cannot_write(path_, error);
}

void AtomicFile::sync() {
  if (folder_ >= 0 && ::fsync(fd_) != 0) cannot_write(path_, errno);
}

void AtomicFile::commit() {
  require(fd_ >= 0, "second commit of '{}'", path_.string());
  if (folder_ >= 0) put_in_place();
  ::close(std::exchange(fd_, -1));
}

void AtomicFile::put_in_place() {
  sync();
  if (::renameat(folder_, temporary_.c_str(), folder_, target_.path.filename().c_str()) != 0) {
    cannot_write(path_, errno);
  }
  // The new name on disk too; a folder that may not be read, or a file system that cannot, is left to the system.
  const int folder = ::openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace loom::io
