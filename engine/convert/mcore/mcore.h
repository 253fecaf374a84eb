// Converts weights of a Hugging Face folder to a checkpoint of Megatron-core, and back: Llama, Qwen2, Qwen3, Qwen3-MoE.
//
// Layout   SAVE/iter_0000001/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, each an archive of torch.save: {args,
//          checkpoint_version, iteration, model} (model0, model1, ... of virtual stages); then
//          SAVE/latest_checkpointed_iteration.txt. Names are the names of Megatron's local layers.
// Back     all sizes are read from the files: ranks from the directories' names, layers from the tensors' names, the
//          cut and grouping of experts from their shapes. Replicated tensors are taken from the first rank.
// Cuts     embedding, output, queries, keys, values and the first product of an MLP by rows, the second products by
//          columns, over tensor ranks; layers over pipeline stages; experts over expert ranks.
// Rows     of query-key-value: for each group of heads, its queries, its key, its value.
// args     is an OrderedDict that also has its entries as attributes: Megatron reads attributes, torch.load with
//          weights_only accepts no argparse.Namespace.
// Outputs  appear whole or not at all, the tracker last; nothing is overwritten.
// Memory   two pieces of kPieceBytes; a transposed expert of a grouped product is read by columns. A tensor of
//          torch.save that is not row-major is read with its whole storage.
// Errors   ConfigError for invalid input of the user, with names and shapes; io::FileDamage for a damaged input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/convert/convert.h"

namespace loom::checkpoint {

// The user's description of the model; checked against config.json.
struct ModelChecks {
  std::string type_flag = {};                 // "--model-type-hf qwen25", for messages
  std::vector<std::string> model_types = {};  // one of these; empty: any supported one
  std::optional<std::int64_t> layers = {};    // --num-layers; may include layers without weights:
  std::int64_t noop_layers = 0;               // the number of layers that --noop-layers names
  bool qkv_bias = false;                      // --add-qkv-bias
};

struct PipelineOptions {
  int stages = 1;
  std::vector<std::int64_t> layer_list = {};          // layers of each stage; empty: equal numbers
  std::optional<std::int64_t> layers_per_chunk = {};  // virtual stages (--num-layers-per-virtual-pipeline-stage)
  std::vector<std::int64_t> noop_layers = {};         // numbers, counting these too, that hold no layer
  bool dualpipev = false;
};

struct HfToMcore {
  std::filesystem::path load_dir = {};
  std::filesystem::path save_dir = {};
  int tensor_size = 1;
  int expert_size = 1;
  int expert_tensor_size = 0;  // 1, or 0: tensor_size
  PipelineOptions pipeline = {};
  bool grouped_experts = false;         // weight1 and weight2 (--moe-grouped-gemm)
  std::int64_t vocab_divisible_by = 1;  // the vocabulary is padded to a multiple of this times tensor_size
  std::optional<std::int64_t> pad_vocab_to = {};
  std::optional<DType> dtype = {};
  ModelChecks checks = {};
};

struct McoreToHf {
  std::filesystem::path load_dir = {};  // a checkpoint, or a folder of checkpoints
  std::filesystem::path save_dir = {};
  std::filesystem::path hf_cfg_dir = {};  // config.json, tokenizer; its index or weights give the names
  std::optional<std::uint64_t> shard_bytes = {};
  std::optional<DType> dtype = {};
  ModelChecks checks = {};
};

Converted convert(const HfToMcore& options, const CopyWatcher& watcher = {});
Converted convert(const McoreToHf& options, const CopyWatcher& watcher = {});

}  // namespace loom::checkpoint
