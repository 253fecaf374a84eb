// Promise: indices are built once and found again; what is damaged or of other data is built again; builders wait for
//          one another, and not for ever.
#include "engine/data/index_cache.h"

#include <atomic>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "engine/core/error.h"
#include "engine/data/gpt_data.h"
#include "engine/io/output_lock.h"
#include "tests/data/gpt_files.h"
#include "tests/support/files.h"
#include "tests/support/logged.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Builds 1 2 3 and 7, and counts how often.
class Builds {
 public:
  IndexArrays get(const IndexCache& cache, const std::string& description = "of this data") {
    return cached_indices(cache, "gpt-train", description, {4, 8}, [this] {
      ++count_;
      return std::vector<IndexVector>{std::vector<std::int32_t>{1, 2, 3}, std::vector<std::int64_t>{7}};
    });
  }
  int count() const { return count_; }

 private:
  std::atomic<int> count_ = 0;
};

void expect_right(const IndexArrays& arrays) {
  ASSERT_EQ(arrays.size(), 2U);
  EXPECT_THAT(arrays.get<std::int32_t>(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(arrays.get<std::int64_t>(1), ElementsAre(7));
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(IndexCache, BuildsOnceAndFindsItAgain) {
  const IndexCache cache{.folder = fresh_folder() / "made" / "here"};
  Builds builds;
  for (int i = 0; i < 3; ++i) expect_right(builds.get(cache));
  EXPECT_EQ(builds.count(), 1);
  const fs::path file = cache_file(cache, "gpt-train", "of this data");
  EXPECT_THAT(names_in(cache.folder), ElementsAre(file.filename().string()));  // no lock, nothing temporary
  // docs/formats.md: 32 bytes of header, two entries of 16, 12 bytes of text, 12 and 8 of arrays, filled up to 8 each.
  EXPECT_EQ(fs::file_size(file), 32U + 2 * 16 + 16 + 16 + 8);
  EXPECT_EQ(read_file(file).substr(0, 8), std::string("SLINDEX\0", 8));
}

TEST(IndexCache, KnowsOtherDataByItsDescription) {
  const IndexCache cache{.folder = fresh_folder()};
  Builds builds;
  builds.get(cache, "a");
  builds.get(cache, "b");
  EXPECT_EQ(builds.count(), 2);
  // One name for two descriptions: the text inside decides.
  fs::copy_file(cache_file(cache, "gpt-train", "a"), cache_file(cache, "gpt-train", "c"));
  const test::Logged logged;
  expect_right(builds.get(cache, "c"));
  EXPECT_EQ(builds.count(), 3);
  EXPECT_THAT(logged.text(), HasSubstr("this cache is damaged (of other data) and is built again"));
}

TEST(IndexCache, BuildsAgainWhatIsDamaged) {
  const IndexCache cache{.folder = fresh_folder()};
  Builds builds;
  builds.get(cache);
  const fs::path file = cache_file(cache, "gpt-train", "of this data");
  const std::string sound = read_file(file);
  int built = 1;
  for (std::size_t at = 0; at < sound.size(); at += 7) {
    for (std::string damaged : {sound.substr(0, at), sound}) {
      if (damaged.size() == sound.size()) damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
      write_file(file, damaged);
      const test::Logged logged;
      expect_right(builds.get(cache));
      EXPECT_EQ(builds.count(), ++built) << at;
      EXPECT_THAT(logged.text(), HasSubstr(file.string() + ": this cache is damaged (")) << at;
      EXPECT_EQ(read_file(file), sound);
    }
  }
}

TEST(IndexCache, IsBuiltByOneOfManyAtOnce) {
  const IndexCache cache{.folder = fresh_folder()};
  Builds builds;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([&] { expect_right(builds.get(cache)); });
  }
  EXPECT_EQ(builds.count(), 1);
}

TEST(IndexCache, WaitsForABuilderButNotForEver) {
  IndexCache cache{.folder = fresh_folder(), .longest_wait = std::chrono::milliseconds(60)};
  Builds builds;
  {
    const fs::path file = cache_file(cache, "gpt-train", "of this data");
    const auto other = io::OutputLock::of_file("--data-cache-path", file);
    EXPECT_THAT(message_of<ConfigError>([&] { builds.get(cache); }),
                AllOf(HasSubstr("--data-cache-path: another run writes " + file.string() + " (process "),
                      HasSubstr("; wait for its end, or give another path")));
  }
  EXPECT_EQ(builds.count(), 0);
  expect_right(builds.get(cache));
}

TEST(IndexCache, SaysThatAFolderCannotBeWritten) {
  const fs::path folder = fresh_folder();
  const fs::path taken = write_file(folder / "file", "");
  IndexCache cache{.folder = taken / "cache"};
  Builds builds;
  EXPECT_EQ(message_of<ConfigError>([&] { builds.get(cache); }),
            "--data-cache-path '" + cache.folder.string() +
                "': cannot make the folder: Not a directory; give a folder that can be written");
  EXPECT_EQ(builds.count(), 0);
  // Beside the data nobody asked for a cache: it does without.
  cache.must_write = false;
  const test::Logged logged;
  expect_right(builds.get(cache));
  EXPECT_THAT(logged.text(), HasSubstr("the indices stay in memory, and every process builds its own"));
}

TEST(IndexCache, KeepsNothingWithoutAFolder) {
  Builds builds;
  expect_right(builds.get({}));
  expect_right(builds.get({}));
  EXPECT_EQ(builds.count(), 2);
}

// --- Of data sets

GptDataOptions options_of(const std::vector<std::string>& words, const fs::path& cache) {
  GptDataOptions options;
  options.blend = parse_blend("--data-path", words);
  options.split = "1";
  options.samples[0] = 20;
  options.sample.seq_length = 8;
  options.cache_path = cache;
  return options;
}

TEST(GptDataCache, LiesBesideThePairUnlessAFolderIsGiven) {
  const fs::path folder = fresh_folder();
  const fs::path prefix = test::write_even_pair(folder / "p", 30, 9);
  open_gpt_data(options_of({prefix}, {}));
  EXPECT_EQ(names_in(folder / "p" / "cache" / "GPTDataset_indices").size(), 1U);
  open_gpt_data(options_of({"1", prefix, "1", prefix}, folder / "given"));
  EXPECT_EQ(names_in(folder / "given").size(), 2U);  // the pair's, which both share, and the blend's
}

// The indices depend on the lengths of sequences, not on names, tokens or times.
TEST(GptDataCache, GoesWithTheDataAndChangesWithIt) {
  const fs::path folder = fresh_folder();
  const fs::path prefix = test::write_even_pair(folder / "p", 30, 9);
  const auto files_with = [&](const GptDataOptions& options) {
    open_gpt_data(options);
    return names_in(folder / "cache").size();
  };
  GptDataOptions options = options_of({prefix}, folder / "cache");
  EXPECT_EQ(files_with(options), 1U);
  EXPECT_EQ(files_with(options), 1U);
  EXPECT_EQ(files_with(options_of({test::write_even_pair(folder / "moved", 30, 9)}, folder / "cache")), 1U);
  options.sample.eod = 100;
  options.sample.reset_position_ids = true;
  EXPECT_EQ(files_with(options), 1U);
  options.sample.seed = 1235;
  EXPECT_EQ(files_with(options), 2U);
  options.sample.seq_length = 9;
  EXPECT_EQ(files_with(options), 3U);
  options.samples[0] = 200;
  EXPECT_EQ(files_with(options), 4U);
  options.split = "1,1";
  EXPECT_EQ(files_with(options), 6U);
  std::vector<int> lengths(30, 9);
  lengths[3] = 8;
  lengths[4] = 10;
  EXPECT_EQ(files_with(options_of({test::write_pair(folder / "p", lengths)}, folder / "cache")), 7U);
}

}  // namespace
}  // namespace loom::data
