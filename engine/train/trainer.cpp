#include "engine/train/trainer.h"

#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fmt/ranges.h>
#include <unordered_set>

#include "engine/comm/exchange.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/rng_state.h"
#include "engine/data/byte_dataset.h"
#include "engine/nn/functional.h"
#include "engine/nn/optim/gradients.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/train/finite.h"
#include "engine/train/make_optimizer.h"
#include "engine/train/model_folder.h"
#include "engine/train/reference_model.h"
#include "engine/train/sharded_model.h"
#include "models/hf/hf_folder.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "sharding/reuse_fp32.h"

namespace loom::train {
namespace {

ParallelDegrees degrees_of(const TrainingInputs& inputs) {
  if (!inputs.fsdp2) return {};
  return {.dp_replicate = inputs.fsdp2->layout.replicate, .dp_shard = inputs.fsdp2->layout.shard};
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

void mark(device::MarkKind kind) { device::Device::current().log().add_mark({.kind = kind}); }

Tensor cast_to(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  const Tensor cast = Tensor::host(tensor.shape(), dtype, "saved");
  cast.copy_from(tensor);
  return cast;
}

// A rank's mean over its micro-batches, each by its weight in the loss.
void add_reports(std::vector<std::pair<std::string, double>>& sums,
                 const std::vector<std::pair<std::string, double>>& reports, double weight) {
  if (sums.empty()) {
    sums = reports;
    for (auto& [name, value] : sums) value *= weight;
    return;
  }
  bool same = sums.size() == reports.size();
  for (std::size_t i = 0; same && i < sums.size(); ++i) {
    same = sums[i].first == reports[i].first;
    if (same) sums[i].second += weight * reports[i].second;
  }
  if (!same) config_error("loss_func reported other figures than in the micro-batch before; report the same names");
}

// 20 bits that depend on the names and their order.
double number_of_names(const std::vector<std::pair<std::string, double>>& reports) {
  std::uint64_t key = 0;
  for (const auto& [name, value] : reports) key = stream_key(key, name);
  return static_cast<double>(key >> 44);
}

// Where an error ends the run.
std::string what_is_kept(const TrainArguments& arguments) {
  if (!arguments.save) return "nothing is saved";
  return fmt::format("nothing is saved, and {} keeps what it held", arguments.save->string());
}

// What a rank may ask the others to stop for; where several do, the first one here.
constexpr std::array kStopSignals{SIGTERM, SIGINT};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void set_up_rank(RankContext& context, const TrainArguments& arguments, const offload::HostAllocatorOptions& host) {
  device::DeviceOptions device;
  device.executor = arguments.device_executor;
  if (arguments.device_memory_mib > 0) device.profile.memory_bytes = arguments.device_memory_bytes();
  if (arguments.memory_fragmentation) device.pools = device::PoolRule::kByLife;
  device.host_allocator = offload::make_host_allocator(host);  // takes nothing before it is asked
  device::Device::install(context, device);
  context.slot<ComputePool>().resize(arguments.compute_threads);
  context.slot<nn::KernelOptions>() = arguments.fused;
}

Trainer::Trainer(const TrainArguments& arguments, const PretrainCallbacks& callbacks, const TrainingInputs& inputs,
                 comm::World& world)
    : arguments_(arguments),
      callbacks_(callbacks),
      inputs_(inputs),
      rank_(world.rank()),
      dims_(degrees_of(inputs), world.size()),
      mesh_(comm::DeviceMesh::create(world, dims_.axes())),
      loss_axis_(dims_.loss_axis(mesh_)),
      model_(provide_tuned_model(arguments, callbacks, inputs.tuning)),
      sharded_(models::sharded_module(*model_)),
      schedule_(schedule_of(arguments)),
      micro_batches_(arguments.global_batch_size / (arguments.micro_batch_size * dims_.data_size())),
      state_{.seed = arguments.seed} {
  RngState::current() = {stream_key(arguments.seed, fmt::format("operators, data rank {}", dims_.data_rank(rank_))), 0};
  if (!callbacks.has_reference_model) provide_reference(world);
  shard_and_fill(*model_, inputs_.weights, arguments_, inputs_, world);
  if (inputs.tuning.lora && &saved_module() != &sharded_) {
    config_error(
        "{}: adapters are of {}, and {} has parameters beside it; put those into the sharded part, or train without "
        "adapters",
        inputs.tuning.lora->where, sharded_.type_name(), model_->type_name());
  }
  if (callbacks.has_reference_model) provide_reference(world);
  optimizer_ = make_optimizer();
  if (arguments.reuse_fp32_param) sharding::split_shards(*model_);
  if (!arguments.fp16) return;
  scaler_.emplace(arguments.loss_scale);
  if (scaler_->dynamic()) state_.loss_scale = scaler_->state();
}

Trainer::~Trainer() {
  set_reference_model(nullptr);
  set_reference_log_probs(nullptr);
}

// A dry run needs no values.
void Trainer::provide_reference(comm::World& world) {
  if (callbacks_.has_reference_model) {
    reference_ = make_reference_model(arguments_, callbacks_, inputs_, world);
    set_reference_model(reference_.get());
  } else if (arguments_.ref_logps_cache && !device::Device::current().dry_run()) {
    said_.push_back(provide_reference_log_probs(arguments_, callbacks_, inputs_, dims_, world));
  }
}

std::string Trainer::base_model() const {
  const io::HfWeights* loaded = loaded_weights(inputs_, *model_);
  return loaded == nullptr ? std::string{} : loaded->folder().string();
}

nn::Module& Trainer::saved_module() {
  return sharded_.parameters().size() == model_->parameters().size() ? sharded_ : *model_;
}

std::unique_ptr<nn::Optimizer> Trainer::make_optimizer() {
  nn::ParameterGroups groups = nn::make_parameter_groups(saved_module(), grouping_of(arguments_));
  std::unordered_set<const void*> sharded;
  for (const Tensor& parameter : sharded_.parameters()) sharded.insert(parameter.id());
  for (const nn::ParameterGroup& group : groups) {
    decays_.push_back(!group.weight_decay);
    for (const nn::OptimizedParameter& parameter : group.parameters) {
      if (!sharded.contains(parameter.value.id())) beside_.push_back(parameter.value);
    }
  }
  return train::make_optimizer(arguments_, saved_module(), std::move(groups), schedule_.weight_decay.at(0));
}

void Trainer::set_state(const TrainState& state) {
  if (state.step < 0 || state.samples_consumed < 0) {
    config_error("the train state is at step {} and sample {}; neither can be negative", state.step,
                 state.samples_consumed);
  }
  if (std::min(state.samples_skipped, state.schedule_samples) < 0 ||
      std::max(state.samples_skipped, state.schedule_samples) > state.samples_consumed) {
    config_error(
        "the train state is at sample {}, of which {} were skipped and {} moved the schedules; both are from 0 to the "
        "first",
        state.samples_consumed, state.samples_skipped, state.schedule_samples);
  }
  if (state.seed != arguments_.seed) {
    config_error("--seed is {}, but the run that is to go on was started with {}; use --seed {}", arguments_.seed,
                 state.seed, state.seed);
  }
  const bool scaled = scaler_ && scaler_->dynamic();
  if (scaled && state.loss_scale) scaler_->set_state(*state.loss_scale);
  state_ = state;
  state_.loss_scale = scaled ? std::optional(scaler_->state()) : std::nullopt;
  RngState::current().next = state.draws;
}

void Trainer::load_schedule(const ScheduleState& saved) {
  schedule_ = continued_schedule(saved, arguments_);
  state_.schedule_samples = saved.num_steps;
}

std::vector<std::int64_t> Trainer::rows_of(std::int64_t first_sample, std::int64_t index) const {
  return data::rank_rows(first_sample, arguments_.global_batch_size, dims_.data_rank(rank_), dims_.data_size(),
                         arguments_.micro_batch_size, index);
}

data::Loss Trainer::forward(data::DataIterator data) {
  data::ForwardResult result = callbacks_.forward_step(data, *model_);
  if (!result.loss_func) config_error("forward_step returned no loss_func; return {{output, loss_func}}");
  data::Loss loss = result.loss_func(std::move(result.output));
  if (!loss.loss.defined() || loss.loss.numel() != 1) {
    config_error("loss_func returned {}; return one element, the mean over the micro-batch",
                 loss.loss.defined() ? "a tensor " + to_string(loss.loss.shape()) : "no tensor");
  }
  return loss;
}

void Trainer::begin_phase(std::string_view phase) {
  device::Device::current().log().add_phase(phase);
  for (StepObserver* observer : observers_) observer->begin_phase(phase);
}

Trainer::StepData Trainer::data_of_step() {
  if (inputs_.data.count_tokens) return counted_data_of_step();
  StepData data;
  for (std::int64_t index = 0; index < micro_batches_; ++index) {
    data.micro_batches.emplace_back(inputs_.data.train, rows_of(state_.samples_consumed, index));
    data.weights.push_back(1.0 / static_cast<double>(micro_batches_));
  }
  data.tokens = static_cast<double>(arguments_.global_batch_size) * arguments_.seq_length;
  return data;
}

// Tokens are counted before the first forward: of n that are scored in this rank's micro-batch and a mean of N a rank,
// the loss weighs n / N. Where all are scored, that is 1 / micro-batches to the bit.
Trainer::StepData Trainer::counted_data_of_step() {
  StepData data;
  std::array<double, 2> sums{};  // of scored tokens, and of all
  for (std::int64_t index = 0; index < micro_batches_; ++index) {
    data::Batch batch = inputs_.data.train(rows_of(state_.samples_consumed, index));
    const data::TokenCounts counts = inputs_.data.count_tokens(batch);
    data.weights.push_back(static_cast<double>(counts.scored));
    sums[0] += static_cast<double>(counts.scored);
    sums[1] += static_cast<double>(counts.all);
    data.micro_batches.emplace_back(std::move(batch));
  }
  mean_over_ranks(sums);
  for (double& weight : data.weights) weight = sums[0] > 0 ? weight / sums[0] : 0.0;
  data.tokens = sums[1] * loss_axis_.size();
  return data;
}

double Trainer::micro_batch(data::DataIterator data, double weight, Reports& reports) {
  begin_phase("forward");
  data::Loss result = forward(std::move(data));
  add_reports(reports, result.reports, weight);
  Tensor loss = std::move(result.loss);
  if (!loss.requires_grad()) {
    config_error("loss_func returned a loss that no trained parameter leads to; compute it from the model's output");
  }
  if (weight != 1.0) loss = ops::scale(loss, weight);
  const double value = loss.item();
  check_finite(value, "local forward loss calculation");
  if (scaler_) loss = ops::scale(ops::cast(loss, DType::kF32), scaler_->scale());
  mark(device::MarkKind::kBackward);
  begin_phase("backward");
  autograd::backward(loss);
  return value;
}

void Trainer::mean_over_ranks(std::span<double> values) {
  if (loss_axis_.size() == 1) return;
  loss_axis_.group().all_reduce(comm::kHostLane, values.data(), static_cast<std::int64_t>(values.size()), DType::kF64,
                                comm::ReduceOp::sum(), "loss");
  for (double& value : values) value /= loss_axis_.size();
}

void Trainer::check_finite(double value, std::string_view what) const {
  const auto found = not_finite(value);
  if (!found || !arguments_.check_for_nan_in_loss_and_grad) return;
  raise_not_finite(*found, what, "");
}

// Every rank has the same norm, and so all of them come to the exchange.
void Trainer::check_grad_norm(double norm) const {
  const auto found = not_finite(norm);
  if (!found || !arguments_.check_for_nan_in_loss_and_grad) return;
  raise_not_finite(*found, "grad norm", first_bad_gradient());
}

void Trainer::raise_not_finite(std::string_view found, std::string_view what, const std::string& where) const {
  raise<Error>(
      "found {} in {}{}: iteration {} of {}; {}; look at the data, lower --lr or --clip-grad, or go on regardless with "
      "--no-check-for-nan-in-loss-and-grad",
      found, what, where, state_.step + 1, arguments_.train_iters, what_is_kept(arguments_));
}

// The figures travel together, with the request to stop. With reports come a number of their names and its square:
// their means over the ranks fit one another only where all ranks have the same number.
void Trainer::mean_of_step(double loss, StepMetrics& metrics) {
  std::vector<double> means{loss};
  for (const auto& [name, sum] : metrics.reports) means.push_back(sum);
  const double names = number_of_names(metrics.reports);
  const std::size_t numbers = means.size();
  if (!metrics.reports.empty()) means.insert(means.end(), {names, names * names});
  const std::size_t request = means.size();
  add_request(means);
  mean_over_ranks(means);
  metrics.loss = means[0];
  for (std::size_t i = 0; i < metrics.reports.size(); ++i) metrics.reports[i].second = means[i + 1];
  agreed_stop_ = agreed_on(std::span(means).subspan(request));
  if (metrics.reports.empty() || (means[numbers] == names && means[numbers + 1] == names * names)) return;
  std::vector<std::string> said;
  for (const auto& [name, sum] : metrics.reports) said.push_back(name);
  model_error(
      "loss_func reported {} here and other figures on other ranks; report the same names in the same order on every "
      "rank",
      fmt::join(said, ", "));
}

// One number for each signal, and one for the clock: the share of the ranks that ask for it.
void Trainer::add_request(std::vector<double>& means) const {
  if (!stop_request_) return;
  const StopRequest own = stop_request_();
  for (const int signal : kStopSignals) means.push_back(own.signal == signal ? 1.0 : 0.0);
  means.push_back(own.time_is_up ? 1.0 : 0.0);
}

StopRequest Trainer::agreed_on(std::span<const double> means) {
  StopRequest agreed;
  if (means.empty()) return agreed;
  for (std::size_t i = 0; i < kStopSignals.size() && agreed.signal == 0; ++i) {
    if (means[i] > 0) agreed.signal = kStopSignals[i];
  }
  agreed.time_is_up = means.back() > 0;
  return agreed;
}

// Of the gradients as backward left them, the same bits on every rank.
double Trainer::unclipped_norm() {
  if (inputs_.fsdp2) return sharding::grad_norm(sharded_);
  return std::sqrt(nn::gradient_sum_of_squares(optimizer_->parameters()));
}

// Takes the loss scale out of the gradients too; `norm` is without it.
void Trainer::clip(double norm) {
  const std::vector<Tensor> clipped = inputs_.fsdp2 ? sharded_.parameters() : optimizer_->parameters();
  if (!scaler_) {
    if (arguments_.clip_grad > 0) nn::clip_gradients(clipped, norm, arguments_.clip_grad);
    return;
  }
  const double unscale = 1.0 / scaler_->scale();
  const double factor = arguments_.clip_grad > 0 ? std::min(1.0, arguments_.clip_grad / (norm + 1e-6)) : 1.0;
  nn::scale_gradients(clipped, factor * unscale);
  if (inputs_.fsdp2) nn::scale_gradients(beside_, unscale);
}

// Whether a gradient of any rank is NaN or Inf. The norm is over all ranks; what is beside the sharded part has none.
bool Trainer::overflows(double norm) {
  double found = std::isfinite(norm) ? 0.0 : 1.0;
  if (beside_.empty()) return found > 0;
  if (!std::isfinite(nn::gradient_sum_of_squares(beside_))) found = 1.0;
  mean_over_ranks({&found, 1});
  return found > 0;
}

// An overflow that a smaller scale may heal is no error.
void Trainer::check_overflow(double norm) const {
  if (!arguments_.check_for_nan_in_loss_and_grad || !scaler_->at_its_end()) return;
  raise<Error>(
      "found {} in grad norm: iteration {} of {}, at the loss scale {}, which is {}; {}; {}, look at the data, write "
      "param_dtype: bf16 with --bf16, or skip each such update with --no-check-for-nan-in-loss-and-grad",
      not_finite(norm).value_or("NaN or Inf"), state_.step + 1, arguments_.train_iters, scaler_->scale(),
      scaler_->dynamic() ? "as low as --min-loss-scale allows" : "constant", what_is_kept(arguments_),
      scaler_->dynamic() ? "lower --min-loss-scale" : "lower --loss-scale");
}

void Trainer::update() {
  optimizer_->set_lr(schedule_.lr.at(state_.schedule_samples));
  const double weight_decay = schedule_.weight_decay.at(state_.schedule_samples);
  for (std::size_t group = 0; group < decays_.size(); ++group) {
    if (decays_[group]) optimizer_->groups()[group].weight_decay = weight_decay;
  }
  mark(device::MarkKind::kOptimizer);
  {
    std::optional<sharding::JoinedShards> joined;
    if (arguments_.reuse_fp32_param) joined.emplace(*model_);
    optimizer_->step();
  }
  state_.schedule_samples += arguments_.global_batch_size;
}

void Trainer::skip_iterations() {
  const std::vector<std::int64_t>& skipped = arguments_.iterations_to_skip;
  while (state_.step < arguments_.train_iters && std::ranges::binary_search(skipped, state_.step + 1)) {
    state_.step += 1;
    state_.samples_consumed += arguments_.global_batch_size;
    state_.samples_skipped += arguments_.global_batch_size;
    for (StepObserver* observer : observers_) observer->skipped(state_.step);
  }
}

// Which gradient is not finite: the first one, in the order of the parameters, that any rank has. Collective.
std::string Trainer::first_bad_gradient() const {
  std::string own;
  std::size_t number = 0;
  for (const nn::ParameterGroup& group : std::as_const(*optimizer_).groups()) {
    for (const nn::OptimizedParameter& parameter : group.parameters) {
      ++number;
      if (own.empty() && !std::isfinite(nn::gradient_sum_of_squares({parameter.value}))) {
        own = fmt::format("{:012d} '{}' on rank {}", number, parameter.path, rank_);
      }
    }
  }
  if (loss_axis_.size() > 1) {
    for (const auto& said : comm::exchange_lines(loss_axis_.group(), own, "gradients that are not finite")) {
      if (!said.empty() && (own.empty() || said.front() < own)) own = said.front();
    }
  }
  return own.empty() ? "" : fmt::format(", first in the gradient of {}", own.substr(own.find(' ') + 1));
}

// Where nothing that the norm says keeps gradients from the optimizer, each of those that come to the host is used when
// it has landed; to sum them up first would be to wait for the last.
bool Trainer::updates_before_norm() const {
  return !waits_in_backward(arguments_) && arguments_.clip_grad == 0 && !scaler_ &&
         !arguments_.check_for_nan_in_loss_and_grad;
}

void Trainer::clip_and_update(StepMetrics& metrics) {
  const double norm = unclipped_norm();
  metrics.grad_norm = scaler_ ? norm / scaler_->scale() : norm;
  metrics.skipped = scaler_ && overflows(norm);
  if (metrics.skipped) return check_overflow(norm);
  check_grad_norm(metrics.grad_norm);
  clip(metrics.grad_norm);
  update();
}

StepMetrics Trainer::step() {
  const std::int64_t step = state_.step;
  for (StepObserver* observer : observers_) observer->begin_step(step);
  const auto start = std::chrono::steady_clock::now();
  device::DeviceMemory& memory = device::Device::current().memory();
  memory.reset_peaks();
  StepMetrics metrics;
  metrics.step = step + 1;
  double loss = 0.0;
  StepData data = data_of_step();
  for (std::size_t index = 0; index < data.weights.size(); ++index) {
    loss += micro_batch(std::move(data.micro_batches[index]), data.weights[index], metrics.reports);
  }
  mean_of_step(loss, metrics);
  begin_phase("optimizer");
  metrics.lr = schedule_.lr.at(state_.schedule_samples);
  if (updates_before_norm()) {
    update();
    metrics.grad_norm = unclipped_norm();
  } else {
    clip_and_update(metrics);
  }
  optimizer_->zero_grad();
  if (scaler_) {
    scaler_->update(metrics.skipped);
    if (scaler_->dynamic()) state_.loss_scale = scaler_->state();
    metrics.loss_is_scaled = true;
    metrics.loss_scale = scaler_->scale();
  }
  begin_phase("end");
  state_.step += 1;
  state_.samples_consumed += arguments_.global_batch_size;
  state_.draws = RngState::current().next;
  metrics.next_lr = schedule_.lr.at(state_.schedule_samples);
  metrics.samples_consumed = state_.samples_consumed;
  metrics.samples_skipped = state_.samples_skipped;
  metrics.peak_memory_bytes = peaks_by_category(memory.stats());
  for (auto observer = observers_.rbegin(); observer != observers_.rend(); ++observer) (*observer)->end_step(step);
  metrics.tokens_per_second = data.tokens / seconds_since(start);
  return metrics;
}

std::optional<double> Trainer::evaluate(const data::DataLoader& loader) {
  if (!loader || arguments_.eval_iters == 0) return std::nullopt;
  const autograd::NoGrad no_grad;
  model_->eval();
  const std::int64_t count = arguments_.eval_iters * micro_batches_;
  std::array<double, 2> sums{};  // of the weighted losses, and of the weights
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first_sample = i / micro_batches_ * arguments_.global_batch_size;
    data::Batch batch = loader(rows_of(first_sample, i % micro_batches_));
    const auto& count = inputs_.data.count_tokens;
    const double weight = count ? static_cast<double>(count(batch).scored) : 1.0;
    sums[0] += weight * forward(data::DataIterator(std::move(batch))).loss.item();
    sums[1] += weight;
  }
  model_->train();
  mean_over_ranks(sums);
  return sums[1] > 0 ? sums[0] / sums[1] : 0.0;
}

std::optional<std::string> Trainer::save(const std::filesystem::path& folder) {
  const sharding::JoinedShards joined(*model_);
  const io::HfWeights* loaded = loaded_weights(inputs_, *model_);
  const auto lora = models::lora_of(sharded_);
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::optional<std::string> bad;
  const auto take = [&](const std::string& path, const Tensor& full) {
    if (!reports()) return;
    if (!bad && !all_finite(full)) bad = path;
    const io::HfWeights* of_base = lora == nullptr ? loaded : nullptr;  // adapters are fp32 beside a bf16 base
    tensors.emplace_back(path, cast_to(full, dtype_to_save(path, full.dtype(), arguments_.save_dtype, of_base)));
  };
  sharding::for_each_full_parameter(sharded_, take,
                                    [&](const std::string& path) { return lora == nullptr || lora->is_tuned(path); });
  if (!reports()) return std::nullopt;
  if (bad) {
    return fmt::format("the model is not written, since '{}' has values that are not finite; {} keeps what it held",
                       *bad, folder.string());
  }
  if (lora != nullptr) {
    models::write_adapter_folder(folder, models::adapter_config_json(*lora, base_model()), tensors);
  } else if (callbacks_.save_model) {
    callbacks_.save_model(folder, arguments_, tensors);
  } else {
    save_model_folder(folder, arguments_, *model_, loaded, tensors);
  }
  return std::nullopt;
}

}  // namespace loom::train
