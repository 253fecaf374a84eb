#include "engine/explain/log_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/explain/error_text.h"

namespace loom::explain {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kLineBytes = std::size_t{1} << 16;
constexpr std::size_t kMostReports = std::size_t{1} << 16;

// The text before the first end of a line.
std::string_view until_end(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  return text.substr(0, text.find('\r'));
}

}  // namespace

void LogReader::take(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view part = until_end(bytes.substr(0, kLineBytes - line_.size()));
    line_ += part;
    bytes.remove_prefix(part.size());
    const bool ends = !bytes.empty() && (bytes.front() == '\n' || bytes.front() == '\r');
    if (!ends && line_.size() < kLineBytes) return;
    take_line(line_);
    line_.clear();
    if (!ends) continue;
    if (bytes.front() == '\n') ++texts_.lines;
    bytes.remove_prefix(1);
  }
}

LogTexts LogReader::finish() {
  if (!line_.empty()) {
    take_line(line_);
    ++texts_.lines;
  }
  return std::move(texts_);
}

void LogReader::take_line(std::string_view line) {
  texts_.trace.take_line(line);
  tracebacks_.take_line(line);
  if (auto report = read_error(line, texts_.lines + 1)) {
    report->traceback = tracebacks_.of(line);
    keep(std::move(*report));
  }
}

void LogReader::keep(ErrorReport report) {
  if (texts_.reports.size() >= kMostReports) {
    ++texts_.left_out;
    return;
  }
  ErrorReport anywhere = report;
  anywhere.line = 0;
  anywhere.traceback = {};
  if (seen_.insert(std::move(anywhere)).second) texts_.reports.push_back(std::move(report));
}

LogTexts read_text(std::string_view text) {
  LogReader reader;
  reader.take(text);
  return reader.finish();
}

LogTexts read_log(const std::filesystem::path& path) {
  const bool standard = path == "-";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(standard ? nullptr : std::fopen(path.c_str(), "rb"),
                                                               [](std::FILE* f) { return f ? std::fclose(f) : 0; });
  std::FILE* const file = standard ? stdin : opened.get();
  const auto refuse = [&] {
    config_error("{}: the log cannot be read: {}; give a readable file", escaped(path.string()), std::strerror(errno));
  };
  if (file == nullptr) refuse();
  LogReader reader;
  std::string chunk(kChunkBytes, '\0');
  while (const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), file)) {
    reader.take(std::string_view(chunk).substr(0, count));
  }
  if (std::ferror(file) != 0) refuse();
  return reader.finish();
}

}  // namespace loom::explain
