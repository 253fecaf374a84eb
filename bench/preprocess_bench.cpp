// Preprocessing: how fast texts become pairs .bin/.idx, from the file to the disk, with 1 and 2 workers.
//
// Text      docs/*.md and both READMEs as records of a jsonl file, 40 times.
// Limit     encoding the same texts on one core, in the same run; times the workers.
// Check     the ids in the pair are those of encoding each text, before anything is timed.
#include <unistd.h>

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/formats/indexed/indexed_dataset.h"
#include "engine/text/preprocess/preprocess.h"

namespace loom::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kRepeats = 40;
constexpr int kRuns = 5;
const fs::path kTokenizer = fs::path(LOOM_SOURCE_DIR) / "tests/reference/tokenizers/tokenizer_qwen2";

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / fmt::format("preprocess_bench_{}", ::getpid())) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  const fs::path path_;
};

std::vector<std::string> documents() {
  const fs::path root = LOOM_SOURCE_DIR;
  std::vector<fs::path> paths{root / "README.md", root / "README.zh.md"};
  for (const auto& entry : fs::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<std::string> texts;
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

void write_records(const fs::path& path, const std::vector<std::string>& texts) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < kRepeats; ++i) {
    for (const std::string& text : texts) file << nlohmann::json{{"text", text}}.dump() << '\n';
  }
}

void check(const fs::path& prefix, const std::vector<std::string>& texts, const data::Tokenizer& tokenizer) {
  const io::IndexedDataset pair(prefix);
  require(pair.sequence_count() == std::ssize(texts) * kRepeats, "{} sequences", pair.sequence_count());
  for (std::int64_t i = 0; i < pair.sequence_count(); ++i) {
    std::vector<data::TokenId> ids(static_cast<std::size_t>(pair.length(i)));
    pair.read(i, 0, ids);
    require(ids == tokenizer.encode(texts[static_cast<std::size_t>(i) % texts.size()]), "sequence {} has other ids", i);
  }
}

double seconds_to_encode(const std::vector<std::string>& texts, const data::Tokenizer& tokenizer) {
  data::TokenEncoder encoder(tokenizer);
  std::vector<data::TokenId> ids;
  return seconds_of([&] {
    for (int i = 0; i < kRepeats; ++i) {
      for (const std::string& text : texts) {
        ids.clear();
        encoder.encode(text, ids);
      }
    }
  });
}

void preprocess(benchmark::State& state, int workers) {
  const Folder folder;
  const auto texts = documents();
  const auto tokenizer = data::Tokenizer::from_file(kTokenizer);
  write_records(folder / "in.jsonl", texts);
  data::PreprocessOptions options;
  options.handler_name = "GeneralPretrainHandler";
  options.input = folder / "in.jsonl";
  options.output_prefix = folder / "out";
  options.tokenizer_name_or_path = kTokenizer;
  options.workers = workers;
  data::run_preprocess(options);
  check(folder / "out_text_document", texts, tokenizer);
  const auto bytes = static_cast<double>(fs::file_size(options.input));
  double best = 1e300;
  double encoding = 1e300;
  for (auto _ : state) {
    const double seconds = seconds_of([&] { data::run_preprocess(options); });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    encoding = std::min(encoding, seconds_to_encode(texts, tokenizer));
  }
  state.counters["MB_s"] = bytes / best * 1e-6;
  state.counters["of_encoding"] = encoding / workers / best;
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const int workers : {1, 2}) {
    benchmark::RegisterBenchmark(fmt::format("preprocess/workers_{}", workers).c_str(), loom::bench::preprocess,
                                 workers)
        ->Iterations(loom::bench::kRuns)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
