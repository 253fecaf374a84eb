// The resource limits of a template, and its errors. Private to engine/text.
//
// Work   everything evaluated, read, compared and made, charged in advance. A unit is about 20 ns of time or 8
//        bytes of memory, so that it bounds both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fmt/core.h>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace loom::data::jinja {

inline constexpr std::size_t kTextPerWork = 8;
inline constexpr std::size_t kWorkPerValue = 3;
inline constexpr std::size_t kWorkPerObject = 12;
// Levels of lists in lists, of nodes in nodes while a template is read, and of nodes while it is evaluated.
inline constexpr int kMostValueDepth = 200;
inline constexpr int kMostNodeHeight = 300;
inline constexpr int kMostNesting = 80;
inline constexpr int kMostEvaluationDepth = 1000;
inline constexpr int kMostCalls = 100;

// Python would raise here. A caller that knows the place adds it.
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
    if (std::cmp_greater(units, left_)) {
      left_ = 0;
      fail("the template does more than {} units of work; does it end?", all_);
    }
    left_ -= static_cast<std::int64_t>(units);
  }
  void work(std::size_t times, std::size_t units) {
    std::size_t all = 0;
    work(__builtin_mul_overflow(times, units, &all) ? std::numeric_limits<std::size_t>::max() : all);
  }
  // Bytes that are copied, compared or searched.
  void text(std::size_t bytes) { work(1 + bytes / kTextPerWork); }
  // Bytes whose characters are looked at one by one.
  void characters(std::size_t bytes) { work(1 + bytes); }
  // Places of a list.
  void values(std::size_t count) { work(count, kWorkPerValue); }
  // Texts, lists and other objects with memory of their own.
  void objects(std::size_t count) { work(count, kWorkPerObject); }

 private:
  std::int64_t left_;
  std::int64_t all_;
};

// A growing text within its budget.
class Builder {
 public:
  explicit Builder(Budget& budget) : budget_(&budget) {}

  Builder& operator+=(std::string_view text) {
    budget_->text(text.size());
    text_ += text;
    return *this;
  }
  void repeat(std::string_view text, std::size_t times) {
    budget_->work(times, 1 + text.size() / kTextPerWork);
    for (std::size_t i = 0; i < times; ++i) text_ += text;
  }
  Budget& budget() { return *budget_; }
  std::string take() { return std::move(text_); }
  bool empty() const { return text_.empty(); }

 private:
  Budget* budget_;
  std::string text_;
};

}  // namespace loom::data::jinja
