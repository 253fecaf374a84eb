// UncountedSteps: steps whose samples have no token that counts for the loss. They have the loss 0 and no gradient, and
// a run of them learns nothing: labels that are all -100, answers that --seq-length cuts away, ids that are padding.
//
// Warned   each of them, with its samples.
// Error    kMostInARow in a row, at once; or at the end, where no step of the run counted a token.
// Threads  the rank's host thread. Every rank holds one, and all come to the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace loom::train {

class UncountedSteps {
 public:
  static constexpr std::int64_t kMostInARow = 10;

  // After step `step`, from 1. `samples` says which they were ("samples 16 to 19").
  void note_counted() { in_a_row_ = 0, counted_ = true; }
  // The warning. Error at the last one that is allowed; `kept` says what is saved.
  std::string note_uncounted(std::int64_t step, const std::string& samples, const std::string& kept);

  // After the last step: what there is to say where all steps of the run counted no token.
  std::optional<std::string> problem() const;

 private:
  bool counted_ = false;
  std::int64_t in_a_row_ = 0;
};

}  // namespace loom::train
