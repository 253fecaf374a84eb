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

namespace detail {

void throw_config_error(fmt::string_view format, fmt::format_args args) {
  throw ConfigError(fmt::vformat(format, args));
}

void throw_model_error(fmt::string_view format, fmt::format_args args) {
  throw ModelError(model_prefix() + fmt::vformat(format, args));
}

void throw_internal_error(fmt::string_view format, fmt::format_args args) {
  throw InvariantError(rank_prefix() + "internal: " + fmt::vformat(format, args));
}

std::string text_of_rank(fmt::string_view format, fmt::format_args args) {
  return rank_prefix() + fmt::vformat(format, args);
}

}  // namespace detail
}  // namespace loom
