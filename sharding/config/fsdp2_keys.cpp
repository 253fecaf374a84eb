#include "sharding/config/fsdp2_keys.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <limits>

#include "engine/core/error.h"
#include "sharding/config/key_values.h"

namespace loom::sharding {
namespace {

using config::Value;

// --- From the file

template <int kLeast>
int read_int(const Value& value) {
  const auto number = whole(value);
  if (!number || *number < kLeast) refuse_value(value, fmt::format("a whole number of at least {}", kLeast));
  return *number;
}

bool read_bool(const Value& value) {
  const auto flag = value.boolean();
  if (!flag) refuse_value(value, "true or false, without quotes");
  return *flag;
}

int read_sharding_size(const Value& value) {
  if (value.is_text() && !value.is_tagged() && value.scalar() == "auto") return Fsdp2Config::kAllRanks;
  const auto number = whole(value);
  if (!number || *number < 1) refuse_value(value, "a whole number of at least 1, or auto (all ranks)");
  return *number;
}

std::optional<DType> read_dtype(const Value& value) {
  if (value.is_null()) return std::nullopt;
  const auto dtype = value.is_scalar() && !value.is_tagged() ? parse_dtype(value.scalar()) : std::nullopt;
  if (dtype && !is_floating(*dtype)) {
    config_error("{}: {} is {}, which is not a floating type; use bf16, fp16, fp32 or fp64", value.where(),
                 value.path(), value.shown());
  }
  if (!dtype) refuse_value(value, "bf16, fp16, fp32 or fp64");
  return dtype;
}

RecomputeKeep read_recompute_keep(const Value& value) {
  const auto keep = value.is_scalar() && !value.is_tagged() ? recompute_keep_of(value.scalar()) : std::nullopt;
  if (!keep) refuse_value(value, "none, attention, selected_ops or selected_ops_needed");
  return *keep;
}

PrefetchOrder read_prefetch_order(const Value& value) {
  if (value.is_text() && value.scalar() == "registration") return PrefetchOrder::kRegistration;
  if (value.is_text() && value.scalar() == "list") return PrefetchOrder::kList;
  refuse_value(value, "registration or list");
}

RotateMethod read_rotate_method(const Value& value) {
  if (value.is_text() && value.scalar() == "alltoall") return RotateMethod::kAllToAll;
  if (value.is_text() && value.scalar() == "allgather") return RotateMethod::kAllGather;
  if (value.is_text() && value.scalar() == "kvallgather") return RotateMethod::kKvAllGather;
  refuse_value(value, "alltoall, allgather or kvallgather");
}

TokenDispatcher read_dispatcher(const Value& value) {
  if (value.is_text() && value.scalar() == "alltoall") return TokenDispatcher::kAllToAll;
  if (value.is_text() && value.scalar() == "allgather") return TokenDispatcher::kAllGather;
  refuse_value(value, "alltoall or allgather");
}

using Patterns = std::vector<ModulePattern>;

std::optional<ReshardAfterForward> read_optional_reshard(const Value& value) {
  return value.is_null() ? std::nullopt : std::optional(read_reshard(value));
}

Patterns read_optional_patterns(const Value& value) { return value.is_null() ? Patterns{} : read_patterns(value); }

std::vector<std::int64_t> read_places(const Value& value) {
  constexpr std::string_view kAllowed = "a list of whole numbers of at least 0, as in [0, 1]";
  if (!value.is_list()) refuse_value(value, kAllowed);
  std::vector<std::int64_t> places;
  for (const Value& item : value.items()) {
    const auto number = whole(item);
    if (!number || *number < 0) refuse_value(value, kAllowed);
    places.push_back(*number);
  }
  return places;
}

std::vector<std::string> read_names(const Value& value) {
  constexpr std::string_view kAllowed = "a list of names, as in [attention_mask]";
  if (!value.is_list()) refuse_value(value, kAllowed);
  std::vector<std::string> names;
  for (const Value& item : value.items()) {
    if (!item.is_scalar() || item.is_null() || item.is_tagged() || item.scalar().empty()) refuse_value(value, kAllowed);
    names.push_back(item.scalar());
  }
  return names;
}

// --- As in the file

std::string text_of(bool flag) { return flag ? "true" : "false"; }
std::string text_of(int number) { return std::to_string(number); }
std::string text_of(const ReshardAfterForward& value) { return value.text(); }
std::string text_of(const std::optional<ReshardAfterForward>& value) { return value ? value->text() : "null"; }
std::string text_of(PrefetchOrder order) { return order == PrefetchOrder::kList ? "list" : "registration"; }
std::string text_of(RotateMethod method) {
  if (method == RotateMethod::kAllToAll) return "alltoall";
  return method == RotateMethod::kAllGather ? "allgather" : "kvallgather";
}
std::string text_of(TokenDispatcher dispatcher) {
  return dispatcher == TokenDispatcher::kAllToAll ? "alltoall" : "allgather";
}
std::string text_of(RecomputeKeep keep) { return std::string(word_of(keep)); }
std::string text_of(std::optional<DType> dtype) { return dtype ? std::string(name(*dtype)) : "null"; }

std::vector<std::string> texts_of(const Patterns& patterns) {
  std::vector<std::string> texts;
  for (const ModulePattern& pattern : patterns) texts.push_back(pattern.text());
  return texts;
}
std::string text_of(const LoraBlock& block) { return write_lora_block(block); }
template <class T>
std::string text_of(const std::vector<T>& items) {
  return fmt::format("[{}]", fmt::join(items, ", "));
}
// --- Rows

// A key that takes effect as it is written.
template <auto Member, auto Read>
constexpr Fsdp2Key row(std::string_view name) {
  return {.name = name,
          .read = [](const Value& value, Fsdp2Config& c) { c.*Member = Read(value); },
          .write = [](const Fsdp2Config& c) { return text_of(c.*Member); },
          .copy = [](const Fsdp2Config& from, Fsdp2Config& to) { to.*Member = from.*Member; },
          .effect = [](const Fsdp2Effects& e) { return std::vector<std::string>{text_of(e.config.*Member)}; }};
}

using Effect = std::vector<std::string> (*)(const Fsdp2Effects&);

constexpr Fsdp2Key with_effect(Fsdp2Key key, Effect effect) {
  key.effect = effect;
  return key;
}

template <auto Member, auto Read>
constexpr Fsdp2Key list_row(std::string_view name, Effect paths) {
  Fsdp2Key key = with_effect(row<Member, Read>(name), paths);
  key.lists_modules = true;
  return key;
}

constexpr Fsdp2Key sharding_size_row() {
  Fsdp2Key key = with_effect(row<&Fsdp2Config::sharding_size, read_sharding_size>("sharding_size"),
                             [](const Fsdp2Effects& e) { return std::vector{text_of(e.layout.shard)}; });
  key.write = [](const Fsdp2Config& c) {
    return c.sharding_size == Fsdp2Config::kAllRanks ? std::string("auto") : text_of(c.sharding_size);
  };
  return key;
}

using C = Fsdp2Config;
using E = Fsdp2Effects;

constexpr std::array kKeys = {
    sharding_size_row(),
    row<&C::param_dtype, read_dtype>("param_dtype"),
    row<&C::reduce_dtype, read_dtype>("reduce_dtype"),
    row<&C::output_dtype, read_dtype>("output_dtype"),
    row<&C::cast_forward_inputs, read_bool>("cast_forward_inputs"),
    list_row<&C::sub_modules_to_wrap, read_wrap_entries>("sub_modules_to_wrap", [](const E& e) { return e.wrapped; }),
    list_row<&C::hook_modules, read_optional_patterns>("hook_modules", [](const E& e) { return e.hooks; }),
    row<&C::pregather, read_bool>("pregather"),
    list_row<&C::ignored_modules, read_optional_patterns>("ignored_modules", [](const E& e) { return e.ignored; }),
    list_row<&C::recompute_modules, read_optional_patterns>("recompute_modules",
                                                            [](const E& e) { return e.recomputed; }),
    row<&C::use_reentrant, read_bool>("use_reentrant"),
    row<&C::recompute_keep, read_recompute_keep>("recompute_keep"),
    row<&C::recompute_every, read_int<1>>("recompute_every"),
    row<&C::recompute_children, read_bool>("recompute_children"),
    with_effect(row<&C::reshard_after_forward, read_reshard>("reshard_after_forward"),
                [](const E& e) { return std::vector{e.layout.reshard_after_forward.text()}; }),
    with_effect(row<&C::root_reshard_after_forward, read_optional_reshard>("root_reshard_after_forward"),
                [](const E& e) { return std::vector{e.layout.root_reshard_after_forward.text()}; }),
    row<&C::reshard_after_backward, read_bool>("reshard_after_backward"),
    row<&C::sync_each_batch, read_bool>("sync_each_batch"),
    row<&C::offload_to_cpu, read_bool>("offload_to_cpu"),
    row<&C::pin_memory, read_bool>("pin_memory"),
    list_row<&C::activation_offload_modules, read_optional_patterns>("activation_offload_modules",
                                                                     [](const E& e) { return e.offloaded; }),
    row<&C::num_to_forward_prefetch, read_int<0>>("num_to_forward_prefetch"),
    row<&C::num_to_backward_prefetch, read_int<0>>("num_to_backward_prefetch"),
    row<&C::prefetch_order, read_prefetch_order>("prefetch_order"),
    list_row<&C::chunk_mbs_modules, read_optional_patterns>("chunk_mbs_modules", [](const E& e) { return e.chunked; }),
    row<&C::chunk_mbs, read_int<1>>("chunk_mbs"),
    row<&C::chunk_arg_indexs, read_places>("chunk_arg_indexs"),
    row<&C::chunk_kwarg_names, read_names>("chunk_kwarg_names"),
    row<&C::align_fsdp_param_groups, read_bool>("align_fsdp_param_groups"),
    row<&C::expert_parallel_size, read_int<1>>("expert_parallel_size"),
    row<&C::reshard_local_experts, read_bool>("reshard_local_experts"),
    list_row<&C::moe_modules, read_optional_patterns>("moe_modules",
                                                      [](const E& e) { return texts_of(e.config.moe_modules); }),
    row<&C::moe_token_dispatcher_type, read_dispatcher>("moe_token_dispatcher_type"),
    row<&C::moe_shared_expert_overlap, read_bool>("moe_shared_expert_overlap"),
    row<&C::ulysses_parallel_size, read_int<1>>("ulysses_parallel_size"),
    row<&C::ring_attention_size, read_int<1>>("ring_attention_size"),
    row<&C::ring_rotate_method, read_rotate_method>("ring_rotate_method"),
    row<&C::tensor_parallel_size, read_int<1>>("tensor_parallel_size"),
    row<&C::sequence_parallel, read_bool>("sequence_parallel"),
    row<&C::overlap_slices, read_int<1>>("overlap_slices"),
    row<&C::regather_colwise_input, read_bool>("regather_colwise_input"),
    row<&C::loss_parallel, read_bool>("loss_parallel"),
    list_row<&C::colwise_parallel, read_optional_patterns>(
        "colwise_parallel", [](const E& e) { return texts_of(e.config.colwise_parallel); }),
    list_row<&C::rowwise_parallel, read_optional_patterns>(
        "rowwise_parallel", [](const E& e) { return texts_of(e.config.rowwise_parallel); }),
    list_row<&C::freeze, read_optional_patterns>("freeze", [](const E& e) { return texts_of(e.config.freeze); }),
    row<&C::lora, read_lora_block>("lora"),
};

}  // namespace

std::span<const Fsdp2Key> fsdp2_keys() { return kKeys; }

const Fsdp2Key* find_fsdp2_key(std::string_view name) {
  const auto found = std::ranges::find(kKeys, name, &Fsdp2Key::name);
  return found == kKeys.end() ? nullptr : &*found;
}

const Fsdp2Key& fsdp2_key(std::string_view name) {
  const Fsdp2Key* found = find_fsdp2_key(name);
  require(found != nullptr, "'{}' is not a key of fsdp2_config.yaml", name);
  return *found;
}

bool same_value(const Fsdp2Key& key, const Fsdp2Config& one, const Fsdp2Config& other) {
  return key.write(one) == key.write(other);
}

bool same_values(const Fsdp2Config& one, const Fsdp2Config& other) {
  return std::ranges::all_of(kKeys, [&](const Fsdp2Key& key) { return same_value(key, one, other); });
}

}  // namespace loom::sharding
