// RecomputedModule: what of one module is computed again in backward, and how. A list of these is the whole choice of a
// run: a module that no entry names keeps all it saves.
//
// Whence  recompute_modules and its kin of fsdp2_config.yaml give entries with kWhole; flags of the command line and
//         programs give any (Fsdp2Config::recompute_by_path). Here it is a choice; models/mixin applies it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loom::sharding {

// What is kept of a recomputed module besides its arguments (recompute::Keep, by the words of recompute_keep).
enum class RecomputeKeep : std::uint8_t { kNone, kSelectedOps, kSelectedOpsNeeded, kAttention };

enum class RecomputedPart : std::uint8_t {
  kWhole,               // the module
  kCoreAttention,       // of a decoder's layer: scores, softmax and their product with the values
  kActivationFunction,  // of a decoder's layer: the output of its activation function (recompute/discarding.h)
  kNorms,               // of a decoder's layer: the outputs of its two norms
};

struct RecomputedModule {
  std::string path = {};
  bool use_reentrant = true;                  // kWhole
  RecomputeKeep keep = RecomputeKeep::kNone;  // kWhole; anything else: not reentrant
  RecomputedPart part = RecomputedPart::kWhole;
  // kWhole, of a decoder's layer: so many layers, this one first, are one checkpoint, of which the first one's input is
  // kept. Above 1 the checkpoint stands around the sharded layers: their gathers are part of what runs again, each
  // once, so that all of the group are gathered when its backward begins.
  int layers = 1;

  bool operator==(const RecomputedModule&) const = default;
};

// The word of fsdp2_config.yaml and of --recompute-keep; nothing for another word.
std::string_view word_of(RecomputeKeep keep);
std::optional<RecomputeKeep> recompute_keep_of(std::string_view word);

// "model.layers.0", with what differs from a whole module that keeps nothing: "model.layers.0 (core attention)".
std::string text_of(const RecomputedModule& module);
// What a run says of a choice: a line for each kind of entry, none for an empty choice.
std::vector<std::string> describe_recompute(std::span<const RecomputedModule> modules);

}  // namespace loom::sharding
