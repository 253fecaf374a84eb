#include "engine/io/output_target.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sys/stat.h>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as the kernel follows

// The number of the open file of this process that `name` in `folder` (canonical) refers to.
std::optional<int> descriptor_of(const fs::path& folder, const std::string& name) {
  std::error_code error;
  if (folder != fs::canonical("/proc/self/fd", error) || error) return std::nullopt;
  return parse_number<int>(name);
}

OutputTarget target_at(const fs::path& at, mode_t mode, const fs::path& shown) {
  if (S_ISDIR(mode)) config_error("{}: is a folder; give the path of a file", shown.string());
  if (S_ISBLK(mode))
    config_error("{}: is a block device, which is not written; give the path of a file", shown.string());
  if (S_ISSOCK(mode)) config_error("{}: is a socket, which cannot be written; give the path of a file", shown.string());
  return {.kind = S_ISREG(mode) ? OutputTarget::Kind::kFile : OutputTarget::Kind::kStream, .path = at};
}

}  // namespace

OutputTarget resolve_output(const fs::path& path) {
  if (path == "-") return {.kind = OutputTarget::Kind::kDescriptor, .path = "/dev/stdout", .descriptor = STDOUT_FILENO};
  fs::path at = path;
  for (int links = 0; links <= kMostLinks; ++links) {
    std::error_code error;
    const fs::path folder = fs::canonical(at.has_parent_path() ? at.parent_path() : fs::path("."), error);
    if (error) return {.path = at};
    if (const auto number = descriptor_of(folder, at.filename().string())) {
      return {.kind = OutputTarget::Kind::kDescriptor, .path = at, .descriptor = *number};
    }
    at = folder / at.filename();
    struct stat status {};
    if (::lstat(at.c_str(), &status) != 0) return {.path = at};
    if (!S_ISLNK(status.st_mode)) return target_at(at, status.st_mode, path);
    at = folder / fs::read_symlink(at, error);  // an absolute link replaces the folder
    if (error) config_error("{}: cannot read the link: {}", path.string(), error.message());
  }
  config_error("{}: its symbolic links lead in a circle; give the path of a file", path.string());
}

int open_straight(const OutputTarget& target, const fs::path& shown) {
  require(target.kind != OutputTarget::Kind::kFile, "'{}' opened as a stream", shown.string());
  const int fd = target.kind == OutputTarget::Kind::kDescriptor
                     ? ::fcntl(target.descriptor, F_DUPFD_CLOEXEC, 3)
                     : ::open(target.path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) config_error("{}: cannot create: {}", shown.string(), reason_of(errno));
  return fd;
}

std::string reason_of(int error_number) { return std::generic_category().message(error_number); }

}  // namespace loom::io
