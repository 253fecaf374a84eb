// Rows and fields of a csv file. Private to engine/text.
//
// Fields   as in RFC 4180: split by commas; one that begins with a quote ends at the next quote that is not
//          doubled, and may contain commas and ends of lines. A quote inside another field is a character.
// Rows     end with \n or \r\n; empty lines are ignored.
// Errors   ConfigError with file and line.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/records/record_file.h"

namespace loom::data {

// Rows as in the file.
struct CsvPiece {
  std::string text;
  std::uint64_t line = 1;  // of its first row
};

class CsvPieces {
 public:
  explicit CsvPieces(const std::filesystem::path& path) : file_(path) {}

  // Whole rows, some hundred KiB; nothing at the end.
  std::optional<CsvPiece> next();
  // Starts again from the first row.
  void rewind();

  std::uint64_t done_bytes() const { return file_.done_bytes() - text_.size(); }
  std::uint64_t all_bytes() const { return file_.all_bytes(); }
  const std::shared_ptr<const std::string>& name() const { return file_.name(); }

 private:
  enum class State : std::uint8_t { kFieldStart, kPlain, kQuoted, kClosed };

  void scan(std::size_t from);

  RecordFile file_;
  std::string text_;          // read, not yet returned
  std::size_t rows_end_ = 0;  // behind the last whole row in it
  State state_ = State::kFieldStart;
  std::uint64_t line_ = 1;
};

struct CsvRow {
  std::vector<std::string> fields;
  std::uint64_t line = 1;
};

// The rows of a piece, one after the other.
class CsvRows {
 public:
  CsvRows(const CsvPiece& piece, const std::string& file) : text_(piece.text), line_(piece.line), file_(file) {}

  // False at the end.
  bool next(CsvRow& row);

 private:
  std::string plain_field();
  std::string quoted_field();
  bool at_row_end() const;
  void end_row();

  std::string_view text_;
  std::size_t at_ = 0;
  std::uint64_t line_;
  const std::string& file_;
};

}  // namespace loom::data
