// Promise: samples are windows of the files' bytes, and their order depends on the seed and the sample's index alone.
#include "engine/data/byte_dataset.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

using Sample = std::vector<std::int32_t>;

Sample sample_at(const ByteDataset& data, std::int64_t index, int seq_length) {
  Sample tokens(static_cast<std::size_t>(seq_length) + 1);
  data.fill(index, tokens);
  return tokens;
}

std::vector<Sample> samples(const ByteDataset& data, std::int64_t begin, std::int64_t end, int seq_length) {
  std::vector<Sample> all;
  for (std::int64_t i = begin; i < end; ++i) all.push_back(sample_at(data, i, seq_length));
  return all;
}

std::vector<std::string> names(const ByteDataset& data) {
  std::vector<std::string> names;
  for (const io::MappedFile& file : data.files()) names.push_back(file.path().filename());
  return names;
}

ByteDataset all_of(const fs::path& path, int seq_length, std::uint64_t seed = 1) {
  return open_byte_data({.paths = {path}, .seq_length = seq_length, .seed = seed}).train;
}

// 1 KiB of every byte value in turn: its windows of 5 are all different within an epoch of 255 samples of seq 4.
fs::path counting_file() {
  std::string text;
  for (int i = 0; i < 1024; ++i) text += static_cast<char>(i % 256 ^ i / 256);
  return write_file(fresh_folder() / "counting", text);
}

TEST(ByteDataset, CutsTheStreamIntoWindowsThatShareOneByte) {
  // "abcdefgh" in samples of 3 + 1: bytes 0-3 and 3-6; "h" would begin a third that is too short.
  const ByteDataset data = all_of(write_file(fresh_folder() / "a", "abcdefgh"), 3);
  EXPECT_EQ(data.sample_count(), 2);  // (8 - 1) / 3
  EXPECT_THAT(samples(data, 0, 2, 3),
              UnorderedElementsAre(ElementsAre('a', 'b', 'c', 'd'), ElementsAre('d', 'e', 'f', 'g')));
}

TEST(ByteDataset, JoinsFilesInPathOrderWithAZeroBetween) {
  const auto folder = fresh_folder();
  write_file(folder / "b", "xyz");
  write_file(folder / "a", "12");
  write_file(folder / "c" / "d", "!");
  const ByteDataset data = all_of(folder, 7);  // 2 + 1 + 3 + 1 + 1 bytes: one sample
  EXPECT_EQ(data.stream_bytes(), 8);
  EXPECT_THAT(samples(data, 0, data.sample_count(), 7), ElementsAre(ElementsAre('1', '2', 0, 'x', 'y', 'z', 0, '!')));
}

TEST(ByteDataset, GivesWindowsThatBeginOrEndAtASeparator) {
  const auto folder = fresh_folder();
  write_file(folder / "a", "12");
  write_file(folder / "b", "34");
  // 1 2 0 3 4 in samples of 2 + 1.
  EXPECT_THAT(samples(all_of(folder, 2), 0, 2, 2),
              UnorderedElementsAre(ElementsAre('1', '2', 0), ElementsAre(0, '3', '4')));
}

TEST(ByteDataset, GivesBytesAbove127AsPositiveTokens) {
  EXPECT_THAT(samples(all_of(write_file(fresh_folder() / "a", "\x80\xff"), 1), 0, 1, 1),
              ElementsAre(ElementsAre(128, 255)));
}

TEST(ByteDataset, VisitsEverySampleOnceAnEpoch) {
  const ByteDataset data = all_of(counting_file(), 4);
  const std::int64_t epoch = data.sample_count();
  ASSERT_EQ(epoch, 255);  // (1024 - 1) / 4
  const auto first = samples(data, 0, epoch, 4);
  const auto second = samples(data, epoch, 2 * epoch, 4);
  const std::set<Sample> distinct(first.begin(), first.end());
  EXPECT_EQ(static_cast<std::int64_t>(distinct.size()), epoch);
  EXPECT_EQ(distinct, std::set<Sample>(second.begin(), second.end()));
  EXPECT_NE(first, second);
}

TEST(ByteDataset, ShufflesByTheSeed) {
  const auto path = counting_file();
  const auto order = [&](std::uint64_t seed) { return samples(all_of(path, 4, seed), 0, 255, 4); };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
  EXPECT_FALSE(std::ranges::is_sorted(order(1)));
}

TEST(ByteDataset, ResumesAtAStepWithTheSameBatches) {
  // Global batch 8: a run to step 100, and one that begins at step 60 with 60 * 8 samples consumed (past one epoch).
  const auto path = counting_file();
  const auto batches = [&](std::int64_t begin, std::int64_t end) {
    const ByteDataset data = all_of(path, 4);
    std::vector<Sample> all;
    for (std::int64_t step = begin; step < end; ++step) {
      for (const std::int64_t row : rank_rows(8 * step, 8, 0, 1, 8, 0)) all.push_back(sample_at(data, row, 4));
    }
    return all;
  };
  const auto whole = batches(0, 100);
  EXPECT_EQ(std::vector<Sample>(whole.begin() + 60 * 8, whole.end()), batches(60, 100));
}

TEST(ByteDataset, ReadsFoldersToAnyDepthButNotThroughLinksToFolders) {
  const auto folder = fresh_folder();
  write_file(folder / "data" / "top", "1");
  write_file(folder / "data" / "deep" / "er" / "leaf", "2");
  write_file(folder / "data" / "empty", "");
  write_file(folder / "elsewhere" / "hidden", "3");
  write_file(folder / "linked", "4");
  fs::create_directory_symlink(folder / "elsewhere", folder / "data" / "folder_link");
  fs::create_directory_symlink(folder / "data", folder / "data" / "loop");
  fs::create_symlink(folder / "linked", folder / "data" / "file_link");
  fs::create_symlink(folder / "absent", folder / "data" / "dangling");
  EXPECT_THAT(names(all_of(folder / "data", 1)), ElementsAre("leaf", "file_link", "top"));
}

TEST(ByteDataset, CountsAFileReachedTwiceOnce) {
  const auto folder = fresh_folder();
  write_file(folder / "a", "12345");
  EXPECT_THAT(names(open_byte_data({.paths = {folder, folder / "a", folder}, .seq_length = 1}).train),
              ElementsAre("a"));
}

TEST(ByteDataset, NamesAPathThatCannotBeRead) {
  const auto path = fresh_folder() / "absent";
  EXPECT_EQ(message_of<ConfigError>([&] { all_of(path, 4); }),
            "--data-path '" + path.string() + "': cannot read: No such file or directory");
  EXPECT_EQ(message_of<ConfigError>([&] { all_of("/dev/null", 4); }),
            "--data-path '/dev/null': neither a file nor a folder; give files, or folders with files");
}

TEST(ByteDataset, SaysThatThereIsNoData) {
  const auto folder = fresh_folder();
  write_file(folder / "one" / "empty", "");
  fs::create_directories(folder / "two");
  EXPECT_EQ(message_of<ConfigError>([&] {
              open_byte_data({.paths = {folder / "one", folder / "two"}, .seq_length = 4});
            }),
            "--data-path '" + (folder / "one").string() + "', '" + (folder / "two").string() +
                "': no file that holds anything; give files, or folders with files");
}

TEST(ByteDataset, SaysWhatOneSampleTakes) {
  const auto folder = fresh_folder();
  write_file(folder / "a", "12");
  write_file(folder / "b", "34");  // 5 bytes with the separator
  EXPECT_EQ(
      message_of<ConfigError>([&] { all_of(folder, 5); }),
      "training data: 5 bytes in 2 file(s), but one sample of --seq-length 5 takes 6; give more data or a shorter "
      "--seq-length");
  EXPECT_EQ(all_of(folder, 4).sample_count(), 1);
}

TEST(ByteDataset, AsksForRoomForOneMoreTokenThanTheSequence) {
  const ByteDataset data = all_of(counting_file(), 4);
  Sample tokens(4);
  EXPECT_EQ(message_of<InvariantError>([&] { data.fill(0, tokens); }), "internal: room for 4 tokens, a sample has 5");
}

}  // namespace
}  // namespace loom::data
