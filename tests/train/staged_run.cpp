#include "tests/train/staged_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "engine/data/byte_batches.h"
#include "engine/device/recorder.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/functional.h"
#include "engine/nn/state_dict.h"
#include "engine/train/rank_setup.h"
#include "models/decoder/decoder.h"
#include "sharding/fully_shard.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::test {
namespace {

std::string file_of(const StagedRun& run) {
  const bool is_gpt2 = models::build_decoder(models::load_decoder_config(run.folder))->find("transformer.h") != nullptr;
  std::string keys = fmt::format(
      "sharding_size: {}\nreshard_after_forward: {}\nulysses_parallel_size: {}\nring_attention_size: {}\n"
      "tensor_parallel_size: {}\nsequence_parallel: {}\nsub_modules_to_wrap: {}\n",
      run.degrees.dp_shard * run.degrees.cp, run.reshards, run.context.ulysses, run.context.ring, run.degrees.tp,
      run.sequence_parallel, is_gpt2 ? "['transformer.h.{*}']" : "[model.embed_tokens, 'model.layers.{*}', lm_head]");
  if (run.ep > 1)
    keys += fmt::format("expert_parallel_size: {}\nmoe_modules: ['model.layers.{{*}}.mlp.experts']\n", run.ep);
  return keys;
}

train::TrainSections arguments_of(const StagedRun& run, std::int64_t batch) {
  const train::ParallelDegrees& degrees = run.degrees;
  const int data_ranks = degrees.dp_replicate * degrees.dp_shard;
  train::TrainSections a;
  a.launch.ranks = degrees.pp * data_ranks * degrees.cp * degrees.tp;
  a.model.init_from_hf_path = run.folder;
  a.schedule.global_batch_size = static_cast<int>(batch);
  a.schedule.micro_batch_size = static_cast<int>(batch / data_ranks / run.micro_batches);
  a.schedule.train_iters = a.schedule.lr_decay_iters = run.steps;
  a.schedule.lr = run.adamw.lr;
  a.schedule.lr_decay_style = train::LrDecayStyle::kConstant;
  a.schedule.weight_decay = run.adamw.weight_decay;
  a.optimizer.adam_beta1 = run.adamw.beta1;
  a.optimizer.adam_beta2 = run.adamw.beta2;
  a.optimizer.adam_eps = run.adamw.eps;
  a.optimizer.clip_grad = run.clip_grad;
  a.kernels.fused = nn::KernelOptions::pytorch();
  a.parallel.use_torch_fsdp2 = true;
  a.parallel.fsdp2_config =
      std::make_shared<const sharding::Fsdp2Config>(sharding::parse_fsdp2_config(file_of(run), "fsdp2_config.yaml"));
  a.parallel.pipeline.pipeline_model_parallel_size = degrees.pp;
  a.parallel.pipeline.pipeline_parallel_schedule = run.schedule;
  if (run.stages_per_rank > 1) {
    a.parallel.pipeline.num_virtual_stages_per_pipeline_rank = static_cast<int>(run.stages_per_rank);
  }
  if (!run.layers.empty()) a.parallel.pipeline.num_layer_list = fmt::format("{}", fmt::join(run.layers, ","));
  return a;
}

// Sample i is row i % batch of step i / batch.
data::Batch batch_of(const io::StoredTensor& tokens, std::span<const std::int64_t> samples) {
  const std::int64_t length = tokens.shape[2] - 1;
  const Shape shape{static_cast<std::int64_t>(samples.size()), length};
  const Tensor ids = Tensor::host(shape, DType::kI32, "ids"), targets = Tensor::host(shape, DType::kI32, "targets");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::byte* row = tokens.bytes.data() + samples[i] * (length + 1) * 4;
    std::memcpy(ids.data<std::int32_t>() + static_cast<std::int64_t>(i) * length, row, length * 4);
    std::memcpy(targets.data<std::int32_t>() + static_cast<std::int64_t>(i) * length, row + 4, length * 4);
  }
  return {{{"input_ids", ids}, {"targets", targets}}};
}

train::PretrainCallbacks callbacks_of(const StagedRun& run, const io::StoredTensor& tokens) {
  return {.train_valid_test_datasets_provider =
              [&tokens](const train::TrainArguments&) {
                return data::DataLoaders{
                    .train = [&tokens](std::span<const std::int64_t> samples) { return batch_of(tokens, samples); }};
              },
          .model_provider =
              [&run](const train::TrainArguments&) {
                return models::build_decoder(models::load_decoder_config(run.folder));
              },
          .forward_step =
              [](data::DataIterator& data, nn::Module& model) {
                const data::Batch batch = data.next();
                return data::ForwardResult{data::call_with_ids(model, batch),
                                           [targets = batch["targets"]](const nn::Value& logits) -> data::Loss {
                                             return nn::functional::cross_entropy(logits, targets);
                                           }};
              }};
}

// Gradients of the first step, before they are clipped.
class FirstGradients final : public train::StepObserver {
 public:
  explicit FirstGradients(nn::Module& model) : model_(model) {}
  void begin_phase(std::string_view phase) override {
    if (phase != "optimizer" || !found.empty()) return;
    // Those that see a part of the work are added up later, when the optimizer steps.
    std::map<const void*, comm::ProcessGroup*> sums;
    if (const auto shares = model_.attachment<sharding::TensorShares>()) {
      for (auto& [path, slot] : model_.named_slots()) {
        const auto share = shares->shares.find(slot);
        if (share != shares->shares.end()) sums[slot->value.id()] = share->second.sums.get();
      }
    }
    found = norms_of_parameters(model_, [&](const Tensor& shard) {
      const Tensor own = shard.grad();
      comm::ProcessGroup* ranks = sums[shard.id()];
      if (ranks == nullptr || !own.defined()) return own;
      const Tensor whole = Tensor::host(own.shape(), own.dtype(), "gradient");
      whole.copy_from(own);
      ranks->all_reduce(comm::kHostLane, whole.raw(), whole.numel(), whole.dtype(), comm::ReduceOp::sum(), "gradient");
      return whole;
    });
  }
  std::map<std::string, double> found;

 private:
  nn::Module& model_;
};

double sum_over(const comm::Axis& axis, double sum, const std::string& path) {
  if (axis.size() > 1) axis.group().all_reduce(comm::kHostLane, &sum, 1, DType::kF64, comm::ReduceOp::sum(), path);
  return sum;
}

// By the identity of the shard: the axes that it is cut over.
std::map<const void*, const sharding::FsdpAxes*> axes_of_shards(nn::Module& model) {
  std::map<const void*, const sharding::FsdpAxes*> axes;
  for (const sharding::FsdpState* state : sharding::FsdpState::collect(model)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) axes[param->sharded().id()] = &state->group()->axes();
  }
  return axes;
}

}  // namespace

std::map<std::string, double> norms_of_parameters(nn::Module& model, const std::function<Tensor(const Tensor&)>& pick) {
  const auto axes = axes_of_shards(model);
  const auto shares = model.attachment<sharding::TensorShares>();
  std::map<const void*, int> copies;
  for (auto& [path, slot] : model.named_slots()) copies[slot->value.id()] = copies_of(shares.get(), *slot);
  std::map<std::string, double> result;
  for (auto& [path, shard] : model.named_parameters()) {
    const Tensor tensor = pick(shard);
    if (!tensor.defined()) continue;
    double sum = 0;
    for (const double value : tensor.to_vector<double>()) sum += value * value;
    if (const auto found = axes.find(shard.id()); found != axes.end()) {
      sum = sum_over(found->second->shard, sum / copies.at(shard.id()), path);
      if (found->second->parts) sum = sum_over(*found->second->parts, sum, path);
    }
    result[path] = std::sqrt(sum);
  }
  return result;
}

StagedResults train_staged(const StagedRun& run, const RunRanks& run_ranks, const EndOfRank& at_end) {
  const io::SafetensorsFile file(run.folder / "tokens.safetensors");
  const io::StoredTensor& tokens = file.at("tokens");
  const train::TrainSections arguments = arguments_of(run, tokens.shape[1]);
  const train::PretrainCallbacks callbacks = callbacks_of(run, tokens);
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  StagedResults results;
  std::mutex mutex;
  run_ranks(arguments.launch.ranks, [&](RankContext& context, comm::World& world) {
    nn::make_rank(context, train::rank_setup(arguments));
    train::Trainer trainer(arguments, callbacks, inputs, world);
    FirstGradients gradients(trainer.model());
    trainer.set_observers({&gradients});
    std::vector<train::StepMetrics> metrics;
    device::Recording second;
    for (std::int64_t step = 0; step < run.steps; ++step) {
      std::optional<device::Recorder> recorder;
      if (step == 1) recorder.emplace(device::Device::current(), device::RecorderOptions{.entries = false});
      metrics.push_back(trainer.step());
      if (step == 1) second = recorder->recording();
    }
    const auto weights = norms_of_parameters(trainer.model(), [](const Tensor& shard) { return shard; });
    if (at_end) at_end(trainer, context.rank(), second);
    const std::lock_guard lock(mutex);
    const double factor = std::min(1.0, run.clip_grad / (metrics[0].grad_norm + 1e-6));
    for (const auto& [path, norm] : gradients.found) results.step1_grad_norm[path] = norm * factor;
    results.final_weight_norm.insert(weights.begin(), weights.end());
    for (const auto& [path, buffer] : nn::persistent_buffers(trainer.sharded_module())) {
      results.buffers[path] = buffer.to_vector<float>();
    }
    if (context.rank() != 0) return;
    for (const train::StepMetrics& one : metrics) {
      results.loss.push_back(one.loss);
      results.grad_norm.push_back(one.grad_norm);
    }
  });
  return results;
}

}  // namespace loom::test
