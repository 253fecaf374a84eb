#include "engine/tensor/kept_results.h"

#include "engine/core/rank_context.h"

namespace loom::autograd {
namespace {

struct Keepers {
  std::vector<ResultKeeper*> stack;  // innermost last

  static std::vector<ResultKeeper*>& current() { return RankContext::current().slot<Keepers>().stack; }
};

}  // namespace

ResultKeeper::~ResultKeeper() = default;

ResultKeeperScope::ResultKeeperScope(ResultKeeper& keeper) { Keepers::current().push_back(&keeper); }
ResultKeeperScope::~ResultKeeperScope() { Keepers::current().pop_back(); }

std::vector<Tensor> compute_or_recall(Producer producer, const std::function<std::vector<Tensor>()>& compute) {
  const std::vector<ResultKeeper*>& keepers = Keepers::current();
  if (keepers.empty()) return compute();
  if (std::vector<Tensor> kept = keepers.back()->recall(producer); !kept.empty()) return kept;
  std::vector<Tensor> results = compute();
  keepers.back()->computed(producer, results);
  return results;
}

}  // namespace loom::autograd
