#include "sharding/config/recomputed_module.h"

#include <algorithm>
#include <array>
#include <fmt/core.h>

namespace loom::sharding {
namespace {

struct KeepWord {
  RecomputeKeep keep;
  std::string_view word;
};
constexpr std::array kKeepWords = {KeepWord{RecomputeKeep::kNone, "none"},
                                   KeepWord{RecomputeKeep::kAttention, "attention"},
                                   KeepWord{RecomputeKeep::kSelectedOps, "selected_ops"},
                                   KeepWord{RecomputeKeep::kSelectedOpsNeeded, "selected_ops_needed"}};

std::string_view name_of(RecomputedPart part) {
  switch (part) {
    case RecomputedPart::kWhole:
      return "";
    case RecomputedPart::kCoreAttention:
      return "core attention";
    case RecomputedPart::kActivationFunction:
      return "activation function";
    case RecomputedPart::kNorms:
      return "norms";
  }
  return "";
}

// Entries that are reported in one line.
bool same_kind(const RecomputedModule& a, const RecomputedModule& b) {
  return a.use_reentrant == b.use_reentrant && a.keep == b.keep && a.part == b.part && (a.layers > 1) == (b.layers > 1);
}

std::string describe_kind(const RecomputedModule& kind, std::size_t count) {
  const std::string of_layers = fmt::format("of {} layer{}", count, count == 1 ? "" : "s");
  switch (kind.part) {
    case RecomputedPart::kCoreAttention:
      return fmt::format("the core attention {} recomputed in backward", of_layers);
    case RecomputedPart::kActivationFunction:
      return fmt::format("the output of the activation function {} dropped after its use and recomputed in backward",
                         of_layers);
    case RecomputedPart::kNorms:
      return fmt::format("the outputs of the norms {} dropped after their use and recomputed in backward", of_layers);
    case RecomputedPart::kWhole:
      break;
  }
  const std::string kept = kind.keep == RecomputeKeep::kNone ? "" : fmt::format(", {} kept", word_of(kind.keep));
  if (kind.layers > 1) {
    return fmt::format("{} group{} of layers recomputed in backward, {}{}", count, count == 1 ? "" : "s",
                       kind.use_reentrant ? "reentrant" : "not reentrant", kept);
  }
  return fmt::format("{} of the modules recomputed in backward, {}{}", count,
                     kind.use_reentrant ? "reentrant" : "not reentrant", kept);
}

}  // namespace

std::string_view word_of(RecomputeKeep keep) { return std::ranges::find(kKeepWords, keep, &KeepWord::keep)->word; }

std::optional<RecomputeKeep> recompute_keep_of(std::string_view word) {
  const auto found = std::ranges::find(kKeepWords, word, &KeepWord::word);
  return found == kKeepWords.end() ? std::nullopt : std::optional(found->keep);
}

std::string text_of(const RecomputedModule& module) {
  if (module.part != RecomputedPart::kWhole) return fmt::format("{} ({})", module.path, name_of(module.part));
  std::string text = module.path;
  if (module.layers > 1) text += fmt::format(" and {} more layers", module.layers - 1);
  if (module.keep != RecomputeKeep::kNone) text += fmt::format(" ({} kept)", word_of(module.keep));
  return text;
}

std::vector<std::string> describe_recompute(std::span<const RecomputedModule> modules) {
  std::vector<const RecomputedModule*> kinds;
  for (const RecomputedModule& module : modules) {
    if (std::ranges::none_of(kinds, [&](const auto* kind) { return same_kind(*kind, module); }))
      kinds.push_back(&module);
  }
  std::vector<std::string> lines;
  for (const RecomputedModule* kind : kinds) {
    const auto count = std::ranges::count_if(modules, [&](const auto& module) { return same_kind(*kind, module); });
    lines.push_back(describe_kind(*kind, static_cast<std::size_t>(count)));
  }
  return lines;
}

}  // namespace loom::sharding
