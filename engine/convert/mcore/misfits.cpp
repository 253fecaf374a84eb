#include "engine/convert/mcore/misfits.h"

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "models/hf/folder_files.h"

namespace loom::checkpoint {
namespace {

constexpr std::size_t kMostListed = 6;
constexpr std::size_t kMost = 1000;

}  // namespace

void Misfits::add_line(const std::string& line) {
  lines_.insert(escaped(line));
  if (lines_.size() == kMost) refuse();
}

void Misfits::refuse() const {
  if (lines_.empty()) return;
  std::string text = fmt::format("{}: {}{} do not fit", head_, lines_.size(), lines_.size() == kMost ? " or more" : "");
  std::size_t listed = 0;
  for (const std::string& line : lines_) {
    if (++listed > kMostListed) break;
    text += "\n  " + line;
  }
  if (lines_.size() > kMostListed) text += fmt::format("\n  and {} more", lines_.size() - kMostListed);
  throw ConfigError(text);
}

const SourceTensor* find_tensor(const TensorList& list, const std::string& name, const Shape& shape,
                                std::set<std::string>& used, Misfits& misfits) {
  const SourceTensor* tensor = list.find(name);
  if (tensor == nullptr) {
    misfits.add("missing '{}' {}", name, to_string(shape));
    return nullptr;
  }
  used.insert(name);
  if (tensor->shape == shape) return tensor;
  misfits.add("'{}' is {}, not {}", name, to_string(tensor->shape), to_string(shape));
  return nullptr;
}

void add_names(const std::vector<OutputTensor>& made, const std::set<std::string>& wanted, const std::string& wanted_by,
               Misfits& misfits) {
  if (wanted.empty() || !misfits.empty()) return;
  std::set<std::string> names;
  for (const OutputTensor& output : made) {
    names.insert(output.name);
    if (!wanted.contains(output.name)) misfits.add("'{}' is not among the names of {}", output.name, wanted_by);
  }
  for (const std::string& name : wanted) {
    if (names.contains(name) || models::is_stored_buffer(name)) continue;
    misfits.add("'{}' of {} is not made of the checkpoint", shown_text(name), wanted_by);
  }
}

}  // namespace loom::checkpoint
