#include "engine/train/report_page.h"

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "engine/core/error.h"
#include "engine/tensor/io/atomic_file.h"
#include "engine/train/report_template.h"

namespace loom::train {
namespace {

// Inside a script element only '<' matters ("</script", "<!--"); the others and U+2028/9 are kept out of any reader's way.
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

}  // namespace

std::string report_page(const nlohmann::ordered_json& data) {
  const auto [before, after] = report_template();
  return std::string(before) + inline_json(data) + std::string(after);
}

void write_report(const std::filesystem::path& path, const nlohmann::ordered_json& data) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error) config_error("{}: cannot write the report: {}", path.string(), error.message());
  const std::string page = report_page(data);
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(page)));
  file.commit();
}

}  // namespace loom::train
