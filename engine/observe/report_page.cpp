#include "engine/observe/report_page.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <system_error>

#include "engine/core/error.h"
#include "engine/io/atomic_file.h"
#include "engine/observe/report_template.h"

namespace loom::observe {
namespace {

// Inside a script element only '<' matters ("</script", "<!--"); the others and U+2028/9 are kept out of any reader's
// way.
std::string inline_json(const nlohmann::ordered_json& data) {
  const std::string json = data.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);  // ASCII
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    switch (c) {
      case '<':
        text += "\\u003c";
        break;
      case '>':
        text += "\\u003e";
        break;
      case '&':
        text += "\\u0026";
        break;
      default:
        text += c;
    }
  }
  return text;
}

// What is not committed leaves nothing behind.
std::unique_ptr<io::AtomicFile> open_report(const std::filesystem::path& path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (!error && std::filesystem::is_directory(path)) error = std::make_error_code(std::errc::is_a_directory);
  if (error) config_error("--report: cannot write {}: {}; give the path of a file", path.string(), error.message());
  return std::make_unique<io::AtomicFile>(path);
}

}  // namespace

std::string report_page(const nlohmann::ordered_json& data) {
  const auto [before, after] = report_template();
  return std::string(before) + inline_json(data) + std::string(after);
}

void check_report_path(const std::filesystem::path& path) { open_report(path); }

void write_report(const std::filesystem::path& path, const nlohmann::ordered_json& data) {
  const std::string page = report_page(data);
  const auto file = open_report(path);
  file->write(std::as_bytes(std::span(page)));
  file->commit();
}

}  // namespace loom::observe
