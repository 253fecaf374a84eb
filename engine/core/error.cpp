#include "engine/core/error.h"

#include "engine/core/rank_context.h"

namespace loom {

std::string rank_prefix() {
  const RankContext* context = RankContext::current_or_null();
  return context == nullptr ? std::string{} : fmt::format("[rank {}] ", context->rank());
}

std::string model_prefix() {
  const RankContext* context = RankContext::current_or_null();
  const std::string place = context == nullptr ? std::string{} : context->program_place();
  return rank_prefix() + (place.empty() ? place : fmt::format("in {}: ", place));
}

}  // namespace loom
