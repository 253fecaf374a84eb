#include "engine/text/records/csv_rows.h"

#include <algorithm>

#include "engine/core/error.h"

namespace loom::data {

void CsvPieces::scan(std::size_t from) {
  for (std::size_t i = from; i < text_.size(); ++i) {
    const char c = text_[i];
    if (state_ == State::kQuoted) {
      if (c == '"') state_ = State::kClosed;
    } else if (c == '"' && (state_ == State::kFieldStart || state_ == State::kClosed)) {
      state_ = State::kQuoted;
    } else if (c == '\n') {
      state_ = State::kFieldStart;
      rows_end_ = i + 1;
    } else {
      state_ = c == ',' ? State::kFieldStart : State::kPlain;
    }
  }
}

std::optional<CsvPiece> CsvPieces::next() {
  while (rows_end_ == 0) {
    const std::size_t before = text_.size();
    if (before > kMostRecordBytes) refuse_long_record(*name(), line_);
    if (!file_.read_more(text_)) {
      if (text_.empty()) return std::nullopt;
      rows_end_ = before;
    }
    scan(before);
  }
  CsvPiece piece{text_.substr(0, rows_end_), line_};
  text_.erase(0, rows_end_);
  rows_end_ = 0;
  line_ += static_cast<std::uint64_t>(std::count(piece.text.begin(), piece.text.end(), '\n'));
  return piece;
}

void CsvPieces::rewind() {
  file_.rewind();
  text_.clear();
  rows_end_ = 0;
  state_ = State::kFieldStart;
  line_ = 1;
}

bool CsvRows::at_row_end() const {
  const std::string_view rest = text_.substr(at_);
  return rest.empty() || rest.starts_with('\n') || rest.starts_with("\r\n") || rest == "\r";
}

void CsvRows::end_row() {
  at_ = std::min(text_.find('\n', at_), text_.size() - 1) + 1;
  ++line_;
}

bool CsvRows::next(CsvRow& row) {
  while (at_ < text_.size() && at_row_end()) end_row();
  if (at_ == text_.size()) return false;
  row.fields.clear();
  row.line = line_;
  const std::size_t begin = at_;
  for (;; ++at_) {
    row.fields.push_back(text_.substr(at_).starts_with('"') ? quoted_field() : plain_field());
    if (at_row_end()) break;
  }
  check_utf8(text_.substr(begin, at_ - begin), file_, row.line);
  if (at_ < text_.size()) end_row();
  return true;
}

std::string CsvRows::plain_field() {
  const std::size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
  std::string_view field = text_.substr(at_, end - at_);
  const bool at_row_end = end == text_.size() || text_[end] == '\n';
  if (at_row_end && field.ends_with('\r')) field.remove_suffix(1);
  at_ += field.size();
  return std::string(field);
}

std::string CsvRows::quoted_field() {
  const std::uint64_t first_line = line_;
  std::string field;
  for (++at_;; at_ += 2) {
    const std::size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) {
      config_error("{}:{}: a quoted field that begins here does not end", file_, first_line);
    }
    field.append(text_, at_, end - at_);
    at_ = end;
    if (!text_.substr(end).starts_with("\"\"")) break;
    field += '"';
  }
  ++at_;
  line_ += static_cast<std::uint64_t>(std::count(field.begin(), field.end(), '\n'));
  if (at_row_end() || text_[at_] == ',') return field;
  config_error("{}:{}: text behind the closing quote of a field; write a quote inside of a field twice", file_, line_);
}

}  // namespace loom::data
