// What a template may use up, and how it fails. Private to engine/data.
//
// Work   one for each node that is evaluated, each item of a list that is made or looked at, and each kTextPerWork bytes
//        of text that are made or looked at: it bounds time and memory alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace loom::data::jinja {

inline constexpr std::size_t kTextPerWork = 16;
// Levels of lists in lists, of nodes in nodes while a template is read, and of nodes while it is evaluated.
inline constexpr int kMostValueDepth = 200;
inline constexpr int kMostNodeHeight = 300;
inline constexpr int kMostNesting = 80;
inline constexpr int kMostEvaluationDepth = 1000;
inline constexpr int kMostCalls = 100;

// Python would raise here. The place is added by who knows it.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// raise_exception(MESSAGE).
class TemplateRefusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError(fmt::format(format, std::forward<Args>(args)...));
}

class Budget {
 public:
  explicit Budget(std::int64_t work) : left_(work), all_(work) {}

  void work(std::size_t units) {
    left_ -= static_cast<std::int64_t>(units);
    if (left_ < 0) fail("the template does more than {} units of work; does it end?", all_);
  }
  void text(std::size_t bytes) { work(1 + bytes / kTextPerWork); }

 private:
  std::int64_t left_;
  std::int64_t all_;
};

// A text that grows within its budget.
class Builder {
 public:
  explicit Builder(Budget& budget) : budget_(&budget) {}

  Builder& operator+=(std::string_view text) {
    budget_->text(text.size());
    text_ += text;
    return *this;
  }
  void repeat(std::string_view text, std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) *this += text;
  }
  Budget& budget() { return *budget_; }
  std::string take() { return std::move(text_); }
  bool empty() const { return text_.empty(); }

 private:
  Budget* budget_;
  std::string text_;
};

}  // namespace loom::data::jinja
