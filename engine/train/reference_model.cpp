#include "engine/train/reference_model.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <set>

#include "engine/comm/exchange.h"
#include "engine/core/digest.h"
#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/core/shown_text.h"
#include "engine/data/content.h"
#include "engine/device/device.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/train/sharded_model.h"

namespace loom::train {
namespace {

struct Reference {
  nn::Module* model = nullptr;
  std::shared_ptr<const ReferenceLogProbs> values;
};

Reference& slot() { return RankContext::current().slot<Reference>(); }

std::vector<double> computed_by(nn::Module& model, const data::Batch& batch) {
  const autograd::NoGrad no_grad;
  const Tensor log_probs = ops::sequence_log_probs(model(batch["input_ids"]), batch["targets"]);
  if (log_probs.raw() == nullptr) return std::vector<double>(static_cast<std::size_t>(log_probs.numel()));
  return log_probs.to_vector<double>();
}

std::vector<double> looked_up(const ReferenceLogProbs& values, const nn::ValueList& numbers) {
  std::vector<double> found;
  for (const std::vector<double>* answers : {&values.chosen, &values.rejected}) {
    for (const nn::Value& number : numbers) found.push_back(answers->at(static_cast<std::size_t>(number.number())));
  }
  return found;
}

// --- what values are computed from

// Which tensors there are, and how they are drawn.
std::string drawn_weights(nn::Module& model, std::uint64_t seed) {
  std::uint64_t found = kDigestSeed;
  for (const auto& [path, slot] : model.named_slots()) {
    const std::string said = fmt::format("{} {} {} {} {}", path, to_string(slot->shard.global_shape),
                                         static_cast<int>(slot->init.kind), slot->init.std, slot->init.value);
    found = digest(said.data(), said.size(), found);
  }
  return fmt::format("{:016x}, drawn from seed {}", found, seed);
}

std::string stored_weights(const io::HfWeights& weights) {
  std::set<std::filesystem::path> files;
  for (const std::string& name : weights.names()) files.insert(weights.at(name).file->path());
  const std::vector<std::filesystem::path> listed(files.begin(), files.end());
  return fmt::format("{:016x}", data::content_of(listed).digest);
}

std::string data_words(const data::DataOptions& data) {
  std::vector<std::string> words;
  for (const auto& path : data.data_path) words.push_back(path.string());
  for (const auto& part : data.part_data_path) words.insert(words.end(), part.begin(), part.end());
  return fmt::format("{}", fmt::join(words, " "));
}

ReferenceFacts facts_of(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                        const TrainingInputs& inputs) {
  const auto model = provide_model(arguments, callbacks);
  const io::HfWeights* weights = inputs.reference_weights ? &*inputs.reference_weights : loaded_weights(inputs, *model);
  const bool computes_in_other = inputs.fsdp2_config && inputs.fsdp2_config->param_dtype;
  ReferenceFacts facts{
      .weights = weights == nullptr ? drawn_weights(*model, arguments.data.seed) : stored_weights(*weights),
      .weights_at = weights == nullptr ? "" : weights->folder().string(),
      .data = inputs.data.numbered->digest(),
      .data_at = data_words(arguments.data),
      .pairs = inputs.data.numbered->count,
      .seq_length = arguments.data.seq_length,
      .cut = arguments.data.cut_max_seqlen ? "end" : "none",
      .dtype = std::string(name(computes_in_other ? *inputs.fsdp2_config->param_dtype : DType::kF32))};
  if (weights != nullptr && arguments.model.downcast_to_bf16) facts.weights += ", rounded to bf16";
  return facts;
}

// --- the file, at rank 0

// What rank 0 did, as all ranks hear it: nothing, or the text of its error.
class AtRank0 {
 public:
  AtRank0(comm::ProcessGroup& group) : group_(group) {}

  // Collective. What `act` returns at rank 0; its ConfigError is every rank's.
  template <class Act>
  std::string tell(Act&& act) const {
    std::string own;
    if (group_.rank() == 0) {
      try {
        own = "+" + act();
      } catch (const ConfigError& error) {
        own = std::string("-") + error.what();
      }
    }
    const std::string said = fmt::format("{}", fmt::join(comm::exchange_lines(group_, own, kTag).front(), "\n"));
    if (said.starts_with('-')) config_error("{}", said.substr(1));
    return said.substr(1);
  }
  // Collective. Adds up what the ranks have; where one has a number, the others have 0.
  void add_up(std::vector<double>& values) const {
    if (group_.size() == 1 || values.empty()) return;
    group_.all_reduce(comm::kHostLane, values.data(), static_cast<std::int64_t>(values.size()), DType::kF64,
                      comm::ReduceOp::sum(), kTag);
  }

 private:
  static constexpr const char* kTag = "reference log-probabilities";
  comm::ProcessGroup& group_;
};

// This rank's part of them; zeros elsewhere.
ReferenceLogProbs compute(nn::Module& model, const data::NumberedSamples& samples, std::int64_t micro_batch,
                          std::int64_t rank, std::int64_t ranks) {
  const auto count = static_cast<std::size_t>(samples.count);
  ReferenceLogProbs values{std::vector<double>(count), std::vector<double>(count)};
  // Every rank makes as many calls; what goes beyond the last pair begins again and is not kept.
  for (std::int64_t begin = 0; begin < samples.count; begin += micro_batch * ranks) {
    const std::int64_t first = begin + rank * micro_batch;
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < micro_batch; ++i) numbers.push_back((first + i) % samples.count);
    const std::vector<double> found = computed_by(model, data::DataIterator(samples.batch, numbers).next());
    for (std::int64_t i = 0; i < micro_batch && first + i < samples.count; ++i) {
      values.chosen[static_cast<std::size_t>(first + i)] = found[static_cast<std::size_t>(i)];
      values.rejected[static_cast<std::size_t>(first + i)] = found[static_cast<std::size_t>(micro_batch + i)];
    }
  }
  return values;
}

}  // namespace

std::shared_ptr<nn::Module> make_reference_model(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                                 const TrainingInputs& inputs, comm::World& world) {
  auto model = provide_model(arguments, callbacks);
  // Frozen before it is sharded: its groups are gathered and never reduced.
  for (const Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  shard_and_fill(*model, inputs.reference_weights ? inputs.reference_weights : inputs.weights, arguments, inputs,
                 world);
  model->eval();
  return model;
}

void set_reference_model(nn::Module* model) { slot().model = model; }

void set_reference_log_probs(std::shared_ptr<const ReferenceLogProbs> values) { slot().values = std::move(values); }

std::vector<double> reference_log_probs(const data::Batch& batch) {
  const Reference& reference = slot();
  const nn::Value& numbers = batch.find("numbers");
  if (reference.values && !numbers.is_none()) return looked_up(*reference.values, numbers.list());
  if (reference.model != nullptr) return computed_by(*reference.model, batch);
  if (batch["input_ids"].raw() == nullptr) {
    return std::vector<double>(static_cast<std::size_t>(batch["input_ids"].shape()[0]));
  }
  config_error(
      "there is neither a reference model nor its log-probabilities; set has_reference_model in PretrainCallbacks, or "
      "give --ref-logps-cache and number the samples (DataLoaders::numbered)");
}

std::string provide_reference_log_probs(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                        const TrainingInputs& inputs, const ParallelDims& dims, comm::World& world) {
  const std::string file = arguments.objective.ref_logps_cache->string();
  if (!inputs.data.numbered) {
    config_error("--ref-logps-cache {}: the data's samples have no numbers; set DataLoaders::numbered", escaped(file));
  }
  const auto group = world.everyone("reference log-probabilities");
  const AtRank0 rank_0(*group);
  const data::NumberedSamples& samples = *inputs.data.numbered;
  const auto count = static_cast<std::size_t>(samples.count);
  ReferenceLogProbs values{std::vector<double>(count), std::vector<double>(count)};
  std::optional<ReferenceFacts> facts;  // at rank 0
  const bool is_there = rank_0.tell([&]() -> std::string {
    facts = facts_of(arguments, callbacks, inputs);
    if (!std::filesystem::exists(file)) return "absent";
    values = read_reference_log_probs(file, *facts);
    return "there";
  }) == "there";
  if (!is_there) {
    const auto model = make_reference_model(arguments, callbacks, inputs, world);
    values =
        compute(*model, samples, arguments.schedule.micro_batch_size, dims.data_rank(world.rank()), dims.data_size());
  }
  rank_0.add_up(values.chosen);
  rank_0.add_up(values.rejected);
  if (!is_there) {
    rank_0.tell([&]() -> std::string {
      write_reference_log_probs(file, *facts, values);
      return "written";
    });
  }
  set_reference_log_probs(std::make_shared<const ReferenceLogProbs>(std::move(values)));
  return fmt::format("log-probabilities of the reference model for {} pairs {} {}", count,
                     is_there ? "read from" : "computed, and written to", escaped(file));
}

}  // namespace loom::train
