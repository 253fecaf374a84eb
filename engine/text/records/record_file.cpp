#include "engine/text/records/record_file.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::data {

bool RecordFile::read_more(std::string& text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  const std::uint64_t count = std::min<std::uint64_t>(kBatchBytes, all_bytes() - done_);
  if (count == 0) return false;
  const std::size_t before = text.size();
  text.resize(before + count);
  reader_.read(done_, std::as_writable_bytes(std::span(text).subspan(before)));
  if (done_ == 0 && std::string_view(text).substr(before).starts_with(kMark)) text.erase(before, kMark.size());
  done_ += count;
  return true;
}

std::string line_place(const std::string& file, std::uint64_t line) { return fmt::format("{}:{}", file, line); }

void refuse_long_record(const std::string& file, std::uint64_t line) {
  config_error("{}:{}: a record of more than {} bytes; split it", file, line, kMostRecordBytes);
}

void check_utf8(std::string_view text, const std::string& file, std::uint64_t line) {
  const auto at = invalid_utf8(text);
  if (!at) return;
  config_error("{}:{}: byte {} of the line is no UTF-8 (0x{:02x}); convert the file to UTF-8", file, line, *at + 1,
               static_cast<unsigned char>(text[*at]));
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace loom::data
