// The norms of fully_shard.h: sums over all ranks of what each parameter has.
#include <cmath>
#include <unordered_map>

#include "engine/nn/optim/gradients.h"
#include "sharding/fully_shard.h"
#include "sharding/pipeline/pipeline_ranks.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::sharding {
namespace {

// One rank's part of a list of parameters.
using SumOf = double (*)(const std::vector<Tensor>& parameters);
using Parameters = std::vector<std::vector<Tensor>>;  // by part

// Shards over the same ranks: what they have is summed over these, and over the ranks with other parts. Copies on the
// latter count once.
struct Term {
  FsdpAxes axes;
  int copies = 1;
  Parameters shards;
  std::vector<double> sums;
};

Term& term_of(const FsdpAxes& axes, int copies, std::size_t parts, std::vector<Term>& terms) {
  for (Term& term : terms) {
    if (term.copies != copies) continue;
    const bool same_parts = term.axes.parts.has_value() == axes.parts.has_value() &&
                            (!axes.parts || same_ranks(*term.axes.parts, *axes.parts));
    if (same_parts && same_ranks(term.axes.shard, axes.shard)) return term;
  }
  return terms.emplace_back(Term{axes, copies, Parameters(parts), {}});
}

std::vector<double> sums_of(const Parameters& parameters, SumOf sum_of) {
  std::vector<double> sums;
  for (const std::vector<Tensor>& part : parameters) sums.push_back(sum_of(part));
  return sums;
}

void all_reduce_sums(const comm::Axis& axis, std::vector<double>& sums, const comm::ReduceOp& op) {
  if (axis.size() == 1) return;
  axis.group().all_reduce(comm::kHostLane, sums.data(), static_cast<std::int64_t>(sums.size()), DType::kF64, op,
                          "gradient norm");
}

// Sums the sums over the shard axes of their terms. Those of `whole`, of which every rank has its own, become their
// means over the ranks of the first term's axes; they travel with that term's sums.
void sum_over_ranks(std::vector<Term>& terms, std::vector<double>& whole, bool has_whole) {
  for (Term& term : terms) {
    const comm::Axis& shard = term.axes.shard;
    const bool first = &term == &terms.front();
    std::vector<double> sums = term.sums;
    if (first) {
      for (const double sum : whole) sums.push_back(sum / shard.size());
    }
    all_reduce_sums(shard, sums, comm::ReduceOp::sum());
    const auto own = sums.begin() + static_cast<std::ptrdiff_t>(term.sums.size());
    if (first) whole.assign(own, sums.end());
    term.sums.assign(sums.begin(), own);
    if (term.axes.parts) all_reduce_sums(*term.axes.parts, term.sums, comm::ReduceOp::sum());
  }
  if (!terms.empty() && has_whole) all_reduce_sums(terms.front().axes.replicate, whole, comm::ReduceOp::avg());
}

// The sum of each part over all ranks, each parameter once.
std::vector<double> sums_over_ranks(nn::Module& root, const ParameterParts& parts, SumOf sum_of) {
  std::unordered_map<const void*, std::size_t> part_of;
  for (auto& [path, parameter] : root.named_parameters()) part_of.emplace(parameter.id(), parts.of(path));
  std::vector<Term> terms;
  const auto ranks = root.attachment<PipelineRanks>();
  const auto is_copy = [&](const nn::ParamSlot* slot) { return ranks != nullptr && ranks->copies.contains(slot); };
  const auto shares = root.attachment<TensorShares>();
  std::unordered_map<const void*, std::size_t> rest = part_of;
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      const int copies = copies_of(shares.get(), *param->home().slots.front());
      Term& term = term_of(state->group()->axes(), copies, parts.count, terms);
      const void* id = param->sharded().id();
      if (is_copy(param->home().slots.front())) {
        rest.erase(id);
        continue;
      }
      const auto part = part_of.find(id);  // a gathered one has another tensor in its place, and no part
      term.shards[part == part_of.end() ? 0 : part->second].push_back(param->sharded());
      rest.erase(id);
    }
  }
  Parameters whole(parts.count);  // ignored: every rank has its own copy, whose mean counts once
  for (const Tensor& parameter : root.parameters()) {
    if (const auto found = rest.find(parameter.id()); found != rest.end()) whole[found->second].push_back(parameter);
  }
  for (Term& term : terms) {
    term.sums = sums_of(term.shards, sum_of);
    for (double& sum : term.sums) sum /= term.copies;
  }
  std::vector<double> of_whole = sums_of(whole, sum_of);
  sum_over_ranks(terms, of_whole, !rest.empty());
  std::vector<double> sums(parts.count);
  for (std::size_t part = 0; part < parts.count; ++part) {
    for (const Term& term : terms) sums[part] += term.sums[part];
    sums[part] += of_whole[part];
  }
  if (ranks != nullptr) {
    ranks->stages->all_reduce(comm::kHostLane, sums.data(), static_cast<std::int64_t>(sums.size()), DType::kF64,
                              comm::ReduceOp::sum(), "gradient norm");
  }
  return sums;
}

double sum_over_ranks_of_all(nn::Module& root, SumOf sum_of) {
  return sums_over_ranks(root, {1, [](const std::string&) { return std::size_t{0}; }}, sum_of).front();
}

std::vector<double> roots(std::vector<double> squares) {
  for (double& square : squares) square = std::sqrt(square);
  return squares;
}

}  // namespace

double grad_norm(nn::Module& root) { return std::sqrt(sum_over_ranks_of_all(root, nn::gradient_sum_of_squares)); }

double params_norm(nn::Module& root) { return std::sqrt(sum_over_ranks_of_all(root, nn::sum_of_squares)); }

std::vector<double> grad_norms(nn::Module& root, const ParameterParts& parts) {
  return roots(sums_over_ranks(root, parts, nn::gradient_sum_of_squares));
}

std::vector<double> params_norms(nn::Module& root, const ParameterParts& parts) {
  return roots(sums_over_ranks(root, parts, nn::sum_of_squares));
}

double zeros_in_grad(nn::Module& root) { return sum_over_ranks_of_all(root, nn::gradient_zeros); }

double clip_grad_norm(nn::Module& root, double max_norm) {
  const double norm = grad_norm(root);
  nn::clip_gradients(root.parameters(), norm, max_norm);
  return norm;
}

}  // namespace loom::sharding
