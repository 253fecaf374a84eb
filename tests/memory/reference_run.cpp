#include "tests/memory/reference_run.h"

#include <algorithm>
#include <map>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/composed.h"
#include "models/decoder/decoder.h"
#include "recompute/checkpoint.h"
#include "sharding/fully_shard.h"

namespace loom::test {
namespace {

struct Dims {
  std::int64_t hidden, layers, heads, kv_heads, intermediate, vocab;
};

models::DecoderConfig config_of(const std::string& model, std::int64_t seq) {
  static const std::map<std::string, Dims> kModels{{"llama_0.5b", {1024, 16, 16, 8, 4096, 32000}},
                                                   {"llama_1b", {2048, 16, 32, 8, 8192, 128256}},
                                                   {"llama_3b", {3072, 28, 24, 8, 8192, 128256}},
                                                   {"wide", {4096, 8, 32, 8, 14336, 1024}},
                                                   {"llama_8b", {4096, 32, 32, 8, 14336, 128256}}};
  const auto found = kModels.find(model);
  if (found == kModels.end()) config_error("model '{}' is not one of generate/gpu_ref.py", model);
  const Dims& d = found->second;
  models::DecoderConfig config;
  config.family = models::DecoderFamily::kLlama;
  config.vocab_size = d.vocab;
  config.hidden_size = d.hidden;
  config.intermediate_size = d.intermediate;
  config.num_hidden_layers = d.layers;
  config.num_attention_heads = d.heads;
  config.num_key_value_heads = d.kv_heads;
  config.head_dim = d.hidden / d.heads;
  config.max_position_embeddings = seq;
  return config;
}

}  // namespace

ReferenceRow ReferenceRow::from_json(const CaseJson& row) {
  ReferenceRow r;
  r.model = row.at("model");
  r.world = row.at("world");
  r.seq = row.at("seq");
  r.mbs = row.at("mbs");
  r.reshard_after_forward = row.at("reshard_after_forward");
  r.recompute = row.at("recompute");
  r.num_to_forward_prefetch = row.at("num_to_forward_prefetch");
  r.num_to_backward_prefetch = row.at("num_to_backward_prefetch");
  r.reduce_dtype = *parse_dtype(row.at("reduce_dtype").get<std::string>());
  r.offload_to_cpu = row.at("offload_to_cpu");
  return r;
}

std::string ReferenceRow::name() const {
  return fmt::format("{} N{} s{} b{}{}{} {}/{}{}{}", model, world, seq, mbs, reshard_after_forward ? "" : " keep",
                     recompute ? " rc" : "", num_to_forward_prefetch, num_to_backward_prefetch,
                     reduce_dtype == DType::kF32 ? "" : " rbf16", offload_to_cpu ? " cpu" : "");
}

ReferenceRun::ReferenceRun(const ReferenceRow& row, const device::DeviceProfile& profile)
    : ReferenceRun(row, profile, nullptr) {}

ReferenceRun::ReferenceRun(const ReferenceRow& row, std::shared_ptr<const models::GraphProgram> recorded)
    : ReferenceRun(row, {}, std::move(recorded)) {}

ReferenceRun::ReferenceRun(const ReferenceRow& row, const device::DeviceProfile& profile,
                           std::shared_ptr<const models::GraphProgram> recorded)
    : row_(row),
      context_(0, row.world),
      scope_(context_),
      device_(&device::Device::install(context_, {.profile = profile, .dry_run = true})),
      world_(comm::make_simulated_world(0, row.world)),
      model_(recorded ? models::make_graph_model(recorded) : models::build_decoder(config_of(row.model, row.seq))),
      recorded_(std::move(recorded)) {
  // RMSNorm is one kernel, attention keeps q, k, v and its output; SwiGLU and RoPE are composed.
  context_.slot<nn::KernelOptions>() = {.fused_rmsnorm = true, .fused_swiglu = false, .fused_rotary_pos_emb = false};
  workspace_ = device_->memory().allocate(kWorkspaceBytes, device::MemCategory::kTemporary, "matmul workspace");
  wrap();
  sharding::materialize_shards(*model_);
  optimizer_ = std::make_unique<nn::AdamW>(model_->parameters(), nn::AdamWOptions{.lr = 1e-4, .foreach = true});
  if (recorded_) batch_ = data::to_device(models::graph_batch(*recorded_));
  if (!recorded_) ids_ = Tensor::empty({row.mbs, row.seq + 1}, DType::kI64, device::MemCategory::kActivation, "ids");
  after_init_bytes_ = allocated();
}

ReferenceRun::~ReferenceRun() = default;

void ReferenceRun::wrap() {
  sharding::FullyShardOptions options;
  options.axes = sharding::FsdpAxes::over(*world_, row_.world);
  options.policy = {DType::kBF16, row_.reduce_dtype, std::nullopt, true};
  options.reshard_after_forward = row_.reshard_after_forward;
  if (row_.offload_to_cpu) options.cpu_offload = sharding::CpuOffloadPolicy{.pin_memory = true};
  const std::string decoder = recorded_ ? "" : "model.";
  std::vector<nn::Module*> order{model_->find(decoder + "embed_tokens")};
  for (const auto& [index, layer] : model_->find(decoder + "layers")->children()) {
    if (row_.recompute) {
      recompute::checkpoint(*layer, {.path = decoder + "layers." + index, .use_reentrant = false});
    }
    sharding::fully_shard(*layer, options);
    order.push_back(layer.get());
  }
  order.push_back(model_->find("lm_head"));
  sharding::fully_shard(*order.front(), options);
  sharding::fully_shard(*order.back(), options);
  sharding::fully_shard(*model_, options);
  const auto next = [&](std::size_t i, int count) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    return std::vector<nn::Module*>(begin, begin + std::min<std::ptrdiff_t>(count, order.end() - begin));
  };
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    if (row_.num_to_forward_prefetch > 0) {
      sharding::set_modules_to_forward_prefetch(*order[i], next(i, row_.num_to_forward_prefetch));
    }
  }
  std::reverse(order.begin(), order.end());
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    if (row_.num_to_backward_prefetch > 0) {
      sharding::set_modules_to_backward_prefetch(*order[i], next(i, row_.num_to_backward_prefetch));
    }
  }
}

// `logits` are held until after the forward, as gpu_ref.py holds them.
Tensor ReferenceRun::forward(nn::Value& logits) {
  if (recorded_) {
    data::DataIterator data(batch_);
    const data::ForwardResult result = models::graph_forward_step(data, *model_);
    logits = result.output;
    return result.loss_func(result.output).loss;
  }
  const Tensor inputs = ids_.view({ids_.numel()}).rows(0, row_.mbs * row_.seq).view({row_.mbs, row_.seq});
  logits = (*model_)(inputs);
  return ops::composed::cross_entropy(logits.tensor(), inputs, -100);
}

PhaseBytes ReferenceRun::step() {
  device::DeviceMemory& memory = device_->memory();
  PhaseBytes bytes;
  bytes.after_init = after_init_bytes_;
  device_->synchronize();
  memory.reset_peaks();
  device_->log().add_phase("forward");
  nn::Value logits;
  Tensor loss = forward(logits);
  bytes.forward_peak = peak();
  bytes.after_forward = allocated();
  device_->synchronize();
  logits = {};
  memory.reset_peaks();
  device_->log().add_phase("backward");
  autograd::backward(loss);
  bytes.backward_peak = peak();
  bytes.after_backward = allocated();
  device_->synchronize();
  memory.reset_peaks();
  device_->log().add_phase("optimizer");
  optimizer_->step();
  optimizer_->zero_grad();
  bytes.optim_peak = peak();
  loss = {};
  device_->synchronize();
  device_->log().add_phase("end");
  bytes.steady = allocated();
  bytes.reserved = memory.stats().allocator.reserved_bytes;
  return bytes;
}

}  // namespace loom::test
