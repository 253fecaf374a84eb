#include "bench/collective_round.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "engine/comm/local/segment.h"
#include "engine/core/dtype.h"
#include "engine/core/error.h"

namespace loom::bench {
namespace {

constexpr comm::Lane kLane{1};  // of what is measured

// The ranks' clocks are one: they share a machine.
double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

bool gathers(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kAllGatherInPlace;
}
bool exchanges(Collective collective) {
  return collective == Collective::kAllToAll || collective == Collective::kAllToAllUnequal;
}
bool keeps_size(Collective collective) { return exchanges(collective) || collective == Collective::kSendRecv; }
DType dtype_of(Collective collective) {
  return collective == Collective::kReduceScatterBF16 ? DType::kBF16 : DType::kF32;
}

// Every element of rank r's memory is r + 1, small enough for exact sums.
void fill(const Memory& memory, DType dtype, int rank) {
  const float value = static_cast<float>(rank + 1);
  for (std::size_t i = 0; i < memory.size(); i += element_bytes(dtype)) {
    if (dtype == DType::kF32) {
      std::memcpy(memory.data() + i, &value, sizeof value);
    } else {
      const bf16 narrow(value);
      std::memcpy(memory.data() + i, &narrow, sizeof narrow);
    }
  }
}

}  // namespace

std::string name(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllGatherInPlace:
      return "all_gather_in_place";
    case Collective::kReduceScatterF32:
      return "reduce_scatter_fp32";
    case Collective::kReduceScatterBF16:
      return "reduce_scatter_bf16";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kAllToAllUnequal:
      return "all_to_all_unequal";
    case Collective::kSendRecv:
      return "send_recv";
  }
  return "";
}

Memory::Memory(std::size_t bytes) : segment_(comm::make_anonymous_segment(bytes)) {
  std::fill_n(data(), bytes, std::byte{1});
}

CollectiveRound::CollectiveRound(comm::ProcessGroup& group, Collective collective, std::size_t full_bytes)
    : group_(group),
      collective_(collective),
      full_bytes_(full_bytes),
      shard_bytes_(full_bytes / static_cast<std::size_t>(group.size())),
      input_(gathers(collective) ? shard_bytes_ : full_bytes),
      output_(gathers(collective) || keeps_size(collective) ? full_bytes : shard_bytes_),
      limit_from_(limit_bytes()),
      limit_to_(limit_bytes()) {
  const bool in_place = collective == Collective::kAllGatherInPlace;
  fill(in_place ? output_ : input_, dtype_of(collective), group.rank());
  communicate();
  check();
}

std::size_t CollectiveRound::limit_bytes() const {
  return collective_ == Collective::kAllGatherInPlace ? full_bytes_ - shard_bytes_ : full_bytes_;
}

double CollectiveRound::run() {
  limit_seconds_.push_back(seconds_of_all([&] {
    std::memcpy(limit_to_.data(), limit_from_.data(), limit_to_.size());
    asm volatile("" : : "r"(limit_to_.data()) : "memory");
  }));
  collective_seconds_.push_back(seconds_of_all([&] { communicate(); }));
  return collective_seconds_.back();
}

template <class Work>
double CollectiveRound::seconds_of_all(const Work& work) {
  group_.barrier(comm::kHostLane, "start");
  double times[2] = {now_seconds(), 0};
  work();
  times[1] = now_seconds();
  std::vector<double> all(2 * static_cast<std::size_t>(group_.size()));
  const comm::GatherPart part{times, all.data(), sizeof times};
  group_.all_gather(comm::kHostLane, {&part, 1}, "times");
  double first = times[0];
  double last = times[1];
  for (std::size_t i = 0; i < all.size(); i += 2) {
    first = std::min(first, all[i]);
    last = std::max(last, all[i + 1]);
  }
  return last - first;
}

double CollectiveRound::ratio() const {
  return *std::min_element(limit_seconds_.begin(), limit_seconds_.end()) /
         *std::min_element(collective_seconds_.begin(), collective_seconds_.end());
}

double CollectiveRound::ratio_of_medians() const { return median(limit_seconds_) / median(collective_seconds_); }

// A member's part for the one that follows it is a quarter of the mean, its own part takes what is left over.
std::size_t CollectiveRound::part_bytes(int from, int to) const {
  const auto size = static_cast<std::size_t>(group_.size());
  if (collective_ != Collective::kAllToAllUnequal || size == 1) return shard_bytes_;
  const std::size_t small = shard_bytes_ / 4 / sizeof(float) * sizeof(float);
  if (to == (from + 1) % group_.size()) return small;
  return to == from ? 2 * shard_bytes_ - small : shard_bytes_;
}

std::size_t CollectiveRound::part_offset(int peer, bool sent) const {
  std::size_t offset = 0;
  for (int i = 0; i < peer; ++i) offset += sent ? part_bytes(group_.rank(), i) : part_bytes(i, group_.rank());
  return offset;
}

void CollectiveRound::communicate() {
  const int ranks = group_.size();
  if (exchanges(collective_)) {
    std::vector<comm::Outgoing> sends;
    std::vector<comm::Incoming> receives;
    for (int peer = 0; peer < ranks; ++peer) {
      sends.push_back({input_.data() + part_offset(peer, true), part_bytes(group_.rank(), peer)});
      receives.push_back({output_.data() + part_offset(peer, false), part_bytes(peer, group_.rank())});
    }
    return group_.all_to_all(kLane, sends, receives, "tokens");
  }
  if (collective_ == Collective::kSendRecv) {
    return group_.send_recv(kLane, (group_.rank() + 1) % ranks, {input_.data(), full_bytes_},
                            (group_.rank() + ranks - 1) % ranks, {output_.data(), full_bytes_}, "keys");
  }
  if (gathers(collective_)) {
    const std::byte* shard = collective_ == Collective::kAllGather
                                 ? input_.data()
                                 : output_.data() + shard_bytes_ * static_cast<std::size_t>(group_.rank());
    const comm::GatherPart part{shard, output_.data(), shard_bytes_};
    group_.all_gather(kLane, {&part, 1}, "weights");
  } else {
    const DType dtype = dtype_of(collective_);
    group_.reduce_scatter(kLane, input_.data(), output_.data(),
                          static_cast<std::int64_t>(shard_bytes_ / element_bytes(dtype)), dtype, comm::ReduceOp::sum(),
                          "gradients");
  }
}

void CollectiveRound::check() const {
  if (keeps_size(collective_)) return check_sources();
  const std::size_t parts = gathers(collective_) ? static_cast<std::size_t>(group_.size()) : 1;
  const Memory expected(shard_bytes_);
  for (std::size_t part = 0; part < parts; ++part) {
    const int sum = group_.size() * (group_.size() + 1) / 2;  // of 1 ... N
    fill(expected, dtype_of(collective_), gathers(collective_) ? static_cast<int>(part) : sum - 1);
    if (std::memcmp(output_.data() + part * shard_bytes_, expected.data(), shard_bytes_) != 0) {
      raise<CommError>("{} of {} bytes gives a wrong result", name(collective_), full_bytes_);
    }
  }
}

// Who sent each byte.
void CollectiveRound::check_sources() const {
  const int ranks = group_.size();
  for (int peer = 0; peer < ranks; ++peer) {
    const bool in_ring = collective_ == Collective::kSendRecv;
    if (in_ring && peer != (group_.rank() + ranks - 1) % ranks) continue;
    const Memory expected(in_ring ? full_bytes_ : part_bytes(peer, group_.rank()));
    fill(expected, dtype_of(collective_), peer);
    const std::size_t offset = in_ring ? 0 : part_offset(peer, false);
    if (std::memcmp(output_.data() + offset, expected.data(), expected.size()) != 0) {
      raise<CommError>("{} of {} bytes gives a wrong result", name(collective_), full_bytes_);
    }
  }
}

}  // namespace loom::bench
