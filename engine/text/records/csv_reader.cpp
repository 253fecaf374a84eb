#include "engine/text/records/csv_reader.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/io/json_text.h"
#include "engine/text/records/csv_rows.h"

namespace loom::data {
namespace {

// In the order in which a column gives up being the former.
enum class Type : std::uint8_t { kEmpty, kInteger, kReal, kText };

struct Column {
  std::string name;
  Type type = Type::kEmpty;
};
using CsvColumns = std::vector<Column>;

std::size_t digits(std::string_view text) { return std::min(text.find_first_not_of("0123456789"), text.size()); }

bool is_sign(char c) { return c == '+' || c == '-'; }

// Digits, a point, an exponent; no name of a number, no blank.
bool is_number(std::string_view text) {
  if (!text.empty() && is_sign(text.front())) text.remove_prefix(1);
  std::size_t count = digits(text);
  text.remove_prefix(count);
  if (text.starts_with('.')) {
    const std::size_t behind = digits(text.substr(1));
    count += behind;
    text.remove_prefix(1 + behind);
  }
  if (count == 0) return false;
  if (text.empty()) return true;
  if (text.front() != 'e' && text.front() != 'E') return false;
  text.remove_prefix(1);
  if (!text.empty() && is_sign(text.front())) text.remove_prefix(1);
  return !text.empty() && digits(text) == text.size();
}

template <class Number>
std::optional<Number> parse(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  return parse_number<Number>(text);
}

Type type_of(std::string_view text) {
  if (text.empty()) return Type::kEmpty;
  if (!is_number(text)) return Type::kText;
  if (parse<std::int64_t>(text)) return Type::kInteger;
  if (text.find_first_of(".eE") == std::string_view::npos) return Type::kText;
  const auto real = parse<double>(text);
  return real && std::isfinite(*real) ? Type::kReal : Type::kText;
}

CsvColumns columns_of(const CsvRow& header, const std::string& file) {
  CsvColumns columns;
  std::set<std::string> names;
  for (std::size_t i = 0; i < header.fields.size(); ++i) {
    const std::string& name = header.fields[i];
    columns.push_back({name.empty() ? fmt::format("Unnamed: {}", i) : name});
    if (names.insert(columns.back().name).second) continue;
    config_error("{}:{}: two columns have the name '{}'; rename one", file, header.line,
                 shown_text(columns.back().name));
  }
  return columns;
}

void check_width(const CsvRow& row, const CsvColumns& columns, const std::string& file) {
  if (row.fields.size() == columns.size()) return;
  config_error("{}:{}: the row has {} fields, the first row names {} columns; quote fields that have commas", file,
               row.line, row.fields.size(), columns.size());
}

void widen(CsvColumns& columns, const CsvRow& row) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].type == Type::kText) continue;
    columns[i].type = std::max(columns[i].type, type_of(row.fields[i]));
  }
}

// Names and types, from the whole file.
CsvColumns read_columns(CsvPieces& pieces) {
  const std::string& file = *pieces.name();
  CsvColumns columns;
  CsvRow row;
  while (const auto piece = pieces.next()) {
    CsvRows rows(*piece, file);
    while (rows.next(row)) {
      if (columns.empty()) {
        columns = columns_of(row, file);
      } else {
        check_width(row, columns, file);
        widen(columns, row);
      }
    }
  }
  if (columns.empty()) config_error("{}: the file has no first row, which names the columns", file);
  return columns;
}

nlohmann::ordered_json value_of(const std::string& text, Type type) {
  if (text.empty()) return nullptr;
  if (type == Type::kInteger) {
    if (const auto number = parse<std::int64_t>(text)) return *number;
  }
  if (type == Type::kReal) {
    if (const auto number = parse<double>(text)) return *number;
  }
  return text;
}

class CsvBatch final : public RecordBatch {
 public:
  CsvBatch(std::shared_ptr<const std::string> file, std::shared_ptr<const CsvColumns> columns, CsvPiece piece,
           bool has_header)
      : file_(std::move(file)), columns_(std::move(columns)), piece_(std::move(piece)), has_header_(has_header) {}

  std::vector<Record> records() const override {
    std::vector<Record> made;
    CsvRows rows(piece_, *file_);
    CsvRow row;
    if (has_header_) rows.next(row);
    while (rows.next(row)) {
      check_width(row, *columns_, *file_);
      Record record{nlohmann::ordered_json::object(), line_place(*file_, row.line)};
      for (std::size_t i = 0; i < columns_->size(); ++i) {
        const Column& column = (*columns_)[i];
        io::append_pair(record.columns, column.name, value_of(row.fields[i], column.type));
      }
      made.push_back(std::move(record));
    }
    return made;
  }

 private:
  std::shared_ptr<const std::string> file_;
  std::shared_ptr<const CsvColumns> columns_;
  CsvPiece piece_;
  bool has_header_;
};

class CsvReader final : public RecordReader {
 public:
  explicit CsvReader(const std::filesystem::path& path)
      : pieces_(path), columns_(std::make_shared<const CsvColumns>(read_columns(pieces_))) {
    pieces_.rewind();
  }

  std::unique_ptr<RecordBatch> next() override {
    auto piece = pieces_.next();
    if (!piece) return nullptr;
    // Empty lines may come before the header.
    CsvRow row;
    const bool has_header = !header_given_ && CsvRows(*piece, *pieces_.name()).next(row);
    header_given_ = header_given_ || has_header;
    return std::make_unique<CsvBatch>(pieces_.name(), columns_, std::move(*piece), has_header);
  }

  std::uint64_t done_bytes() const override { return pieces_.done_bytes(); }
  std::uint64_t all_bytes() const override { return pieces_.all_bytes(); }

 private:
  CsvPieces pieces_;
  std::shared_ptr<const CsvColumns> columns_;
  bool header_given_ = false;
};

}  // namespace

std::unique_ptr<RecordReader> csv_reader(const std::filesystem::path& path) {
  return std::make_unique<CsvReader>(path);
}

}  // namespace loom::data
