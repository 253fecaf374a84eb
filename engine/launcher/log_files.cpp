#include "engine/launcher/log_files.h"

#include <fcntl.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/host_name.h"

namespace loom::launcher {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    raise<Error>("{}: cannot make this folder for logs: {}; give another --log-dir", folder.string(), error.message());
  }
}

// A new folder whose name begins so.
fs::path new_folder(const fs::path& beginning) {
  std::string name = beginning.string() + "_XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    raise<Error>("{}: cannot make this folder for logs: {}; give another --log-dir", name, std::strerror(errno));
  }
  return name;
}

// The run's id as a part of a file's name.
std::string as_name(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c <= ' ' || c == '/' || c >= 0x7F; }, '_');
  return text.empty() ? "none" : text.substr(0, 128);
}

// The numeric IPv4 address of a host's name; the name where there is none.
std::string address_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  addrinfo* found = nullptr;
  std::array<char, NI_MAXHOST> text{};
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return host;
  const bool named =
      ::getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  ::freeaddrinfo(found);
  return named ? text.data() : host;
}

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

}  // namespace

std::string host_name(const Options& options) { return options.host.empty() ? loom::host_name() : options.host; }

std::shared_ptr<Descriptor> open_log(const fs::path& path, bool append) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (append ? 0 : O_TRUNC);
  auto file = std::make_shared<Descriptor>(::open(path.c_str(), flags, 0644));
  if (file->get() < 0) {
    raise<Error>("{}: cannot open this log: {}; give another --log-dir", path.string(), std::strerror(errno));
  }
  return file;
}

LogFiles::LogFiles(const Options& options) : options_(options) {
  if (options_.tool == Tool::kMsrun) make_folder(options_.log_dir.value_or("."));
}

LogFiles::~LogFiles() {
  if (options_.log_dir || base_.empty() || options_.redirects.any() || options_.tee.any()) return;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(base_, error); it != fs::recursive_directory_iterator(); ++it) {
    if (!it->is_directory(error)) return;
  }
  fs::remove_all(base_.parent_path(), error);
}

fs::path LogFiles::folder_of(const Assigned& assigned, int local_rank) {
  if (base_.empty()) {
    const fs::path log_dir = options_.log_dir ? *options_.log_dir : new_folder(fs::temp_directory_path() / "shardloom");
    make_folder(log_dir);
    base_ = fs::absolute(new_folder(log_dir / as_name(options_.run_id)));
  }
  const fs::path folder = base_ / fmt::format("attempt_{}", assigned.restarts) / fmt::to_string(local_rank);
  make_folder(folder);
  return folder;
}

fs::path LogFiles::worker_log(const Assigned& assigned, int local_rank) const {
  std::string name = options_.worker_log_name.empty() ? "worker" : options_.worker_log_name;
  const std::string host = host_name(options_);
  replace_all(name, "{hostname}", host);
  if (name.find("{ip}") != std::string::npos) replace_all(name, "{ip}", address_of(host));
  return options_.log_dir.value_or(".") / fmt::format("{}_{}.log", name, assigned.first_rank + local_rank);
}

}  // namespace loom::launcher
