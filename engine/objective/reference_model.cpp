#include "engine/objective/reference_model.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <set>

#include "engine/comm/exchange.h"
#include "engine/core/digest.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/content.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"

namespace loom::objective {
namespace {

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

ReferenceFacts facts_of(const ReferenceSource& source, const data::DataOptions& data,
                        const data::NumberedSamples& samples) {
  const auto model = source.provide();
  const io::HfWeights* weights = source.weights(*model);
  ReferenceFacts facts{.weights = weights == nullptr ? drawn_weights(*model, data.seed) : stored_weights(*weights),
                       .weights_at = weights == nullptr ? "" : weights->folder().string(),
                       .data = samples.digest(),
                       .data_at = data_words(data),
                       .pairs = samples.count,
                       .seq_length = data.seq_length,
                       .cut = data.cut_max_seqlen ? "end" : "none",
                       .dtype = std::string(name(source.computes_in))};
  if (source.rounds_to_bf16) facts.weights += ", rounded to bf16";
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
ReferenceLogProbs compute(nn::Module& model, const data::NumberedSamples& samples, const ReferenceShare& share) {
  const auto count = static_cast<std::size_t>(samples.count);
  const std::int64_t micro_batch = share.micro_batch_size;
  ReferenceLogProbs values{std::vector<double>(count), std::vector<double>(count)};
  // Every rank makes as many calls; what goes beyond the last pair begins again and is not kept.
  for (std::int64_t begin = 0; begin < samples.count; begin += micro_batch * share.data_size) {
    const std::int64_t first = begin + share.data_rank * micro_batch;
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < micro_batch; ++i) numbers.push_back((first + i) % samples.count);
    const std::vector<double> found = log_probs_of(model, data::DataIterator(samples.batch, numbers).next());
    for (std::int64_t i = 0; i < micro_batch && first + i < samples.count; ++i) {
      values.chosen[static_cast<std::size_t>(first + i)] = found[static_cast<std::size_t>(i)];
      values.rejected[static_cast<std::size_t>(first + i)] = found[static_cast<std::size_t>(micro_batch + i)];
    }
  }
  return values;
}

}  // namespace

std::shared_ptr<nn::Module> make_reference_model(const ReferenceSource& source) {
  auto model = source.provide();
  // Frozen before it is sharded: its groups are gathered and never reduced.
  for (const Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  source.shard_and_fill(*model);
  model->eval();
  return model;
}

std::vector<double> log_probs_of(nn::Module& model, const data::Batch& batch) {
  const autograd::NoGrad no_grad;
  const Tensor log_probs = ops::sequence_log_probs(model(batch["input_ids"]), batch["targets"]);
  if (log_probs.raw() == nullptr) return std::vector<double>(static_cast<std::size_t>(log_probs.numel()));
  return log_probs.to_vector<double>();
}

ProvidedLogProbs provide_reference_log_probs(const std::filesystem::path& path, const ReferenceSource& source,
                                             const data::DataOptions& data,
                                             const std::optional<data::NumberedSamples>& samples,
                                             const ReferenceShare& share, comm::World& world) {
  const std::string file = path.string();
  if (!samples) {
    config_error("--ref-logps-cache {}: the data's samples have no numbers; set DataLoaders::numbered", escaped(file));
  }
  const auto group = world.everyone("reference log-probabilities");
  const AtRank0 rank_0(*group);
  const auto count = static_cast<std::size_t>(samples->count);
  ReferenceLogProbs values{std::vector<double>(count), std::vector<double>(count)};
  std::optional<ReferenceFacts> facts;  // at rank 0
  const bool is_there = rank_0.tell([&]() -> std::string {
    facts = facts_of(source, data, *samples);
    if (!std::filesystem::exists(file)) return "absent";
    values = read_reference_log_probs(file, *facts);
    return "there";
  }) == "there";
  if (!is_there) values = compute(*make_reference_model(source), *samples, share);
  rank_0.add_up(values.chosen);
  rank_0.add_up(values.rejected);
  if (!is_there) {
    rank_0.tell([&]() -> std::string {
      write_reference_log_probs(file, *facts, values);
      return "written";
    });
  }
  return {std::move(values), fmt::format("log-probabilities of the reference model for {} pairs {} {}", count,
                                         is_there ? "read from" : "computed, and written to", escaped(file))};
}

}  // namespace loom::objective
