#include "models/lora/lora.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/rounding.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/reward_model.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora_linear.h"
#include "models/lora/lora_targets.h"
#include "sharding/fully_shard.h"

namespace loom::models {
namespace {

constexpr std::int64_t kTile = 1 << 14;
constexpr std::string_view kHalves[] = {".lora_A.weight", ".lora_B.weight"};

void check_bare(nn::Module& model, const LoraOptions& options) {
  if (lora_of(model) != nullptr) {
    config_error("{}: the model has adapters already; one set of them is built", options.where);
  }
  if (!sharding::FsdpState::collect(model).empty()) {
    config_error("{}: adapters come before sharding, and {} is sharded; call add_lora() first", options.where,
                 model.type_name());
  }
}

// A module that is trained whole would change the parameters tied to it, too.
void check_untied(nn::Module& model, const std::vector<std::string>& saved, const LoraOptions& options) {
  std::unordered_set<const nn::ParamSlot*> inside;
  std::unordered_map<const void*, std::string> paths;
  for (const std::string& above : saved) {
    for (auto& [path, slot] : model.find(above)->named_slots()) {
      inside.insert(slot);
      paths.emplace(slot->value.id(), nn::join_path(above, path));
    }
  }
  for (auto& [path, slot] : model.named_slots()) {
    const auto tied = paths.find(slot->value.id());
    if (inside.contains(slot) || tied == paths.end()) continue;
    config_error(
        "{}: '{}' of modules_to_save is tied to '{}', which would be trained with it; add "
        "--untie-embeddings-and-output-weights, or leave it out",
        options.where, tied->second, path);
  }
}

void write_uniform_box(const nn::LocalTensor& box, std::uint64_t key, double bound) {
  const Tensor& values_of_box = box.value;
  const BoxRuns runs(box.shard.global_shape, box.shard.offset, values_of_box.shape());
  auto* bytes = static_cast<std::byte*>(values_of_box.raw());
  const std::int64_t size = element_bytes(values_of_box.dtype());
  parallel_for(ceil_div(values_of_box.numel(), kTile), [&](std::int64_t tile) {
    const std::int64_t begin = tile * kTile;
    const std::int64_t count = std::min(kTile, values_of_box.numel() - begin);
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = begin + i;
      const std::int64_t element = runs.begin(at / runs.elems()) + at % runs.elems();
      values[static_cast<std::size_t>(i)] = bound * (2 * uniform_at(key, static_cast<std::uint64_t>(element)) - 1);
    }
    kernels::cast(count, DType::kF64, values.data(), values_of_box.dtype(), bytes + begin * size);
  });
}

// Element i of the whole is uniform within `bound`, on whichever rank it is drawn.
void write_uniform(const nn::ParamSlot& slot, std::string_view path, std::uint64_t seed, double bound) {
  slot.value.storage()->bump_version();
  if (slot.value.raw() == nullptr || slot.value.numel() == 0) return;  // a dry run; a rank without rows
  nn::fill_parts(slot.local(), path,
                 [&](const nn::LocalTensor& box) { write_uniform_box(box, stream_key(seed, path), bound); });
}

void draw(const nn::ParamSlot& slot, const std::string& path, const LoraLinear& layer, bool is_a, std::uint64_t seed) {
  const LoraInit init = layer.options().init;
  const auto inputs = static_cast<double>(slot.shard.global_shape[1]);
  if (!is_a && init != LoraInit::kRandom) {
    slot.value.fill(0);
  } else if (is_a && init == LoraInit::kGaussian) {
    nn::write_normal(slot, path, seed, 1.0 / static_cast<double>(layer.options().r));
  } else {
    write_uniform(slot, path, seed, 1.0 / std::sqrt(inputs));
  }
}

}  // namespace

bool Lora::is_adapter(std::string_view path) const {
  for (const std::string_view half : kHalves) {
    if (!path.ends_with(half)) continue;
    return std::ranges::find(adapted, path.substr(0, path.size() - half.size())) != adapted.end();
  }
  return false;
}

bool Lora::is_tuned(std::string_view path) const {
  if (is_adapter(path)) return true;
  return std::ranges::any_of(saved, [&](const std::string& above) {
    return path.size() > above.size() && path.starts_with(above) && path[above.size()] == '.';
  });
}

std::shared_ptr<const Lora> lora_of(const nn::Module& model) { return model.attachment<Lora>(); }

std::shared_ptr<const Lora> add_lora(nn::Module& model, LoraOptions options) {
  check(options);
  check_bare(model, options);
  auto lora = std::make_shared<Lora>();
  lora->scores = is_reward_model(model);
  if (lora->scores && std::ranges::find(options.modules_to_save, kRewardHead) == options.modules_to_save.end()) {
    options.modules_to_save.emplace_back(kRewardHead);
  }
  lora->saved = lora_modules_to_save(model, options);
  check_untied(model, lora->saved, options);
  lora->adapted = lora_targets(model, lora->saved, options, lora->notes);
  for (const Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
  for (const std::string& path : lora->saved) {
    for (const Tensor& parameter : model.find(path)->parameters()) parameter.set_requires_grad(true);
  }
  for (const std::string& path : lora->adapted) {
    const auto layer = std::make_shared<LoraLinear>(
        *model.find(path),
        LoraLinear::Options{options.rank_of(path), options.scale_of(path), options.dropout, options.init});
    lora->has_conv1d = lora->has_conv1d || layer->is_conv1d();
    model.replace_child(path, layer);
  }
  lora->options = std::move(options);
  model.attach<Lora>(lora);
  return lora;
}

void fill_adapters(nn::Module& model, std::uint64_t seed, const nn::KeptValues& kept) {
  const auto lora = lora_of(model);
  if (lora == nullptr) return;
  for (const std::string& path : lora->adapted) {
    auto& layer = dynamic_cast<LoraLinear&>(*model.find(path));
    for (const bool is_a : {true, false}) {
      const nn::ParamSlot& slot = (is_a ? layer.lora_a() : layer.lora_b()).weight;
      if (kept.contains(slot.value.id())) continue;
      draw(slot, fmt::format("{}{}", path, kHalves[is_a ? 0 : 1]), layer, is_a, seed);
    }
  }
  if (lora->options.load) load_adapter(model, AdapterFolder(*lora->options.load));
}

void require_embedding_gradients(nn::Module& model) {
  for (auto& [path, module] : model.named_modules()) {
    if (module->type_name() != "Embedding") continue;
    module->register_post_hook([](nn::Module&, nn::Value result) {
      const Tensor& output = result.tensor();
      if (autograd::grad_enabled() && !output.requires_grad()) output.set_requires_grad(true);
      return result;
    });
  }
}

std::string describe_lora(const nn::Module& model) {
  const auto lora = lora_of(model);
  require(lora != nullptr, "describe_lora of a model without adapters");
  std::int64_t trained = 0;
  std::unordered_set<const void*> seen;
  for (const auto& [path, slot] : model.named_slots()) {
    if (slot->value.requires_grad() && seen.insert(slot->value.id()).second)
      trained += slot->shard.global_shape.numel();
  }
  const LoraOptions& o = lora->options;
  return fmt::format("LoRA of rank {}, scale {} (alpha {}{}) on {} module{}{}: {} of {} parameters are trained", o.r,
                     o.scale_of(""), o.alpha, o.use_rslora ? ", rsLoRA" : "", lora->adapted.size(),
                     lora->adapted.size() == 1 ? "" : "s",
                     lora->saved.empty() ? "" : fmt::format(", with {} trained whole", lora->saved.size()), trained,
                     model.parameter_count());
}

}  // namespace loom::models
