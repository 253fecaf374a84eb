// ExpertExchange: tokens on their way to the ranks that have their experts, and back. Private to models.
//
// Letters  e ranks share E experts, rank r has those from r E / e on; R rows of this rank in order of expert, one for
//          each token and expert it goes to; R' rows that it receives.
// Order    what comes from rank 0 first, and of one rank in order of expert; dispatch() puts the rows in order of this
//          rank's experts, inside an expert by rank. So sums over an expert's rows do not depend on timing.
// Counts   go ahead of the rows: every rank knows from them how many rows come from each rank.
// Dry run  there are no tokens to count: rows are shared out evenly, or as expert_load.h says.
// Errors   CommError of the group.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/mesh.h"
#include "engine/dist/operators.h"
#include "engine/tensor/ops/moe.h"

namespace loom::models {

class ExpertExchange {
 public:
  // Precondition: the axis has e ranks, and e divides `experts`.
  // `path` of the module names the work in errors and traces.
  ExpertExchange(const comm::Axis& axis, std::int64_t experts, std::string path);

  struct Dispatched {
    Tensor rows;            // [R', H]
    ops::ExpertRows order;  // of these rows, among this rank's experts
    dist::RowCounts counts;
  };
  // x [R, H] in the order of `rows`, which are of all E experts.
  Dispatched dispatch(const Tensor& x, const ops::ExpertRows& rows) const;
  // y [R', H] in the order of `to.order` -> [R, H] in that of the rows that were dispatched.
  Tensor combine(const Tensor& y, const Dispatched& to) const;

 private:
  // How many of `rows` rows this rank has for each expert.
  std::vector<std::int64_t> own_counts(const Tensor& offsets, std::int64_t rows) const;
  // [e, E]: how many rows each rank has for each expert.
  std::vector<std::int64_t> counts_of_all(const Tensor& offsets, std::int64_t rows) const;

  const dist::Channel ranks_;
  const std::int64_t experts_;
  const std::int64_t own_;  // experts of this rank
  const std::string path_;
};

}  // namespace loom::models
