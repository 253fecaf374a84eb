#include "engine/train/schedule/pipeline_action.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::train {
namespace {

using enum PipelineKind;

// By kind.
constexpr std::array<std::string_view, 13> kNames = {
    "F", "B", "I", "W", "C", "R", "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
constexpr std::string_view kOverlap = "OVERLAP_F_B";

std::string_view name_of(PipelineKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::optional<PipelineKind> kind_named(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<PipelineKind>(found - kNames.begin());
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Up to nine digits, so that sums of them do not overflow.
std::optional<std::int64_t> number_in(std::string_view digits) {
  if (digits.empty() || digits.size() > 9 || !std::ranges::all_of(digits, is_digit)) return std::nullopt;
  return parse_number<std::int64_t>(digits);
}

PipelineAction parse_action(std::string_view token) {
  const auto kind_at = static_cast<std::size_t>(std::ranges::find_if_not(token, is_digit) - token.begin());
  const std::size_t last_letter = token.find_last_not_of("0123456789");
  const std::size_t number_at = last_letter == std::string_view::npos ? token.size() : last_letter + 1;
  const auto stage = number_in(token.substr(0, kind_at));
  const std::string_view name = token.substr(kind_at, number_at - std::min(kind_at, number_at));
  const auto kind = kind_named(name);
  if (!stage || !kind) {
    config_error(
        "a pipeline's order has '{}', which is no action; write STAGE KIND MICRO-BATCH without spaces, like "
        "2F0, where KIND is one of {}",
        shown_text(token), fmt::join(kNames, ", "));
  }
  const std::string_view digits = token.substr(number_at);
  if (!has_micro_batch(*kind)) {
    if (!digits.empty()) {
      config_error("a pipeline's order has '{}', and {} is of a whole stage; write {}{}", shown_text(token), name,
                   *stage, name);
    }
    return {*kind, *stage, kNoMicroBatch};
  }
  const auto micro_batch = number_in(digits);
  if (!micro_batch) {
    config_error("a pipeline's order has '{}', and {} needs a micro-batch of one to nine digits; write {}{}0",
                 shown_text(token), name, *stage, name);
  }
  return {*kind, *stage, *micro_batch};
}

std::vector<PipelineAction> parse_actions(std::string_view text, char between) {
  std::vector<PipelineAction> actions;
  while (true) {
    const std::size_t end = std::min(text.find(between), text.size());
    actions.push_back(parse_action(text.substr(0, end)));
    if (end == text.size()) return actions;
    text.remove_prefix(end + 1);
  }
}

PipelineStep parse_pair(std::string_view token) {
  const std::size_t close = token.find(')');
  if (close == std::string_view::npos || token.substr(close + 1) != kOverlap) {
    config_error("a pipeline's order has '{}'; write a forward and a backward that run together as (7F3;0B1){}",
                 shown_text(token), kOverlap);
  }
  std::vector<PipelineAction> pair = parse_actions(token.substr(1, close - 1), ';');
  if (pair.size() != 2 || pair[0].kind != kForward || pair[1].kind != kBackward) {
    config_error(
        "a pipeline's order has '{}', which is not one forward F and one backward B in this order; write "
        "(7F3;0B1){}",
        shown_text(token), kOverlap);
  }
  return {PipelineJoin::kOverlapped, std::move(pair)};
}

PipelineStep parse_batch(std::string_view token) {
  const bool waited = token.front() == '[';
  if (token.back() != (waited ? ']' : '>')) {
    config_error(
        "a pipeline's order has '{}', a batch of messages without its end; write [0SEND_F1,0RECV_B0] or "
        "<0SEND_F1,0RECV_B0>",
        shown_text(token));
  }
  std::vector<PipelineAction> messages = parse_actions(token.substr(1, token.size() - 2), ',');
  for (const PipelineAction& message : messages) {
    if (is_message(message.kind)) continue;
    config_error(
        "a pipeline's order has {} in a batch of messages; only SEND_F, RECV_F, SEND_B and RECV_B may be in "
        "one: write {} before or behind it",
        to_text(message), to_text(message));
  }
  return {waited ? PipelineJoin::kWaited : PipelineJoin::kPosted, std::move(messages)};
}

}  // namespace

bool is_compute(PipelineKind kind) { return kind <= kRecompute; }
bool is_message(PipelineKind kind) { return kind >= kSendForward; }
bool has_micro_batch(PipelineKind kind) { return is_compute(kind) || is_message(kind); }
bool is_forward(PipelineKind kind) { return kind == kForward || kind == kForwardKeepingInput; }
bool makes_input_gradient(PipelineKind kind) { return kind == kBackward || kind == kBackwardInput; }

std::string to_text(const PipelineAction& action) {
  return has_micro_batch(action.kind) ? fmt::format("{}{}{}", action.stage, name_of(action.kind), action.micro_batch)
                                      : fmt::format("{}{}", action.stage, name_of(action.kind));
}

std::string to_text(const PipelineStep& step) {
  std::vector<std::string> words;
  for (const PipelineAction& action : step.actions) words.push_back(to_text(action));
  switch (step.join) {
    case PipelineJoin::kOverlapped:
      return fmt::format("({}){}", fmt::join(words, ";"), kOverlap);
    case PipelineJoin::kWaited:
      return fmt::format("[{}]", fmt::join(words, ","));
    case PipelineJoin::kPosted:
      return fmt::format("<{}>", fmt::join(words, ","));
    case PipelineJoin::kAlone:
      break;
  }
  return words.at(0);
}

std::string to_text(const PipelineList& list) {
  std::vector<std::string> words;
  for (const PipelineStep& step : list) words.push_back(to_text(step));
  return fmt::format("{}", fmt::join(words, " "));
}

PipelineStep parse_pipeline_step(std::string_view token) {
  if (token.starts_with('(')) return parse_pair(token);
  if (token.starts_with('[') || token.starts_with('<')) return parse_batch(token);
  const PipelineAction action = parse_action(token);
  return {action.kind, action.stage, action.micro_batch};
}

PipelineList parse_pipeline_list(std::string_view line) {
  PipelineList list;
  std::size_t at = 0;
  while ((at = line.find_first_not_of(' ', at)) != std::string_view::npos) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    list.push_back(parse_pipeline_step(line.substr(at, end - at)));
    at = end;
  }
  return list;
}

}  // namespace loom::train
