// RecomputedModule: the part of one module that is recomputed in backward, and how. A list of these is the whole choice
// of a run: a module without an entry keeps everything it saves.
//
// Source  recompute_modules and related keys of fsdp2_config.yaml give entries with kWhole; flags of the command line
//         and programs give any (Fsdp2Config::recompute_by_path). Here it is a choice; models/mixin applies it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loom::sharding {

// Results kept of a recomputed module besides its arguments (recompute::Keep, by the words of recompute_keep).
enum class RecomputeKeep : std::uint8_t { kNone, kSelectedOps, kSelectedOpsNeeded, kAttention };

enum class RecomputedPart : std::uint8_t {
  kWhole,               // the module
  kCoreAttention,       // in a decoder's layer: scores, softmax and their product with the values
  kActivationFunction,  // in a decoder's layer: the output of its activation function (recompute/discarding.h)
  kNorms,               // in a decoder's layer: the outputs of its two norms
};

struct RecomputedModule {
  std::string path = {};
  bool use_reentrant = true;                  // kWhole
  RecomputeKeep keep = RecomputeKeep::kNone;  // kWhole; anything else: not reentrant
  RecomputedPart part = RecomputedPart::kWhole;
  // kWhole, for a decoder's layer: the number of layers, this one first, in one checkpoint, which keeps the first one's
  // input. Above 1 the checkpoint is around the sharded layers: their gathers are part of the recomputation, each
  // once, so that the whole group is gathered when its backward begins.
  int layers = 1;

  bool operator==(const RecomputedModule&) const = default;
};

// The word of fsdp2_config.yaml and of --recompute-keep; none for another word.
std::string_view word_of(RecomputeKeep keep);
std::optional<RecomputeKeep> recompute_keep_of(std::string_view word);

// "model.layers.0", with its differences from a whole module that keeps nothing: "model.layers.0 (core attention)".
std::string text_of(const RecomputedModule& module);
// The run's report of a choice: a line for each kind of entry, none for an empty choice.
std::vector<std::string> describe_recompute(std::span<const RecomputedModule> modules);

}  // namespace loom::sharding
