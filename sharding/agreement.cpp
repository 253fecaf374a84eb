#include "sharding/agreement.h"

#include <algorithm>
#include <cstring>
#include <fmt/ranges.h>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "sharding/state.h"

namespace loom::sharding {
namespace {

using comm::Channel;
using comm::ProcessGroup;

std::string_view dtype_name(std::optional<DType> dtype) { return dtype ? name(*dtype) : "unchanged"; }

// Every member's `bytes`, in rank order.
std::vector<char> exchange(ProcessGroup& group, const char* own, std::size_t bytes) {
  std::vector<char> all(bytes * static_cast<std::size_t>(group.size()));
  const comm::GatherPart part{own, all.data(), bytes};
  group.all_gather(Channel::kHost, {&part, 1}, "agreement of ranks");
  return all;
}

template <class T>
std::vector<T> exchange_value(ProcessGroup& group, const T& own) {
  const std::vector<char> bytes = exchange(group, reinterpret_cast<const char*>(&own), sizeof own);
  std::vector<T> values(static_cast<std::size_t>(group.size()));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

std::vector<std::vector<std::string>> exchange_lines(ProcessGroup& group, const std::string& own) {
  const auto sizes = exchange_value<std::uint64_t>(group, own.size());
  const std::size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = own;
  padded.resize(longest);
  const std::vector<char> all = exchange(group, padded.data(), longest);
  std::vector<std::vector<std::string>> lines;
  for (std::size_t r = 0; r < sizes.size(); ++r) lines.push_back(split_lines({all.data() + r * longest, sizes[r]}));
  return lines;
}

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
  const std::uint64_t digest = stream_key(0, text);
  const auto digests = exchange_value(group, digest);
  if (std::all_of(digests.begin(), digests.end(), [&](std::uint64_t d) { return d == digests[0]; })) return;
  report(group, exchange_lines(group, text));
}

}  // namespace

std::vector<std::string> describe_for_agreement(const std::vector<State*>& states) {
  std::vector<std::string> lines;
  for (const State* state : states) {
    const ParamGroup* group = state->group();
    const MixedPrecisionPolicy& policy = state->options().policy;
    lines.push_back(
        fmt::format("group '{}' (param_dtype {}, reduce_dtype {}, reshard_after_forward {}, {} forward and {} "
                    "backward prefetches)",
                    state->path(), dtype_name(policy.param_dtype), dtype_name(policy.reduce_dtype),
                    group == nullptr                  ? "none"
                    : group->post_forward_ranks() > 0 ? std::to_string(group->post_forward_ranks())
                                                      : (group->reshard_after_forward ? "true" : "false"),
                    state->forward_prefetch().size(), state->backward_prefetch().size()));
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

void check_agreement(const std::vector<std::string>& lines, const comm::DeviceMesh& mesh) {
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  if (mesh.shard_size() > 1) check_group(mesh.shard(), text);
  if (mesh.replicate() != nullptr) check_group(*mesh.replicate(), text);
}

}  // namespace loom::sharding
