// accelerate's YAML file, and fsdp_config of transformers' TrainingArguments: the same keys, with and without a prefix.
// Files of FSDP1 are read as the FSDP2 file that comes nearest.
//
// Source    accelerate, utils/dataclasses.py and commands/config; transformers, training_args.py.
#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/dialects/deepspeed.h"
#include "engine/dialects/tool_rules.h"
#include "engine/regex/regex.h"

namespace loom::dialects {
namespace {

constexpr std::string_view kRemoved = "is gone in FSDP2";

constexpr std::string_view kWithoutPrefix = "is not read there; write it with parallelism_config_ in front";
constexpr std::string_view kTpus = "is for TPUs; write false";
constexpr std::string_view kNoParallel = "is not built; write 1";

Said reshard_text(const Resolved& r) { return boolean_text(r.config.reshard_after_forward.text()); }
// parallelism_config is not needed where all ranks shard, and nothing else.
bool has_axes(const Resolved& r) {
  const int size = r.config.sharding_size;
  return (size != sharding::Fsdp2Config::kAllRanks && size != r.world) || r.config.ring_attention_size > 1 ||
         r.config.tensor_parallel_size > 1;
}
Said size_of_groups(const Resolved& r) {
  if (!has_axes(r)) return std::nullopt;
  return fmt::to_string(ranks_that_shard(r) / r.config.ring_attention_size);
}
Said replicas(const Resolved& r) {
  if (!has_axes(r)) return std::nullopt;
  return fmt::to_string(r.world / r.config.tensor_parallel_size / ranks_that_shard(r));
}
// The three types alike.
Said mixed_precision(const Resolved& r) {
  const auto& c = r.config;
  if (!c.param_dtype || c.reduce_dtype != c.param_dtype || c.output_dtype != c.param_dtype) return "no";
  const std::string name(loom::name(*c.param_dtype));
  return name == "bf16" || name == "fp16" ? name : "no";
}
// Classes by comma; paths cannot be said.
Said classes_text(const Resolved& r) {
  std::string text;
  for (const auto& pattern : sharding::patterns_of(r.config.sub_modules_to_wrap)) {
    if (pattern.kind() != sharding::ModulePattern::Kind::kPath ||
        !(pattern.text().front() >= 'A' && pattern.text().front() <= 'Z'))
      continue;
    text += (text.empty() ? "" : ",") + pattern.text();
  }
  return text.empty() ? std::nullopt : Said(text);
}

const Row kAccelerateRows[] = {
    derived("distributed_type", "NO", "").written([](const Resolved&) -> Said { return "FSDP"; }),
    derived("num_processes", "null", "ranks").written([](const Resolved& r) -> Said {
      return fmt::to_string(r.world);
    }),
    derived("num_machines", "1", ""),
    unused("machine_rank", "0"),
    unused("main_process_ip"),
    unused("main_process_port"),
    derived("mixed_precision", "no", "param_dtype, reduce_dtype, output_dtype, --fp16")
        .written([](const Resolved& r) -> Said { return mixed_precision(r); }),
    unused("compute_environment", "LOCAL_MACHINE").written([](const Resolved&) -> Said { return "LOCAL_MACHINE"; }),
    unused("rdzv_backend"),
    unused("same_network"),
    unused("gpu_ids"),
    unused("main_training_function"),
    unused("enable_cpu_affinity"),
    unused("downcast_bf16"),
    unused("debug"),
    unused("use_cpu", "false"),
    unused("tpu_env"),
    unused("tpu_use_cluster"),
    unused("tpu_use_sudo"),
    unused("tpu_name"),
    unused("tpu_zone"),
    unused("mpirun_config"),
    refused("fp8_config", "null", "fp8 is not built; remove it").also("{}"),
    refused("dynamo_config", "null", "compiling is not built; remove it").also("{}"),
    refused("megatron_lm_config", "null", "is not read; give Megatron's flags to shardloom train").also("{}"),

    derived("fsdp_config.fsdp_version", "1", "").written([](const Resolved&) -> Said { return "2"; }),
    derived("fsdp_config.fsdp_reshard_after_forward", "true", "reshard_after_forward")
        .written([](const Resolved& r) -> Said { return reshard_text(r); }),
    derived("fsdp_config.fsdp_auto_wrap_policy", "NO_WRAP", "sub_modules_to_wrap")
        .written([](const Resolved& r) -> Said { return classes_text(r) ? "TRANSFORMER_BASED_WRAP" : "NO_WRAP"; }),
    derived("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "null", "sub_modules_to_wrap")
        .written([](const Resolved& r) -> Said { return classes_text(r); }),
    derived("fsdp_config.fsdp_min_num_params", "1e8", "sub_modules_to_wrap"),
    derived("fsdp_config.fsdp_offload_params", "false", "offload_to_cpu, pin_memory")
        .written([](const Resolved& r) -> Said { return switch_text(r.config.offload_to_cpu && r.config.pin_memory); }),
    derived("fsdp_config.fsdp_cpu_offload", "false", "offload_to_cpu, pin_memory"),
    derived("fsdp_config.fsdp_activation_checkpointing", "false",
            "recompute_modules, recompute_children, use_reentrant"),
    derived("fsdp_config.fsdp_state_dict_type", "SHARDED_STATE_DICT", "--ckpt-format")
        .written([](const Resolved& r) -> Said {
          return r.job.checkpoint.ckpt_format_word == "hf" ? "FULL_STATE_DICT" : "SHARDED_STATE_DICT";
        }),
    derived("fsdp_config.fsdp_ignored_modules", "null", "ignored_modules"),
    unused("fsdp_config.fsdp_cpu_ram_efficient_loading", "true"),
    unused("fsdp_config.fsdp_forward_prefetch", "false").note("FSDP2 has none"),
    unused("fsdp_config.fsdp_backward_prefetch").note(kRemoved),
    unused("fsdp_config.fsdp_backward_prefetch_policy").note(kRemoved),
    unused("fsdp_config.fsdp_sync_module_states").note(kRemoved),
    unused("fsdp_config.fsdp_use_orig_params").note(kRemoved),
    unused("fsdp_config.fsdp_limit_all_gathers").note(kRemoved),
    derived("fsdp_config.fsdp_sharding_strategy", "FULL_SHARD", "reshard_after_forward, sharding_size"),

    derived("parallelism_config.parallelism_config_dp_replicate_size", "1", "sharding_size")
        .written([](const Resolved& r) -> Said { return replicas(r); }),
    derived("parallelism_config.parallelism_config_dp_shard_size", "1", "sharding_size")
        .written([](const Resolved& r) -> Said { return size_of_groups(r); }),
    derived("parallelism_config.parallelism_config_tp_size", "1", "tensor_parallel_size, loss_parallel")
        .written([](const Resolved& r) -> Said { return fmt::to_string(r.config.tensor_parallel_size); }),
    derived("parallelism_config.parallelism_config_cp_size", "1", "ring_attention_size").written(ring_size),
    derived("parallelism_config.parallelism_config_cp_comm_strategy", "allgather", "ring_rotate_method")
        .written(ring_rotation),
    refused("parallelism_config.parallelism_config_sp_size", "1", kNoParallel),
    refused("parallelism_config.dp_replicate_size", "1", kWithoutPrefix),
    refused("parallelism_config.dp_shard_size", "1", kWithoutPrefix),
    refused("parallelism_config.tp_size", "1", kWithoutPrefix),
    refused("parallelism_config.cp_size", "1", kWithoutPrefix),
    refused("parallelism_config.sp_size", "1", kWithoutPrefix),
    unused("parallelism_config.*"),

    derived("deepspeed_config.deepspeed_config_file", "null", "the keys of that file"),
    derived("deepspeed_config.zero_stage", "2",
            "sharding_size, reshard_after_forward, reshard_after_backward, sync_each_batch"),
    derived("deepspeed_config.offload_optimizer_device", "none", "--optimizer"),
    derived("deepspeed_config.offload_param_device", "none", "offload_to_cpu"),
    derived("deepspeed_config.gradient_accumulation_steps", "1", "--global-batch-size"),
    flag("deepspeed_config.gradient_clipping", "null", "--clip-grad"),
    unused("deepspeed_config.zero3_init_flag"),
    unused("deepspeed_config.zero3_save_16bit_model"),
    unused("deepspeed_config.deepspeed_multinode_launcher"),
    unused("deepspeed_config.deepspeed_hostfile"),
};

const Row kTransformersRows[] = {
    derived("version", "2", ""),
    derived("reshard_after_forward", "true", "reshard_after_forward").written([](const Resolved& r) -> Said {
      return reshard_text(r);
    }),
    derived("auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "sub_modules_to_wrap"),
    derived("transformer_layer_cls_to_wrap", "null", "sub_modules_to_wrap").written([](const Resolved& r) -> Said {
      return classes_text(r);
    }),
    derived("min_num_params", "0", "sub_modules_to_wrap"),
    derived("offload_params", "false", "offload_to_cpu, pin_memory"),
    derived("cpu_offload", "false", "offload_to_cpu, pin_memory").written([](const Resolved& r) -> Said {
      return switch_text(r.config.offload_to_cpu && r.config.pin_memory);
    }),
    derived("activation_checkpointing", "false", "recompute_modules, recompute_children, use_reentrant"),
    derived("state_dict_type", "FULL_STATE_DICT", "--ckpt-format").written([](const Resolved& r) -> Said {
      return r.job.checkpoint.ckpt_format_word == "torch_dcp" ? "SHARDED_STATE_DICT" : "FULL_STATE_DICT";
    }),
    derived("ignored_modules", "null", "ignored_modules"),
    unused("cpu_ram_efficient_loading", "false"),
    unused("forward_prefetch", "false"),
    unused("backward_prefetch"),
    unused("sync_module_states"),
    unused("use_orig_params"),
    unused("limit_all_gathers"),
    refused("xla", "false", kTpus),
    refused("xla_fsdp_v2", "false", kTpus),
    refused("xla_fsdp_grad_ckpt", "false", kTpus),
    unused("xla_fsdp_settings"),
    derived("sharding_strategy", "FULL_SHARD", "reshard_after_forward, sharding_size"),
    derived("fsdp", "null", "reshard_after_forward, offload_to_cpu"),
};

// Names of the keys of fsdp_config, which the two spell differently.
class Fsdp {
 public:
  Fsdp(Reading& reading, std::string_view prefix) : r_(reading), prefix_(prefix) {}

  void derive() {
    const bool second = r_.whole(key("version")) == 2;
    if (second) {
      reshard_of_version_2();
    } else {
      reshard_of_version_1();
    }
    words_of_fsdp();
    wrap();
    offload();
    checkpointing();
    ignored();
    state_dict();
  }

 private:
  std::string key(std::string_view name) const { return std::string(prefix_) + std::string(name); }

  void reshard_of_version_2() {
    const config::Value* value = r_.value(key("reshard_after_forward"));
    const auto flag = value == nullptr ? std::nullopt : value->boolean();
    if (!flag) return r_.refuse(key("reshard_after_forward"), "with version 2 it is true or false");
    r_.set_key("reshard_after_forward", *flag ? "true" : "false", key("reshard_after_forward"));
    if (r_.is_given(key("sharding_strategy"))) r_.to().without_effect.push_back(key("sharding_strategy"));
  }

  void reshard_of_version_1() {
    r_.note(fmt::format("{}: {} is 1: the file is of FSDP1, and read as the FSDP2 file that comes nearest",
                        r_.to().file, key("version")));
    const std::string strategy = r_.text(key("sharding_strategy")), at = key("sharding_strategy");
    const auto is = [&](std::string_view name, std::string_view number) {
      return strategy == name || strategy == number;
    };
    const bool hybrid = is("HYBRID_SHARD", "4") || is("HYBRID_SHARD_ZERO2", "5");
    if (is("NO_SHARD", "3")) {
      r_.set_key("sharding_size", "1", at);
    } else if (hybrid) {
      r_.set_key("sharding_size", fmt::to_string(ranks_of_a_machine()), at);
    } else if (!is("FULL_SHARD", "1") && !is("SHARD_GRAD_OP", "2")) {
      r_.refuse(at, "use FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2");
    }
    const bool keeps = is("SHARD_GRAD_OP", "2") || is("HYBRID_SHARD_ZERO2", "5");
    r_.set_key("reshard_after_forward", keeps ? "false" : "true", at);
  }

  int ranks_of_a_machine() {
    const auto machines =
        static_cast<int>(r_.value("num_machines") != nullptr ? r_.whole("num_machines") : r_.context().nodes);
    return std::max(1, r_.world() / std::max(1, machines));
  }

  // fsdp: "full_shard auto_wrap offload", of transformers before version 5.
  void words_of_fsdp() {
    if (!prefix_.empty()) return;
    job::Texts words = r_.texts("fsdp");
    if (words.size() == 1) {
      std::string text = words.front();
      words.clear();
      for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(' ', begin), text.size());
        if (end > begin) words.push_back(text.substr(begin, end - begin));
        begin = end + 1;
      }
    }
    for (const std::string& word : words) {
      if (word == "full_shard" || word == "shard_grad_op") {
        r_.set_key("reshard_after_forward", word == "full_shard" ? "true" : "false", "fsdp");
      } else if (word == "offload") {
        set_offload("fsdp");
      } else if (word != "auto_wrap" && word != "true" && word != "True") {
        r_.refuse("fsdp", "with version 2 the words are full_shard, shard_grad_op, auto_wrap and offload");
      }
    }
  }

  void wrap() {
    const std::string policy = r_.text(key("auto_wrap_policy"));
    if (policy == "NO_WRAP") return;
    if (policy == "SIZE_BASED_WRAP") return wrap_by_size();
    if (policy != "TRANSFORMER_BASED_WRAP") {
      return r_.refuse(key("auto_wrap_policy"), "use TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP");
    }
    classes_ = named_classes();
    const ModelTree* model = r_.model();
    const std::string at = key("transformer_layer_cls_to_wrap");
    if (classes_.empty() && model != nullptr) classes_ = {model->layer_class()};
    if (classes_.empty() || classes_.front().empty()) {
      return r_.miss(
          at, "the class of the layers follows from the model; give --model-config FILE or --init-from-hf-path DIR");
    }
    const std::string from = r_.is_given(at) ? at : key("auto_wrap_policy");
    if (model == nullptr) return r_.set_key("sub_modules_to_wrap", classes_, from);
    for (const std::string& name : classes_) {
      if (model->paths_of_class(name).empty()) return refuse_class(at, name, *model);
    }
    wrap_with_ends(*model, from);
  }

  // As accelerate since 2026: the embedding is a group, and the final norm and the output layer are one that stays
  // gathered, with the embedding if that is tied; so does the root.
  void wrap_with_ends(const ModelTree& model, std::string_view from) {
    job::Texts groups = classes_, together;
    if (!model.embedding().empty()) (model.ties_output() ? together : groups).push_back(model.embedding());
    for (const std::string& module : {model.final_norm(), model.output()}) {
      if (!module.empty()) together.push_back(module);
    }
    r_.set_groups(groups, together, false, from);
    r_.set_key("root_reshard_after_forward", "false", from);
  }

  // By comma, without their package.
  job::Texts named_classes() {
    job::Texts names;
    for (const std::string& text : r_.texts(key("transformer_layer_cls_to_wrap"))) {
      for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        std::string name = text.substr(begin, end - begin);
        name.erase(0, name.find_first_not_of(' ') == std::string::npos ? name.size() : name.find_first_not_of(' '));
        if (name.rfind('.') != std::string::npos) name.erase(0, name.rfind('.') + 1);
        if (!name.empty()) names.push_back(std::move(name));
        begin = end + 1;
      }
    }
    return names;
  }

  void refuse_class(std::string_view at, const std::string& name, const ModelTree& model) {
    std::vector<std::string> classes = model.classes();
    std::erase(classes, "ModuleList");
    const auto nearest = nearest_spelling(name, classes);
    r_.refuse(at, fmt::format("the model has no class {}; {}", shown_text(name),
                              nearest ? fmt::format("did you mean {}?", *nearest)
                                      : fmt::format("it has {}", fmt::join(classes, ", "))));
  }

  void wrap_by_size() {
    const double least = r_.number(key("min_num_params"));
    if (least <= 0) return;
    const ModelTree* model = r_.model();
    if (model == nullptr)
      return r_.miss(key("min_num_params"), "the sizes follow from the model; give --model-config FILE");
    std::vector<std::string> paths;
    for (const TreeModule& module : model->modules()) {
      if (module.has_forward && static_cast<double>(module.parameters) > least) paths.push_back(module.path);
    }
    if (!paths.empty()) r_.set_key("sub_modules_to_wrap", patterns_of(paths, *model), key("min_num_params"));
  }

  void set_offload(std::string_view at) {
    r_.set_key("offload_to_cpu", "true", at);
    r_.set_key("pin_memory", "true", at);
  }
  void offload() {
    for (const char* name : {"offload_params", "cpu_offload"}) {
      if (r_.flag(key(name))) set_offload(key(name));
    }
  }

  // Not the layer but each of its children.
  void checkpointing() {
    const std::string at = key("activation_checkpointing");
    if (!r_.flag(at)) return;
    if (classes_.empty()) return r_.refuse(at, "it needs layers that are wrapped; write TRANSFORMER_BASED_WRAP");
    r_.set_key("recompute_modules", classes_, at);
    r_.set_key("recompute_children", "true", at);
    r_.set_key("use_reentrant", "false", at);
  }

  void ignored() {
    const std::string at = key("ignored_modules");
    const job::Texts patterns = r_.texts(at);
    if (patterns.empty()) return;
    const ModelTree* model = r_.model();
    if (model == nullptr)
      return r_.miss(at, "the paths that it matches follow from the model; give --model-config FILE");
    std::vector<std::string> paths;
    try {
      for (const std::string& pattern : patterns) {
        const regex::FullMatch expression(pattern, fmt::format("{}: {}", r_.given(at)->where(), at));
        regex::RegexScratch scratch;
        for (const TreeModule& module : model->modules()) {
          if (expression.matches(module.path, scratch)) paths.push_back(module.path);
        }
      }
    } catch (const ConfigError& error) {
      r_.to().refused.emplace_back(error.what());
      return;
    }
    if (!paths.empty()) r_.set_key("ignored_modules", patterns_of(paths, *model), at);
  }

  void state_dict() {
    const std::string at = key("state_dict_type"), type = r_.text(at);
    const bool sharded = type == "SHARDED_STATE_DICT";
    if (!sharded && type != "FULL_STATE_DICT") return r_.refuse(at, "use SHARDED_STATE_DICT or FULL_STATE_DICT");
    r_.set_flag("--ckpt-format", {sharded ? "torch_dcp" : "hf"}, at);
  }

  Reading& r_;
  const std::string_view prefix_;
  job::Texts classes_;  // that are wrapped
};

constexpr std::string_view kTensor = "parallelism_config.parallelism_config_tp_size";

// Ranks that share matrices, at least 1. Their logits are gathered: transformers' plan of the output layer says so.
std::int64_t derive_tensor(Reading& r) {
  const std::int64_t ranks = r.whole(kTensor);
  if (ranks < 1) {
    r.refuse(kTensor, "use a whole number of at least 1");
    return 1;
  }
  if (ranks == 1) return ranks;
  r.set_key("tensor_parallel_size", fmt::to_string(ranks), kTensor);
  r.set_key("loss_parallel", "false", kTensor);
  return ranks;
}

// An empty one is none.
bool has_parallelism(const Reading& r) {
  const config::Value* given = r.given("parallelism_config");
  return given != nullptr && given->is_mapping() && !given->items().empty();
}

// Its launcher does.
void refuse_parallelism(Reading& r) {
  if (!has_parallelism(r)) return;
  r.refuse("parallelism_config", "needs distributed_type FSDP and fsdp_version 2; write these, or remove it");
}

// dp_replicate x dp_shard x cp x tp: all ranks.
void derive_sizes(Reading& r) {
  if (!has_parallelism(r)) {
    if (!r.has_key("sharding_size")) r.set_key("sharding_size", "auto", "num_processes");
    return;
  }
  if (r.whole("fsdp_config.fsdp_version") == 1) return refuse_parallelism(r);
  constexpr std::string_view kShard = "parallelism_config.parallelism_config_dp_shard_size";
  constexpr std::string_view kReplicate = "parallelism_config.parallelism_config_dp_replicate_size";
  const std::int64_t replicate = r.whole(kReplicate);
  const std::int64_t context = derive_ring(r, "parallelism_config.parallelism_config_cp_size",
                                           "parallelism_config.parallelism_config_cp_comm_strategy");
  const std::int64_t tensor = derive_tensor(r);
  const std::int64_t shard = product({r.whole(kShard), context});  // FSDP shards over both
  const std::int64_t ranks = product({shard, replicate, tensor});
  if (replicate > 1 && shard == 1)
    return r.refuse(kReplicate, "replicas of shards of one rank are not FSDP; write a dp_shard_size above 1");
  if (shard < 1 || replicate < 1 || ranks != r.world()) {
    return r.refuse(kShard,
                    fmt::format("dp_replicate_size {} x dp_shard_size {}{}{} is {}, and there are {} ranks; make them "
                                "equal",
                                replicate, shard / context, context == 1 ? "" : fmt::format(" x cp_size {}", context),
                                tensor == 1 ? "" : fmt::format(" x tp_size {}", tensor), ranks, r.world()));
  }
  r.set_key("sharding_size", fmt::to_string(shard), kShard);
}

void derive_types(Reading& r) {
  const std::string type = r.text("mixed_precision");
  if (type == "no" || type.empty()) return;
  if (type != "bf16" && type != "fp16") return r.refuse("mixed_precision", "use no, bf16 or fp16; fp8 is not built");
  for (const char* key : {"param_dtype", "reduce_dtype", "output_dtype"}) r.set_key(key, type, "mixed_precision");
  if (type == "fp16") r.set_flag("--fp16", {}, "mixed_precision");
}

void derive_accelerate(Reading& r) {
  if (r.is_given("num_processes"))
    r.set_world(static_cast<int>(std::clamp<std::int64_t>(r.whole("num_processes"), 1, 10'000'000)));
  const std::string type = r.text("distributed_type");
  if (type == "FSDP") {
    Fsdp(r, "fsdp_config.fsdp_").derive();
    derive_sizes(r);
  } else if (type == "DEEPSPEED") {
    if (r.whole(kTensor) > 1) r.refuse(kTensor, "with DeepSpeed write tensor_parallel.autotp_size in DeepSpeed's file");
    derive_deepspeed_block(r);
  } else if (type.starts_with("MULTI_") || type == "NO") {
    refuse_parallelism(r);
    r.set_key("sharding_size", "1", "distributed_type");
  } else {
    r.refuse("distributed_type", "use FSDP, DEEPSPEED, MULTI_GPU, MULTI_NPU or NO");
  }
  derive_types(r);
}

void derive_transformers(Reading& r) {
  Fsdp(r, "").derive();
  if (!r.has_key("sharding_size")) r.set_key("sharding_size", "auto", "version");
}

}  // namespace

const Table& accelerate_table() {
  static const Table table{Dialect::kAccelerate, kAccelerateRows, derive_accelerate};
  return table;
}

const Table& transformers_table() {
  static const Table table{Dialect::kTransformers, kTransformersRows, derive_transformers};
  return table;
}

}  // namespace loom::dialects
