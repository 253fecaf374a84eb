#include "bench/published_rows.h"

#include <fmt/format.h>
#include <fstream>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/plan/pipeline_split.h"
#include "engine/plan/plan_fp8.h"
#include "engine/plan/planner.h"
#include "engine/virtual_time/find_profile.h"
#include "engine/virtual_time/software.h"
#include "recompute/checkpoint.h"

namespace loom::bench {
namespace {

using Json = nlohmann::ordered_json;

RowRecompute recompute_of(const std::string& id, const std::string& text) {
  if (text == "none") return RowRecompute::kNone;
  if (text == "full") return RowRecompute::kFull;
  if (text == "every_2nd") return RowRecompute::kEverySecond;
  if (text == "selected_ops") return RowRecompute::kSelectedOps;
  config_error("row {}: recompute is {}; use none, full, every_2nd or selected_ops", id, text);
}

const char* text_of(RowRecompute recompute) {
  switch (recompute) {
    case RowRecompute::kNone:
      return "no recompute";
    case RowRecompute::kFull:
      return "full recompute";
    case RowRecompute::kEverySecond:
      return "every 2nd block recomputed";
    case RowRecompute::kSelectedOps:
      return "selective by operator";
  }
  return "";
}

template <class T>
std::optional<T> maybe(const Json& row, const char* key) {
  return row.contains(key) ? std::optional<T>(row.at(key).get<T>()) : std::nullopt;
}

PublishedRow row_from(const Json& json) {
  PublishedRow row;
  row.id = json.at("id");
  row.source = json.at("source");
  row.model = json.at("model");
  row.device = json.at("device");
  row.devices = json.at("devices");
  row.shard = json.at("shard");
  row.tensor = json.value("tensor", 1);
  row.slices = json.value("slices", 1);
  row.pipeline = json.value("pipeline", 1);
  row.stages_per_rank = json.value("stages_per_rank", 1);
  row.seq = json.at("seq");
  row.micro_batch = json.at("micro_batch");
  row.micro_batches = json.at("micro_batches");
  row.recompute = recompute_of(row.id, json.at("recompute"));
  row.compiled = json.at("compiled");
  const std::string dtype = json.value("params_dtype", "fp32");
  if (dtype != "fp32" && dtype != "bf16") config_error("row {}: params_dtype is {}; use fp32 or bf16", row.id, dtype);
  row.params_dtype = *parse_dtype(dtype);
  row.fp8 = maybe<std::string>(json, "fp8");
  row.fp8_gather = json.value("fp8_gather", false);
  row.inter_node_bytes_per_s = maybe<double>(json, "inter_node_bytes_per_s");
  row.free_links = json.value("free_links", false);
  row.calibration = json.value("calibration", false);
  row.note = json.value("note", "");
  row.tokens_per_s_per_device = maybe<double>(json, "tokens_per_s_per_device");
  row.hfu_tflops = maybe<double>(json, "hfu_tflops");
  row.mfu = maybe<double>(json, "mfu");
  row.reserved_gib = maybe<double>(json, "reserved_gib");
  row.allocated_gib = maybe<double>(json, "allocated_gib");
  row.out_of_memory = maybe<bool>(json, "out_of_memory");
  return row;
}

std::filesystem::path write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

bool is_gpt2(const Json& model) { return model.at("model_type") == "gpt2"; }

std::string sharding_yaml(const PublishedRow& row, const Json& source, bool gpt2) {
  // Megatron's distributed optimizer gathers and reduces once a step.
  // Stages of a pipeline are reduced once anyway.
  const bool distributed = source.value("distributed_optimizer", false);
  const bool once = distributed && row.pipeline == 1;
  std::string keys = fmt::format(
      "sharding_size: {}\n"
      "sub_modules_to_wrap:\n  - \"{}.{{*}}\"\n"
      "param_dtype: bf16\n"
      "reduce_dtype: {}\n"
      "reshard_after_forward: {}\n"
      "reshard_after_backward: {}\n"
      "sync_each_batch: {}\n"
      "tensor_parallel_size: {}\n"
      "sequence_parallel: {}\n"
      "overlap_slices: {}\n",
      row.shard, gpt2 ? "transformer.h" : "model.layers", source.at("reduce_dtype").get<std::string>(),
      !distributed && source.value("reshard", true), !once, !once, row.tensor,
      row.tensor > 1 && source.value("sequence_parallel", true), row.slices);
  // Stages are cut before the file is applied, so layers are not recomputed by then.
  if (row.pipeline > 1 && row.recompute == RowRecompute::kFull) {
    keys += fmt::format("recompute_modules: [\"{}.{{*}}\"]\nuse_reentrant: false\n",
                        gpt2 ? "transformer.h" : "model.layers");
  }
  return keys;
}

train::TrainSections arguments_of(const PublishedRows& all, const PublishedRow& row,
                                  const std::filesystem::path& folder) {
  const Json& model = all.models.at(row.model);
  const Json& source = all.sources.at(row.source);
  train::TrainSections arguments;
  arguments.model.model_config = write(folder / "config.json", model.dump());
  arguments.model.params_dtype = row.params_dtype;
  arguments.parallel.fsdp2_config_path =
      write(folder / "fsdp2_config.yaml", sharding_yaml(row, source, is_gpt2(model)));
  arguments.parallel.use_torch_fsdp2 = true;
  arguments.launch.ranks = row.devices;
  arguments.data.seq_length = row.seq;
  arguments.schedule.micro_batch_size = row.micro_batch;
  arguments.schedule.global_batch_size =
      row.micro_batch * row.micro_batches * (row.devices / row.tensor / row.pipeline);
  arguments.parallel.pipeline.pipeline_model_parallel_size = row.pipeline;
  if (row.stages_per_rank > 1) {
    arguments.parallel.pipeline.num_virtual_stages_per_pipeline_rank = row.stages_per_rank;
  }
  if (model.at(is_gpt2(model) ? "n_layer" : "num_hidden_layers").get<int>() % (row.pipeline * row.stages_per_rank) !=
      0) {
    arguments.parallel.pipeline.pipeline_split = train::PipelineSplit::kAuto;
  }
  arguments.kernels.set = train::KernelSet::kPytorch;
  arguments.kernels.fused.fused_swiglu = arguments.kernels.fused.fused_rotary_pos_emb = row.compiled;
  arguments.kernels.fused.fused_rmsnorm = row.compiled || source.at("fused_rmsnorm").get<bool>();
  arguments.kernels.fused.fused_cross_entropy = source.at("fused_cross_entropy");
  return arguments;
}

void recompute_layers(nn::Module& model, const PublishedRow& row) {
  if (row.recompute == RowRecompute::kNone || row.pipeline > 1) return;
  nn::Module* layers = model.find("model.layers");
  if (layers == nullptr) layers = model.find("transformer.h");
  recompute::Keep keep = recompute::Keep::kNothing;
  if (row.recompute == RowRecompute::kSelectedOps) {
    keep = row.compiled ? recompute::Keep::kSelectedOpsNeeded : recompute::Keep::kSelectedOps;
  }
  const std::size_t stride = row.recompute == RowRecompute::kEverySecond ? 2 : 1;
  for (std::size_t i = 0; i < layers->children().size(); i += stride) {
    const auto& [index, layer] = layers->children()[i];
    recompute::checkpoint(*layer, {.path = "layers." + index, .use_reentrant = false, .keep = keep});
  }
}

train::PretrainCallbacks callbacks_of(const train::TrainSections& arguments, const PublishedRow& row) {
  train::PretrainCallbacks callbacks = cli::hub_callbacks(arguments);
  callbacks.model_provider = [plain = callbacks.model_provider, row](const train::TrainArguments& asked) {
    std::shared_ptr<nn::Module> model = plain(asked);
    recompute_layers(*model, row);
    return model;
  };
  return callbacks;
}

virtual_time::HardwareProfile profile_of(const PublishedRow& row, const Json& source) {
  virtual_time::HardwareProfile profile = virtual_time::find_profile(row.device);
  profile = virtual_time::with_software(profile, virtual_time::find_software(profile.software),
                                        virtual_time::find_software(source.at("software").get<std::string>()));
  profile = plan::in_fp8(std::move(profile), row.fp8, row.fp8_gather);
  if (row.inter_node_bytes_per_s) profile.links.levels.back().bandwidth_bytes_per_s = *row.inter_node_bytes_per_s;
  if (!row.free_links) return profile;
  profile.links.launch_ns = 0;
  profile.links.loss_per_doubling = 0;
  for (virtual_time::LinkLevel& level : profile.links.levels) {
    level.latency_ns = level.half_rate_message_bytes = 0;
    level.compute_slowdown = 0;
    level.bandwidth_bytes_per_s = 1e30;
  }
  return profile;
}

// Parameters, and 12 L h s of attention for each token.
struct ModelFlops {
  double parameters = 0;
  double attention = 0;
};

ModelFlops flops_of(const Json& model, const plan::StepEstimate& plan) {
  const bool gpt2 = is_gpt2(model);
  const auto layers = model.at(gpt2 ? "n_layer" : "num_hidden_layers").get<double>();
  const auto hidden = model.at(gpt2 ? "n_embd" : "hidden_size").get<double>();
  double parameters = static_cast<double>(plan.parameters);
  // Slots that share the embedding count once.
  if (gpt2) parameters -= model.at("vocab_size").get<double>() * hidden;
  return {parameters, 12 * layers * hidden * static_cast<double>(plan.seq_length)};
}

PlannedRow planned(const PublishedRow& row, const Json& model, const plan::StepEstimate& plan,
                   const virtual_time::HardwareProfile& profile) {
  PlannedRow result;
  const double tokens = plan.throughput.tokens_per_s_per_device;
  const ModelFlops flops = flops_of(model, plan);
  result.tokens_per_s_per_device = tokens;
  result.hfu_tflops = tokens * (8 * flops.parameters + flops.attention * 4 / 3) * 1e-12;
  result.mfu = tokens * (6 * flops.parameters + flops.attention) / profile.matrix.peak_flops_per_s.at(DType::kBF16);
  result.allocated_gib = gib(plan.memory.peak_allocated_bytes);
  result.reserved_gib = gib(plan.memory.reserved_bytes);
  result.host_bound = plan.time.host_bound();
  result.communication_share =
      static_cast<double>(plan.time.breakdown.exposed_comm_ns) / static_cast<double>(plan.time.step_ns);
  if (row.free_links) result.communication_share = 0;
  return result;
}

}  // namespace

std::string PublishedRow::text() const {
  std::vector<std::string> axes;
  if (shard * tensor != devices || tensor > 1) axes.push_back(fmt::format("shards over {}", shard));
  if (tensor > 1) axes.push_back(fmt::format("tp {}", tensor));
  if (pipeline > 1) axes.push_back(fmt::format("pp {}", pipeline));
  if (stages_per_rank > 1) axes.push_back(fmt::format("{} stages a rank", stages_per_rank));
  const std::string mesh = axes.empty() ? "" : fmt::format(" ({})", fmt::join(axes, ", "));
  const std::string fp8_text = fp8 ? fmt::format(", fp8 {}{}", *fp8, fp8_gather ? " with its gathers" : "") : "";
  return fmt::format("{} on {} {}{}, s{}, {} x {}, {}{}{}{}", model, devices, device, mesh, seq, micro_batch,
                     micro_batches, text_of(recompute), compiled ? ", compiled" : "",
                     params_dtype == DType::kBF16 ? ", states in bf16" : "", fp8_text);
}

PublishedRows PublishedRows::read(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) config_error("{} cannot be read", path.string());
  PublishedRows all;
  try {
    const Json content = Json::parse(file);
    all.models = content.at("models");
    all.sources = content.at("sources");
    all.left_out = content.at("left_out");
    all.causes = content.at("causes").get<std::vector<std::string>>();
    for (const Json& row : content.at("rows")) all.rows.push_back(row_from(row));
  } catch (const Json::exception& error) {
    config_error("{}: {}", path.string(), error.what());
  }
  return all;
}

PlannedRow plan_row(const PublishedRows& all, const PublishedRow& row, const std::filesystem::path& folder) {
  train::TrainSections arguments = arguments_of(all, row, folder);
  const train::PretrainCallbacks callbacks = callbacks_of(arguments, row);
  const virtual_time::HardwareProfile profile = profile_of(row, all.sources.at(row.source));
  if (const auto split = plan::choose_split(arguments, callbacks, profile)) {
    plan::apply(*split, arguments.parallel.pipeline);
  }
  const Json& model = all.models.at(row.model);
  try {
    return planned(row, model, plan::estimate_step(arguments, callbacks, profile), profile);
  } catch (const OutOfMemoryError&) {
    PlannedRow result =
        planned(row, model, plan::estimate_step(arguments, callbacks, profile, plan::Capacity::kLifted), profile);
    result.out_of_memory = true;
    return result;
  }
}

}  // namespace loom::bench
