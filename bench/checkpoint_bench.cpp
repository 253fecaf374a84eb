// Checkpoints: what saving and loading cost beside a plain write and read of the same bytes, and how long training
// waits for a save in the background.
//
// Save      two ranks write 384 MiB each. Plain: every rank writes its tensors to a file, from front to back, and
//           flushes it to disk. Ours adds archives, two checksums, .metadata, manifest, renames. Run in turn; the ratio
//           is that of the medians.
// Load      the same bytes, in the page cache. Plain: one pread a tensor. Ours: .metadata, archives, checksums.
// Stall     Saver::save() with async, of the 25 M-parameter decoder's state, over a step of it; two ranks.
// Whole     --load of the same decoder with its optimizer, in turn with its manifest, whose checksums cover every byte,
//           and without it, where archives have theirs; and the pass over every byte alone, each rank its share, over
//           the rest of --load. Two ranks; from the disk, as after a restart, and in the page cache.
// Check     what was loaded is what was saved.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstring>
#include <fstream>
#include <vector>

#include "bench/decoder_job.h"
#include "engine/checkpoint/loader.h"
#include "engine/checkpoint/manifest_check.h"
#include "engine/checkpoint/saver.h"
#include "engine/core/descriptor.h"
#include "engine/launch/run_ranks.h"
#include "engine/train/rank_setup.h"
#include "engine/train/run_checkpoints.h"

namespace loom::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;
constexpr int kRounds = 5;
constexpr std::int64_t kTensors = 24;
constexpr std::int64_t kRows = 2048;  // of a rank
constexpr std::int64_t kColumns = 2048;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

fs::path scratch() {
  const fs::path folder = fs::temp_directory_path() / fmt::format("checkpoint_bench_{}", getpid());
  fs::create_directories(folder);
  return folder;
}

checkpoint::State state_of(int rank) {
  checkpoint::State state;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    const Tensor tensor = Tensor::host({kRows, kColumns}, DType::kF32, "state");
    for (std::int64_t e = 0; e < tensor.numel(); ++e) {
      tensor.data<float>()[e] = static_cast<float>(rank * 1000 + i) + static_cast<float>(e % 977) * 1e-3F;
    }
    state.add({"model", fmt::format("w{}", i)},
              {tensor, nn::ShardSpec::rows_from({kRanks * kRows, kColumns}, rank * kRows)});
  }
  return state;
}

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes())};
}

void plain_write(const checkpoint::State& state, const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  for (const checkpoint::StateTensor& tensor : state.tensors) {
    for (std::span<const std::byte> rest = bytes_of(tensor.local.value); !rest.empty();) {
      const ssize_t written = ::write(file.get(), rest.data(), rest.size());
      require(written > 0, "cannot write {}", path.string());
      rest = rest.subspan(static_cast<std::size_t>(written));
    }
  }
  ::fsync(file.get());
}

void plain_read(const checkpoint::State& state, const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  off_t at = 0;
  for (const checkpoint::StateTensor& tensor : state.tensors) {
    for (std::span<std::byte> rest = bytes_of(tensor.local.value); !rest.empty();) {
      const ssize_t read = ::pread(file.get(), rest.data(), rest.size(), at);
      require(read > 0, "cannot read {}", path.string());
      rest = rest.subspan(static_cast<std::size_t>(read));
      at += read;
    }
  }
}

void load(const checkpoint::State& state, const fs::path& folder) {
  const io::DcpFolder checkpoint(folder);
  for (const checkpoint::StateTensor& tensor : state.tensors) {
    checkpoint::read_tensor(checkpoint, *checkpoint.find(tensor.name()), tensor.local);
  }
}

void clear(const checkpoint::State& state) {
  for (const checkpoint::StateTensor& tensor : state.tensors)
    std::ranges::fill(bytes_of(tensor.local.value), std::byte{});
}

bool equal(const checkpoint::State& a, const checkpoint::State& b) {
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (!std::ranges::equal(bytes_of(a.tensors[i].local.value), bytes_of(b.tensors[i].local.value))) return false;
  }
  return true;
}

struct Times {
  std::vector<double> plain_writes, saves, plain_reads, loads;
  bool right = true;
};

void rounds(int rank, comm::World& world, const fs::path& folder, Times& times) {
  const auto everyone = world.everyone();
  const checkpoint::State state = state_of(rank), loaded = state_of(rank);
  checkpoint::SaverOptions options;
  options.folder = folder / "checkpoints";
  options.keep_last = 1;
  checkpoint::Saver saver(options, everyone, [](const std::string&) {});
  const fs::path plain = folder / fmt::format("plain_{}", rank);
  const auto timed = [&](const std::function<void()>& work) {
    everyone->barrier(comm::kHostLane, "round");
    return seconds_of([&] {
      work();
      everyone->barrier(comm::kHostLane, "round");
    });
  };
  for (int round = 1; round <= kRounds; ++round) {
    const double plain_write_s = timed([&] { plain_write(state, plain); });
    const double save_s = timed([&] { saver.save(round, state); });
    const double plain_read_s = timed([&] { plain_read(loaded, plain); });
    clear(loaded);
    const double load_s = timed([&] { load(loaded, options.folder / fmt::format("iter_{:07d}", round)); });
    const bool right = equal(state, loaded);
    if (rank != 0) continue;
    times.right = times.right && right;
    times.plain_writes.push_back(plain_write_s);
    times.saves.push_back(save_s);
    times.plain_reads.push_back(plain_read_s);
    times.loads.push_back(load_s);
  }
}

void save_and_load(benchmark::State& bench) {
  const double bytes = static_cast<double>(kRanks * kTensors * kRows * kColumns) * sizeof(float);
  for (auto _ : bench) {
    const fs::path folder = scratch();
    Times times;
    launch::run_ranks(kRanks, {}, [&](RankContext& context, comm::World& world) {
      device::Device::install(context, {});
      rounds(context.rank(), world, folder, times);
    });
    fs::remove_all(folder);
    if (!times.right) bench.SkipWithError("what was loaded is not what was saved");
    bench.counters["save_GB_per_s"] = bytes / median(times.saves) * 1e-9;
    bench.counters["save_of_plain_write"] = median(times.plain_writes) / median(times.saves);
    bench.counters["load_GB_per_s"] = bytes / median(times.loads) * 1e-9;
    bench.counters["load_of_plain_read"] = median(times.plain_reads) / median(times.loads);
  }
}

void async_stall(benchmark::State& bench) {
  for (auto _ : bench) {
    const fs::path folder = scratch();
    const train::PretrainCallbacks given = callbacks();
    train::TrainSections asked = arguments(kRanks, true, DType::kF32);
    asked.checkpoint.ckpt_format = train::CheckpointFormat::kTorchDcp;
    asked.checkpoint.async_save = true;
    asked.checkpoint.keep_last = 1;
    asked.checkpoint.save = folder / "checkpoints";
    const train::TrainingInputs inputs = train::read_inputs(asked, given);
    std::vector<double> steps, stalls, steps_beside;
    launch::run_ranks(kRanks, {}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, train::rank_setup(asked));
      train::Trainer trainer(asked, given, inputs, world);
      train::RunCheckpoints checkpoints(trainer, asked, {}, world, [](const std::string&) {});
      trainer.step();
      checkpoints.save();  // makes the plan and the memory of the copies
      checkpoints.finish();
      for (int round = 0; round < kRounds; ++round) {
        const double step_s = seconds_of([&] { trainer.step(); });
        const double stall_s = seconds_of([&] { checkpoints.save(); });
        const double beside_s = seconds_of([&] { trainer.step(); });
        checkpoints.finish();
        if (context.rank() != 0) continue;
        steps.push_back(step_s);
        stalls.push_back(stall_s);
        steps_beside.push_back(beside_s);
      }
    });
    fs::remove_all(folder);
    bench.counters["stall_of_step"] = median(stalls) / median(steps);
    bench.counters["step_beside_a_save"] = median(steps_beside) / median(steps);
  }
}

// Of the bytes that this rank holds against the manifest when all ranks see the same files.
void sum_own_share(const fs::path& checkpoint, int rank) {
  const auto manifest = checkpoint::manifest_of(io::DcpFolder(checkpoint)).value();
  for (const checkpoint::FilePart& part : checkpoint::share_of(manifest, rank, kRanks)) {
    const checkpoint::ManifestFile& file = manifest.files[part.file];
    benchmark::DoNotOptimize(checkpoint::sum_part(checkpoint / file.name, file, part.begin, part.bytes));
  }
}

// The next reader of the folder's files waits for the disk.
void leave_the_page_cache(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::fsync(file.get());
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

enum class From { kDisk, kPageCache };

struct LoadTimes {
  std::vector<double> checks, loads, without;
};

// Rank 0 prepares the folder while the others wait; then every rank loads.
class LoadRounds {
 public:
  LoadRounds(int rank, comm::World& world, train::RunCheckpoints& checkpoints, fs::path saved, From from)
      : rank_(rank), everyone_(world.everyone()), checkpoints_(checkpoints), saved_(std::move(saved)), from_(from) {}

  void round(LoadTimes& times) {
    const double check_s = timed([&] { sum_own_share(saved_, rank_); });
    const double load_s = timed([&] { checkpoints_.load(); });
    const fs::path manifest = saved_ / checkpoint::kManifestName, aside = saved_.parent_path().parent_path() / "aside";
    if (rank_ == 0) fs::rename(manifest, aside);
    const double without_s = timed([&] { checkpoints_.load(); });
    if (rank_ != 0) return;
    fs::rename(aside, manifest);
    times.checks.push_back(check_s);
    times.loads.push_back(load_s);
    times.without.push_back(without_s);
  }

 private:
  double timed(const std::function<void()>& work) {
    everyone_->barrier(comm::kHostLane, "before the folder is prepared");
    if (rank_ == 0 && from_ == From::kDisk) leave_the_page_cache(saved_);
    everyone_->barrier(comm::kHostLane, "the folder is prepared");
    return seconds_of(work);
  }

  int rank_;
  std::shared_ptr<comm::ProcessGroup> everyone_;
  train::RunCheckpoints& checkpoints_;
  fs::path saved_;
  From from_;
};

void whole_of_load(benchmark::State& bench) {
  for (auto _ : bench) {
    const fs::path folder = scratch();
    const train::PretrainCallbacks given = callbacks();
    train::TrainSections asked = arguments(kRanks, true, DType::kF32);
    asked.checkpoint.ckpt_format = train::CheckpointFormat::kTorchDcp;
    asked.checkpoint.save = asked.checkpoint.load = folder / "checkpoints";
    asked.schedule.lr_decay_iters = asked.schedule.train_iters;
    const train::TrainingInputs inputs = train::read_inputs(asked, given);
    LoadTimes times;
    launch::run_ranks(kRanks, {}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, train::rank_setup(asked));
      train::Trainer trainer(asked, given, inputs, world);
      train::RunCheckpoints checkpoints(trainer, asked, {}, world, [](const std::string&) {});
      trainer.step();
      checkpoints.save();
      checkpoints.finish();
      LoadRounds rounds(context.rank(), world, checkpoints, *asked.checkpoint.load / "iter_0000001",
                        From{static_cast<int>(bench.range(0))});
      for (int round = 0; round < 2 * kRounds; ++round) rounds.round(times);
    });
    fs::remove_all(folder);
    const double check_s = median(times.checks), load_s = median(times.loads);
    bench.counters["with_manifest_over_without"] = load_s / median(times.without);
    bench.counters["sums_of_rest"] = check_s / (load_s - check_s);
    bench.counters["load_s"] = load_s;
  }
}

BENCHMARK(save_and_load)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(whole_of_load)->ArgName("page_cache")->Arg(0)->Arg(1)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(async_stall)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace loom::bench

BENCHMARK_MAIN();
