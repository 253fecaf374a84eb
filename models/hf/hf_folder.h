// Hugging Face folders: config.json and safetensors, to and from a module tree.
//
// Names    a slot's path is its tensor's name. Folders of a base model saved without its head are read too
//          ("wte.weight" for "transformer.wte.weight"); attention masks and rotary frequencies that old versions
//          stored are ignored. If the model declares path aliases (engine/nn/path_aliases.h), names spelled with
//          them are read as well.
// Ignored  the layer of DeepSeek-V3 that predicts a second token.
// Buffers  persistent ones are read and written like parameters.
// Ties     slots that hold one parameter need one tensor, under any of their names.
// Experts  both spellings of their weights are read (expert_weights.h); the caller chooses the written one.
// Others   the published names of Qwen-VL and of OpenGVLab's InternVL (published_names.h) are read beside the model's,
//          and written where config.json is of such a model. A tensor may hold the rows of several parameters.
// Boxes    a slot gets its box (ParamSlot::shard) of its tensor: each rank reads its own rows, columns or experts, of
//          experts in either spelling.
// Rewards  a reward model (models/decoder/reward_model.h) also accepts the weights of its decoder: its head is then
//          not filled.
// LoRA     adapters (models/lora) are not part of a model's folder: they are neither required nor filled.
// Threads  the rank's host thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/formats/safetensors/hf_weights.h"
#include "engine/nn/module.h"
#include "models/decoder/decoder_config.h"
#include "models/decoder/expert_weights.h"
#include "models/internvl/internvl_config.h"

namespace loom::models {

// Reads names and shapes only: parameters may be on the meta device.
// Throws   ConfigError naming tensor and shapes unless `weights` has exactly the parameters of `root`: none missing,
//          none of another shape or not floating, none left over.
void check_weights(nn::Module& root, const io::HfWeights& weights);

// check_weights(), then fills every slot, converted to its dtype. Precondition: parameters have bytes.
void load_weights(nn::Module& root, const io::HfWeights& weights);

// The spelling of experts' weights in `weights`; per expert, as in published models, if there are none.
ExpertSpelling expert_spelling(const io::HfWeights& weights);

// Writes config.json and model.safetensors, making the folder; a tied lm_head.weight is left out. `tensors` are whole
// parameters under their paths, in any dtype; each file appears whole or not at all. Index and shards of an earlier
// model in the folder are removed once the new files are there.
// `tied`: lm_head.weight is left out.
void write_hf_folder(const std::filesystem::path& folder, std::string_view config_json, bool tied,
                     const std::vector<std::pair<std::string, Tensor>>& tensors, ExpertSpelling experts);
void write_hf_folder(const std::filesystem::path& folder, const DecoderConfig& config,
                     const std::vector<std::pair<std::string, Tensor>>& tensors,
                     ExpertSpelling experts = ExpertSpelling::kPerExpert);
void write_hf_folder(const std::filesystem::path& folder, const InternVLConfig& config,
                     const std::vector<std::pair<std::string, Tensor>>& tensors,
                     ExpertSpelling experts = ExpertSpelling::kPerExpert);

}  // namespace loom::models
