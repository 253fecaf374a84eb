#include "engine/core/error.h"

#include "engine/core/rank_context.h"

namespace loom {

std::string rank_prefix() {
  const RankContext* context = RankContext::current_or_null();
  return context == nullptr ? std::string{} : fmt::format("[rank {}] ", context->rank());
}

}  // namespace loom
