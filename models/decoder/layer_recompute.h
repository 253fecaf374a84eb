// Recompute of the layers of a decoder in Megatron's words: the flags, and the modules that they select.
//
// Layers   of rotary decoders and GPT-2, also inside InternVL, of reward models and with adapters: the list
//          that decoder_layers() finds. Vision layers and models of users have none; for these, recompute_modules
//          selects the modules.
// Full     uniform: every n layers are one checkpoint, which keeps the first one's input; n divides the layers.
//          block: each of the first n layers is one. With n above 1 a uniform checkpoint is around the sharded
//          layers (sharding::RecomputedModule::layers); otherwise sharding is around the checkpoint.
// Cheap    selective: the core of attention. activation_function, norm: the output is dropped after its use and
//          recomputed (recompute/discarding.h). moe_layer: the experts' layer as a whole.
// Mixed    the cheap kinds apply to layers that are not recomputed whole: after the n layers of block, as many as
//          their flag gives, else all remaining ones. Each may be combined with the others.
// Source   Megatron-LM; MindSpeed's activation-function and norm recompute, except that a dropped tensor is recomputed
//          when the first node of backward needs it, and not at the gradient of its consumer.
// Errors   ConfigError that names the flag, the number and the model's.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "models/decoder/layer_recompute_options.h"
#include "sharding/config/recomputed_module.h"

namespace loom::models {

// The place of a decoder's layers: `path`.0, `path`.1, ..., relative to the model in question.
struct DecoderLayers {
  std::string path;
  std::int64_t count = 0;
};
// Nothing if the model has none.
std::optional<DecoderLayers> decoder_layers(const nn::Module& model);

// How layers are recomputed whole, and further facts about the model.
struct LayerRecomputeKind {
  bool use_reentrant = false;
  sharding::RecomputeKeep keep = sharding::RecomputeKeep::kNone;
  bool fused_attention = false;  // keeps neither scores nor softmax: selective has no effect then, which a line reports
};

// Resolves `asked` on a model, in the order of its layers. Notes are appended to `said`, a line each.
std::vector<sharding::RecomputedModule> recomputed_layers(const nn::Module& model, const LayerRecompute& asked,
                                                          const LayerRecomputeKind& kind,
                                                          std::vector<std::string>& said);

}  // namespace loom::models
