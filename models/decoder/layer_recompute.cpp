#include "models/decoder/layer_recompute.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "models/decoder/layer_parts.h"

namespace loom::models {
namespace {

using sharding::RecomputedModule;
using sharding::RecomputedPart;

constexpr std::string_view kNumLayers = "--recompute-num-layers";

std::string first_flag(const LayerRecompute& asked) {
  if (asked.granularity == RecomputeGranularity::kFull) return "--recompute-granularity full";
  if (asked.granularity == RecomputeGranularity::kSelective) return "--recompute-granularity selective";
  if (asked.activation_function) return "--recompute-activation-function";
  return asked.norm ? "--recompute-norm" : "--moe-layer-recompute";
}

// "1, 2, 4 or 8".
std::string divisors(std::int64_t number) {
  std::vector<std::string> words;
  for (std::int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) words.push_back(fmt::to_string(d));
  }
  if (words.size() == 1) return words.front();
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

// A range of layers.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class Choice {
 public:
  Choice(const nn::Module& model, const DecoderLayers& layers, const LayerRecompute& asked)
      : model_(model), layers_(layers), asked_(asked) {}

  void add_full(const LayerRecomputeKind& kind) {
    if (asked_.granularity != RecomputeGranularity::kFull) return;
    const std::int64_t n = asked_.num_layers;
    if (asked_.method == RecomputeMethod::kBlock) {
      if (n > layers_.count) refuse_too_many(n);
      for (std::int64_t i = 0; i < n; ++i) add_whole(i, 1, kind);
      whole_ = n;
      return;
    }
    if (layers_.count % n != 0) {
      config_error("{} is {}, and {} has {} layers, which --recompute-method uniform shares out evenly; use {}",
                   kNumLayers, n, model_.type_name(), layers_.count, divisors(layers_.count));
    }
    for (std::int64_t i = 0; i < layers_.count; i += n) add_whole(i, n, kind);
    whole_ = layers_.count;
  }

  void add_core_attention() {
    if (asked_.granularity != RecomputeGranularity::kSelective) return;
    add_parts(left("--recompute-granularity selective", {}, ""), RecomputedPart::kCoreAttention);
  }

  void add_cheap() {
    if (asked_.activation_function) {
      add_parts(left("--recompute-activation-function", asked_.activation_function_num_layers,
                     "--recompute-activation-function-num-layers"),
                RecomputedPart::kActivationFunction);
    }
    if (asked_.norm) {
      add_parts(left("--recompute-norm", asked_.norm_num_layers, "--recompute-norm-num-layers"),
                RecomputedPart::kNorms);
    }
  }

  void add_expert_layers(const LayerRecomputeKind& kind) {
    if (!asked_.moe_layer) return;
    const Range range = left("--moe-layer-recompute", {}, "");
    const std::size_t before = chosen_.size();
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const std::string mlp = layer(i) + ".mlp";
      if (model_.find(mlp + ".experts") == nullptr) continue;
      chosen_.push_back({.path = mlp, .use_reentrant = kind.use_reentrant, .keep = kind.keep});
    }
    if (chosen_.size() > before) return;
    config_error(
        "--moe-layer-recompute is given, and no layer of {} that is not recomputed whole has experts; remove it",
        model_.type_name());
  }

  std::vector<RecomputedModule> take() { return std::move(chosen_); }

 private:
  std::string layer(std::int64_t i) const { return fmt::format("{}.{}", layers_.path, i); }

  void add_whole(std::int64_t first, std::int64_t count, const LayerRecomputeKind& kind) {
    chosen_.push_back({.path = layer(first),
                       .use_reentrant = kind.use_reentrant,
                       .keep = kind.keep,
                       .layers = static_cast<int>(count)});
  }

  void add_parts(const Range& range, RecomputedPart part) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      chosen_.push_back({.path = layer(i), .use_reentrant = false, .part = part});
    }
  }

  [[noreturn]] void refuse_too_many(std::int64_t n) const {
    config_error("{} is {}, and {} has {} layers; use at most {}", kNumLayers, n, model_.type_name(), layers_.count,
                 layers_.count);
  }

  // The layers behind the whole ones, or the first `count` of them, which `count_flag` gave.
  Range left(std::string_view flag, std::optional<std::int64_t> count, std::string_view count_flag) const {
    const std::int64_t rest = layers_.count - whole_;
    if (rest == 0) {
      config_error("{} is {}, all layers of {}, which leaves none for {}; give less, or remove that", kNumLayers,
                   whole_, model_.type_name(), flag);
    }
    if (count && *count > rest && whole_ > 0) {
      config_error(
          "{} is {} and {} is {}, {} together, and {} has {} layers, of which none is recomputed both ways; use {} at "
          "most {}",
          kNumLayers, whole_, count_flag, *count, whole_ + *count, model_.type_name(), layers_.count, count_flag, rest);
    }
    if (count && *count > rest) {
      config_error("{} is {}, and {} has {} layers; use at most {}", count_flag, *count, model_.type_name(),
                   layers_.count, rest);
    }
    return {whole_, whole_ + count.value_or(rest)};
  }

  const nn::Module& model_;
  const DecoderLayers layers_;
  const LayerRecompute asked_;
  std::int64_t whole_ = 0;  // the first layers, which are recomputed whole
  std::vector<RecomputedModule> chosen_;
};

}  // namespace

std::optional<DecoderLayers> decoder_layers(const nn::Module& model) {
  for (const auto& [path, module] : model.named_modules()) {
    if (module->attachment<LayerList>() == nullptr) continue;
    return DecoderLayers{path, static_cast<std::int64_t>(module->children().size())};
  }
  return std::nullopt;
}

std::vector<RecomputedModule> recomputed_layers(const nn::Module& model, const LayerRecompute& asked,
                                                const LayerRecomputeKind& kind, std::vector<std::string>& said) {
  if (!asked.any()) return {};
  const auto layers = decoder_layers(model);
  if (!layers) {
    config_error(
        "{} is for the layers of a decoder that the program has, and {} has none; list recompute_modules in the file "
        "of "
        "--fsdp2-config-path",
        first_flag(asked), model.type_name());
  }
  Choice choice(model, *layers, asked);
  choice.add_full(kind);
  if (asked.granularity == RecomputeGranularity::kSelective && kind.fused_attention) {
    said.emplace_back(
        "--recompute-granularity selective changes nothing here: fused attention keeps neither scores nor softmax for "
        "backward");
  } else {
    choice.add_core_attention();
  }
  choice.add_cheap();
  choice.add_expert_layers(kind);
  return choice.take();
}

}  // namespace loom::models
