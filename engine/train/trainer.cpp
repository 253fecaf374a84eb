#include "engine/train/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/rng_state.h"
#include "engine/custom_op/custom_op.h"
#include "engine/data/byte_dataset.h"
#include "engine/device/device.h"
#include "engine/launch/stop_signals.h"
#include "engine/nn/functional.h"
#include "engine/nn/state_dict.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/train/drawn_rows.h"
#include "engine/train/finite.h"
#include "engine/train/model_folder.h"
#include "engine/train/not_finite.h"
#include "engine/train/pipeline/pipeline.h"
#include "engine/train/reference_source.h"
#include "engine/train/sharded_model.h"
#include "engine/train/step/marks.h"
#include "engine/train/update.h"
#include "engine/train/users_code.h"
#include "models/hf/hf_folder.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "sharding/memory.h"
#include "sharding/reuse_fp32.h"

namespace loom::train {
namespace {

std::vector<std::pair<std::string, std::int64_t>> peaks_by_category(const device::MemStats& stats) {
  std::vector<std::pair<std::string, std::int64_t>> peaks;
  for (const device::MemCategory c : sharding::kMemCategories) peaks.emplace_back(c.name(), stats.peak_by_category[c]);
  peaks.emplace_back("total", stats.peak_bytes);
  return peaks;
}

Tensor cast_to(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  const Tensor cast = Tensor::host(tensor.shape(), dtype, "saved");
  cast.copy_from(tensor);
  return cast;
}

// A rank's mean over its micro-batches, each by its weight in the loss.
void add_reports(Reports& sums, const Reports& reports, double weight) {
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
double number_of_names(const Reports& reports) {
  std::uint64_t key = 0;
  for (const auto& [name, value] : reports) key = stream_key(key, name);
  return static_cast<double>(key >> 44);
}

// The number of token ids of a batch; without ids, of its samples.
double tokens_of(const data::Batch& batch, std::size_t samples, std::int64_t seq_length) {
  const nn::Value& ids = batch.find("input_ids");
  return ids.is_tensor() ? static_cast<double>(ids.tensor().numel())
                         : static_cast<double>(samples) * static_cast<double>(seq_length);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The ranks agree on the file that sizes the axes before they make groups of them.
comm::DeviceMesh agreed_mesh(const TrainingInputs& inputs, const ParallelDims& dims, comm::World& world) {
  if (inputs.fsdp2 && world.size() > 1) sharding::check_same_config(inputs.fsdp2->entries, *world.everyone());
  return comm::DeviceMesh::create(world, dims.axes());
}

// Where the first rank of this one's stage is.
std::vector<int> first_of_stage(const comm::DeviceMesh& mesh, int rank) {
  std::vector<int> place(mesh.axes().size());
  place.front() = mesh.coordinates(rank).front();
  return place;
}

// Null: every rank has the whole model.
std::unique_ptr<Pipeline> make_pipeline(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                        const TrainingInputs& inputs, comm::World& world,
                                        const comm::DeviceMesh& mesh) {
  if (!inputs.pipeline) return nullptr;
  return std::make_unique<Pipeline>(
      *inputs.pipeline, [&] { return provide_tuned_model(arguments, callbacks, inputs.tuning); }, world,
      mesh.axis("pp"));
}

}  // namespace

Trainer::Trainer(const TrainSections& arguments, const PretrainCallbacks& callbacks, const TrainingInputs& inputs,
                 comm::World& world)
    : arguments_(arguments),
      callbacks_(callbacks),
      inputs_(inputs),
      rank_(world.rank()),
      dims_(inputs.dims.degrees(), world.size()),
      mesh_(agreed_mesh(inputs, dims_, world)),
      loss_axis_(dims_.loss_axis(mesh_)),
      pipeline_(make_pipeline(arguments, callbacks, inputs, world, mesh_)),
      model_(pipeline_ ? pipeline_->model() : provide_tuned_model(arguments, callbacks, inputs.tuning)),
      sharded_(models::sharded_module(*model_)),
      objective_(inputs.objective),
      micro_batches_(dims_.micro_batches(arguments.schedule.global_batch_size, arguments.schedule.micro_batch_size)),
      actions_(accumulation(micro_batches_, !inputs.fsdp2_config || inputs.fsdp2_config->sync_each_batch)),
      switches_(sharded_, inputs),
      state_{.seed = arguments.data.seed},
      watched_train_([this](std::span<const std::int64_t> samples) {
        data::Batch batch = inputs_.objective.loaders.train(samples);
        tokens_ += tokens_of(batch, samples.size(), arguments_.data.seq_length);
        return batch;
      }) {
  custom::load_custom_ops(RankContext::current(), inputs.custom_operators);
  RngState::current() = {
      stream_key(arguments.data.seed, fmt::format("operators, data rank {}", dims_.data_rank(rank_))), 0};
  provide_auxiliary(objective::Auxiliary::kValues, world);  // before the model has its bytes
  shard_and_fill(*model_, inputs_.weights, arguments_, inputs_, world);
  check_adapters();
  if (pipeline_) pipeline_->begin();
  provide_auxiliary(objective::Auxiliary::kModel, world);
  update_ = make_update(world);
  said_.insert(said_.end(), update_->said().begin(), update_->said().end());
  if (arguments.memory.reuse_fp32_param) sharding::split_shards(*model_);
  update_->restore(state_);
}

Trainer::~Trainer() = default;

void Trainer::check_adapters() {
  if (!inputs_.tuning.lora || &saved_module() == &sharded_) return;
  config_error(
      "{}: adapters are of {}, and {} has parameters beside it; put those into the sharded part, or train without "
      "adapters",
      inputs_.tuning.lora->where, sharded_.type_name(), model_->type_name());
}

std::unique_ptr<Update> Trainer::make_update(comm::World& world) {
  return std::make_unique<Update>(Update::Of{
      .options = arguments_.optimizer,
      .schedule = arguments_.schedule,
      .checkpoint = arguments_.checkpoint,
      .kernels = arguments_.kernels.set,
      .reuse_fp32_param = arguments_.memory.reuse_fp32_param,
      .model = *model_,
      .sharded = sharded_,
      .saved = saved_module(),
      .is_sharded = inputs_.fsdp2.has_value(),
      .loss_axis = loss_axis_,
      .everyone = (pipeline_ ? pipeline_->ranks_of_stage() : world).everyone(),
      .stages = inputs_.pipeline && inputs_.pipeline->has_experts ? pipeline_->axis().shared_group() : nullptr,
      .rank = rank_});
}

// A dry run needs no values.
void Trainer::provide_auxiliary(objective::Auxiliary kind, comm::World& world) {
  if (inputs_.objective.auxiliary != kind) return;
  const objective::ReferenceSource source = reference_source(arguments_, callbacks_, inputs_, world);
  if (kind == objective::Auxiliary::kModel) return objective_.set_auxiliary(objective::make_reference_model(source));
  if (device::Device::current().dry_run()) return;
  auto [values, said] = objective::provide_reference_log_probs(
      *arguments_.objective.ref_logps_cache, source, arguments_.data, inputs_.objective.loaders.numbered,
      {arguments_.schedule.micro_batch_size, dims_.data_rank(rank_), dims_.data_size()}, world);
  objective_.set_auxiliary(std::move(values));
  said_.push_back(std::move(said));
}

void Trainer::set_schedule(std::vector<Action> actions) {
  check_complete(actions, micro_batches_);
  actions_ = std::move(actions);
}

nn::Optimizer& Trainer::optimizer() { return update_->optimizer(); }

double Trainer::loss_scale() const { return update_->loss_scale(); }

ScheduleState Trainer::schedule_state() const { return state_of(update_->schedule(), state_.schedule_samples); }

std::string Trainer::base_model() const {
  const io::HfWeights* loaded = loaded_weights(inputs_, *model_);
  return loaded == nullptr ? std::string{} : loaded->folder().string();
}

nn::Module& Trainer::saved_module() {
  return sharded_.parameters().size() == model_->parameters().size() ? sharded_ : *model_;
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
  if (state.seed != arguments_.data.seed) {
    config_error("--seed is {}, but the run that is to go on was started with {}; use --seed {}", arguments_.data.seed,
                 state.seed, state.seed);
  }
  TrainState restored = state;
  update_->restore(restored);
  state_ = restored;
}

void Trainer::load_schedule(const ScheduleState& saved) {
  update_->set_schedule(continued_schedule(saved, arguments_.schedule));
  state_.schedule_samples = saved.num_steps;
}

std::vector<std::int64_t> Trainer::rows_of(std::int64_t first_sample, std::int64_t index) const {
  return data::rank_rows(first_sample, arguments_.schedule.global_batch_size, dims_.data_rank(rank_), dims_.data_size(),
                         arguments_.schedule.micro_batch_size, index);
}

data::Loss Trainer::forward(data::DataIterator data, nn::Module& model, std::string_view place) {
  data::ForwardResult result = run_users_code("forward_step", place, [&] { return objective_.forward(data, model); });
  if (!result.loss_func) config_error("forward_step returned no loss_func; return {{output, loss_func}}");
  data::Loss loss = run_users_code("loss_func", place, [&] { return result.loss_func(std::move(result.output)); });
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
  if (inputs_.objective.loaders.count_tokens) return counted_data_of_step();
  StepData data;
  for (std::int64_t index = 0; index < micro_batches_; ++index) {
    std::vector<std::int64_t> rows = rows_of(state_.samples_consumed, index);
    // Several stages take the batch.
    if (pipeline_) {
      data.micro_batches.emplace_back(run_users_code("the data loader", place(), [&] { return watched_train_(rows); }));
    } else {
      data.micro_batches.emplace_back(watched_train_, std::move(rows));
    }
    data.weights.push_back(1.0 / static_cast<double>(micro_batches_));
  }
  return data;
}

// Tokens are counted before the first forward: of n that are scored in this rank's micro-batch and a mean of N a rank,
// the loss weighs n / N. Where all are scored, that is 1 / micro-batches to the bit.
Trainer::StepData Trainer::counted_data_of_step() {
  StepData data;
  std::array<double, 2> sums{};  // of weights, and of all tokens
  for (std::int64_t index = 0; index < micro_batches_; ++index) {
    data::Batch batch = inputs_.objective.loaders.train(rows_of(state_.samples_consumed, index));
    const data::TokenCounts counts = inputs_.objective.loaders.count_tokens(batch);
    data.weights.push_back(counts.loss_weight());
    sums[0] += counts.loss_weight();
    sums[1] += static_cast<double>(counts.all);
    data.micro_batches.emplace_back(std::move(batch));
  }
  mean_over(loss_axis_, sums);
  check_counted(sums[0]);
  for (double& weight : data.weights) weight = sums[0] > 0 ? weight / sums[0] : 0.0;
  tokens_ = sums[1];
  return data;
}

// Checks a step of all ranks, before its forward.
void Trainer::check_counted(double scored) {
  if (scored > 0) return uncounted_.note_counted();
  const std::int64_t first = state_.samples_consumed;
  const bool one = arguments_.schedule.global_batch_size == 1;
  std::string samples = one ? fmt::format("sample {}", first)
                            : fmt::format("samples {} to {}", first, first + arguments_.schedule.global_batch_size - 1);
  if (const auto& place = inputs_.objective.loaders.place) {
    samples += fmt::format(" ({}{})", place(first), one ? "" : " first");
  }
  const std::string warning = uncounted_.note_uncounted(state_.step + 1, samples, what_is_kept(arguments_.checkpoint));
  if (reports()) log_warning("{}", warning);
}

Trainer::StepWork Trainer::run_actions() {
  StepWork work{.data = data_of_step(), .losses = {}};
  work.losses.resize(work.data.weights.size());
  if (pipeline_) {
    pipeline_->run_step(
        {.forward = [&](PipelineStage& stage,
                        std::int64_t index) { return run_stage(work, stage, static_cast<std::size_t>(index)); },
         .begin_phase = [this](std::string_view phase) { begin_phase(phase); }});
    pipeline_->share(work.loss, work.reports);
    return work;
  }
  for (std::size_t at = 0; at < actions_.size(); ++at) {
    const auto micro_batch = static_cast<std::size_t>(actions_[at].micro_batch);
    switch (actions_[at].kind) {
      case ActionKind::kForward:
        run_forward(work, micro_batch, *model_);
        break;
      case ActionKind::kReadLoss:
        read_loss(work, micro_batch);
        break;
      case ActionKind::kBackward:
        run_backward(work, at);
        break;
      case ActionKind::kReduce:
        break;  // issued by the hooks of its backward
    }
  }
  return work;
}

std::string Trainer::place() const {
  return fmt::format("iteration {} of {}", state_.step + 1, arguments_.schedule.train_iters);
}

// The loss of the last stage, else hidden states.
Tensor Trainer::run_stage(StepWork& work, PipelineStage& stage, std::size_t micro_batch) {
  if (stage.layout().loss) {
    run_forward(work, micro_batch, stage);
    read_loss(work, micro_batch);
    return update_->scaled(std::exchange(work.losses[micro_batch], {}));
  }
  begin_phase("forward");
  const auto index = static_cast<std::int64_t>(micro_batch);
  const RngForward draws(drawn_rows(arguments_, inputs_, rows_of(state_.samples_consumed, index)));
  data::DataIterator data = work.data.micro_batches[micro_batch];
  return run_users_code("forward_step", place(), [&] { return objective_.forward(data, stage); }).output.tensor();
}

void Trainer::run_forward(StepWork& work, std::size_t micro_batch, nn::Module& model) {
  begin_phase("forward");
  const auto index = static_cast<std::int64_t>(micro_batch);
  const RngForward draws(drawn_rows(arguments_, inputs_, rows_of(state_.samples_consumed, index)));
  const double weight = work.data.weights[micro_batch];
  data::Loss result = forward(std::move(work.data.micro_batches[micro_batch]), model, place());
  add_reports(work.reports, result.reports, weight);
  if (!result.loss.requires_grad()) {
    config_error("loss_func returned a loss that no trained parameter leads to; compute it from the model's output");
  }
  work.losses[micro_batch] = weight == 1.0 ? std::move(result.loss) : ops::scale(result.loss, weight);
}

void Trainer::read_loss(StepWork& work, std::size_t micro_batch) const {
  const double value = work.losses[micro_batch].item();
  const auto bad = not_finite(value);
  if (bad && arguments_.optimizer.check_for_nan_in_loss_and_grad) {
    raise_not_finite({*bad, "local forward loss calculation"}, {state_.step + 1, arguments_.schedule.train_iters},
                     arguments_.checkpoint);
  }
  work.loss += value;
}

void Trainer::run_backward(StepWork& work, std::size_t at) {
  switches_.set(is_reduced(actions_, at), is_last_backward(actions_, at));
  Tensor& loss = work.losses[static_cast<std::size_t>(actions_[at].micro_batch)];
  loss = update_->scaled(loss);
  device::Device::current().log().add_mark({.kind = kBackwardMark});
  begin_phase("backward");
  autograd::backward(loss);
  loss = Tensor{};
}

// Megatron's launch scripts for MindSpeed call it tps.
void Trainer::add_tokens_per_sample(Reports& reports) const {
  const std::int64_t samples = micro_batches_ * arguments_.schedule.micro_batch_size;
  reports.emplace_back("tokens per sample", tokens_ * dims_.degrees().cp / static_cast<double>(samples));
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
  mean_over(loss_axis_, means);
  metrics.loss = without_nan_sign(means[0]);
  for (std::size_t i = 0; i < metrics.reports.size(); ++i) {
    metrics.reports[i].second = without_nan_sign(means[i + 1]);
  }
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
  for (const int signal : launch::kStopSignals) means.push_back(own.signal == signal ? 1.0 : 0.0);
  means.push_back(own.time_is_up ? 1.0 : 0.0);
}

StopRequest Trainer::agreed_on(std::span<const double> means) {
  StopRequest agreed;
  if (means.empty()) return agreed;
  for (std::size_t i = 0; i < launch::kStopSignals.size() && agreed.signal == 0; ++i) {
    if (means[i] > 0) agreed.signal = launch::kStopSignals[i];
  }
  agreed.time_is_up = means.back() > 0;
  return agreed;
}

void Trainer::skip_iterations() {
  const std::vector<std::int64_t>& skipped = arguments_.schedule.iterations_to_skip;
  while (state_.step < arguments_.schedule.train_iters && std::ranges::binary_search(skipped, state_.step + 1)) {
    state_.step += 1;
    state_.samples_consumed += arguments_.schedule.global_batch_size;
    state_.samples_skipped += arguments_.schedule.global_batch_size;
    for (StepObserver* observer : observers_) observer->skipped(state_.step);
  }
}

StepMetrics Trainer::step() {
  const std::int64_t step = state_.step;
  for (StepObserver* observer : observers_) observer->begin_step(step);
  const auto start = std::chrono::steady_clock::now();
  device::DeviceMemory& memory = device::Device::current().memory();
  memory.reset_peaks();
  tokens_ = 0;
  StepMetrics metrics;
  metrics.step = step + 1;
  if (inputs_.fsdp2_config && inputs_.fsdp2_config->pregather) {
    begin_phase("pregather");
    sharding::pregather(sharded_);
  }
  StepWork work = run_actions();
  metrics.reports = std::move(work.reports);
  if (arguments_.log.log_tps) add_tokens_per_sample(metrics.reports);
  mean_of_step(work.loss, metrics);
  begin_phase("optimizer");
  update_->take(state_, metrics);
  begin_phase("end");
  state_.step += 1;
  state_.samples_consumed += arguments_.schedule.global_batch_size;
  metrics.samples_consumed = state_.samples_consumed;
  metrics.samples_skipped = state_.samples_skipped;
  metrics.peak_memory_bytes = peaks_by_category(memory.stats());
  metrics.peak_host_memory_bytes = device::Device::current().host_memory().stats().peak_bytes;
  for (auto observer = observers_.rbegin(); observer != observers_.rend(); ++observer) (*observer)->end_step(step);
  metrics.tokens_per_second = tokens_ * loss_axis_.size() / dims_.degrees().pp / seconds_since(start);
  return metrics;
}

// Of the weighted losses, and of the weights; `reports` are weighted too.
std::vector<double> Trainer::sums_of_evaluation(const data::DataLoader& loader, Reports& reports) {
  const std::int64_t count = arguments_.schedule.eval_iters * micro_batches_;
  const std::string place = fmt::format("the evaluation after iteration {}", state_.step);
  std::vector<double> sums(2);
  const auto batch_of = [&](std::int64_t i) {
    const std::int64_t first_sample = i / micro_batches_ * arguments_.schedule.global_batch_size;
    return run_users_code("the data loader", place, [&] { return loader(rows_of(first_sample, i % micro_batches_)); });
  };
  const auto add = [&](data::Batch batch, nn::Module& model) {
    const auto& counts = inputs_.objective.loaders.count_tokens;
    const double weight = counts ? counts(batch).loss_weight() : 1.0;
    const data::Loss loss = forward(data::DataIterator(std::move(batch)), model, place);
    sums[0] += weight * loss.loss.item();
    sums[1] += weight;
    add_reports(reports, loss.reports, weight);
  };
  if (!pipeline_) {
    for (std::int64_t i = 0; i < count; ++i) add(batch_of(i), *model_);
    return sums;
  }
  pipeline_->evaluate(count, {.forward =
                                  [&](PipelineStage& stage, std::int64_t i) {
                                    if (!stage.layout().loss) {
                                      data::DataIterator data(batch_of(i));
                                      return objective_.forward(data, stage).output.tensor();
                                    }
                                    add(batch_of(i), stage);
                                    return Tensor{};
                                  },
                              .begin_phase = {}});
  reports.emplace_back("", sums[1]);  // travels with them
  pipeline_->share(sums[0], reports);
  sums[1] = reports.back().second;
  reports.pop_back();
  return sums;
}

std::optional<Evaluation> Trainer::evaluate(const data::DataLoader& loader) {
  if (!loader || arguments_.schedule.eval_iters == 0) return std::nullopt;
  const autograd::NoGrad no_grad;
  model_->eval();
  Reports reports;
  std::vector<double> sums = sums_of_evaluation(loader, reports);
  model_->train();
  for (const auto& [name, sum] : reports) sums.push_back(sum);
  mean_over(loss_axis_, sums);
  if (sums[1] == 0) {
    if (this->reports()) log_warning("step {}: the evaluation counts no token, and has no loss", state_.step);
    return std::nullopt;
  }
  for (std::size_t i = 0; i < reports.size(); ++i) reports[i].second = without_nan_sign(sums[i + 2] / sums[1]);
  return Evaluation{without_nan_sign(sums[0] / sums[1]), std::move(reports)};
}

std::optional<std::string> Trainer::save(const std::filesystem::path& folder) {
  const sharding::JoinedShards joined(*model_);
  const io::HfWeights* loaded = loaded_weights(inputs_, *model_);
  const auto lora = models::lora_of(sharded_);
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::optional<std::string> bad;
  const bool collects = pipeline_ ? mesh_.coordinates(rank_) == first_of_stage(mesh_, rank_) : reports();
  const auto take = [&](const std::string& path, const Tensor& full) {
    if (!collects) return;
    if (!bad && !all_finite(full)) bad = path;
    const io::HfWeights* of_base = lora == nullptr ? loaded : nullptr;  // adapters are fp32 beside a bf16 base
    tensors.emplace_back(path,
                         cast_to(full, dtype_to_save(path, full.dtype(), arguments_.checkpoint.save_dtype, of_base)));
  };
  sharding::for_each_full_parameter(sharded_, take,
                                    [&](const std::string& path) { return lora == nullptr || lora->is_tuned(path); });
  if (!collects) return std::nullopt;
  if (lora == nullptr) {
    for (const auto& [path, buffer] : nn::persistent_buffers(sharded_)) {
      const Tensor whole = Tensor::host(buffer.shape(), buffer.dtype(), path);
      whole.copy_from(buffer);
      take(path, whole);
    }
  }
  if (pipeline_) {
    tensors = pipeline_->collected(std::move(tensors));
    if (!reports()) return std::nullopt;
    for (const auto& [path, tensor] : tensors) {
      if (!bad && !all_finite(tensor)) bad = path;
    }
  }
  if (bad) {
    return fmt::format("the model is not written, since '{}' has values that are not finite; {} keeps what it held",
                       *bad, folder.string());
  }
  if (lora != nullptr) {
    models::write_adapter_folder(folder, models::adapter_config_json(*lora, base_model()), tensors);
  } else if (callbacks_.save_model) {
    callbacks_.save_model(folder, TrainArguments(arguments_), tensors);
  } else {
    save_model_folder(folder, arguments_.model, *model_, loaded, tensors);
  }
  return std::nullopt;
}

}  // namespace loom::train
