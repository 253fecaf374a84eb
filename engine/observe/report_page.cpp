#include "engine/observe/report_page.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/version.h"
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

// "2026-01-31", in UTC.
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  gmtime_r(&now, &day);
  char text[sizeof "2026-01-31"] = {};
  std::strftime(text, sizeof text, "%Y-%m-%d", &day);
  return text;
}

void make_folders(const std::filesystem::path& path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (!error && std::filesystem::is_directory(path)) error = std::make_error_code(std::errc::is_a_directory);
  if (error) config_error("--report: cannot write {}: {}; give the path of a file", path.string(), error.message());
}

}  // namespace

std::string report_page(const nlohmann::ordered_json& data) {
  const auto [before, after] = report_template();
  return std::string(before) + inline_json(data) + std::string(after);
}

void check_report_path(const std::filesystem::path& path) {
  make_folders(path);
  // What is not committed leaves nothing behind. The reader of a FIFO would see its end.
  if (io::resolve_output(path).kind == io::OutputTarget::Kind::kFile) io::AtomicFile{path};
}

void write_report(const std::filesystem::path& path, const nlohmann::ordered_json& data) {
  make_folders(path);
  nlohmann::ordered_json dated = data;
  dated["written"] = {{"version", shardloom_version()}, {"date", today()}};
  io::write_text(path, report_page(dated));
}

}  // namespace loom::observe
