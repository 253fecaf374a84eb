// UncountedSteps: steps whose samples have no token that counts for the loss. Their loss is 0, without a gradient;
// a run of them learns nothing: labels that are all -100, answers that --seq-length cuts away, ids that are padding.
//
// Warned   each of them, with its samples.
// Error    after kMostInARow in a row; or at the end, if no step of the run counted a token.
// Threads  the rank's host thread. Every rank has one, and all are equal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace loom::train {

class UncountedSteps {
 public:
  static constexpr std::int64_t kMostInARow = 10;

  // After step `step`, from 1. `samples` names them ("samples 16 to 19").
  void note_counted() { in_a_row_ = 0, counted_ = true; }
  // Returns the warning. Error at the last one that is allowed; `kept` describes what is saved.
  std::string note_uncounted(std::int64_t step, const std::string& samples, const std::string& kept);

  // After the last step: the text if no step of the run counted a token.
  std::optional<std::string> problem() const;

 private:
  bool counted_ = false;
  std::int64_t in_a_row_ = 0;
};

}  // namespace loom::train
