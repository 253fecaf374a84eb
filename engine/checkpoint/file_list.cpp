#include "engine/checkpoint/file_list.h"

#include <algorithm>
#include <charconv>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

constexpr std::size_t kLongestName = 255;

std::uint32_t read_checksum(const config::Section& entry) {
  const std::string digits = entry.text("crc32c");
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (digits.size() != 8 || !std::ranges::all_of(digits, is_digit)) {
    entry.reject("crc32c", "use 8 hex digits in lower case");
  }
  std::uint32_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

ManifestFile read_file(const config::Value& value) {
  const config::Section entry(value, config::UnknownKeys::kRefused);
  ManifestFile file{.name = entry.text("name")};
  if (const std::string problem = name_problem(file.name); !problem.empty()) entry.reject("name", "{}", problem);
  file.size_bytes = read_whole(entry, "size_bytes");
  file.crc32c = read_checksum(entry);
  entry.refuse_unread();
  return file;
}

}  // namespace

std::string hex_digits(std::uint32_t crc32c) { return fmt::format("{:08x}", crc32c); }

std::string name_problem(std::string_view name) {
  if (name.empty()) return "use a file's name";
  if (name.size() > kLongestName) return fmt::format("use at most {} bytes", kLongestName);
  if (name == "." || name == ".." || name.find('/') != std::string_view::npos) {
    return "use the name of a file in the directory itself, without '/'";
  }
  if (name.find('\0') != std::string_view::npos || invalid_utf8(name)) return "use UTF-8 without zero bytes";
  if (name == kManifestName || name.starts_with(".part_")) return "the store itself uses this name; use another one";
  return {};
}

std::string files_json(std::span<const ManifestFile> files) {
  std::vector<ManifestFile> sorted(files.begin(), files.end());
  std::ranges::sort(sorted, {}, &ManifestFile::name);
  std::string text = "[";
  for (const ManifestFile& file : sorted) {
    const nlohmann::ordered_json entry = {
        {"name", file.name}, {"size_bytes", file.size_bytes}, {"crc32c", hex_digits(file.crc32c)}};
    text += fmt::format("{}\n  {}", text.size() == 1 ? "" : ",", entry.dump());
  }
  return text + "]";
}

std::vector<ManifestFile> read_files(const config::Section& document) {
  document.has("files");
  const config::Value* list = document.given("files");
  if (list == nullptr || !list->is_list()) document.reject("files", "a list is expected");
  std::vector<ManifestFile> files;
  for (const config::Value& value : list->items()) files.push_back(read_file(value));
  std::set<std::string_view> names;
  std::int64_t all_bytes = 0;
  for (const ManifestFile& file : files) {
    if (__builtin_add_overflow(all_bytes, file.size_bytes, &all_bytes)) {
      document.reject("files", "together they have more bytes than 63 bits count");
    }
    if (names.insert(file.name).second) continue;
    config_error("{}: files has '{}' twice; list each file once", list->place().key.file, shown_text(file.name));
  }
  return files;
}

std::int64_t read_whole(const config::Section& section, std::string_view key) {
  const auto number = section.integer(key);
  if (!number || *number < 0) section.reject(key, "a whole number of at least 0 is expected");
  return *number;
}

}  // namespace loom::checkpoint
