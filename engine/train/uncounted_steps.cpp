#include "engine/train/uncounted_steps.h"

#include "engine/core/error.h"

namespace loom::train {
namespace {

constexpr std::string_view kAdvice =
    "look at the labels of the data (-100 does not count), and whether --seq-length cuts the answers away";

}  // namespace

std::string UncountedSteps::note_uncounted(std::int64_t step, const std::string& samples, const std::string& kept) {
  if (++in_a_row_ == kMostInARow) {
    raise<Error>("steps {} to {} count no token, so nothing is learnt; step {} has {}; {}; {}", step - kMostInARow + 1,
                 step, step, samples, kept, kAdvice);
  }
  return fmt::format("step {} counts no token, and has the loss 0 and no gradient: no label of {} counts", step,
                     samples);
}

std::optional<std::string> UncountedSteps::problem() const {
  if (counted_ || in_a_row_ == 0) return std::nullopt;
  return fmt::format("none of its {} step{} counted a token, so nothing was learnt; {}", in_a_row_,
                     in_a_row_ == 1 ? "" : "s", kAdvice);
}

}  // namespace loom::train
