#include "engine/checkpoint/save_parts.h"

#include <fcntl.h>

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "engine/checkpoint/directories.h"
#include "engine/checkpoint/file_list.h"
#include "engine/checkpoint/verify.h"
#include "engine/config/document.h"
#include "engine/core/descriptor.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/io/atomic_file.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostErrorBytes = 4096;
constexpr std::size_t kMostNamed = 8;  // ranks in one message

struct Part {
  std::vector<ManifestFile> files;
  std::optional<std::string> error;
};

fs::path part_path(const fs::path& directory, int rank) { return directory / fmt::format(".part_{}.json", rank); }
fs::path failed_path(const fs::path& directory, int rank) { return directory / fmt::format(".part_{}.failed", rank); }

Part parse_part(const fs::path& path, int rank) {
  const config::Section document(config::parse_json(config::read_text(path, "a part of a save"), path.string()),
                                 config::UnknownKeys::kRefused);
  if (read_whole(document, "rank") != rank) document.reject("rank", "its name says rank {}", rank);
  Part part;
  if (document.has("error")) {
    part.error = document.text("error");
  } else {
    part.files = read_files(document);
  }
  document.refuse_unread();
  return part;
}

// None until the rank has written its part.
std::optional<Part> read_part(const fs::path& directory, int rank) {
  const fs::path path = part_path(directory, rank);
  const Entry entry = entry_at(path);
  if (entry.kind == Entry::Kind::kNone) {
    if (entry_at(failed_path(directory, rank)).kind == Entry::Kind::kNone) return std::nullopt;
    return Part{.files = {}, .error = "its files could not be written, nor why (is the disk full?)"};
  }
  if (entry.kind != Entry::Kind::kFile) raise<Error>("{}: {}", path.string(), entry.description());
  try {
    return parse_part(path, rank);
  } catch (const ConfigError& error) {
    throw Error(rank_prefix() + error.what());
  }
}

// "ranks 1, 4 and 3 more".
std::string ranks_text(std::vector<int> ranks) {
  const std::size_t others = ranks.size() - std::min(ranks.size(), kMostNamed);
  const bool one = ranks.size() == 1;
  ranks.resize(ranks.size() - others);
  return fmt::format("rank{} {}{}", one ? "" : "s", fmt::join(ranks, ", "),
                     others == 0 ? "" : fmt::format(" and {} more", others));
}

std::string missing_text(const std::vector<int>& missing, const fs::path& directory,
                         std::chrono::milliseconds patience) {
  return fmt::format("{} {} not finished writing into {} within {:g} s", ranks_text(missing),
                     missing.size() == 1 ? "has" : "have", directory.string(),
                     static_cast<double>(patience.count()) / 1000);
}

void raise_failures(const std::map<int, Part>& parts, const std::vector<int>& missing, const fs::path& directory,
                    std::chrono::milliseconds patience) {
  std::vector<int> failed;
  for (const auto& [rank, part] : parts) {
    if (part.error) failed.push_back(rank);
  }
  if (failed.empty() && missing.empty()) return;
  if (failed.empty()) {
    raise<Error>("{}; check {}, and whether {}", missing_text(missing, directory, patience),
                 missing.size() == 1 ? "its log" : "their logs", missing.size() == 1 ? "it runs" : "they run");
  }
  std::string rest;
  if (failed.size() > 1) rest = fmt::format("; {} failed too", ranks_text({failed.begin() + 1, failed.end()}));
  if (!missing.empty()) rest += "; " + missing_text(missing, directory, patience);
  raise<Error>("rank {} could not save: {}{}", failed.front(), *parts.at(failed.front()).error, rest);
}

std::vector<ManifestFile> merged(const std::map<int, Part>& parts) {
  std::map<std::string, int> writers;
  std::vector<ManifestFile> files;
  for (const auto& [rank, part] : parts) {
    for (const ManifestFile& file : part.files) {
      const auto [writer, is_new] = writers.emplace(file.name, rank);
      if (!is_new) raise<Error>("ranks {} and {} both wrote '{}'", writer->second, rank, shown_text(file.name));
      files.push_back(file);
    }
  }
  std::ranges::sort(files, {}, &ManifestFile::name);
  return files;
}

// Reads the parts that have arrived since the last look; returns the ranks whose part is missing.
std::vector<int> look_for_parts(const fs::path& directory, int world, std::map<int, Part>& parts) {
  std::vector<int> missing;
  for (int rank = 0; rank < world; ++rank) {
    if (parts.contains(rank)) continue;
    if (auto part = read_part(directory, rank)) {
      parts.emplace(rank, std::move(*part));
    } else {
      missing.push_back(rank);
    }
  }
  return missing;
}

void remove_parts(const fs::path& directory, int world) {
  for (int rank = 0; rank < world; ++rank) {
    std::error_code error;
    const fs::path path = part_path(directory, rank);
    if (!fs::remove(path, error) && error) raise<Error>("{}: cannot remove: {}", path.string(), error.message());
  }
}

}  // namespace

void write_part(const fs::path& directory, int rank, std::span<const ManifestFile> files) {
  for (const ManifestFile& file : files) {
    const std::string problem = name_problem(file.name);
    require(problem.empty(), "a part with the file '{}': {}", file.name, problem);
  }
  flush_files(directory, files);
  read_back(directory, files);
  flush_directory(directory);
  write_text_durably(part_path(directory, rank),
                     fmt::format("{{\"rank\": {}, \"files\": {}}}\n", rank, files_json(files)));
}

void write_failed_part(const fs::path& directory, int rank, std::string_view text) noexcept {
  try {
    // The message of an Error made on this rank begins with it.
    if (const std::string prefix = fmt::format("[rank {}] ", rank); text.starts_with(prefix)) {
      text.remove_prefix(prefix.size());
    }
    const nlohmann::ordered_json part = {{"rank", rank}, {"error", escaped(text.substr(0, kMostErrorBytes))}};
    io::write_text(part_path(directory, rank), part.dump() + "\n");
  } catch (const std::exception&) {
    const Descriptor marker(
        ::open(failed_path(directory, rank).c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (marker.get() < 0) log_error("{}: cannot record that rank {} failed", directory.string(), rank);
  }
}

std::vector<ManifestFile> gather_parts(const fs::path& directory, int world, std::chrono::milliseconds patience,
                                       std::chrono::milliseconds poll) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::map<int, Part> parts;
  std::vector<int> missing;
  for (bool last_look = false; !last_look;) {
    last_look = std::chrono::steady_clock::now() >= deadline;
    missing = look_for_parts(directory, world, parts);
    if (missing.empty()) break;
    if (!last_look) std::this_thread::sleep_for(poll);
  }
  raise_failures(parts, missing, directory, patience);
  std::vector<ManifestFile> files = merged(parts);
  remove_parts(directory, world);
  return files;
}

}  // namespace loom::checkpoint
