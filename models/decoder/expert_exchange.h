// ExpertExchange: tokens on their way to the ranks that have their experts, and back. Private to models.
//
// Letters  e ranks share E experts (expert_routes.h); R rows of this rank in order of expert, one for each token and
//          expert it goes to; R' rows that it receives.
// Order    what comes from rank 0 first, and of one rank in order of expert; dispatch() puts the rows in order of this
//          rank's experts, inside an expert by rank. So sums over an expert's rows do not depend on timing.
// Counts   go ahead of the rows: every rank knows from them how many rows come from each rank.
// Errors   CommError of the group.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/dist/operators.h"
#include "models/decoder/expert_routes.h"

namespace loom::models {

class ExpertExchange {
 public:
  // As ExpertRoutes.
  ExpertExchange(const comm::Axis& axis, std::int64_t experts, std::string path)
      : routes_(axis, experts, std::move(path)) {}

  struct Dispatched {
    Tensor rows;            // [R', H]
    ops::ExpertRows order;  // of these rows, among this rank's experts
    dist::RowCounts counts;
    std::int64_t unused = 0;  // the last of the R rows, which are no token's
  };
  // x [R, H] in the order of `rows`, which are of all E experts and made with `capacity`. `beside`, unless null, runs
  // while the rows travel.
  Dispatched dispatch(const Tensor& x, const ops::ExpertRows& rows, const ops::ExpertCapacity& capacity,
                      const std::function<void()>& beside) const;
  // y [R', H] in the order of `to.order` -> [R, H] in that of the rows that were dispatched.
  Tensor combine(const Tensor& y, const Dispatched& to) const;

 private:
  // [e, E]: how many rows each rank has for each expert.
  std::vector<std::int64_t> counts_of_all(const Tensor& offsets, std::int64_t rows,
                                          const ops::ExpertCapacity& capacity) const;
  Tensor sent(const Tensor& x, const dist::RowCounts& counts, const std::function<void()>& beside) const;

  const ExpertRoutes routes_;
};

}  // namespace loom::models
