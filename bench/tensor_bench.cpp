// A whole training step of two ranks that share matrices, of one thread each, against one rank with whole ones and two
// threads.
//
// Model     of decoder_job.h, fp32, the same batch on both sides; sequence parallelism.
// Ratio     `one_over_shared`: the median time of one rank by that of two. Steps of both sides are taken in turn, while
//           the other side sleeps.
// Slices    overlap_slices: collectives on a thread of their own, beside products.
// Check     before anything is timed: both sides have the same first loss (1e-4).
#include <benchmark/benchmark.h>
#include <cmath>
#include <condition_variable>
#include <fmt/format.h>
#include <mutex>
#include <thread>

#include "bench/decoder_job.h"
#include "bench/turns.h"
#include "engine/launch/run_ranks.h"
#include "engine/train/rank_setup.h"

namespace loom::bench {
namespace {

constexpr int kRounds = 7;

// Two sides, of which one runs.
class Sides {
 public:
  void run(int side, const std::function<void()>& body) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ == side || alone_; });
    body();
    next_ = 1 - side;
    changed_.notify_all();
  }
  // The other side need not wait any longer.
  void leave() {
    const std::lock_guard lock(mutex_);
    alone_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int next_ = 0;
  bool alone_ = false;
};

class Leaving {
 public:
  explicit Leaving(Sides& sides) : sides_(sides) {}
  ~Leaving() { sides_.leave(); }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

 private:
  Sides& sides_;
};

struct Measured {
  double first_loss = 0;
  std::vector<double> times;
};

// Of the job on its ranks; rank 0 takes the turns, the others follow it.
Measured measure(const train::TrainSections& asked, Sides& sides, int side) {
  Measured result;
  const train::PretrainCallbacks given = callbacks();
  const train::TrainingInputs inputs = train::read_inputs(asked, given);
  const Leaving leaving(sides);
  launch::run_ranks(asked.launch.ranks, {}, [&](RankContext& context, comm::World& world) {
    nn::make_rank(context, train::rank_setup(asked));
    train::Trainer trainer(asked, given, inputs, world);
    const auto everyone = world.everyone();
    const auto step = [&] {
      everyone->barrier(comm::kHostLane, "begin");
      const double loss = trainer.step().loss;
      everyone->barrier(comm::kHostLane, "end");
      return loss;
    };
    const auto in_turn = [&](const std::function<void()>& body) {
      context.rank() == 0 ? sides.run(side, body) : body();
    };
    in_turn([&] {
      const double loss = step();
      if (context.rank() == 0) result.first_loss = loss;
    });
    for (int round = 0; round < kRounds; ++round) {
      in_turn([&] {
        const double time = seconds([&] { step(); });
        if (context.rank() == 0) result.times.push_back(time);
      });
    }
  });
  return result;
}

train::TrainSections one_rank() {
  train::TrainSections a = arguments(1, false, DType::kF32);
  a.launch.compute_threads = 2;
  return a;
}

train::TrainSections two_ranks(std::int64_t slices) {
  train::TrainSections a = arguments(2, true, DType::kF32);
  a.launch.compute_threads = 1;
  a.launch.device_executor = device::ExecutorKind::kThreaded;
  a.schedule.global_batch_size = kBatch;
  const std::filesystem::path file = a.parallel.fsdp2_config_path->parent_path() / "tensor.yaml";
  io::write_text(file, fmt::format("sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{{*}}\"]\n"
                                   "tensor_parallel_size: 2\nsequence_parallel: true\noverlap_slices: {}\n",
                                   slices));
  a.parallel.fsdp2_config_path = file;
  return a;
}

void shared_step(benchmark::State& state) {
  for (auto _ : state) {
    Sides sides;
    Measured one;
    std::thread other([&] { one = measure(one_rank(), sides, 0); });
    const Measured two = measure(two_ranks(state.range(0)), sides, 1);
    other.join();
    if (!(std::abs(one.first_loss - two.first_loss) <= 1e-4)) {
      state.SkipWithError(fmt::format("first losses differ: {} and {}", one.first_loss, two.first_loss).c_str());
      return;
    }
    state.counters["one_over_shared"] = median(one.times) / median(two.times);
    state.counters["tokens_per_s"] = static_cast<double>(kBatch * kSeq) / median(two.times);
  }
}
BENCHMARK(shared_step)->ArgName("slices")->Arg(1)->Arg(2)->Arg(4)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace loom::bench

BENCHMARK_MAIN();
