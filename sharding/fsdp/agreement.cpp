#include "sharding/fsdp/agreement.h"

#include <fmt/format.h>

#include "engine/comm/exchange.h"
#include "engine/core/error.h"
#include "engine/core/shown_path.h"
#include "sharding/fsdp/fsdp_state.h"

namespace loom::sharding {
namespace {

using comm::ProcessGroup;

std::string_view dtype_name(std::optional<DType> dtype) { return dtype ? name(*dtype) : "unchanged"; }

[[noreturn]] void report(const ProcessGroup& group, const std::vector<std::vector<std::string>>& lines) {
  const auto line_of = [&](std::size_t rank, std::size_t i) {
    return i < lines[rank].size() ? lines[rank][i] : std::string("nothing");
  };
  std::size_t first = 0;
  std::size_t other = 0;
  while (other == 0) {
    for (std::size_t rank = 1; rank < lines.size() && other == 0; ++rank) {
      if (line_of(rank, first) != line_of(0, first)) other = rank;
    }
    if (other == 0) ++first;
  }
  config_error(
      "ranks {} do not shard the same model the same way: rank {} has {}, rank {} has {}; give every rank the same "
      "model, fsdp2_config.yaml and frozen parameters",
      fmt::join(group.ranks(), ","), group.ranks()[0], line_of(0, first), group.ranks()[other], line_of(other, first));
}

void check_group(ProcessGroup& group, const std::string& text) {
  constexpr std::string_view kTag = "agreement of ranks";
  if (!comm::all_have_the_same(group, text, kTag)) report(group, comm::exchange_lines(group, text, kTag));
}

}  // namespace

std::vector<std::string> describe_for_agreement(const std::vector<FsdpState*>& states) {
  std::vector<std::string> lines;
  for (const FsdpState* state : states) {
    const ParamGroup* group = state->group();
    const MixedPrecisionPolicy& policy = state->options().policy;
    lines.push_back(fmt::format(
        "group '{}' (param_dtype {}, reduce_dtype {}, reshard_after_forward {}, {} forward and {} "
        "backward prefetches{})",
        shown_path(state->path()), dtype_name(policy.param_dtype), dtype_name(policy.reduce_dtype),
        group == nullptr ? "none" : group->switches().reshard_after_forward.text(), state->forward_prefetch().size(),
        state->backward_prefetch().size(), group == nullptr ? "" : group->describe_comm()));
    if (group == nullptr) continue;
    for (const auto& param : group->params()) {
      lines.push_back(fmt::format("'{}' {} {} {}{}", nn::join_path(state->path(), param->path()),
                                  to_string(param->shape()), name(param->original_dtype()),
                                  param->requires_grad() ? "trained" : "frozen",
                                  param->home().slots.size() > 1 ? ", tied" : ""));
    }
  }
  return lines;
}

void check_agreement(const std::vector<std::string>& lines, const std::vector<comm::Axis>& axes) {
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  for (const comm::Axis& axis : axes) {
    if (axis.size() > 1) check_group(axis.group(), text);
  }
}

}  // namespace loom::sharding
