// Samples of .bin/.idx pairs against memory: fill() of samples a second, as a share of a memcpy of the bytes of their
// rows.
//
// Data     64 MiB of tokens in sequences of 1 to 2000, int32 and uint16; samples of 4096 in the shuffled order, all
//          five rows. One thread, its processor time. Files in the page cache.
// Limit    memcpy of as many bytes as a sample's rows have, 5 * 4 * seq_length, from random places of the mapped file.
// Checked  before it is timed: each label is the next token, and the first token is that of the file.
#include <time.h>
#include <unistd.h>

#include <benchmark/benchmark.h>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/data/gpt_data.h"
#include "engine/formats/indexed/indexed_writer.h"

namespace loom::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTokens = std::int64_t{16} << 20;
constexpr std::int64_t kSeqLength = 4096;
constexpr int kRowsOfASample = 5;
constexpr int kVocab = 65000;
constexpr std::int32_t kEod = 1;
constexpr int kFills = 4000;

class Pair {
 public:
  explicit Pair(io::IndexedDtype dtype)
      : folder_(fs::temp_directory_path() / fmt::format("data_bench_{}", ::getpid())) {
    fs::create_directories(folder_);
    io::IndexedWriter writer(prefix(), dtype);
    std::vector<std::int32_t> tokens;
    std::uint64_t draw = 0;
    for (std::int64_t written = 0; written < kTokens; written += static_cast<std::int64_t>(tokens.size())) {
      tokens.resize(1 + static_cast<std::size_t>(uniform_at(1, draw++) * 2000));
      for (auto& token : tokens) token = 2 + static_cast<std::int32_t>(uniform_at(2, draw++) * (kVocab - 2));
      tokens.back() = kEod;
      writer.add_sequence(tokens);
      writer.end_document();
    }
    writer.commit();
  }
  ~Pair() { fs::remove_all(folder_); }
  fs::path prefix() const { return folder_ / "pair"; }

 private:
  const fs::path folder_;
};

data::GptData open(const Pair& pair) {
  return data::open_gpt_data({.blend = data::DataBlend{{pair.prefix()}, {}},
                              .split = "1",
                              .sample = {.seq_length = kSeqLength,
                                         .eod = kEod,
                                         .reset_position_ids = true,
                                         .reset_attention_mask = true,
                                         .eod_mask_loss = true}});
}

struct Rows {
  std::vector<std::int32_t> tokens, labels, positions, attend_from;
  std::vector<float> loss_mask;

  Rows() : loss_mask(kSeqLength) {
    for (auto* row : {&tokens, &labels, &positions, &attend_from}) row->resize(kSeqLength);
  }
  data::GptSampleRow row() { return {tokens, labels, loss_mask, positions, attend_from}; }
};

void check(const data::BlendedDataset& train) {
  const data::GptDataset& set = train.sets().front();
  Rows rows;
  for (std::int64_t i = 0; i < train.sample_count(); i += 97) {
    train.fill(i, rows.row());
    const auto entry = set.sample_index().subspan(2 * static_cast<std::size_t>(set.shuffle_index()[i]), 2);
    std::int32_t first = 0;
    set.pair().read(set.document_index()[entry[0]], entry[1], {&first, 1});
    require(rows.tokens.front() == first, "sample {} begins with {}, the file with {}", i, rows.tokens.front(), first);
    require(std::equal(rows.tokens.begin() + 1, rows.tokens.end(), rows.labels.begin()), "the labels of sample {}", i);
  }
}

// Of this thread alone, so that neighbours on the same cores do not count.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Seconds of one memcpy of a sample's rows.
double copy_seconds(const io::IndexedDataset& pair) {
  constexpr std::size_t kBytes = kRowsOfASample * kSeqLength * sizeof(std::int32_t);
  constexpr int kCopies = 4000;
  std::vector<std::byte> to(kBytes);
  const auto places = static_cast<double>(pair.bytes().size() - kBytes);
  const double start = processor_seconds();
  for (int i = 0; i < kCopies; ++i) {
    const auto from = static_cast<std::size_t>(uniform_at(3, static_cast<std::uint64_t>(i)) * places);
    std::memcpy(to.data(), pair.bytes().data() + from, kBytes);
    benchmark::DoNotOptimize(to.data());
  }
  return (processor_seconds() - start) / kCopies;
}

void samples(benchmark::State& state, io::IndexedDtype dtype) {
  const Pair pair(dtype);
  const data::GptData data = open(pair);
  const data::BlendedDataset& train = data[0].value();
  check(train);
  Rows rows;
  std::int64_t next = 0;
  double copied = 0;
  double filled = 0;
  std::int64_t count = 0;
  for (auto _ : state) {
    copied += copy_seconds(train.sets().front().pair());
    const double start = processor_seconds();
    for (int i = 0; i < kFills; ++i) {
      train.fill(next, rows.row());
      next = (next + 1) % train.sample_count();
      benchmark::DoNotOptimize(rows.tokens.data());
    }
    filled += (processor_seconds() - start) / kFills;
    ++count;
  }
  state.counters["samples_per_s"] = static_cast<double>(count) / filled;
  state.counters["of_memcpy"] = copied / filled;
}

BENCHMARK_CAPTURE(samples, int32, io::IndexedDtype::kI32)->Iterations(5)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(samples, uint16, io::IndexedDtype::kU16)->Iterations(5)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace loom::bench

BENCHMARK_MAIN();
