// Recompute of the layers of a decoder in Megatron's words: what the flags ask for, and the modules it comes to.
//
// Layers   of rotary decoders and GPT-2, also inside InternVL, of reward models and with adapters: those of the list
//          that decoder_layers() finds. Vision layers and models of users have none; for these recompute_modules says
//          what is recomputed.
// Full     uniform: every n layers are one checkpoint, of which the first one's input is kept; n divides the layers.
//          block: each of the first n layers is one. With n above 1 a uniform checkpoint stands around the sharded
//          layers (sharding::RecomputedModule::layers); otherwise sharding stands around the checkpoint.
// Cheap    selective: the core of attention. activation_function, norm: the output is dropped after its use and
//          computed again (recompute/discarding.h). moe_layer: the experts' layer as a whole.
// Mixed    the cheap kinds take layers that are not recomputed whole: behind the n layers of block, so many as they
//          name, else all that are left. Each may be asked for beside the others.
// Source   Megatron-LM; MindSpeed's activation-function and norm recompute, except that what is dropped comes back when
//          the first node of backward asks for it, and not at the gradient of what it went into.
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

// Where a decoder's layers are: `path`.0, `path`.1, ..., relative to the model that was asked.
struct DecoderLayers {
  std::string path;
  std::int64_t count = 0;
};
// Nothing where the model has none.
std::optional<DecoderLayers> decoder_layers(const nn::Module& model);

// How layers are recomputed whole, and what of the model is known besides.
struct LayerRecomputeKind {
  bool use_reentrant = false;
  sharding::RecomputeKeep keep = sharding::RecomputeKeep::kNone;
  bool fused_attention = false;  // which keeps neither scores nor softmax: selective changes nothing then, and says so
};

// `asked` of a model, in the order of its layers. What there is to say is appended to `said`, a line each.
std::vector<sharding::RecomputedModule> recomputed_layers(const nn::Module& model, const LayerRecompute& asked,
                                                          const LayerRecomputeKind& kind,
                                                          std::vector<std::string>& said);

}  // namespace loom::models
