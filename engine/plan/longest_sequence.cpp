#include "engine/plan/longest_sequence.h"

#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/wrapped.h"
#include "engine/dist/context_layout.h"
#include "engine/plan/first_failing.h"
#include "engine/plan/plan_output.h"

namespace loom::plan {
namespace {

constexpr int kUsualStep = 128;
constexpr int kMostTokens = 1 << 24;

// What the ranks that share a sequence divide.
int unit_of(const sharding::Fsdp2Config& config) {
  const auto unit = static_cast<int>(
      dist::length_unit({.ring = config.ring_attention_size, .ulysses = config.ulysses_parallel_size}));
  return unit * config.tensor_parallel_size * config.overlap_slices;
}

// "out of memory in backward, at group 'lm_head': tensor needs 2 MiB, the device has 1 of 80 MiB free": without the
// table of what is in use.
std::string first_clause(const std::string& error) {
  const std::size_t table = std::min(error.find("; in use:"), error.find('\n'));
  return error.substr(0, table);
}

class Lengths {
 public:
  explicit Lengths(const ChoicePlans& plans) : plans_(plans), choice_(plans.base()) {}

  // Of `from` + `step`, `from` + 2 x `step`, ..., `count` of them: the last that goes, or `from`.
  int last(int from, int step, int count) {
    const std::size_t failing = first_failing(
        static_cast<std::size_t>(count), [&](std::size_t i) { return goes(from + step * static_cast<int>(i + 1)); });
    return from + step * static_cast<int>(failing);
  }

  struct Failure {
    std::string why;
    bool is_refused = false;
  };
  // Why a length does not go; null where it was not tried, or goes.
  const Failure* failure(int length) const {
    const auto found = failures_.find(length);
    return found == failures_.end() ? nullptr : &found->second;
  }

  // With the longest one that goes. Precondition: one does.
  Candidate candidate() { return plans_.candidate(choice_, std::move(best_.value())); }

 private:
  bool goes(int length) {
    if (const auto& most = plans_.options().longest_sequence; most && length > *most) {
      failures_[length] = {
          .why = fmt::format("the model takes at most {} tokens (max_position_embeddings, and its rope "
                             "scaling where that goes beyond)",
                             *most),
          .is_refused = true};
      return false;
    }
    PlanChoice choice = plans_.base();
    choice.seq_length = length;
    try {
      best_ = plans_.plan(choice, Capacity::kOfTheProfile);  // tried ever longer, but for those that do not go
      choice_ = std::move(choice);
      return true;
    } catch (const OutOfMemoryError& error) {
      failures_[length] = {.why = first_clause(error.what())};
    } catch (const ConfigError& error) {
      failures_[length] = {.why = error.what(), .is_refused = true};
    }
    return false;
  }

  const ChoicePlans& plans_;
  PlanChoice choice_;
  std::optional<StepEstimate> best_;
  std::map<int, Failure> failures_;
};

}  // namespace

LongestSequence longest_sequence(const ChoicePlans& plans) {
  const int unit = unit_of(plans.base().config);
  LongestSequence longest{.fit = {}, .step = std::lcm(unit, kUsualStep)};
  Lengths lengths(plans);
  int length = lengths.last(0, longest.step, kMostTokens / longest.step);
  if (const auto* failure = lengths.failure(length + longest.step); failure && failure->is_refused) {
    length = lengths.last(length, unit, longest.step / unit - 1);
    if (lengths.failure(length + unit) != nullptr) longest.step = unit;
  }
  const Lengths::Failure* failure = lengths.failure(length + longest.step);
  if (length == 0 && failure->is_refused) config_error("{}", failure->why);
  if (length == 0) {
    config_error("a sequence of {} tokens does not fit on {} x {}; plan without --fit to see what would help",
                 longest.step, plans.base().world, plans.profile().name);
  }
  longest.fit = lengths.candidate();
  if (failure == nullptr) return longest;
  longest.next = length + longest.step;
  longest.why = failure->why;
  longest.is_refused = failure->is_refused;
  return longest;
}

std::string to_text(const LongestSequence& longest) {
  std::string text =
      fmt::format("the longest sequence: {} tokens, in steps of {}\n", longest.fit.choice.seq_length, longest.step);
  if (!longest.next) {
    text += "  longer ones are not tried\n";
  } else {
    text += fmt::format("  {} tokens {}: {}\n", *longest.next, longest.is_refused ? "are refused" : "do not fit",
                        longest.why);
  }
  return wrapped(text, 4) + to_text(longest.fit.plan);
}

nlohmann::ordered_json to_json(const LongestSequence& longest) {
  nlohmann::ordered_json json = to_json(longest.fit.plan);
  json["longest_sequence"] = {{"seq_length", longest.fit.choice.seq_length},
                              {"step", longest.step},
                              {"next", nullptr},
                              {"why", longest.why},
                              {"refused", longest.is_refused}};
  if (longest.next) json["longest_sequence"]["next"] = *longest.next;
  return json;
}

}  // namespace loom::plan
