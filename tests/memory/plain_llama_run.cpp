#include "tests/memory/plain_llama_run.h"

#include <algorithm>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/composed.h"
#include "sharding/fully_shard.h"
#include "tests/memory/reference_run.h"

namespace loom::test {
namespace {

recompute::Keep keep_of(const std::string& recompute, bool compiled) {
  if (recompute != "selected_ops") return recompute::Keep::kNothing;
  return compiled ? recompute::Keep::kSelectedOpsNeeded : recompute::Keep::kSelectedOps;
}

}  // namespace

PlainLlamaRow PlainLlamaRow::from_json(const CaseJson& row, const CaseJson& models) {
  PlainLlamaRow r;
  r.name = row.at("name").get<std::string>();
  r.model = row.at("model").get<std::string>();
  const CaseJson dims = models.at(r.model);
  r.config = {.layers = dims.at("layers"),
              .hidden = dims.at("hidden"),
              .heads = dims.at("heads"),
              .kv_heads = dims.at("kv_heads"),
              .intermediate = dims.at("intermediate"),
              .vocab = dims.at("vocab"),
              .seq = row.at("seq"),
              .compiled = row.at("compiled")};
  r.world = row.at("world");
  r.micro_batch = row.at("micro_batch");
  r.micro_batches = row.at("micro_batches");
  const std::string recompute = row.at("recompute");
  r.recompute = recompute != "none";
  r.keep = keep_of(recompute, r.config.compiled);
  r.explicit_prefetch = row.at("explicit_prefetch");
  r.reduce_dtype = *parse_dtype(row.at("reduce_dtype").get<std::string>());
  r.offload_to_cpu = row.at("offload_to_cpu");
  return r;
}

std::string PlainLlamaRow::text() const {
  const char* recomputed = !recompute ? "none" : keep == recompute::Keep::kNothing ? "full" : "sac";
  return fmt::format("{:4} {} N{} s{} b{} {}{}{}{}{}{}", name, model, world, config.seq, micro_batch, recomputed,
                     config.compiled ? " c" : "", micro_batches > 1 ? fmt::format(" ga{}", micro_batches) : "",
                     explicit_prefetch > 0 ? fmt::format(" pf{}", explicit_prefetch) : "",
                     reduce_dtype == DType::kF32 ? "" : " rbf16", offload_to_cpu ? " cpu" : "");
}

PlainLlamaRun::PlainLlamaRun(const PlainLlamaRow& row)
    : row_(row),
      context_(0, row.world),
      scope_(context_),
      device_(&device::Device::install(context_, {.dry_run = true})),
      world_(comm::make_simulated_world(0, row.world)),
      model_(make_plain_llama(row.config)) {
  context_.slot<nn::KernelOptions>() = nn::KernelOptions::fast();  // RMSNorm; the model names its other kernels itself
  workspace_ = device_->memory().allocate(kWorkspaceBytes, device::MemCategory::kTemporary, "matmul workspace");
  wrap();
  sharding::materialize_shards(*model_);
  optimizer_ = std::make_unique<nn::AdamW>(model_->parameters(), nn::AdamWOptions{.lr = 1e-4});
  ids_ = Tensor::empty({row.micro_batch, row.config.seq}, DType::kI64, device::MemCategory::kActivation, "ids");
}

PlainLlamaRun::~PlainLlamaRun() = default;

void PlainLlamaRun::wrap() {
  sharding::FullyShardOptions options;
  options.axes = sharding::FsdpAxes::over(*world_, row_.world);
  // PyTorch casts no complex inputs, and the tables of phases are the only inputs of blocks that are not bf16.
  options.policy = {DType::kBF16, row_.reduce_dtype, std::nullopt, false};
  options.reshard_after_forward = true;
  if (row_.offload_to_cpu) options.cpu_offload = sharding::CpuOffloadPolicy{.pin_memory = true};
  std::vector<nn::Module*> blocks;
  for (const auto& [index, block] : model_->find("layers")->children()) {
    if (row_.recompute) {
      recompute::checkpoint(*block, {.path = "layers." + index, .use_reentrant = false, .keep = row_.keep});
    }
    sharding::fully_shard(*block, options);
    blocks.push_back(block.get());
  }
  sharding::fully_shard(*model_, options);
  const std::ptrdiff_t count = row_.explicit_prefetch;
  if (count == 0) return;
  for (int direction = 0; direction < 2; ++direction) {
    for (auto block = blocks.begin(); block + 1 != blocks.end(); ++block) {
      const std::vector<nn::Module*> next(block + 1, block + 1 + std::min(count, blocks.end() - (block + 1)));
      direction == 0 ? sharding::set_modules_to_forward_prefetch(**block, next)
                     : sharding::set_modules_to_backward_prefetch(**block, next);
    }
    std::ranges::reverse(blocks);
  }
}

std::int64_t PlainLlamaRun::take_peak(StepBytes& bytes) {
  device_->synchronize();
  device::DeviceMemory& memory = device_->memory();
  const std::int64_t peak = memory.stats().allocator.peak_allocated_bytes;
  bytes.peak_allocated = std::max(bytes.peak_allocated, peak);
  memory.reset_peaks();
  return peak;
}

void PlainLlamaRun::micro_batch(StepBytes& bytes, bool first) {
  device_->log().add_phase("forward");
  Tensor logits = (*model_)(ids_);
  const Tensor loss = ops::composed::cross_entropy(logits, ids_, -100);
  logits = {};
  const std::int64_t after_forward = device_->memory().stats().allocator.allocated_bytes;
  const std::int64_t forward_peak = take_peak(bytes);
  device_->log().add_phase("backward");
  autograd::backward(loss);
  const std::int64_t backward_peak = take_peak(bytes);
  if (!first) return;
  bytes.forward_peak = forward_peak;
  bytes.after_forward = after_forward;
  bytes.backward_peak = backward_peak;
}

StepBytes PlainLlamaRun::step() {
  StepBytes bytes;
  device_->synchronize();
  device_->memory().reset_peaks();
  for (int i = 0; i < row_.micro_batches; ++i) micro_batch(bytes, i == 0);
  device_->log().add_phase("optimizer");
  optimizer_->step();
  optimizer_->zero_grad();
  take_peak(bytes);
  device_->log().add_phase("end");
  const auto& stats = device_->memory().stats().allocator;
  bytes.steady = stats.allocated_bytes;
  bytes.peak_reserved = stats.reserved_bytes;
  return bytes;
}

}  // namespace loom::test
