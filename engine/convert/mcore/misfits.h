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
#include <vector>

#include "engine/convert/output_tensor.h"
#include "engine/convert/tensor_source.h"

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

// The tensor of this name and shape, which is used from now on; null, and added to the misfits, where it is missing or
// of another shape.
const SourceTensor* find_tensor(const TensorList& list, const std::string& name, const Shape& shape,
                                std::set<std::string>& used, Misfits& misfits);

// Adds the names that are made and not wanted, and those that are wanted and not made. Nothing where no names are
// wanted or tensors do not fit already. `wanted_by` is the origin of the wanted names.
void add_names(const std::vector<OutputTensor>& made, const std::set<std::string>& wanted, const std::string& wanted_by,
               Misfits& misfits);

}  // namespace loom::checkpoint
