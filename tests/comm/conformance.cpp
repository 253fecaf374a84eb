#include "tests/comm/conformance.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>

#include "engine/comm/mesh.h"
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/rank_context.h"

namespace loom::comm::conformance {
namespace {

constexpr Lane kGatherLane{1};
constexpr Lane kReduceScatterLane{2};
constexpr Lane kAllReduceLane{3};
constexpr Lane kAllToAllLane{4};
constexpr Lane kPairLane{5};

std::shared_ptr<ProcessGroup> everyone(World& world) { return world.everyone(); }

// The value a rank holds at index i: no two ranks alike, and sums of them round differently in another order.
template <class T>
T value_of(int rank, std::int64_t i) {
  const std::int64_t mixed = (rank * 7919 + i * 104729 + 13) % 2003 - 1001;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(mixed);
  else if constexpr (std::is_same_v<T, double>)
    return static_cast<double>(mixed) / 37.0;
  else
    return T(static_cast<float>(mixed) / 37.0f);
}

template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, std::int64_t,
                               std::conditional_t<std::is_same_v<T, double>, double, float>>;

// factor * (value of the first rank + value of the second + ...), rounded once.
template <class T>
T sum_in_rank_order(const std::vector<int>& ranks, std::int64_t i, double factor) {
  auto sum = static_cast<Sum<T>>(value_of<T>(ranks[0], i));
  for (std::size_t r = 1; r < ranks.size(); ++r) sum += static_cast<Sum<T>>(value_of<T>(ranks[r], i));
  return T(sum * static_cast<Sum<T>>(factor));
}

template <class T>
std::vector<T> values(int rank, std::int64_t elems) {
  std::vector<T> made(static_cast<std::size_t>(elems));
  for (std::int64_t i = 0; i < elems; ++i) made[static_cast<std::size_t>(i)] = value_of<T>(rank, i);
  return made;
}

template <class T>
void expect_same_bits(const T* actual, const T* expected, std::int64_t elems, std::string_view what) {
  if (elems == 0 || std::memcmp(actual, expected, static_cast<std::size_t>(elems) * sizeof(T)) == 0) return;
  for (std::int64_t i = 0; i < elems; ++i) {
    if (std::memcmp(actual + i, expected + i, sizeof(T)) == 0) continue;
    throw BrokenPromise(fmt::format("{}{}: {} element {} is {}, expected {}", rank_prefix(), what, name(dtype_of<T>), i,
                                    static_cast<double>(static_cast<Sum<T>>(actual[i])),
                                    static_cast<double>(static_cast<Sum<T>>(expected[i]))));
  }
}

void expect(bool holds, std::string_view what) {
  if (!holds) throw BrokenPromise(rank_prefix() + std::string(what));
}

template <class T>
T max_of_ranks(const std::vector<int>& ranks, std::int64_t i) {
  auto top = value_of<T>(ranks[0], i);
  for (const int rank : ranks) {
    const auto value = value_of<T>(rank, i);
    if (static_cast<Sum<T>>(value) > static_cast<Sum<T>>(top)) top = value;
  }
  return top;
}

struct NamedOp {
  ReduceOp op;
  double factor;
};

template <class T>
T reduced(const std::vector<int>& ranks, std::int64_t i, const NamedOp& op) {
  return op.op.kind == ReduceKind::kMax ? max_of_ranks<T>(ranks, i) : sum_in_rank_order<T>(ranks, i, op.factor);
}

// Integers take no average: it is not exact.
template <class T>
std::vector<NamedOp> ops(int size) {
  std::vector<NamedOp> all{{ReduceOp::sum(), 1.0}, {ReduceOp::max(), 1.0}};
  if (std::is_integral_v<T>) return all;
  all.push_back({ReduceOp::avg(), 1.0 / size});
  all.push_back({ReduceOp::premul_sum(0.125), 0.125});
  return all;
}

template <class Body>
void for_each_dtype(const Body& body) {
  body(float{});
  body(bf16{});
  body(f16{});
  body(double{});
  body(std::int32_t{});
}

constexpr std::int64_t kSizes[] = {1, 5, 64, 1000, 7001};

void gathers_land_in_rank_order(World& world) {
  const auto group = everyone(world);
  for (const std::int64_t elems : kSizes) {
    const std::vector<std::int32_t> shard = values<std::int32_t>(group->rank(), elems);
    std::vector<std::int32_t> full(static_cast<std::size_t>(elems * group->size()));
    const GatherPart part{shard.data(), full.data(), shard.size() * 4};
    group->all_gather(kGatherLane, {&part, 1}, "gather");
    for (int peer = 0; peer < group->size(); ++peer) {
      const auto expected = values<std::int32_t>(peer, elems);
      expect_same_bits(full.data() + peer * elems, expected.data(), elems, "all_gather");
    }
  }
}

// Three parts of unequal bytes, the second empty, the shards already in their places.
void parts_gather_in_place_with_unequal_bytes(World& world) {
  const auto group = everyone(world);
  const std::size_t bytes[] = {3, 0, 4097};
  std::vector<std::vector<std::uint8_t>> full;
  std::vector<GatherPart> parts;
  for (const std::size_t part_bytes : bytes) {
    full.emplace_back(part_bytes * static_cast<std::size_t>(group->size()));
    std::uint8_t* own = full.back().data() + part_bytes * static_cast<std::size_t>(group->rank());
    for (std::size_t i = 0; i < part_bytes; ++i) own[i] = value_of<std::uint8_t>(group->rank(), static_cast<int>(i));
    parts.push_back({own, full.back().data(), part_bytes});
  }
  group->all_gather(kGatherLane, parts, "parts");
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (int peer = 0; peer < group->size(); ++peer) {
      const auto expected = values<std::uint8_t>(peer, static_cast<std::int64_t>(bytes[p]));
      expect_same_bits(full[p].data() + static_cast<std::size_t>(peer) * bytes[p], expected.data(),
                       static_cast<std::int64_t>(bytes[p]), "all_gather in place");
    }
  }
}

// 8 MB a rank: past the size from which copies bypass the caches and messages are cut.
void large_gathers_are_whole(World& world) {
  if (world.size() > 4) return;  // the same paths, and more memory
  const auto group = everyone(world);
  const std::int64_t elems = 2'000'003;
  std::vector<std::int32_t> full(static_cast<std::size_t>(elems * group->size()));
  std::int32_t* own = full.data() + group->rank() * elems;
  for (std::int64_t i = 0; i < elems; ++i) own[i] = value_of<std::int32_t>(group->rank(), i);
  const GatherPart part{own, full.data(), static_cast<std::size_t>(elems) * 4};
  group->all_gather(kGatherLane, {&part, 1}, "large");
  for (int peer = 0; peer < group->size(); ++peer) {
    const auto expected = values<std::int32_t>(peer, elems);
    expect_same_bits(full.data() + peer * elems, expected.data(), elems, "large all_gather");
  }
}

// Row r of the input of rank p holds value_of(p, r * elems + i).
template <class T>
void check_reduce_scatter(ProcessGroup& group, std::int64_t elems, const NamedOp& op, bool in_place) {
  const int world_rank = group.ranks()[static_cast<std::size_t>(group.rank())];
  std::vector<T> input = values<T>(world_rank, elems * group.size());
  std::vector<T> apart(static_cast<std::size_t>(elems));
  T* output = in_place ? input.data() + group.rank() * elems : apart.data();
  group.reduce_scatter(kReduceScatterLane, input.data(), output, elems, dtype_of<T>, op.op, "scatter");
  std::vector<T> expected;
  for (std::int64_t i = 0; i < elems; ++i) {
    expected.push_back(reduced<T>(group.ranks(), group.rank() * elems + i, op));
  }
  expect_same_bits<T>(output, expected.data(), elems, "reduce_scatter");
}

void reduce_scatter_has_the_bits_of_the_ranks_in_order(World& world) {
  const auto group = everyone(world);
  for_each_dtype([&]<class T>(T) {
    for (const NamedOp& op : ops<T>(group->size())) {
      for (const std::int64_t elems : {std::int64_t{1}, std::int64_t{77}, std::int64_t{1000}}) {
        for (const bool in_place : {false, true}) check_reduce_scatter<T>(*group, elems, op, in_place);
      }
    }
  });
}

// 3 MB a row: messages are cut and summed piece by piece.
void large_reduce_scatters_have_the_same_bits(World& world) {
  if (world.size() > 4) return;
  const auto group = everyone(world);
  check_reduce_scatter<float>(*group, 786'433, {ReduceOp::avg(), 1.0 / group->size()}, false);
  check_reduce_scatter<bf16>(*group, 1'572'867, {ReduceOp::sum(), 1.0}, true);
  check_reduce_scatter<float>(*group, 786'433, {ReduceOp::max(), 1.0}, true);
}

template <class T>
void check_all_reduce(ProcessGroup& group, Lane lane, std::int64_t elems, const NamedOp& op) {
  std::vector<T> data = values<T>(group.ranks()[static_cast<std::size_t>(group.rank())], elems);
  group.all_reduce(lane, data.data(), elems, dtype_of<T>, op.op, "reduce");
  std::vector<T> expected;
  for (std::int64_t i = 0; i < elems; ++i) expected.push_back(reduced<T>(group.ranks(), i, op));
  expect_same_bits<T>(data.data(), expected.data(), elems, "all_reduce");
}

void all_reduce_has_the_bits_of_the_ranks_in_order_everywhere(World& world) {
  const auto group = everyone(world);
  for_each_dtype([&]<class T>(T) {
    for (const NamedOp& op : ops<T>(group->size())) {
      for (const std::int64_t elems : kSizes) check_all_reduce<T>(*group, kAllReduceLane, elems, op);
    }
  });
}

void every_root_broadcasts(World& world) {
  const auto group = everyone(world);
  for (int root = 0; root < group->size(); ++root) {
    std::vector<double> data = values<double>(group->rank(), 1234);
    group->broadcast(kHostLane, data.data(), data.size() * sizeof(double), root, "broadcast");
    const auto expected = values<double>(root, 1234);
    expect_same_bits(data.data(), expected.data(), 1234, "broadcast");
  }
}

// Elements that member `from` sends to member `to`: none, a few or thousands.
std::int64_t elems_between(int from, int to) { return (from * 31 + to * 17) % 5 * 911 % 3000; }

// One all_to_all of elems(from, to) elements a pair, out of one buffer and into one; element i of the part is
// value_of(from * 100 + to, i). Parts that are full stand one behind another.
void check_all_to_all(ProcessGroup& group, const std::function<std::int64_t(int from, int to)>& elems) {
  std::vector<std::int32_t> sent, received, expected;
  for (int peer = 0; peer < group.size(); ++peer) {
    const auto to_peer = values<std::int32_t>(group.rank() * 100 + peer, elems(group.rank(), peer));
    sent.insert(sent.end(), to_peer.begin(), to_peer.end());
    const auto from_peer = values<std::int32_t>(peer * 100 + group.rank(), elems(peer, group.rank()));
    expected.insert(expected.end(), from_peer.begin(), from_peer.end());
  }
  received.resize(expected.size());
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  const std::int32_t* from = sent.data();
  std::int32_t* to = received.data();
  for (int peer = 0; peer < group.size(); ++peer) {
    const std::int64_t sent_elems = elems(group.rank(), peer), received_elems = elems(peer, group.rank());
    sends.push_back({from, static_cast<std::size_t>(sent_elems) * sizeof *from});
    receives.push_back({to, static_cast<std::size_t>(received_elems) * sizeof *to});
    from += sent_elems;
    to += received_elems;
  }
  group.all_to_all(kAllToAllLane, sends, receives, "tokens");
  expect_same_bits(received.data(), expected.data(), static_cast<std::int64_t>(expected.size()), "all_to_all");
}

void equal_parts_change_places(World& world) {
  const auto group = everyone(world);
  for (const std::int64_t elems : kSizes) check_all_to_all(*group, [&](int, int) { return elems; });
}

void unequal_parts_reach_their_members(World& world) {
  const auto group = everyone(world);
  for (int turn = 0; turn < 5; ++turn) {
    check_all_to_all(*group, [&](int from, int to) { return elems_between(from + turn, to); });
  }
}

// A member that sends nothing, one that receives nothing, and all parts for one member.
void members_without_parts_take_part(World& world) {
  const auto group = everyone(world);
  const int last = group->size() - 1;
  check_all_to_all(*group, [&](int from, int) { return from == 0 ? 0 : 70; });
  check_all_to_all(*group, [&](int, int to) { return to == last ? 0 : 70; });
  check_all_to_all(*group, [&](int, int to) { return to == last ? 7001 : 0; });
}

// 8 MB a part.
void large_parts_are_whole(World& world) {
  if (world.size() > 4) return;
  check_all_to_all(*everyone(world), [](int from, int to) { return 2'000'003 + from - to; });
}

// Everyone sends `by` members on and receives from as many behind: a message of `elems` elements, more by its sender.
void check_shift(ProcessGroup& group, int by, std::int64_t elems) {
  const int to = (group.rank() + by) % group.size();
  const int from = (group.rank() + group.size() - by) % group.size();
  const auto sent = values<float>(group.rank(), elems + group.rank());
  const auto expected = values<float>(from, elems + from);
  std::vector<float> received(expected.size());
  group.send_recv(kPairLane, to, {sent.data(), sent.size() * sizeof(float)}, from,
                  {received.data(), received.size() * sizeof(float)}, "ring");
  expect_same_bits(received.data(), expected.data(), static_cast<std::int64_t>(expected.size()), "send_recv");
}

// By every distance: to oneself, to a neighbour, and between two that send each other.
void rings_turn(World& world) {
  const auto group = everyone(world);
  for (int by = 0; by < group->size(); ++by) {
    for (const std::int64_t elems : {std::int64_t{0}, std::int64_t{1}, std::int64_t{7001}}) {
      check_shift(*group, by, elems);
    }
  }
}

void large_messages_are_whole(World& world) {
  if (world.size() > 4) return;
  check_shift(*everyone(world), 1, 2'000'003);
}

// A value goes from the first member to the last, each adding its own; members that are not concerned go on.
void a_chain_of_messages_follows_its_order(World& world) {
  const auto group = everyone(world);
  const int last = group->size() - 1;
  for (int i = 0; i < 20; ++i) {
    std::int64_t sum = 0;
    const std::string tag = "micro-batch " + std::to_string(i);
    if (group->rank() > 0) group->recv(kPairLane, group->rank() - 1, {&sum, sizeof sum}, tag);
    sum += group->rank() + i;
    if (group->rank() < last) group->send(kPairLane, group->rank() + 1, {&sum, sizeof sum}, tag);
    const std::int64_t expected = group->rank() * (group->rank() + 1) / 2 + i * (group->rank() + 1);
    expect(sum == expected, "recv: a message out of its order");
  }
}

// One lane has messages and collectives in one order, in the group's order too.
void messages_and_collectives_share_a_lane(World& world) {
  const auto group = world.split(0, -world.rank(), "backwards", {});
  for (int i = 0; i < 20; ++i) {
    if (group->size() > 1) check_shift(*group, 1, 100 + i);
    check_all_reduce<float>(*group, kPairLane, 33, {ReduceOp::sum(), 1.0});
    check_all_to_all(*group, [&](int from, int to) { return elems_between(from, to + i); });
    const int peer = group->rank() ^ 1;
    std::int32_t value = group->rank();
    if (peer < group->size() && peer > group->rank()) group->send(kPairLane, peer, {&value, sizeof value}, "pair");
    if (peer < group->size() && peer < group->rank()) {
      group->recv(kPairLane, peer, {&value, sizeof value}, "pair");
      expect(value == peer, "recv: another member's message");
    }
    group->barrier(kPairLane, "turn");
  }
}

void nothing_to_move_is_allowed(World& world) {
  const auto group = everyone(world);
  group->all_gather(kGatherLane, {}, "no parts");
  group->reduce_scatter(kReduceScatterLane, nullptr, nullptr, 0, DType::kF32, ReduceOp::sum(), "no elements");
  group->all_reduce(kAllReduceLane, nullptr, 0, DType::kF32, ReduceOp::sum(), "no elements");
  group->broadcast(kHostLane, nullptr, 0, 0, "no bytes");
  const std::vector<Outgoing> sends(static_cast<std::size_t>(group->size()));
  const std::vector<Incoming> receives(sends.size());
  group->all_to_all(kAllToAllLane, sends, receives, "no bytes");
  group->send_recv(kPairLane, (group->rank() + 1) % group->size(), {},
                   (group->rank() + group->size() - 1) % group->size(), {}, "no bytes");
  group->send_recv(kPairLane, ProcessGroup::kNobody, {}, ProcessGroup::kNobody, {}, "nobody");
}

// Each member writes its line; after the barrier all read all lines.
void a_shared_segment_is_one_memory(World& world) {
  const auto group = everyone(world);
  for (const std::size_t line_bytes : {std::size_t{100}, std::size_t{1} << 18}) {
    const std::size_t bytes = line_bytes * static_cast<std::size_t>(group->size());
    const auto segment = group->share(kHostLane, bytes, "segment");
    expect(segment != nullptr, "share: null among ranks of one machine");
    expect(segment->bytes() == bytes, "share: another size than asked for");
    expect(reinterpret_cast<std::uintptr_t>(segment->data()) % 4096 == 0, "share: not aligned to 4096");
    std::byte* own = segment->data() + line_bytes * static_cast<std::size_t>(group->rank());
    const auto is_all = [&](const std::byte* line, std::byte mark) {
      const std::vector<std::byte> expected(line_bytes, mark);
      return std::memcmp(line, expected.data(), line_bytes) == 0;
    };
    expect(is_all(own, std::byte{0}), "share: not zeroed");
    std::fill_n(own, line_bytes, static_cast<std::byte>(group->rank() + 1));
    group->barrier(kHostLane, "written");
    for (int peer = 0; peer < group->size(); ++peer) {
      const std::byte* line = segment->data() + line_bytes * static_cast<std::size_t>(peer);
      expect(is_all(line, static_cast<std::byte>(peer + 1)), "share: a peer's line is unseen");
    }
    group->barrier(kHostLane, "read");
  }
}

// Two threads a rank, a lane each, in no common order: lanes that waited for each other would wait for ever.
void lanes_do_not_wait_for_each_other(World& world) {
  const auto group = everyone(world);
  RankContext& context = RankContext::current();
  std::atomic<bool> gathers_hold{false};
  std::thread gathers([&] {
    const RankScope scope(context);
    try {
      for (int i = 0; i < 50; ++i) {
        std::int32_t shard = group->rank() + i;
        std::vector<std::int32_t> full(static_cast<std::size_t>(group->size()));
        const GatherPart part{&shard, full.data(), sizeof shard};
        group->all_gather(kGatherLane, {&part, 1}, "beside");
        for (int peer = 0; peer < group->size(); ++peer) {
          expect(full[static_cast<std::size_t>(peer)] == peer + i, "all_gather beside all_reduce: wrong value");
        }
      }
      gathers_hold = true;
    } catch (const std::exception& error) {
      world.fail(error.what());
    }
  });
  try {
    for (int i = 0; i < 50; ++i) check_all_reduce<float>(*group, kAllReduceLane, 3000, {ReduceOp::sum(), 1.0});
  } catch (...) {
    gathers.join();
    throw;
  }
  gathers.join();
  expect(gathers_hold, "all_gather beside all_reduce failed");
}

// Half of the ranks make the gathers of all lanes in ascending, half in descending order, a thread a lane.
void every_lane_is_an_order_of_its_own(World& world) {
  const auto group = everyone(world);
  RankContext& context = RankContext::current();
  std::atomic<int> kept{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < Lane::kCount; ++i) {
    const int id = world.rank() % 2 == 0 ? i : Lane::kCount - 1 - i;
    threads.emplace_back([&, id] {
      const RankScope scope(context);
      try {
        const std::int32_t own = world.rank() * Lane::kCount + id;
        std::vector<std::int32_t> all(static_cast<std::size_t>(group->size()));
        const GatherPart part{&own, all.data(), sizeof own};
        group->all_gather(Lane(id), {&part, 1}, "lane " + std::to_string(id));
        for (int peer = 0; peer < group->size(); ++peer) {
          expect(all[static_cast<std::size_t>(peer)] == peer * Lane::kCount + id, "all_gather: another lane's value");
        }
        ++kept;
      } catch (const std::exception& error) {
        world.fail(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(kept == Lane::kCount, "a lane failed");
}

std::vector<int> ranks_where(World& world, const std::function<bool(int)>& holds) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (holds(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void expect_group(const std::shared_ptr<ProcessGroup>& group, World& world, const std::vector<int>& ranks,
                  std::string_view what) {
  expect(group != nullptr, std::string(what) + ": null for a member");
  expect(group->ranks() == ranks, std::string(what) + ": other ranks, or in another order");
  expect(ranks[static_cast<std::size_t>(group->rank())] == world.rank(), std::string(what) + ": wrong own rank");
}

void a_split_makes_a_group_of_every_color(World& world) {
  const int color = world.rank() % 3;
  const auto own = ranks_where(world, [&](int rank) { return rank % 3 == color; });
  const auto group = world.split(color, 0, "thirds", own);
  expect_group(group, world, own, "split by thirds");
  expect(group->name() == "thirds", "split: another name than asked for");
}

void a_split_orders_its_members_by_key(World& world) {
  auto own = ranks_where(world, [&](int rank) { return rank % 2 == world.rank() % 2; });
  std::reverse(own.begin(), own.end());
  expect_group(world.split(world.rank() % 2, -world.rank(), "backwards", own), world, own, "split with falling keys");
}

void a_split_leaves_out_ranks_without_a_color(World& world) {
  const auto even = ranks_where(world, [](int rank) { return rank % 2 == 0; });
  const bool member = world.rank() % 2 == 0;
  const auto group = world.split(member ? 7 : World::kNoColor, 0, "even", member ? even : std::vector<int>{});
  expect(member == (group != nullptr), "split: members get a group, others null");
  if (member) expect_group(group, world, even, "split of even ranks");
}

// Another color of one number is another group, in whichever split.
void splits_follow_one_another(World& world) {
  for (int parts = 1; parts <= world.size(); ++parts) {
    const int color = world.rank() % parts;
    const auto own = ranks_where(world, [&](int rank) { return rank % parts == color; });
    expect_group(world.split(color, world.rank(), "part", own), world, own, "split again");
  }
}

// Sizes of three axes for every number of ranks.
std::vector<AxisSize> three_axes(int ranks) {
  const int c = ranks % 2 == 0 ? 2 : 1;
  const int b = ranks / c % 2 == 0 ? 2 : ranks / c;
  return {{"a", ranks / b / c}, {"b", b}, {"c", c}};
}

void a_mesh_has_an_axis_of_every_name(World& world) {
  const DeviceMesh mesh = DeviceMesh::create(world, three_axes(world.size()));
  const std::vector<int> own = mesh.coordinates(world.rank());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Axis& axis = mesh.axis(mesh.axes()[i].name);
    const auto ranks = ranks_where(world, [&](int rank) {
      std::vector<int> theirs = mesh.coordinates(rank);
      theirs[i] = own[i];
      return theirs == own;
    });
    expect_group(axis.shared_group(), world, ranks, "axis " + axis.name());
    expect(axis.size() == mesh.axes()[i].size && axis.rank() == own[i], "axis: wrong size or own rank");
  }
}

void axes_that_are_not_neighbours_flatten_into_one(World& world) {
  const DeviceMesh mesh = DeviceMesh::create(world, three_axes(world.size()));
  const int b = mesh.coordinates(world.rank())[1];
  const auto ranks = ranks_where(world, [&](int rank) { return mesh.coordinates(rank)[1] == b; });
  const Axis flat = mesh.flatten({"a", "c"}, "a_c");
  expect_group(flat.shared_group(), world, ranks, "flattened axis");
}

void an_axis_is_cut_into_consecutive_ranks(World& world) {
  const DeviceMesh mesh = DeviceMesh::create(world, {{"all", world.size()}});
  for (int size = 1; size <= world.size(); ++size) {
    if (world.size() % size != 0) continue;
    const Axis piece = mesh.axis("all").consecutive(size, "piece");
    const auto ranks = ranks_where(world, [&](int rank) { return rank / size == world.rank() / size; });
    expect_group(piece.shared_group(), world, ranks, "consecutive ranks");
    expect(mesh.axis("all").consecutive(size, "piece").shared_group() == piece.shared_group(),
           "consecutive ranks: made twice");
  }
}

// Every group of a split at once, then those of the next.
void groups_of_a_split_see_only_their_members(World& world) {
  for (const int parts : {2, 3}) {
    const int color = world.rank() % parts;
    const auto group = world.split(color, world.rank(), "part", {});
    expect_group(group, world, ranks_where(world, [&](int rank) { return rank % parts == color; }), "split");
    check_all_reduce<float>(*group, kAllReduceLane, 777, {ReduceOp::sum(), 1.0});
    check_reduce_scatter<bf16>(*group, 99, {ReduceOp::sum(), 1.0}, false);
  }
}

// Members hold their places by key: gathers and sums follow that order.
void a_group_with_falling_keys_works_in_its_order(World& world) {
  const auto group = world.split(0, -world.rank(), "backwards", {});
  check_all_reduce<float>(*group, kAllReduceLane, 3001, {ReduceOp::sum(), 1.0});
  check_reduce_scatter<float>(*group, 77, {ReduceOp::avg(), 1.0 / group->size()}, false);
}

void axes_of_a_mesh_reduce_over_their_ranks(World& world) {
  const DeviceMesh mesh = DeviceMesh::create(world, three_axes(world.size()));
  for (const AxisSize& size : mesh.axes()) {
    check_reduce_scatter<float>(mesh.axis(size.name).group(), 50, {ReduceOp::sum(), 1.0}, false);
    check_all_reduce<float>(mesh.axis(size.name).group(), kAllReduceLane, 50, {ReduceOp::avg(), 1.0 / size.size});
  }
  check_all_reduce<float>(mesh.flatten({"a", "c"}, "a_c").group(), kAllReduceLane, 50, {ReduceOp::sum(), 1.0});
}

void a_group_serves_again_and_again(World& world) {
  const auto group = everyone(world);
  for (int i = 0; i < 100; ++i) {
    group->barrier(kHostLane, "again");
    check_all_reduce<std::int32_t>(*group, kHostLane, 1 + i % 7, {ReduceOp::sum(), 1.0});
    check_reduce_scatter<float>(*group, 3, {ReduceOp::sum(), 1.0}, i % 2 == 0);
  }
}

}  // namespace

#define LOOM_CASE(name) \
  Case { #name, name }

const std::vector<Case>& grouping_cases() {
  static const std::vector<Case> all = {
      LOOM_CASE(a_split_makes_a_group_of_every_color),     LOOM_CASE(a_split_orders_its_members_by_key),
      LOOM_CASE(a_split_leaves_out_ranks_without_a_color), LOOM_CASE(splits_follow_one_another),
      LOOM_CASE(a_mesh_has_an_axis_of_every_name),         LOOM_CASE(axes_that_are_not_neighbours_flatten_into_one),
      LOOM_CASE(an_axis_is_cut_into_consecutive_ranks),
  };
  return all;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      LOOM_CASE(gathers_land_in_rank_order),
      LOOM_CASE(parts_gather_in_place_with_unequal_bytes),
      LOOM_CASE(large_gathers_are_whole),
      LOOM_CASE(reduce_scatter_has_the_bits_of_the_ranks_in_order),
      LOOM_CASE(large_reduce_scatters_have_the_same_bits),
      LOOM_CASE(all_reduce_has_the_bits_of_the_ranks_in_order_everywhere),
      LOOM_CASE(every_root_broadcasts),
      LOOM_CASE(equal_parts_change_places),
      LOOM_CASE(unequal_parts_reach_their_members),
      LOOM_CASE(members_without_parts_take_part),
      LOOM_CASE(large_parts_are_whole),
      LOOM_CASE(rings_turn),
      LOOM_CASE(large_messages_are_whole),
      LOOM_CASE(a_chain_of_messages_follows_its_order),
      LOOM_CASE(messages_and_collectives_share_a_lane),
      LOOM_CASE(nothing_to_move_is_allowed),
      {"a_shared_segment_is_one_memory", a_shared_segment_is_one_memory, true},
      LOOM_CASE(lanes_do_not_wait_for_each_other),
      LOOM_CASE(every_lane_is_an_order_of_its_own),
      LOOM_CASE(groups_of_a_split_see_only_their_members),
      LOOM_CASE(a_group_with_falling_keys_works_in_its_order),
      LOOM_CASE(axes_of_a_mesh_reduce_over_their_ranks),
      LOOM_CASE(a_group_serves_again_and_again),
  };
#undef LOOM_CASE
  return all;
}

}  // namespace loom::comm::conformance
