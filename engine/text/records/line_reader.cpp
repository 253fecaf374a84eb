#include "engine/text/records/line_reader.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/io/json_text.h"
#include "engine/text/records/json_record.h"

namespace loom::data {
namespace {

bool is_column(const nlohmann::ordered_json& json) {
  return json.is_array() && !json.empty() &&
         std::none_of(json.begin(), json.end(), [](const auto& item) { return item.is_structured(); });
}

void refuse_columns(const Record& record) {
  const auto& columns = record.columns;
  if (columns.empty() || !std::all_of(columns.begin(), columns.end(), is_column)) return;
  config_error("{}: the file is one object whose fields are columns; write one object a line, or one list of objects",
               record.where);
}

class LineBatch final : public RecordBatch {
 public:
  LineBatch(std::shared_ptr<const std::string> file, LineKind kind, std::string text, std::uint64_t first_line,
            bool is_whole_file)
      : file_(std::move(file)), kind_(kind), text_(std::move(text)), first_line_(first_line), whole_(is_whole_file) {}

  std::vector<Record> records() const override {
    std::vector<Record> made;
    std::uint64_t line = first_line_;
    for (std::size_t at = 0; at < text_.size(); ++line) {
      const std::size_t end = std::min(text_.find('\n', at), text_.size());
      add(made, std::string_view(text_).substr(at, end - at), line);
      at = end + 1;
    }
    if (whole_ && kind_ == LineKind::kJson && made.size() == 1) refuse_columns(made.front());
    return made;
  }

 private:
  void add(std::vector<Record>& made, std::string_view line, std::uint64_t number) const {
    if (line.size() > kMostRecordBytes) refuse_long_record(*file_, number);
    if (kind_ == LineKind::kText) return made.push_back(text_record(line, number));
    if (!is_blank(line)) made.push_back(json_record(line, *file_, number));
  }

  Record text_record(std::string_view line, std::uint64_t number) const {
    if (line.ends_with('\r')) line.remove_suffix(1);
    check_utf8(line, *file_, number);
    Record record{nlohmann::ordered_json::object(), line_place(*file_, number)};
    io::append_pair(record.columns, "text", line);
    return record;
  }

  std::shared_ptr<const std::string> file_;
  LineKind kind_;
  std::string text_;
  std::uint64_t first_line_;
  bool whole_;
};

class LineReader final : public RecordReader {
 public:
  LineReader(std::unique_ptr<RecordFile> file, LineKind kind, std::string text)
      : file_(std::move(file)), kind_(kind), text_(std::move(text)) {}

  std::unique_ptr<RecordBatch> next() override {
    const std::size_t size = whole_lines();
    if (size == 0) return nullptr;
    std::string batch = text_.substr(0, size);
    text_.erase(0, size);
    const std::uint64_t first = line_;
    line_ += static_cast<std::uint64_t>(std::count(batch.begin(), batch.end(), '\n'));
    const bool is_whole = first == 1 && text_.empty() && file_->done_bytes() == file_->all_bytes();
    return std::make_unique<LineBatch>(file_->name(), kind_, std::move(batch), first, is_whole);
  }

  std::uint64_t done_bytes() const override { return file_->done_bytes() - text_.size(); }
  std::uint64_t all_bytes() const override { return file_->all_bytes(); }

 private:
  // How many bytes of the text are whole lines, at least one; at the end of the file all of it.
  std::size_t whole_lines() {
    for (std::size_t seen = 0;;) {
      const std::size_t end = std::string_view(text_).substr(seen).rfind('\n');
      if (end != std::string_view::npos) return seen + end + 1;
      seen = text_.size();
      if (seen > kMostRecordBytes) refuse_long_record(*file_->name(), line_);
      if (!file_->read_more(text_)) return text_.size();
    }
  }

  std::unique_ptr<RecordFile> file_;
  LineKind kind_;
  std::string text_;  // read, not given
  std::uint64_t line_ = 1;
};

}  // namespace

std::unique_ptr<RecordReader> line_reader(std::unique_ptr<RecordFile> file, LineKind kind, std::string text) {
  return std::make_unique<LineReader>(std::move(file), kind, std::move(text));
}

}  // namespace loom::data
