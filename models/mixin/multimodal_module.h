// MultiModalModule: the base of models that read images beside text.
//
//   class MyVlm final : public MultiModalModule, public FSDP2Mixin, public WeightInitMixin {
//     ... register_tower({"vision_tower", {"model.vision_tower"}}); ...
//   };
//   model->freeze_tower("vision_tower");          // before the optimizer is made
//   Value logits = (*model)(input_ids, pixel_values);
//
// Letters  B sequences, S positions, N images (of the whole batch, in the order of their places in it), C channels.
// Call     (input_ids int32 or int64 [B,S], pixel_values [N,C,H,W]), both positional or pixel_values by name; without
//          pixel_values the batch is text. The derived model defines the result (usually logits). A model that takes
//          more than pixels overrides input_names() and forward_inputs(); its pixels may have another shape.
// Towers   named parts of the model (vision_tower, multi_modal_projector, language_model) that are frozen, listed and
//          found as one. A tower may have several paths (a decoder and its head).
// Freeze   a frozen tower's parameters require no gradient. If its inputs need none either, nothing of it is
//          recorded: it keeps no activation for backward, and its optimizer state does not exist. List it under
//          ignored_modules too to leave it whole on every rank; else it is sharded and gathered like the rest.
// Mixins   are named beside this base, as for every model; without FSDP2Mixin the file applies unchanged.
// Aliases  a model declares the names that published YAML files use for its modules (engine/nn/path_aliases.h).
// Ranks    if modules that images pass through are sharded, every rank has images in a step or none has: a group that
//          one rank gathers or reduces alone is an error on every rank.
// Omitted  the pipeline interface of Megatron's module base (set_input_tensor, shared_embedding_or_output_weight):
//          pipeline parallelism is refused with FSDP2, so each rank runs the whole model.
// Errors   ConfigError for a tower that does not exist, with the existing names, and for a call without
//          input_ids or with too many arguments.
// Threads  the rank's host thread.
// Source   MindSpeed-MM, models/transformers_model.py and its MultiModalModule.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/named_module.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::models {

struct Tower {
  std::string name;
  std::vector<std::string> paths;  // of modules of the model
};

class MultiModalModule : public NamedModule {
 public:
  // In order of registration.
  const std::vector<Tower>& towers() const { return towers_; }
  const Tower& tower(std::string_view name) const;

  // Switches requires_grad of every parameter of the tower off (on). Precondition: no optimizer holds them yet.
  // Freezing throws ConfigError once the model is sharded.
  void freeze_tower(std::string_view name);
  void unfreeze_tower(std::string_view name);
  // Whether no parameter of the tower requires a gradient.
  bool is_frozen(std::string_view name);

 protected:
  explicit MultiModalModule(std::string type_name) : NamedModule(std::move(type_name)) {}

  // Throws ConfigError for a name that is taken or a path without a module.
  void register_tower(Tower tower);

  // `pixel_values` is null for a batch of text.
  virtual nn::Value forward_multimodal(const Tensor& input_ids, const Tensor* pixel_values) = 0;
  // The arguments besides input_ids that a call may name.
  virtual std::vector<std::string_view> input_names() const;
  // input_ids positional, those arguments by name. By default forward_multimodal().
  virtual nn::Value forward_inputs(const nn::Args& args);
  // A call with past_key_values (models/decoder/kv_cache.h). By default a ConfigError.
  virtual nn::Value forward_cached(const nn::Args& args);
  nn::Value forward(const nn::Args& args) final;

 private:
  std::vector<Tower> towers_;
};

}  // namespace loom::models
