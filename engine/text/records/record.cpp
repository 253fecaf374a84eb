#include "engine/text/records/record.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/records/csv_reader.h"
#include "engine/text/records/json_list_reader.h"
#include "engine/text/records/line_reader.h"
#include "engine/text/records/parquet_reader.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kRead = {".json", ".jsonl", ".csv", ".txt", ".parquet"};
constexpr std::array<std::string_view, 6> kCompressed = {".gz", ".zst", ".bz2", ".xz", ".zip", ".lz4"};
constexpr std::string_view kArrow = ".arrow";

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& extensions, const fs::path& path) {
  return std::find(extensions.begin(), extensions.end(), path.extension().string()) != extensions.end();
}

// `where` begins the message: a flag or nothing.
[[noreturn]] void refuse_kind(const std::string& where, const fs::path& path) {
  const std::string file = path.string();
  if (path.extension() == kArrow) {
    config_error("{}{}: Arrow files are not read; write the data set as parquet (Dataset.to_parquet) or jsonl", where,
                 file);
  }
  if (is_one_of(kCompressed, path)) {
    config_error("{}{}: compressed files are not read, except within parquet; decompress it first", where, file);
  }
  config_error("{}{}: the name does not say what the file is; .json, .jsonl, .csv, .txt and .parquet are read", where,
               file);
}

std::unique_ptr<RecordReader> open_json(const fs::path& path) {
  auto file = std::make_unique<RecordFile>(path);
  std::string text;
  while (is_blank(text) && file->read_more(text)) {
    if (text.size() > kMostRecordBytes) refuse_long_record(*file->name(), 1);
  }
  const std::size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const bool is_list = std::string_view(text).substr(first).starts_with('[');
  return is_list ? json_list_reader(std::move(file), std::move(text))
                 : line_reader(std::move(file), LineKind::kJson, std::move(text));
}

std::vector<fs::path> files_of(const std::string& flag, const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const bool is_hidden = at->path().filename().string().starts_with('.');
    std::error_code of_entry;
    if (!is_hidden && at->is_regular_file(of_entry)) files.push_back(at->path());
  }
  if (error) config_error("{}: {}: {}", flag, folder.string(), error.message());
  std::sort(files.begin(), files.end());
  return files;
}

// Ties go to the first one of the list; Arrow counts too, as the tool reads it.
std::optional<std::string_view> most_frequent(const std::vector<fs::path>& files) {
  const auto count = [&](std::string_view extension) {
    return std::count_if(files.begin(), files.end(),
                         [&](const fs::path& file) { return file.extension() == extension; });
  };
  std::string_view best = kRead.front();
  for (const std::string_view extension : kRead) {
    if (count(extension) > count(best)) best = extension;
  }
  if (count(kArrow) > count(best)) best = kArrow;
  return count(best) > 0 ? std::optional(best) : std::nullopt;
}

}  // namespace

std::unique_ptr<RecordReader> open_records(const fs::path& file) {
  const fs::path extension = file.extension();
  if (extension == ".jsonl") return line_reader(std::make_unique<RecordFile>(file), LineKind::kJsonl);
  if (extension == ".json") return open_json(file);
  if (extension == ".csv") return csv_reader(file);
  if (extension == ".txt") return line_reader(std::make_unique<RecordFile>(file), LineKind::kText);
  if (extension == ".parquet") return parquet_reader(file);
  refuse_kind("", file);
}

std::vector<fs::path> record_files(const std::string& flag, const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) config_error("{}: {}: no such file or folder", flag, path.string());
  if (!fs::is_directory(path, error)) {
    if (!is_one_of(kRead, path)) refuse_kind(flag + ": ", path);
    return {path};
  }
  std::vector<fs::path> files = files_of(flag, path);
  const auto extension = most_frequent(files);
  if (!extension) {
    if (!files.empty() && is_one_of(kCompressed, files.front())) refuse_kind(flag + ": ", files.front());
    config_error(
        "{}: {}: the folder has no file that is read (.json, .jsonl, .csv, .txt, .parquet); folders in it are "
        "not searched",
        flag, path.string());
  }
  std::erase_if(files, [&](const fs::path& file) { return file.extension() != *extension; });
  if (*extension == kArrow) refuse_kind(flag + ": ", files.front());
  return files;
}

}  // namespace loom::data
