// ExpertModule: a module of experts that ranks can share: each rank then has some of them, and tokens travel.
#pragma once

#include <cstdint>
#include <string>

#include "engine/comm/mesh.h"
#include "sharding/config/token_dispatcher.h"

namespace loom::sharding {

struct ExpertSharing {
  TokenDispatcher dispatcher = TokenDispatcher::kAllToAll;
  bool overlaps_shared_expert = false;  // the expert of every token runs beside the dispatch
};

class ExpertModule {
 public:
  virtual ~ExpertModule() = default;

  // Of the whole layer. Every parameter of the module has as many rows, row e being expert e.
  virtual std::int64_t expert_count() const = 0;
  // How many experts a token goes to, and the elements that travel for each of them.
  virtual std::int64_t choices() const = 0;
  // Whether all tokens go to all ranks.
  virtual bool gathers_tokens() const { return false; }
  virtual std::int64_t row_elems() const = 0;
  // From now on rank r of the axis, of e ranks, has experts [r E / e, (r + 1) E / e), and computes them for the tokens
  // of all ranks of the axis. The caller has cut the parameters. e divides E. Before the first forward. `path` is the
  // module's in the model, for errors and traces.
  virtual void share_experts(const comm::Axis& axis, const std::string& path, const ExpertSharing& sharing) = 0;
};

}  // namespace loom::sharding
