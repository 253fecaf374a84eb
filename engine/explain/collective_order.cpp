#include "engine/explain/collective_order.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <map>

#include "engine/core/shown_path.h"
#include "sharding/marks.h"
#include "sharding/streams.h"

namespace loom::explain {
namespace {

using device::CollectiveKind;
using device::Entry;
using device::EntryKind;
using device::Mark;

struct KindNames {
  CollectiveKind kind;
  std::string_view op;
  std::string_view words;  // of a group's
};
constexpr std::array<KindNames, 6> kKinds{{{CollectiveKind::kAllGather, "ALLGATHER", "all-gather"},
                                           {CollectiveKind::kReduceScatter, "REDUCE_SCATTER", "reduce-scatter"},
                                           {CollectiveKind::kAllReduce, "ALLREDUCE", "all-reduce"},
                                           {CollectiveKind::kAllToAll, "ALLTOALL", "all-to-all"},
                                           {CollectiveKind::kSendRecv, "COALESCED", "exchange"},
                                           {CollectiveKind::kMessage, "SEND", "message"}}};

std::string_view op_of(CollectiveKind kind) { return std::ranges::find(kKinds, kind, &KindNames::kind)->op; }

// Walks through a recording; marks say of which dtype a group's collectives are.
class Orders {
 public:
  explicit Orders(const device::Recording& recording) : recording_(recording) {
    recording.visit([this](const Entry& entry) { add_entry(entry); }, [this](const Mark& mark) { add_mark(mark); });
  }

  std::vector<CollectiveOrder> take() { return std::move(orders_); }

 private:
  void add_entry(const Entry& entry) {
    if (entry.kind == EntryKind::kPhase) {
      phase_ = recording_.text(entry.name);
      micro_batch_ = phases_[phase_]++;
    }
    if (entry.kind != EntryKind::kCollective) return;
    const std::vector<int>& ranks = recording_.group(entry.group);
    const bool of_group = entry.stream == sharding::kGatherStream || entry.stream == sharding::kReduceScatterStream ||
                          entry.stream == sharding::kAllReduceStream;
    PlannedCollective planned{.op = std::string(op_of(entry.collective)),
                              .subject = recording_.text(entry.subject),
                              .phase = phase_,
                              .micro_batch = micro_batch_,
                              .of_group = of_group,
                              .prefetched = false,
                              .bytes = entry.bytes,
                              .ranks = std::ssize(ranks),
                              .element_bytes = 0};
    if (of_group && entry.stream != sharding::kGatherStream) planned.element_bytes = reduced_bytes_;
    const std::size_t order = order_of(entry);
    if (entry.stream == sharding::kGatherStream) gathered_ = {order, orders_[order].step.size()};
    orders_[order].step.push_back(std::move(planned));
  }

  // The mark of a gather follows its entry, the mark of a reduction precedes it.
  void add_mark(const Mark& mark) {
    if (mark.kind == sharding::kReduceScatterMark || mark.kind == sharding::kReduceScatterAllReduceMark) {
      reduced_bytes_ = element_bytes(mark.dtype);
    } else if (mark.kind == sharding::kGatherMark && gathered_) {
      PlannedCollective& planned = orders_[gathered_->first].step[gathered_->second];
      planned.element_bytes = element_bytes(mark.dtype);
      planned.prefetched = mark.prefetched;
      gathered_.reset();
    }
  }

  std::size_t order_of(const Entry& entry) {
    const auto [at, added] = places_.try_emplace({entry.group, entry.axis}, orders_.size());
    if (added) orders_.push_back({recording_.text(entry.axis), recording_.group(entry.group), {}});
    return at->second;
  }

  const device::Recording& recording_;
  std::vector<CollectiveOrder> orders_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> places_;
  std::map<std::string, std::int64_t> phases_;  // begun so far
  std::string phase_;
  std::int64_t micro_batch_ = 0;
  std::int64_t reduced_bytes_ = 0;
  std::optional<std::pair<std::size_t, std::size_t>> gathered_;  // order and place of the gather whose mark is to come
};

// Whether `numel` elements of one of the usual sizes have so many bytes.
bool has_bytes(std::int64_t numel, std::int64_t bytes, std::int64_t element_bytes) {
  constexpr std::array<std::int64_t, 4> kSizes{1, 2, 4, 8};
  if (numel < 0 || numel > bytes) return false;
  if (element_bytes > 0) return numel * element_bytes == bytes || numel == bytes;
  return std::ranges::any_of(kSizes, [&](std::int64_t size) { return numel * size == bytes; });
}

struct Sides {
  std::int64_t in = 0;
  std::int64_t out = 0;
};

// Bytes of a rank's input and output; none where members have parts of their own.
std::optional<Sides> sides_of(const PlannedCollective& planned) {
  if (planned.op == "ALLGATHER") return Sides{planned.bytes / planned.ranks, planned.bytes};
  if (planned.op == "REDUCE_SCATTER") return Sides{planned.bytes, planned.bytes / planned.ranks};
  if (planned.op == "ALLREDUCE") return Sides{planned.bytes, planned.bytes};
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> PlannedCollective::numel_in() const {
  const auto sides = sides_of(*this);
  if (!sides || element_bytes == 0) return std::nullopt;
  return sides->in / element_bytes;
}

std::optional<std::int64_t> PlannedCollective::numel_out() const {
  const auto sides = sides_of(*this);
  if (!sides || element_bytes == 0) return std::nullopt;
  return sides->out / element_bytes;
}

std::string_view plain_op(std::string_view op) {
  if (op.starts_with('_')) op.remove_prefix(1);
  if (op.ends_with("_BASE")) op.remove_suffix(5);
  return op;
}

bool may_be(const SeenCollective& seen, const PlannedCollective& planned) {
  if (plain_op(seen.op) != planned.op) return false;
  const auto sides = sides_of(planned);
  if (!sides) return true;
  return (!seen.numel_in || has_bytes(*seen.numel_in, sides->in, planned.element_bytes)) &&
         (!seen.numel_out || has_bytes(*seen.numel_out, sides->out, planned.element_bytes));
}

std::string to_text(const PlannedCollective& planned) {
  const std::string_view words = std::ranges::find(kKinds, planned.op, &KindNames::op)->words;
  const std::string of = planned.of_group          ? fmt::format(" of group '{}'", shown_path(planned.subject))
                         : planned.subject.empty() ? ""
                                                   : fmt::format(" of '{}'", planned.subject);
  const std::string where = planned.phase.empty() ? "" : fmt::format(" in {}", planned.phase);
  const bool has_batch = planned.phase == "forward" || planned.phase == "backward";
  return fmt::format("{}{}{}{}", words, of, where,
                     has_batch ? fmt::format(" of micro-batch {}", planned.micro_batch) : "");
}

std::vector<CollectiveOrder> collective_orders(const device::Recording& recording) { return Orders(recording).take(); }

}  // namespace loom::explain
