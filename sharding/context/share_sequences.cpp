#include "sharding/context/share_sequences.h"

#include <algorithm>

#include "engine/core/error.h"
#include "sharding/parallelize.h"

namespace loom::sharding {
namespace {

dist::RingKeys keys_of(RotateMethod method) {
  switch (method) {
    case RotateMethod::kAllToAll:
      return dist::RingKeys::kPassed;
    case RotateMethod::kAllGather:
      return dist::RingKeys::kRegathered;
    case RotateMethod::kKvAllGather:
      return dist::RingKeys::kGathered;
  }
  require(false, "a rotate method without keys");
  return dist::RingKeys::kPassed;
}

bool can_share(std::int64_t heads, int ranks) { return heads % ranks == 0; }

void check_heads(const std::string& path, const dist::ContextSlot& slot, const Fsdp2Config& config) {
  const int ranks = config.ulysses_parallel_size, t = config.tensor_parallel_size;
  const auto refuse = [&](std::string_view what, std::int64_t heads, std::string_view allowed) {
    config_error("{}: ulysses_parallel_size is {}, but '{}' has {} {}; use {} {}",
                 config.value_mark("ulysses_parallel_size").text(), ranks, path, heads, what, allowed, heads);
  };
  const std::int64_t heads = slot.heads / t,
                     kv_heads = slot.kv_heads > 0 ? std::max<std::int64_t>(1, slot.kv_heads / t) : 0;
  if (heads > 0 && !can_share(heads, ranks)) refuse("attention heads", heads, "a divisor of");
  if (kv_heads > 0 && !can_share(kv_heads, ranks) && ranks % kv_heads != 0) {
    refuse("key/value heads", kv_heads, "a divisor or a multiple of");
  }
}

}  // namespace

std::shared_ptr<const dist::Context> shared_context(comm::World& world, const SharedSequences& sequences,
                                                    int tensor_size) {
  const auto& [ring, ulysses] = sequences.degrees;
  if (ring * ulysses == 1) return nullptr;
  const auto mesh = comm::DeviceMesh::create(world, {{"rest", world.size() / (ring * ulysses * tensor_size)},
                                                     {"ring", ring},
                                                     {"ulysses", ulysses},
                                                     {"tp", tensor_size}});
  return std::make_shared<const dist::Context>(dist::context_of(mesh, keys_of(sequences.rotate)));
}

void check_shares_sequences(nn::Module& model, const Fsdp2Config& config) {
  if (config.context_ranks() == 1) return;
  const std::string where =
      config.value_mark(config.ring_attention_size > 1 ? "ring_attention_size" : "ulysses_parallel_size").text();
  if (model.attachment<dist::ContextSlot>() == nullptr) {
    config_error("{}: {} ranks share a sequence, but {} cannot work on part of one; write 1", where,
                 config.context_ranks(), model.type_name());
  }
  if (!config.chunk_mbs_modules.empty()) {
    config_error("{}: chunk_mbs_modules does not go with sequences that ranks share; remove it",
                 config.key_mark("chunk_mbs_modules").text());
  }
  for (auto& [path, module] : model.named_modules()) {
    if (const auto slot = module->attachment<dist::ContextSlot>()) check_heads(path, *slot, config);
  }
}

void share_sequences(nn::Module& model, const std::shared_ptr<const dist::Context>& context) {
  for (auto& [path, module] : model.named_modules()) {
    const auto slot = module->attachment<dist::ContextSlot>();
    if (slot == nullptr) continue;
    slot->context = context;
    slot->path = path;
  }
}

}  // namespace loom::sharding
