#include "tests/comm/conformance.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <numeric>
#include <thread>
#include <type_traits>

#include "engine/comm/mesh.h"
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/rank_context.h"

namespace loom::comm::conformance {
namespace {

std::shared_ptr<ProcessGroup> everyone(World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(ranks, "world");
}

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

struct NamedOp {
  ReduceOp op;
  double factor;
};

// Integers take only the sum: an average of integers is not exact.
template <class T>
std::vector<NamedOp> ops(int size) {
  if (std::is_integral_v<T>) return {{ReduceOp::sum(), 1.0}};
  return {{ReduceOp::sum(), 1.0}, {ReduceOp::avg(), 1.0 / size}, {ReduceOp::premul_sum(0.125), 0.125}};
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
    group->all_gather(Channel::kGather, {&part, 1}, "gather");
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
  group->all_gather(Channel::kGather, parts, "parts");
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
  group->all_gather(Channel::kGather, {&part, 1}, "large");
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
  group.reduce_scatter(Channel::kReduceScatter, input.data(), output, elems, dtype_of<T>, op.op, "scatter");
  std::vector<T> expected;
  for (std::int64_t i = 0; i < elems; ++i) {
    expected.push_back(sum_in_rank_order<T>(group.ranks(), group.rank() * elems + i, op.factor));
  }
  expect_same_bits<T>(output, expected.data(), elems, "reduce_scatter");
}

void reduce_scatter_has_the_bits_of_the_sum_in_rank_order(World& world) {
  const auto group = everyone(world);
  for_each_dtype([&]<class T>(T) {
    for (const NamedOp& op : ops<T>(group->size())) {
      for (const std::int64_t elems : {std::int64_t{1}, std::int64_t{77}, std::int64_t{5000}}) {
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
}

template <class T>
void check_all_reduce(ProcessGroup& group, Channel channel, std::int64_t elems, const NamedOp& op) {
  std::vector<T> data = values<T>(group.ranks()[static_cast<std::size_t>(group.rank())], elems);
  group.all_reduce(channel, data.data(), elems, dtype_of<T>, op.op, "reduce");
  std::vector<T> expected;
  for (std::int64_t i = 0; i < elems; ++i) expected.push_back(sum_in_rank_order<T>(group.ranks(), i, op.factor));
  expect_same_bits<T>(data.data(), expected.data(), elems, "all_reduce");
}

void all_reduce_has_the_bits_of_the_sum_in_rank_order_everywhere(World& world) {
  const auto group = everyone(world);
  for_each_dtype([&]<class T>(T) {
    for (const NamedOp& op : ops<T>(group->size())) {
      for (const std::int64_t elems : kSizes) check_all_reduce<T>(*group, Channel::kAllReduce, elems, op);
    }
  });
}

void every_root_broadcasts(World& world) {
  const auto group = everyone(world);
  for (int root = 0; root < group->size(); ++root) {
    std::vector<double> data = values<double>(group->rank(), 1234);
    group->broadcast(Channel::kHost, data.data(), data.size() * sizeof(double), root, "broadcast");
    const auto expected = values<double>(root, 1234);
    expect_same_bits(data.data(), expected.data(), 1234, "broadcast");
  }
}

void nothing_to_move_is_allowed(World& world) {
  const auto group = everyone(world);
  group->all_gather(Channel::kGather, {}, "no parts");
  group->reduce_scatter(Channel::kReduceScatter, nullptr, nullptr, 0, DType::kF32, ReduceOp::sum(), "no elements");
  group->all_reduce(Channel::kAllReduce, nullptr, 0, DType::kF32, ReduceOp::sum(), "no elements");
  group->broadcast(Channel::kHost, nullptr, 0, 0, "no bytes");
}

// Each member writes its line; after the barrier all read all lines.
void a_shared_segment_is_one_memory(World& world) {
  const auto group = everyone(world);
  for (const std::size_t line_bytes : {std::size_t{100}, std::size_t{1} << 20}) {
    const std::size_t bytes = line_bytes * static_cast<std::size_t>(group->size());
    const auto segment = group->share(Channel::kHost, bytes, "segment");
    expect(segment != nullptr, "share: null among ranks of one machine");
    expect(segment->bytes() == bytes, "share: another size than asked for");
    expect(reinterpret_cast<std::uintptr_t>(segment->data()) % 4096 == 0, "share: not aligned to 4096");
    std::byte* own = segment->data() + line_bytes * static_cast<std::size_t>(group->rank());
    expect(std::all_of(own, own + line_bytes, [](std::byte b) { return b == std::byte{0}; }), "share: not zeroed");
    std::fill_n(own, line_bytes, static_cast<std::byte>(group->rank() + 1));
    group->barrier(Channel::kHost, "written");
    for (int peer = 0; peer < group->size(); ++peer) {
      const std::byte* line = segment->data() + line_bytes * static_cast<std::size_t>(peer);
      const auto mark = static_cast<std::byte>(peer + 1);
      expect(std::all_of(line, line + line_bytes, [&](std::byte b) { return b == mark; }),
             "share: a peer's line is unseen");
    }
    group->barrier(Channel::kHost, "read");
  }
}

// Odd ranks start with one channel, even ranks with the other: ordered channels would wait for each other for ever.
void channels_do_not_wait_for_each_other(World& world) {
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
        group->all_gather(Channel::kGather, {&part, 1}, "beside");
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
    for (int i = 0; i < 50; ++i) check_all_reduce<float>(*group, Channel::kAllReduce, 3000, {ReduceOp::sum(), 1.0});
  } catch (...) {
    gathers.join();
    throw;
  }
  gathers.join();
  expect(gathers_hold, "all_gather beside all_reduce failed");
}

void sub_groups_see_only_their_members(World& world) {
  std::vector<int> even;
  std::vector<int> odd;
  for (int rank = 0; rank < world.size(); ++rank) (rank % 2 == 0 ? even : odd).push_back(rank);
  const auto evens = world.group(even, "even");
  const auto odds = odd.empty() ? nullptr : world.group(odd, "odd");
  const auto& mine = world.rank() % 2 == 0 ? evens : odds;
  const auto& other = world.rank() % 2 == 0 ? odds : evens;
  expect(mine != nullptr && other == nullptr, "group: members get a group, others null");
  expect(mine->ranks() == (world.rank() % 2 == 0 ? even : odd), "group: other ranks than asked for");
  check_all_reduce<float>(*mine, Channel::kAllReduce, 777, {ReduceOp::sum(), 1.0});
  check_reduce_scatter<bf16>(*mine, 99, {ReduceOp::sum(), 1.0}, false);
}

void check_mesh(World& world, int shard_size) {
  const DeviceMesh mesh = DeviceMesh::create(world, shard_size);
  const int row = world.rank() / shard_size;
  const int column = world.rank() % shard_size;
  expect(mesh.shard_size() == shard_size && mesh.world_size() == world.size(), "mesh: wrong sizes");
  expect(mesh.shard_rank() == column, "mesh: the shard axis is not the inner one");
  for (int j = 0; j < shard_size; ++j) {
    expect(mesh.shard().ranks()[static_cast<std::size_t>(j)] == row * shard_size + j, "mesh: wrong shard group");
  }
  check_reduce_scatter<float>(mesh.shard(), 50, {ReduceOp::sum(), 1.0}, false);
  expect((mesh.replicate() == nullptr) == (mesh.replicate_size() == 1), "mesh: a replicate group only where M > 1");
  if (mesh.replicate() == nullptr) return;
  expect(mesh.replicate()->rank() == row, "mesh: the replicate axis is not the outer one");
  for (int i = 0; i < mesh.replicate_size(); ++i) {
    expect(mesh.replicate()->ranks()[static_cast<std::size_t>(i)] == i * shard_size + column,
           "mesh: wrong replicate group");
  }
  check_all_reduce<float>(*mesh.replicate(), Channel::kAllReduce, 50, {ReduceOp::sum(), 1.0});
}

void a_mesh_has_rows_that_shard_and_columns_that_replicate(World& world) {
  for (int shard_size = 1; shard_size <= world.size(); ++shard_size) {
    if (world.size() % shard_size == 0) check_mesh(world, shard_size);
  }
}

void a_group_serves_again_and_again(World& world) {
  const auto group = everyone(world);
  for (int i = 0; i < 100; ++i) {
    group->barrier(Channel::kHost, "again");
    check_all_reduce<std::int32_t>(*group, Channel::kHost, 1 + i % 7, {ReduceOp::sum(), 1.0});
    check_reduce_scatter<float>(*group, 3, {ReduceOp::sum(), 1.0}, i % 2 == 0);
  }
}

}  // namespace

const std::vector<Case>& cases() {
#define LOOM_CASE(name) \
  Case { #name, name }
  static const std::vector<Case> all = {
      LOOM_CASE(gathers_land_in_rank_order),
      LOOM_CASE(parts_gather_in_place_with_unequal_bytes),
      LOOM_CASE(large_gathers_are_whole),
      LOOM_CASE(reduce_scatter_has_the_bits_of_the_sum_in_rank_order),
      LOOM_CASE(large_reduce_scatters_have_the_same_bits),
      LOOM_CASE(all_reduce_has_the_bits_of_the_sum_in_rank_order_everywhere),
      LOOM_CASE(every_root_broadcasts),
      LOOM_CASE(nothing_to_move_is_allowed),
      LOOM_CASE(a_shared_segment_is_one_memory),
      LOOM_CASE(channels_do_not_wait_for_each_other),
      LOOM_CASE(sub_groups_see_only_their_members),
      LOOM_CASE(a_mesh_has_rows_that_shard_and_columns_that_replicate),
      LOOM_CASE(a_group_serves_again_and_again),
  };
#undef LOOM_CASE
  return all;
}

}  // namespace loom::comm::conformance
