// Converts weights of a Hugging Face folder of Qwen2-VL or Qwen2.5-VL to a checkpoint of MindSpeed-MM's Megatron
// models, and back.
//
// Layout   MM_DIR/release/mp_rank_TT[_PPP]/model_optim_rng.pt, each an archive of torch.save: {checkpoint_version,
//          model} (model0, model1, ... of virtual stages); then MM_DIR/latest_checkpointed_iteration.txt, "release".
// Names    image_encoder.encoder.patch_embed, image_encoder.encoder.blocks.layers.N, image_encoder.projector;
//          text_decoder.embedding, text_decoder.decoder.layers.N, text_decoder.decoder.final_layernorm,
//          text_decoder.output_layer. N counts from 0 in each stage.
// Lists    layers of each stage, one list for each virtual stage: [[1,10,10,7]]. What stands before the layers of a
//          tower is where its first layer is, what stands behind them where its last one is.
// Rows     of query-key-value: for each group of heads of the text its queries, its key, its value; for each head of
//          the tower its query, its key, its value.
// Ties     a tied output layer is written only if there are several stages.
// Back     the lists and sizes are given, and held against the files. Replicated tensors are taken from the first rank.
// Outputs  appear whole or not at all, the tracker last; nothing is overwritten.
// Memory   two pieces of kPieceBytes.
// Errors   ConfigError for invalid input of the user, with flags, names and shapes; io::FileDamage for a damaged input.
// Source   MindSpeed-MM, checkpoint/vlm_model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/convert/convert.h"

namespace loom::checkpoint {

// A list of stages for each virtual stage.
using LayerLists = std::vector<std::vector<std::int64_t>>;

struct MmLayout {
  LayerLists text_layers = {};    // --llm-pp-layers
  LayerLists vision_layers = {};  // --vit-pp-layers; as many lists of as many stages
  int tensor_size = 1;            // --tp-size
};

struct HfToMm {
  std::filesystem::path hf_dir = {};
  std::filesystem::path mm_dir = {};
  MmLayout layout = {};
  std::optional<std::string> model_type = {};  // of config.json; none: either
  std::optional<DType> dtype = {};
};

struct MmToHf {
  std::filesystem::path mm_dir = {};  // a checkpoint, or a folder of checkpoints
  std::filesystem::path save_dir = {};
  std::filesystem::path hf_dir = {};  // config.json, tokenizer; its index or weights give the names
  MmLayout layout = {};
  std::optional<std::string> model_type = {};
  std::optional<std::uint64_t> shard_bytes = {};
  std::optional<DType> dtype = {};
};

Converted convert(const HfToMm& options, const CopyWatcher& watcher = {});
Converted convert(const MmToHf& options, const CopyWatcher& watcher = {});

}  // namespace loom::checkpoint
