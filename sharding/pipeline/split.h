// Splits of a model over a pipeline: which layers lie on which stage, by the rules of Megatron, MindSpeed and
// torchtitan. One function a rule; its struct has the names of the original's options.
//
// Result   one StageLayout a stage, in the order of the model. Every layer is on one stage, and layers ascend with the
//          stages. The first stage has the embedding and the last one the loss; a layout string says where they are.
// Chunks   stages of a rank (virtual pipeline size). Where `chunks` is optional, none is found from the other options.
// Errors   ConfigError for what the original refuses: the value, what is allowed, and what to write instead. Also for
//          numbers below 1 or above 1000000, and where the original takes a text but leaves layers out or ignores an
//          option.
// Threads  any.
// Source   the references in tests/reference/pipelines/splits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sharding/pipeline/stage_layout.h"

namespace loom::sharding {

// Even: layers div ranks for every rank, and that div chunks for every chunk. `account_for_...` counts the embedding,
// or the loss, as a layer of the first or the last stage, which then has one layer less. Uneven: the first and the last
// rank have the numbers given, the ranks between them the rest in equal parts; not together with account_for.
struct MegatronSplit {
  std::int64_t layers = 0;
  std::int64_t ranks = 1;
  std::optional<std::int64_t> chunks = std::nullopt;
  std::optional<std::int64_t> num_layers_per_virtual_pipeline_stage =
      std::nullopt;  // not for uneven splits: they give `chunks`
  std::optional<std::int64_t> num_layers_in_first_pipeline_stage = std::nullopt;
  std::optional<std::int64_t> num_layers_in_last_pipeline_stage = std::nullopt;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
};
std::vector<StageLayout> split_megatron(const MegatronSplit& split);

// Grammar  layout := item*   item := letter ['*' number] | '(' (letter ['*' number])+ ')' '*' number
// Letters  E embedding, t layer, m layer of multi-token prediction, L loss, '|' next stage. Commas mean nothing, also
//          inside a number. Groups do not nest, and a repetition is not repeated.
// Rules    E first and once, L last and once; as many t as `layers` and as many m as `mtp_layers`; every m behind all
//          t, in one stage, which is its rank's last chunk. The ranks divide the stages; that makes the chunks.
// Errors   name the character, counted from 1 with commas, where one is to blame.
struct MegatronLayoutSplit {
  std::int64_t layers = 0;
  std::int64_t ranks = 1;
  std::optional<std::int64_t> chunks = std::nullopt;  // refused unless the string has as many
  std::int64_t mtp_layers = 0;
  std::string pipeline_model_parallel_layout = {};
};
std::vector<StageLayout> split_megatron_layout(const MegatronLayoutSplit& split);

// `layers` counts places, and `noop_layers` names the places without a layer; the layers of the result are counted
// without them. `num_layer_list` has the layers of every rank and goes with one chunk and no noop_layers alone. Without
// it all stages have equally many places.
struct MindSpeedSplit {
  std::int64_t layers = 0;
  std::int64_t ranks = 1;
  std::optional<std::int64_t> chunks = std::nullopt;
  std::string num_layer_list = {};  // "1,3,2,2"; empty: none
  std::optional<std::int64_t> num_layers_per_virtual_pipeline_stage = std::nullopt;
  std::string noop_layers = {};       // "47,62,63", in any order; empty: none
  std::string schedules_method = {};  // "dualpipev": two chunks, Placement::kV; empty: none
};
std::vector<StageLayout> split_mindspeed(const MindSpeedSplit& split);

// "[[2,1],[3]*2,...]": a list of numbers for each rank, one number a chunk; 'x*n' is x n times, for numbers and lists.
// Commas and spaces only separate. The numbers add up to `layers`, and 0 is allowed.
struct UnalignedSplit {
  std::int64_t layers = 0;
  std::int64_t ranks = 1;
  std::int64_t chunks = 1;
  std::string pipeline_num_transformer_layers = {};
};
std::vector<StageLayout> split_mindspeed_unaligned(const UnalignedSplit& split);

// The layers and both `..._less_layers` are spread evenly, earlier stages taking what remains; then the first and the
// last stage have that many layers less. One stage alone has all layers.
struct TorchtitanSplit {
  std::int64_t layers = 0;
  std::int64_t ranks = 1;
  std::int64_t chunks = 1;
  std::int64_t first_stage_less_layers = 1;
  std::int64_t last_stage_less_layers = 1;
  Placement placement = Placement::kLoop;
};
std::vector<StageLayout> split_torchtitan(const TorchtitanSplit& split);

}  // namespace loom::sharding
