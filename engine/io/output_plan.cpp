#include "engine/io/output_plan.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <map>
#include <optional>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/atomic_file.h"
#include "engine/io/output_target.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;

using FileId = std::pair<dev_t, ino_t>;

std::optional<FileId> id_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileId{status.st_dev, status.st_ino};
}

OutputTarget target_of(const std::string& flag, const fs::path& path) {
  try {
    return resolve_output(path);
  } catch (const ConfigError& error) {
    config_error("{}: {}", flag, error.what());
  }
}

// None for what is written straight: it is never replaced.
std::optional<fs::path> file_of(const std::string& flag, const fs::path& path) {
  const OutputTarget target = target_of(flag, path);
  if (target.kind != OutputTarget::Kind::kFile) return std::nullopt;
  return target.path;
}

bool same(const fs::path& a, const fs::path& b) {
  const auto id = id_of(a);
  if (id && id == id_of(b)) return true;
  std::error_code error;
  return fs::weakly_canonical(fs::absolute(a, error), error) == fs::weakly_canonical(fs::absolute(b, error), error);
}

// Every regular file at or below `path`, links to files included, until `visit` returns true.
void visit_files(const fs::path& path, const std::function<bool(const fs::path&)>& visit) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    visit(path);
    return;
  }
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code dangling;
    if (entry->is_regular_file(dangling) && visit(entry->path())) return;
  }
}

void make_folder(const std::string& flag, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && !fs::is_directory(folder, error) && !error) error = std::make_error_code(std::errc::not_a_directory);
  if (error) {
    config_error("{}: cannot make the folder {}: {}; give a folder that can be written", flag, folder.string(),
                 error.message());
  }
}

// A byte in a temporary file beside `path`, which is removed again.
void probe_file(const std::string& flag, const fs::path& path) {
  try {
    AtomicFile file(path);
    file.write(std::as_bytes(std::span("x", 1)));
  } catch (const Error& error) {
    config_error("{}: {}; give a path that can be written", flag, error.what());
  }
}

void probe_stream(const std::string& flag, const fs::path& path, const OutputTarget& target) {
  int failed = 0;
  if (target.kind == OutputTarget::Kind::kDescriptor) {
    const int flags = ::fcntl(target.descriptor, F_GETFL);
    if (flags < 0) failed = errno;
    if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY) failed = EBADF;
  } else if (::faccessat(AT_FDCWD, target.path.c_str(), W_OK, AT_EACCESS) != 0) {
    failed = errno;
  }
  if (failed != 0) {
    config_error("{}: {}: cannot write: {}; give a path that can be written", flag, path.string(), reason_of(failed));
  }
}

}  // namespace

void OutputPlan::reads(std::string flag, fs::path path) { inputs_.push_back({std::move(flag), std::move(path)}); }

void OutputPlan::writes_file(std::string flag, fs::path path) { files_.push_back({std::move(flag), std::move(path)}); }

void OutputPlan::writes_folder(std::string flag, fs::path folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) writes_file(flag, folder / name);
  folders_.push_back({std::move(flag), std::move(folder)});
}

void OutputPlan::check() const {
  check_folders();
  check_files();
  check_inputs();
}

void OutputPlan::check_folders() const {
  for (const Named& folder : folders_) {
    for (const Named& input : inputs_) {
      if (!same(folder.path, input.path)) continue;
      config_error("{}: {} is also what {} reads; give another folder, so that nothing there is written over",
                   folder.flag, folder.path.string(), input.flag);
    }
    for (const Named& file : files_) {
      if (!same(folder.path, file.path)) continue;
      config_error("{}: {} is the folder of {}; give the path of a file", file.flag, file.path.string(), folder.flag);
    }
  }
}

void OutputPlan::check_files() const {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const auto file = file_of(files_[i].flag, files_[i].path);
    for (std::size_t j = 0; file && j < i; ++j) {
      const auto other = file_of(files_[j].flag, files_[j].path);
      if (!other || !same(*file, *other)) continue;
      config_error("{}: {} is also written by {}; give each output a path of its own", files_[i].flag,
                   files_[i].path.string(), files_[j].flag);
    }
  }
}

void OutputPlan::check_inputs() const {
  std::map<FileId, const Named*> written;
  for (const Named& file : files_) {
    const auto path = file_of(file.flag, file.path);
    if (const auto id = path ? id_of(*path) : std::nullopt) written.emplace(*id, &file);
  }
  if (written.empty()) return;
  for (const Named& input : inputs_) {
    visit_files(input.path, [&](const fs::path& path) {
      const auto id = id_of(path);
      const auto found = id ? written.find(*id) : written.end();
      if (found == written.end()) return false;
      config_error("{}: {} is also read by {} and would be lost; give another path", found->second->flag,
                   found->second->path.string(), input.flag);
    });
  }
}

void OutputPlan::prepare() const {
  for (const Named& folder : folders_) {
    make_folder(folder.flag, folder.path);
    probe_file(folder.flag, folder.path / "probe");
  }
  for (const Named& file : files_) {
    const OutputTarget target = target_of(file.flag, file.path);
    if (target.kind != OutputTarget::Kind::kFile) {
      probe_stream(file.flag, file.path, target);
      continue;
    }
    if (target.path.has_parent_path()) make_folder(file.flag, target.path.parent_path());
    probe_file(file.flag, file.path);
  }
}

}  // namespace loom::io
