// The callbacks of `shardloom train` and `shardloom plan`: one model, one kind of batch for both.
//
// Model    from --model-config or --init-from-hf-path, by the name in its configuration (models/hub/model_hub.h), with
//          its freeze() applied. It takes token ids and returns logits. From --model-graph: graph_callbacks.h.
// Data     the bytes of --data-path. A plan needs none: without it, batches have the same shapes and no values, with
//          --image-size also pictures. Pictures of a run: picture_data.h.
// Saved    a Hugging Face folder: config.json with every key of the model's configuration file, model.safetensors,
//          the tokenizer's files of the folder that the weights came from.
// Errors   ConfigError for a model that cannot take bytes, or fewer than --seq-length, and for a folder with a
//          tokenizer unless --bytes-as-tokens is given.
#pragma once

#include "engine/train/callbacks.h"

namespace loom::cli {

// `arguments` outlives the callbacks.
train::PretrainCallbacks hub_callbacks(const train::TrainSections& arguments);

}  // namespace loom::cli
