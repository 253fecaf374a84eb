// Misfits: tensors of a folder or a checkpoint that do not match the model, collected for one error.
// Private to engine/convert.
//
// Bound    the thousandth throws the error at once: a config.json may claim any number of layers and experts.
// Errors   ConfigError with the count and the first six lines, sorted.
#pragma once

#include <fmt/core.h>
#include <set>
#include <string>
#include <utility>

namespace loom::checkpoint {

class Misfits {
 public:
  // `head` begins the error: "DIR: its tensors do not match llama by DIR/config.json".
  explicit Misfits(std::string head) : head_(std::move(head)) {}

  bool empty() const { return lines_.empty(); }
  // Adds a line to the error, escaped; equal lines count once. Names from files are given as shown_text().
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    add_line(fmt::format(format, std::forward<Args>(args)...));
  }
  // Throws unless there are none.
  void refuse() const;

 private:
  void add_line(const std::string& line);

  const std::string head_;
  std::set<std::string> lines_;
};

}  // namespace loom::checkpoint
