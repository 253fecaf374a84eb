#include "models/mixin/activation_swap.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "engine/core/error.h"
#include "models/decoder/layer_parts.h"
#include "recompute/checkpoint.h"
#include "sharding/fully_shard.h"
#include "sharding/parallelize.h"

namespace loom::models {
namespace {

using offload::SwapBlock;
using offload::SwapWhat;

// The children that a word of --swap-modules means, in the families there are.
std::vector<std::string> children_of_word(const std::string& word) {
  static const std::map<std::string, std::vector<std::string>> kWords = {
      {"input_norm", {"input_layernorm", "ln_1"}},
      {"self_attention", {"self_attn", "attn"}},
      {"post_attention_norm", {"post_attention_layernorm", "ln_2"}},
      {"pre_mlp_layernorm", {"post_attention_layernorm", "ln_2"}}};
  std::vector<std::string> children{word};
  if (const auto found = kWords.find(word); found != kWords.end()) {
    children.insert(children.end(), found->second.begin(), found->second.end());
  }
  return children;
}

std::string names_of_children(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, child] : module.children()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

nn::Module& child_of(const SwapBlock& layer, const std::string& word) {
  const auto wanted = children_of_word(word);
  for (const auto& [name, child] : layer.module->children()) {
    if (std::ranges::find(wanted, name) != wanted.end()) return *child;
  }
  config_error(
      "--swap-modules names {}, which '{}' ({}) has not; use input_norm, self_attention, post_attention_norm, "
      "or its children: {}",
      word, layer.path, layer.module->type_name(), names_of_children(*layer.module));
}

void refuse_recomputed(const nn::Module& model, const SwapBlock& layer, std::string_view what) {
  if (!is_recomputed_whole(model, layer.path)) return;
  config_error(
      "{} swaps the tensors saved inside '{}', which is recomputed as a whole, so that nothing inside it is kept; do "
      "not recompute it whole (recompute_modules, --recompute-granularity full), or list it in "
      "activation_offload_modules instead",
      what, layer.path);
}

std::vector<SwapBlock> layers_or_error(nn::Module& model, std::string_view flag) {
  std::vector<SwapBlock> layers = decoder_layers(model);
  if (!layers.empty()) return layers;
  config_error(
      "{} is for models with decoder layers, and {} has none; list its blocks in activation_offload_modules of the "
      "file "
      "of --fsdp2-config-path",
      flag, model.type_name());
}

// The block without tensors chosen.
std::vector<SwapBlock> with_choice(nn::Module& model, std::vector<SwapBlock> blocks,
                                   const std::vector<offload::ChosenTensors>& chosen) {
  for (const offload::ChosenTensors& choice : chosen) {
    const auto block = std::ranges::find(blocks, choice.block, &SwapBlock::path);
    if (block == blocks.end()) {
      config_error("--smart-swap chose tensors of '{}', which {} does not have as a block; plan the same model",
                   choice.block, model.type_name());
    }
    block->ordinals = choice.ordinals;
  }
  return blocks;
}

bool is_below(const std::string& path, const std::string& ancestor) {
  return path.size() > ancestor.size() && path.starts_with(ancestor) && path[ancestor.size()] == '.';
}

}  // namespace

std::vector<SwapBlock> decoder_layers(nn::Module& model) {
  std::vector<SwapBlock> layers;
  for (auto& [path, module] : model.named_modules()) {
    const std::string_view type = module->type_name();
    if (type.ends_with("DecoderLayer") || type == "GPT2Block") layers.push_back({.path = path, .module = module});
  }
  return layers;
}

namespace {

std::vector<SwapBlock> attention_blocks(nn::Module& model, const std::vector<std::string>& words) {
  std::vector<SwapBlock> layers = layers_or_error(model, "--swap-attention");
  for (SwapBlock& layer : layers) {
    for (const std::string& word : words) {
      nn::Module& child = child_of(layer, word);
      if (std::ranges::find(layer.inside, &child) == layer.inside.end()) layer.inside.push_back(&child);
    }
  }
  return layers;
}

std::vector<SwapBlock> first_argument_blocks(nn::Module& model, const std::vector<std::string>& paths) {
  std::vector<SwapBlock> blocks;
  for (const std::string& path : paths) blocks.push_back({.path = path, .module = model.find(path)});
  return blocks;
}

std::vector<SwapBlock> blocks_by_path(nn::Module& model, const std::vector<sharding::SwappedModule>& modules) {
  std::vector<SwapBlock> blocks;
  for (const sharding::SwappedModule& module : modules) {
    blocks.push_back({.path = module.path, .module = model.find(module.path)});
    if (module.leaves) blocks.back().inside.push_back(blocks.back().module);
  }
  return blocks;
}

}  // namespace

void swap_attention(nn::Module& model, const std::vector<std::string>& words) {
  const std::vector<SwapBlock> layers = attention_blocks(model, words);
  for (const SwapBlock& layer : layers) refuse_recomputed(model, layer, "--swap-attention");
  offload::swap_activations(layers, {.what = SwapWhat::kSavedInside, .pin_memory = true});
}

void recompute_first_mlps(nn::Module& model, std::int64_t count) {
  if (count == 0) return;
  const std::vector<SwapBlock> layers = layers_or_error(model, "--swap-attention");
  if (count > static_cast<std::int64_t>(layers.size())) {
    config_error("--recompute-num-layers is {}, but {} has {} decoder layers; use at most {}", count, model.type_name(),
                 layers.size(), layers.size());
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const SwapBlock& layer = layers[static_cast<std::size_t>(i)];
    recompute::checkpoint(child_of(layer, "mlp"), {.path = layer.path + ".mlp", .use_reentrant = false});
  }
}

std::vector<SwapBlock> smart_swap_blocks(nn::Module& model, const std::vector<std::string>& wrapped) {
  std::vector<SwapBlock> blocks;
  for (const std::string& path : wrapped) {
    const auto above = [&](const std::string& other) { return is_below(path, other); };
    if (!path.empty() && std::ranges::none_of(wrapped, above)) {
      blocks.push_back({.path = path, .module = model.find(path)});
    }
  }
  return blocks.empty() ? layers_or_error(model, "--smart-swap") : blocks;
}

std::vector<SwapBlock> swapped_blocks(nn::Module& model, const SwapRequest& request,
                                      const offload::SwapOptions& options) {
  std::vector<SwapBlock> blocks = first_argument_blocks(model, request.offloaded);
  for (SwapBlock& block : blocks_by_path(model, request.by_path)) {
    if (!block.inside.empty()) blocks.push_back(std::move(block));
  }
  if (options.swap_attention) {
    for (SwapBlock& block : attention_blocks(model, options.swap_modules)) blocks.push_back(std::move(block));
  }
  if (options.smart_swap_chosen.empty()) return blocks;
  for (SwapBlock& block : with_choice(model, smart_swap_blocks(model, request.wrapped), options.smart_swap_chosen)) {
    if (!block.ordinals.empty()) blocks.push_back(std::move(block));
  }
  return blocks;
}

void swap_activations(nn::Module& model, const SwapRequest& request, const offload::SwapOptions& options) {
  offload::swap_activations(first_argument_blocks(model, request.offloaded),
                            {.what = SwapWhat::kFirstArgument, .pin_memory = request.pin_memory});
  offload::swap_activations(blocks_by_path(model, request.by_path),
                            {.what = SwapWhat::kSavedInside, .pin_memory = true});
  if (options.swap_attention) {
    recompute_first_mlps(model, options.swap_recompute_mlps);
    swap_attention(model, options.swap_modules);
  }
  if (options.smart_swap_chosen.empty() && options.smart_swap_watch == nullptr) return;
  const std::vector<SwapBlock> smart = smart_swap_blocks(model, request.wrapped);
  offload::swap_activations(with_choice(model, smart, options.smart_swap_chosen),
                            {.what = SwapWhat::kChosen, .pin_memory = true, .watch = options.smart_swap_watch});
}

void set_offload_modules_to_wrap(nn::Module& model, const std::vector<std::string>& patterns, bool pin_memory) {
  std::vector<sharding::ModulePattern> parsed;
  for (const std::string& pattern : patterns) {
    parsed.push_back(
        sharding::ModulePattern::parse(pattern, "set_offload_modules_to_wrap", {std::string(model.type_name()), 0, 0}));
  }
  std::vector<std::string> warnings;
  const std::vector<std::string> paths = sharding::paths_in_order_of(model, parsed, warnings);
  for (const std::string& path : paths) {
    if (sharding::FsdpState::of(*model.find(path)) == nullptr) continue;
    config_error(
        "set_offload_modules_to_wrap: '{}' ({}) is sharded already; offload first, then shard, so that no gathered "
        "parameter is taken for an activation",
        path, model.find(path)->type_name());
  }
  swap_activations(model, {.offloaded = paths, .pin_memory = pin_memory, .wrapped = {}}, {});
}

}  // namespace loom::models
