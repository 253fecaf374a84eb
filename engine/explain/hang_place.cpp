#include "engine/explain/hang_place.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

namespace loom::explain {
namespace {

constexpr std::size_t kMostReported = 256;

using Reported = std::map<std::int64_t, SeenCollective>;

// By number, from 0 on, as most ranks have them.
Reported reported_of(const Hang& hang) {
  Reported reported;
  for (const RankState& rank : hang.ranks) {
    for (const auto& [seq, seen] : rank.seen) {
      if (reported.size() < kMostReported) reported.emplace(seq - hang.first_seq, seen);
    }
  }
  for (const OtherCollective& other : hang.others) {
    if (const auto known = reported.find(other.seq - hang.first_seq); known != reported.end())
      known->second = other.most;
  }
  return reported;
}

// Numbers count from 0 here.
std::size_t place_at(std::int64_t seq, std::int64_t offset, std::size_t size) {
  const auto count = static_cast<std::int64_t>(size);
  return static_cast<std::size_t>((((seq - offset) % count) + count) % count);
}

std::int64_t agreement(const Reported& reported, const CollectiveOrder& order, std::int64_t offset) {
  return std::ranges::count_if(reported, [&](const auto& one) {
    return may_be(one.second, order.step[place_at(one.first, offset, order.step.size())]);
  });
}

struct Aligned {
  std::int64_t agreeing = 0;
  std::vector<std::int64_t> offsets;
};

Aligned align(const Reported& reported, const CollectiveOrder& order) {
  Aligned best;
  for (std::int64_t offset = 0; offset < std::ssize(order.step); ++offset) {
    const std::int64_t agreeing = agreement(reported, order, offset);
    if (agreeing == 0 || agreeing < best.agreeing) continue;
    if (agreeing > best.agreeing) best = {agreeing, {}};
    best.offsets.push_back(offset);
  }
  return best;
}

bool same_place(const PlannedCollective& a, const PlannedCollective& b) {
  return a.op == b.op && a.subject == b.subject && a.phase == b.phase && a.micro_batch == b.micro_batch;
}

bool same_size(const PlannedCollective& a, const PlannedCollective& b) { return a.op == b.op && a.bytes == b.bytes; }

void add_once(std::vector<PlannedCollective>& list, const PlannedCollective& planned) {
  const auto same = [&](const PlannedCollective& known) { return same_place(known, planned); };
  if (std::ranges::none_of(list, same)) list.push_back(planned);
}

// The candidates for what a rank skipped that is `ahead` at `place`: as far back as sizes do not tell.
std::vector<PlannedCollective> skipped_at(const CollectiveOrder& order, std::size_t place, std::size_t ahead) {
  std::size_t first = place;
  while (first > 0 && first + ahead - 1 < order.step.size() &&
         same_size(order.step[first - 1], order.step[first + ahead - 1])) {
    --first;
  }
  std::vector<PlannedCollective> skipped;
  for (std::size_t at = first; at < std::min(place + ahead, order.step.size()); ++at) add_once(skipped, order.step[at]);
  return skipped;
}

OutOfOrder out_of_order(const OtherCollective& other, std::int64_t seq, const CollectiveOrder& order,
                        std::int64_t offset) {
  OutOfOrder found{.other = other, .issued = {}, .ahead = 0, .several = false, .skipped = {}};
  const std::size_t size = order.step.size(), place = place_at(seq, offset, size);
  for (std::size_t distance = 1; distance < size && !found.issued; ++distance) {
    const std::size_t ahead = (place + distance) % size, behind = (place + size - distance) % size;
    if (may_be(other.own, order.step[ahead])) {
      found.issued = order.step[ahead];
      found.ahead = static_cast<std::int64_t>(distance);
      found.skipped = skipped_at(order, place, distance);
    } else if (may_be(other.own, order.step[behind])) {
      found.issued = order.step[behind];
      found.ahead = -static_cast<std::int64_t>(distance);
    }
  }
  return found;
}

// With the offsets that put the rank's collective nearest to that of the others.
OutOfOrder nearest_out_of_order(const OtherCollective& other, std::int64_t seq, const HangPlace& place) {
  OutOfOrder nearest{.other = other, .issued = {}, .ahead = 0, .several = false, .skipped = {}};
  for (const std::int64_t offset : place.offsets) {
    OutOfOrder found = out_of_order(other, seq, place.order, offset);
    if (!found.issued || (nearest.issued && std::abs(found.ahead) > std::abs(nearest.ahead))) continue;
    if (!nearest.issued || std::abs(found.ahead) < std::abs(nearest.ahead)) {
      nearest = std::move(found);
    } else if (!same_place(*found.issued, *nearest.issued) || found.ahead != nearest.ahead) {
      nearest.several = true;
      for (const PlannedCollective& planned : found.skipped) add_once(nearest.skipped, planned);
    }
  }
  return nearest;
}

// Keeps the offsets that put the collective in the phase and micro-batch; all, if none does.
void keep_traced(std::vector<std::int64_t>& offsets, const CollectiveOrder& order, std::int64_t seq,
                 const WaitedPlace& waited) {
  const auto is_there = [&](std::int64_t offset) {
    const PlannedCollective& planned = order.step[place_at(seq, offset, order.step.size())];
    return planned.phase == waited.phase && planned.micro_batch == waited.micro_batch;
  };
  if (std::ranges::none_of(offsets, is_there)) return;
  std::erase_if(offsets, std::not_fn(is_there));
}

}  // namespace

std::optional<HangPlace> place_of(const Hang& hang, const std::vector<CollectiveOrder>& orders,
                                  const WaitedPlace* traced) {
  const Reported reported = reported_of(hang);
  HangPlace place;
  for (const CollectiveOrder& order : orders) {
    if (hang.size && *hang.size != std::ssize(order.ranks)) continue;
    Aligned aligned = align(reported, order);
    if (aligned.agreeing <= place.agreeing) continue;
    place.order = order;
    place.agreeing = aligned.agreeing;
    place.offsets = std::move(aligned.offsets);
  }
  if (place.agreeing == 0) return std::nullopt;
  place.reported = std::ssize(reported);
  const std::size_t size = place.order.step.size();
  const std::int64_t waited = hang.waited - hang.first_seq;
  if (traced != nullptr) keep_traced(place.offsets, place.order, waited, *traced);
  for (const std::int64_t offset : place.offsets) {
    add_once(place.candidates, place.order.step[place_at(waited, offset, size)]);
  }
  const std::int64_t first = place.offsets.front();
  place.step = std::max<std::int64_t>(0, waited - first) / static_cast<std::int64_t>(size) + 1;
  for (const OtherCollective& other : hang.others) {
    place.out_of_order.push_back(nearest_out_of_order(other, other.seq - hang.first_seq, place));
  }
  return place;
}

}  // namespace loom::explain
