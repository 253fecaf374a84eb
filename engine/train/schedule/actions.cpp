#include "engine/train/schedule/actions.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <utility>

#include "engine/core/error.h"

namespace loom::train {
namespace {

constexpr std::string_view kLetters = "FLBR";

std::string text_of(const Action& action) {
  return fmt::format("{}{}", kLetters[static_cast<std::size_t>(action.kind)], action.micro_batch);
}

// What a list has done so far.
class Progress {
 public:
  explicit Progress(std::int64_t micro_batches) : done_(static_cast<std::size_t>(micro_batches), 0) {}

  // The rule that the action breaks.
  std::optional<std::string> take(const Action& action) {
    if (action.micro_batch < 0 || std::cmp_greater_equal(action.micro_batch, done_.size())) {
      return fmt::format("{} of {} micro-batches", text_of(action), done_.size());
    }
    int& done = done_[static_cast<std::size_t>(action.micro_batch)];
    const int expected = static_cast<int>(action.kind);
    if (done != expected) return fmt::format("{} is out of order", text_of(action));
    if (action.kind == ActionKind::kReduce && !(last_ == Action{ActionKind::kBackward, action.micro_batch})) {
      return fmt::format("{} is not directly behind its backward", text_of(action));
    }
    ++done;
    last_ = action;
    if (action.kind == ActionKind::kBackward) unreduced_ = true;
    if (action.kind == ActionKind::kReduce) unreduced_ = false;
    return std::nullopt;
  }
  // What is missing at the end.
  std::optional<std::string> missing() const {
    for (std::size_t i = 0; i < done_.size(); ++i) {
      if (done_[i] <= static_cast<int>(ActionKind::kBackward)) {
        return fmt::format("{}{} is missing", kLetters[static_cast<std::size_t>(done_[i])], i);
      }
    }
    if (unreduced_) return fmt::format("the gradients of {} are not reduced", text_of(last_));
    return std::nullopt;
  }

 private:
  std::vector<int> done_;  // by micro-batch: actions done, which is the kind that comes next
  Action last_{ActionKind::kForward, -1};
  bool unreduced_ = false;
};

}  // namespace

std::vector<Action> accumulation(std::int64_t micro_batches, bool reduces_each) {
  std::vector<Action> actions;
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    for (const ActionKind kind :
         {ActionKind::kForward, ActionKind::kReadLoss, ActionKind::kBackward, ActionKind::kReduce}) {
      const bool is_left_out = kind == ActionKind::kReduce && !reduces_each && i + 1 < micro_batches;
      if (!is_left_out) actions.push_back({kind, i});
    }
  }
  return actions;
}

std::string to_text(std::span<const Action> actions) {
  std::vector<std::string> words;
  for (const Action& action : actions) words.push_back(text_of(action));
  return fmt::format("{}", fmt::join(words, " "));
}

void check_complete(std::span<const Action> actions, std::int64_t micro_batches) {
  Progress progress(micro_batches);
  std::optional<std::string> problem;
  for (const Action& action : actions) {
    if (!problem) problem = progress.take(action);
  }
  if (!problem) problem = progress.missing();
  require(!problem, "the schedule {}: {}", to_text(actions), problem.value_or(""));
}

bool is_reduced(std::span<const Action> actions, std::size_t index) {
  return index + 1 < actions.size() && actions[index + 1] == Action{ActionKind::kReduce, actions[index].micro_batch};
}

bool is_last_backward(std::span<const Action> actions, std::size_t index) {
  return std::ranges::find(actions.subspan(index + 1), ActionKind::kBackward, &Action::kind) == actions.end();
}

}  // namespace loom::train
