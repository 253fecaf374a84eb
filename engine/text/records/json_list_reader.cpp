#include "engine/text/records/json_list_reader.h"

#include <optional>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/records/json_record.h"

namespace loom::data {
namespace {

struct Element {
  std::size_t begin = 0;  // in the text
  std::size_t end = 0;
  std::uint64_t line = 0;
};

class ListBatch final : public RecordBatch {
 public:
  ListBatch(std::shared_ptr<const std::string> file, std::string text, std::vector<Element> elements)
      : file_(std::move(file)), text_(std::move(text)), elements_(std::move(elements)) {}

  std::vector<Record> records() const override {
    std::vector<Record> made;
    for (const Element& element : elements_) {
      const auto text = std::string_view(text_).substr(element.begin, element.end - element.begin);
      made.push_back(json_record(text, *file_, element.line));
    }
    return made;
  }

 private:
  std::shared_ptr<const std::string> file_;
  std::string text_;
  std::vector<Element> elements_;
};

class ListReader final : public RecordReader {
 public:
  ListReader(std::unique_ptr<RecordFile> file, std::string text) : file_(std::move(file)), text_(std::move(text)) {}

  std::unique_ptr<RecordBatch> next() override {
    while (at_ < kBatchBytes || found_.empty()) {
      const auto element = next_element();
      if (!element) break;
      found_.push_back(*element);
    }
    if (found_.empty()) return nullptr;
    std::string batch = text_.substr(0, at_);
    text_.erase(0, at_);
    at_ = 0;
    return std::make_unique<ListBatch>(file_->name(), std::move(batch), std::exchange(found_, {}));
  }

  std::uint64_t done_bytes() const override { return file_->done_bytes() - text_.size(); }
  std::uint64_t all_bytes() const override { return file_->all_bytes(); }

 private:
  enum class Expected : std::uint8_t { kList, kFirst, kNext, kObject, kEnd };

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    config_error("{}:{}: {}", *file_->name(), line_, fmt::format(format, std::forward<Args>(args)...));
  }

  bool fill() { return at_ < text_.size() || file_->read_more(text_); }

  // The next character that is no white space; 0 at the end of the file.
  char skip_blank() {
    for (;; ++at_) {
      if (at_ == text_.size() && found_.empty()) text_.clear(), at_ = 0;
      if (at_ > kMostRecordBytes) refuse_long_record(*file_->name(), line_);
      if (!fill()) return '\0';
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c != ' ' && c != '\t' && c != '\r' && c != '\n') return c;
    }
  }

  std::optional<Element> next_element() {
    for (;;) {
      const char c = skip_blank();
      if (expected_ == Expected::kEnd) {
        if (fill()) refuse("text behind the end of the list");
        return std::nullopt;
      }
      if (!fill()) refuse("the file ends within the list; is it whole?");
      if (c == '{' && (expected_ == Expected::kFirst || expected_ == Expected::kObject)) return object();
      step(c);
    }
  }

  // Over a character between the objects.
  void step(char c) {
    if (expected_ == Expected::kList && c == '[') {
      expected_ = Expected::kFirst;
    } else if (expected_ == Expected::kNext && c == ',') {
      expected_ = Expected::kObject;
    } else if ((expected_ == Expected::kNext || expected_ == Expected::kFirst) && c == ']') {
      expected_ = Expected::kEnd;
    } else {
      refuse("'{}' where {} is due; the file has to be one list of objects", shown_text({&c, 1}),
             expected_ == Expected::kNext ? "a comma or the end of the list" : "an object");
    }
    ++at_;
  }

  Element object() {
    const std::size_t begin = at_;
    const std::uint64_t line = line_;
    int depth = 0;
    bool quoted = false;
    bool escape = false;
    do {
      if (!fill()) config_error("{}:{}: the file ends within this object; is it whole?", *file_->name(), line);
      if (at_ - begin > kMostRecordBytes) refuse_long_record(*file_->name(), line);
      const char c = text_[at_++];
      if (c == '\n') ++line_;
      if (escape) {
        escape = false;
      } else if (quoted) {
        escape = c == '\\';
        quoted = c != '"';
      } else {
        quoted = c == '"';
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
      }
    } while (depth > 0);
    expected_ = Expected::kNext;
    return {begin, at_, line};
  }

  std::unique_ptr<RecordFile> file_;
  std::string text_;    // read, not given
  std::size_t at_ = 0;  // in the text
  std::uint64_t line_ = 1;
  std::vector<Element> found_;  // of the next batch
  Expected expected_ = Expected::kList;
};

}  // namespace

std::unique_ptr<RecordReader> json_list_reader(std::unique_ptr<RecordFile> file, std::string text) {
  return std::make_unique<ListReader>(std::move(file), std::move(text));
}

}  // namespace loom::data
