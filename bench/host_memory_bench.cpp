// Host memory as offload gives it: copies and AdamW over its buffers, and the copy streams of the device, as ratios to
// memcpy and STREAM triad measured just before in the same process.
//
// Arrays   256 MiB each, beyond the L3 cache of one host; copy items of 16 MiB.
// Pages    huge: as a HostBuffer asks for them; small: the same with huge pages refused.
// Checked  the last bytes of each copy, and that AdamW moves the weights, before it is timed. Counters of_memcpy or
//          of_triad (the ratio; the best run of each), GB_s.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "bench/limits.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/kernels/fused.h"
#include "offload/host_allocator.h"

namespace loom::bench {
namespace {

constexpr std::size_t kArrayBytes = std::size_t{256} << 20;
constexpr std::size_t kItemBytes = std::size_t{16} << 20;

enum class Pages { kHuge, kSmall };

offload::HostBuffer touched_buffer(Pages pages, bool pin, std::uint8_t value) {
  offload::HostBuffer buffer(kArrayBytes);
  if (pages == Pages::kSmall) madvise(buffer.data(), buffer.bytes(), MADV_NOHUGEPAGE);
  std::memset(buffer.data(), value, buffer.bytes());
  if (pin) mlock(buffer.data(), buffer.bytes());
  return buffer;
}

// The best of several runs, in seconds.
double best_seconds(benchmark::State& state, const std::function<void()>& run) {
  double best = 1e9;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void report(benchmark::State& state, const char* ratio, double bytes, double seconds, double limit) {
  state.counters[ratio] = bytes / seconds / limit;
  state.counters["GB_s"] = bytes / seconds * 1e-9;
}

void copy(benchmark::State& state, Pages pages) {
  const auto from = touched_buffer(pages, true, 3);
  const auto to = touched_buffer(pages, true, 0);
  const double limit = memcpy_bytes_per_second(1, kArrayBytes);
  std::memcpy(to.data(), from.data(), kArrayBytes);
  require(to.data()[kArrayBytes - 1] == std::byte{3}, "the copy is wrong");
  const double seconds = best_seconds(state, [&] { std::memcpy(to.data(), from.data(), kArrayBytes); });
  report(state, "of_memcpy", 2.0 * kArrayBytes, seconds, limit);
}

void adamw(benchmark::State& state, Pages pages, int threads) {
  RankContext context(0, 1);
  const RankScope scope(context);
  context.slot<ComputePool>().resize(threads);
  const auto weight = touched_buffer(pages, false, 0), grad = touched_buffer(pages, false, 0),
             m = touched_buffer(pages, false, 0), v = touched_buffer(pages, false, 0);
  std::ranges::fill(grad.as<float>(), 0.5F);
  kernels::AdamW op{.elems = static_cast<std::int64_t>(kArrayBytes / sizeof(float))};
  const auto step = [&] { kernels::adamw(op, weight.data(), grad.data(), m.data(), v.data()); };
  step();
  require(weight.as<float>().back() < 0, "AdamW moved no weight");
  const double limit = triad_bytes_per_second(threads, kArrayBytes);
  report(state, "of_triad", 7.0 * kArrayBytes, best_seconds(state, step), limit);
}

// Items of a copy stream, one after another, from host memory to the device's or back.
void copy_stream(benchmark::State& state, device::StreamId id) {
  RankContext context(0, 1);
  const RankScope scope(context);
  device::DeviceOptions options;
  options.executor = device::ExecutorKind::kThreaded;
  options.host_allocator = offload::make_host_allocator({.pinned_pool_bytes = kArrayBytes});
  device::Device& device = device::Device::install(context, options);
  const auto host = device.host_memory().allocate(kArrayBytes, device::MemCategory::kParameter, true);
  const auto memory = device.memory().allocate(kArrayBytes, device::MemCategory::kParameter, "copied");
  std::memset(host->data(), 3, kArrayBytes);
  std::memset(memory->data(), 5, kArrayBytes);
  const bool in = id == device::StreamId::kH2D;
  std::byte* const to = in ? memory->data() : host->data();
  const std::byte* const from = in ? host->data() : memory->data();
  const auto run = [&] {
    for (std::size_t at = 0; at < kArrayBytes; at += kItemBytes) {
      const device::Cost cost{.read_bytes = kItemBytes, .written_bytes = kItemBytes, .unit = device::Unit::kHostLink};
      device.stream(id).submit({"copy", "", cost, [=] { std::memcpy(to + at, from + at, kItemBytes); }});
    }
    device.stream(id).synchronize();
  };
  run();
  require(to[kArrayBytes - 1] == from[kArrayBytes - 1], "the stream's copy is wrong");
  const double limit = memcpy_bytes_per_second(1, kArrayBytes);
  report(state, "of_memcpy", 2.0 * kArrayBytes, best_seconds(state, run), limit);
}

void add_all() {
  for (const auto& [name, pages] : {std::pair("huge", Pages::kHuge), std::pair("small", Pages::kSmall)}) {
    const std::string suffix = std::string("/pages:") + name;
    benchmark::RegisterBenchmark(("copy" + suffix).c_str(), copy, pages)->UseRealTime();
    for (const int threads : {1, 2}) {
      benchmark::RegisterBenchmark(("adamw" + suffix + "/threads:" + std::to_string(threads)).c_str(), adamw, pages,
                                   threads)
          ->UseRealTime();
    }
  }
  benchmark::RegisterBenchmark("stream/h2d", copy_stream, device::StreamId::kH2D)->UseRealTime();
  benchmark::RegisterBenchmark("stream/d2h", copy_stream, device::StreamId::kD2H)->UseRealTime();
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  loom::bench::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
