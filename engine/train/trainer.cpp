#include "engine/train/trainer.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <numeric>

#include "engine/core/log.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/train/compose.h"
#include "engine/train/progress.h"
#include "engine/train/sampling.h"
#include "models/decoder.h"
#include "models/generation.h"
#include "models/hf_folder.h"
#include "offload/host_allocator.h"
#include "sharding/fully_shard.h"
#include "sharding/schedule_view.h"

namespace loom::train {
namespace {

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<std::pair<std::string, std::int64_t>> peaks_by_category(const device::MemStats& stats) {
  std::vector<std::pair<std::string, std::int64_t>> peaks;
  for (int c = 0; c < device::kMemCategories; ++c) {
    peaks.emplace_back(device::name(static_cast<device::MemCategory>(c)),
                       stats.peak_by_category[static_cast<std::size_t>(c)]);
  }
  peaks.emplace_back("total", stats.peak_bytes);
  return peaks;
}

void mark(std::string_view kind) {
  device::Trace& trace = device::Device::current().trace();
  if (!trace.enabled()) return;
  device::TraceEntry entry;
  entry.name = std::string(kind);
  trace.mark(std::move(entry));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void set_up_rank(RankContext& context, const TrainArguments& arguments) {
  device::DeviceOptions device;
  device.executor = arguments.device_executor == DeviceExecutor::kThreaded ? device::ExecutorKind::kThreaded
                                                                           : device::ExecutorKind::kInline;
  device.host_allocator = offload::make_host_allocator();  // for offload_to_cpu; takes nothing before it is asked
  device::Device::install(context, device);
  context.slot<ComputePool>().resize(arguments.compute_threads);
  context.slot<nn::KernelOptions>() = {arguments.use_fused_rmsnorm, arguments.use_fused_swiglu,
                                       arguments.use_fused_rotary_pos_emb, arguments.use_flash_attn};
}

Trainer::Trainer(const TrainArguments& arguments, const TrainingInputs& inputs, comm::World& world)
    : arguments_(arguments),
      inputs_(inputs),
      world_group_(world.group(all_ranks(world.size()), "world")),
      model_(models::build_decoder(inputs.model)),
      schedule_{arguments.lr, arguments.min_lr, arguments.lr_decay_style, arguments.lr_warmup_iters,
                arguments.lr_decay_iters},
      micro_batches_(arguments.global_batch_size / (arguments.micro_batch_size * arguments.ranks)) {
  if (inputs.fsdp2) {
    apply_fsdp2_config(*model_, *inputs.fsdp2, world);
    sharding::materialize_shards(*model_);
  } else {
    nn::materialize(*model_);
  }
  if (inputs.weights) {
    models::load_weights(*model_, *inputs.weights);
  } else {
    nn::init_weights(*model_, arguments.seed);
  }
  optimizer_ =
      std::make_unique<nn::AdamW>(model_->parameters(), nn::AdamWOptions{.lr = arguments.lr,
                                                                         .beta1 = arguments.adam_beta1,
                                                                         .beta2 = arguments.adam_beta2,
                                                                         .eps = arguments.adam_eps,
                                                                         .weight_decay = arguments.weight_decay});
}

std::pair<Tensor, Tensor> Trainer::batch(const ByteDataset& data, std::span<const std::int64_t> rows) const {
  const std::int64_t seq = arguments_.seq_length;
  const Shape shape{static_cast<std::int64_t>(rows.size()), seq};
  const Tensor inputs = Tensor::host(shape, DType::kI32, "input_ids");
  const Tensor targets = Tensor::host(shape, DType::kI32, "targets");
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq + 1));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    data.fill(rows[row], tokens);
    const auto at = static_cast<std::int64_t>(row) * seq;
    std::copy(tokens.begin(), tokens.end() - 1, inputs.data<std::int32_t>() + at);
    std::copy(tokens.begin() + 1, tokens.end(), targets.data<std::int32_t>() + at);
  }
  return {inputs, targets};
}

double Trainer::micro_batch(std::int64_t step, std::int64_t index) {
  const auto rows = rank_rows(step, arguments_.global_batch_size, world_group_->rank(), world_group_->size(),
                              arguments_.micro_batch_size, index);
  const auto [inputs, targets] = batch(inputs_.data.train, rows);
  Tensor logits = (*model_)(inputs);
  Tensor loss = ops::cross_entropy(logits, targets);
  logits = {};  // the loss may write its gradient over them
  if (micro_batches_ > 1) loss = ops::scale(loss, 1.0 / static_cast<double>(micro_batches_));
  const double value = loss.item();
  mark("B");
  autograd::backward(loss);
  return value;
}

double Trainer::mean_over_ranks(double value) {
  if (world_group_->size() == 1) return value;
  world_group_->all_reduce(comm::Channel::kHost, &value, 1, DType::kF64, comm::ReduceOp::sum(), "loss");
  return value / world_group_->size();
}

double Trainer::clip() {
  if (inputs_.fsdp2) {
    return arguments_.clip_grad > 0 ? sharding::clip_grad_norm(*model_, arguments_.clip_grad)
                                    : sharding::grad_norm(*model_);
  }
  const double norm = std::sqrt(nn::gradient_sum_of_squares(optimizer_->parameters()));
  if (arguments_.clip_grad > 0) {
    nn::scale_gradients(optimizer_->parameters(), std::min(1.0, arguments_.clip_grad / (norm + 1e-6)));
  }
  return norm;
}

StepMetrics Trainer::step(std::int64_t step) {
  const auto start = std::chrono::steady_clock::now();
  device::DeviceMemory& memory = device::Device::current().memory();
  memory.reset_peaks();
  double loss = 0;
  for (std::int64_t index = 0; index < micro_batches_; ++index) loss += micro_batch(step, index);
  StepMetrics metrics;
  metrics.step = step + 1;
  metrics.loss = mean_over_ranks(loss);
  metrics.grad_norm = clip();
  metrics.lr = schedule_.at(step);
  optimizer_->set_lr(metrics.lr);
  mark("O");
  optimizer_->step();
  optimizer_->zero_grad();
  metrics.peak_memory_bytes = peaks_by_category(memory.stats());
  metrics.tokens_per_second =
      static_cast<double>(arguments_.global_batch_size) * arguments_.seq_length / seconds_since(start);
  return metrics;
}

bool Trainer::is_shown(std::int64_t step) const {
  // The first step also makes what later steps find.
  return arguments_.print_schedule && step == std::min<std::int64_t>(1, arguments_.train_iters - 1);
}

std::optional<double> Trainer::held_out_loss() {
  if (!inputs_.data.held_out || arguments_.eval_iters == 0) return std::nullopt;
  const autograd::NoGrad no_grad;
  double sum = 0;
  for (std::int64_t i = 0; i < arguments_.eval_iters * micro_batches_; ++i) {
    const auto rows = rank_rows(i / micro_batches_, arguments_.global_batch_size, world_group_->rank(),
                                world_group_->size(), arguments_.micro_batch_size, i % micro_batches_);
    const auto [inputs, targets] = batch(*inputs_.data.held_out, rows);
    sum += ops::cross_entropy((*model_)(inputs), targets).item();
  }
  return mean_over_ranks(sum / static_cast<double>(arguments_.eval_iters * micro_batches_));
}

void Trainer::run(std::ostream& out) {
  std::optional<MetricsWriter> writer;
  if (is_first_rank()) writer.emplace(arguments_.metrics_path);
  Progress progress({.total_steps = arguments_.train_iters,
                     .log_interval = arguments_.log_interval,
                     .terminal = is_terminal(STDOUT_FILENO),
                     .shown = is_first_rank()},
                    out);
  for (std::int64_t step = 0; step < arguments_.train_iters; ++step) {
    device::Device& device = device::Device::current();
    if (is_shown(step)) device.trace().enable(true);
    StepMetrics metrics = this->step(step);
    if (is_shown(step)) {
      progress.note(sharding::to_text(sharding::view_schedule(device.trace(), device.memory().stats())));
      device.trace().enable(false);
      device.trace().clear();
    }
    const bool last = step + 1 == arguments_.train_iters;
    if (last || (step + 1) % arguments_.eval_interval == 0) metrics.held_out_loss = held_out_loss();
    if (writer) writer->write(metrics);
    progress.update(metrics.step, metrics.loss, metrics.tokens_per_second);
    if (metrics.held_out_loss) {
      progress.note(fmt::format("step {}: held-out loss {:.4f} nats per byte", metrics.step, *metrics.held_out_loss));
    }
  }
}

void Trainer::save(const std::filesystem::path& folder) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  sharding::for_each_full_parameter(*model_, [&](const std::string& path, const Tensor& full) {
    if (is_first_rank()) tensors.emplace_back(path, full);
  });
  if (!is_first_rank()) return;
  const auto experts = inputs_.weights ? models::expert_spelling(*inputs_.weights) : models::ExpertSpelling::kPerExpert;
  models::write_hf_folder(folder, inputs_.model, tensors, experts);
}

std::string Trainer::sample(const std::string& prompt, int count) {
  const std::string start = prompt.empty() ? "\n" : prompt;
  const std::vector<std::int32_t> tokens = [&] {
    std::vector<std::int32_t> ids;
    for (const char c : start) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }();
  const std::uint64_t key = stream_key(arguments_.seed, "sample");
  const models::Generation generation = models::generate(
      *model_, tokens,
      {.max_new_tokens = count, .max_positions = inputs_.model.max_position_embeddings, .end_token_ids = {}},
      [&](std::span<const float> logits, std::int64_t position) {
        return choose_token(logits, {.temperature = 0.7, .top_k = 40}, key, static_cast<std::uint64_t>(position));
      });
  std::string text;
  for (const std::int32_t token : generation.tokens) text.push_back(static_cast<char>(token));
  return text;
}

}  // namespace loom::train
