// Tokenizing: how fast one core encodes and decodes the documents of this tree.
//
// Text      docs/*.md and both READMEs, 40 times: what a piece costs that was met before.
// Limit     memchr for a byte that is not there: one look at each byte.
// Check     decode(encode(x)) is x.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace loom::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kRepeats = 40;
constexpr int kRuns = 5;

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> documents() {
  const fs::path root = LOOM_SOURCE_DIR;
  std::vector<fs::path> paths{root / "README.md", root / "README.zh.md"};
  for (const auto& entry : fs::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<std::string> texts;
  for (const fs::path& path : paths) texts.push_back(read_file(path));
  return texts;
}

std::size_t bytes_of(const std::vector<std::string>& texts) {
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  return bytes;
}

double memory_bytes_per_second(const std::vector<std::string>& texts) {
  double best = 1e300;
  for (int run = 0; run < kRuns; ++run) {
    best = std::min(best, seconds_of([&] {
                      for (int i = 0; i < kRepeats; ++i) {
                        for (const std::string& text : texts)
                          benchmark::DoNotOptimize(std::memchr(text.data(), 1, text.size()));
                      }
                    }));
  }
  return static_cast<double>(bytes_of(texts)) * kRepeats / best;
}

void encode(benchmark::State& state, const std::string& name) {
  const auto tokenizer = data::Tokenizer::from_file(fs::path(LOOM_SOURCE_DIR) / "tests/reference/tokenizers" / name);
  const auto texts = documents();
  data::TokenEncoder encoder(tokenizer);
  std::vector<data::TokenId> ids;
  for (const std::string& text : texts) {
    ids.clear();
    encoder.encode(text, ids);
    require(tokenizer.decode(ids) == text, "decode(encode(x)) is another text than x");
  }
  double best = 1e300;
  for (auto _ : state) {
    const double seconds = seconds_of([&] {
      for (int i = 0; i < kRepeats; ++i) {
        for (const std::string& text : texts) {
          ids.clear();
          encoder.encode(text, ids);
        }
      }
    });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const double rate = static_cast<double>(bytes_of(texts)) * kRepeats / best;
  state.counters["MB_s"] = rate * 1e-6;
  state.counters["of_memchr"] = rate / memory_bytes_per_second(texts);
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const char* name : {"tokenizer_qwen2", "tokenizer_gpt2"}) {
    benchmark::RegisterBenchmark(fmt::format("encode/{}", name).c_str(), loom::bench::encode, name)
        ->Iterations(loom::bench::kRuns)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
