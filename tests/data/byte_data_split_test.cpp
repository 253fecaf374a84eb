// Promise: every file is on one side, training or held-out; which one depends on the list of files alone. A single file
//          is cut where a document ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "engine/core/error.h"
#include "engine/data/byte_dataset.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::write_file;
using ::testing::ElementsAre;

// Files "000", "001", ...: file i has sizes[i] bytes, all of value i.
fs::path files_of(const std::vector<std::size_t>& sizes) {
  const auto folder = fresh_folder();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    write_file(folder / fmt::format("{:03}", i), std::string(sizes[i], static_cast<char>(i)));
  }
  return folder;
}

ByteData split(const fs::path& folder, double fraction, int seq_length = 8, std::uint64_t seed = 1) {
  return open_byte_data({.paths = {folder}, .seq_length = seq_length, .held_out_fraction = fraction, .seed = seed});
}

std::vector<std::string> names(const ByteDataset& data) {
  std::vector<std::string> names;
  for (const io::MappedFile& file : data.files()) names.push_back(file.path().filename());
  return names;
}

TEST(ByteDataSplit, PutsEveryFileOnOneSide) {
  const ByteData data = split(files_of(std::vector<std::size_t>(40, 100)), 0.1);
  std::multiset<std::string> all;
  for (const std::string& name : names(data.train)) all.insert(name);
  for (const std::string& name : names(*data.held_out)) all.insert(name);
  EXPECT_EQ(all.size(), 40u);
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 40u);
}

TEST(ByteDataSplit, HoldsOutTheShareOfBytesAskedFor) {
  // 40 files of 100 bytes: 10 % are 400 bytes, 4 files.
  EXPECT_EQ(split(files_of(std::vector<std::size_t>(40, 100)), 0.1).held_out->files().size(), 4u);
  // One file of 10000 bytes and 40 of 100: 10 % are 1400 bytes, 14 of the small ones.
  std::vector<std::size_t> sizes(41, 100);
  sizes[7] = 10000;
  const ByteData data = split(files_of(sizes), 0.1);
  EXPECT_EQ(data.held_out->files().size(), 14u);
  EXPECT_THAT(names(data.train), ::testing::Contains("007"));
}

TEST(ByteDataSplit, DoesNotDependOnTheSeed) {
  const auto folder = files_of(std::vector<std::size_t>(40, 100));
  const ByteData one = split(folder, 0.1, 8, 1);
  const ByteData two = split(folder, 0.1, 8, 2);
  EXPECT_EQ(names(*one.held_out), names(*two.held_out));
  std::vector<std::int32_t> a(9), b(9);
  for (std::int64_t i = 0; i < one.held_out->sample_count(); ++i) {
    one.held_out->fill(i, a);
    two.held_out->fill(i, b);
    EXPECT_EQ(a, b) << "held-out sample " << i;
  }
}

TEST(ByteDataSplit, IsNotAPrefixOfTheList) {
  const auto held = names(*split(files_of(std::vector<std::size_t>(40, 100)), 0.1).held_out);
  EXPECT_NE(held, (std::vector<std::string>{"000", "001", "002", "003"}));
  EXPECT_NE(held, (std::vector<std::string>{"036", "037", "038", "039"}));
}

TEST(ByteDataSplit, HoldsOutTheSmallestLongEnoughFileWhenNoneFitsTheShare) {
  // 1 % of 1023 bytes are 10; samples of 8 + 1 bytes need 9: "002" with 20 is the smallest that has them.
  EXPECT_THAT(names(*split(files_of({500, 500, 20, 3}), 0.01).held_out), ::testing::Contains("002"));
}

TEST(ByteDataSplit, LeavesAFileOnEachSideOfTwo) {
  for (const double fraction : {0.001, 0.5, 0.999}) {
    const ByteData data = split(files_of({100, 100}), fraction);
    EXPECT_EQ(data.train.files().size(), 1u) << fraction;
    EXPECT_EQ(data.held_out->files().size(), 1u) << fraction;
  }
}

TEST(ByteDataSplit, OfShareZeroTrainsOnEverything) {
  const ByteData data = split(files_of({100}), 0.0);
  EXPECT_THAT(names(data.train), ElementsAre("000"));
  EXPECT_FALSE(data.held_out.has_value());
}

// --- A single file

// Its bytes from the first held-out one on; training and held-out data together are the file.
std::string held_out_of(const std::string& text, double fraction) {
  const auto folder = fresh_folder();
  write_file(folder / "one.txt", text);
  const ByteData data = split(folder, fraction, 1);
  EXPECT_EQ(data.train.stream_bytes() + data.held_out->stream_bytes(), static_cast<std::int64_t>(text.size()));
  // Samples of one byte, each in some place of the first epoch: the smallest set of bytes is enough to know the cut.
  return text.substr(text.size() - static_cast<std::size_t>(data.held_out->stream_bytes()));
}

TEST(ByteDataSplitOfOneFile, IsCutAtTheEndOfADocument) {
  // 10 documents of 41 bytes; 25 % of 410 bytes begin at 308. Documents end at 287, 21 away, and at 328, 20 away.
  std::string text;
  for (int i = 0; i < 10; ++i) text += fmt::format("document {}\nof two or more lines of text\n\n", i);
  ASSERT_EQ(text.size(), 410u);
  EXPECT_TRUE(held_out_of(text, 0.25).starts_with("document 8\n")) << held_out_of(text, 0.25);
}

TEST(ByteDataSplitOfOneFile, IsCutAtTheEndOfALineWhereNoDocumentEnds) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += fmt::format("line {:02}\n", i);  // 8 bytes; 10 % of 400 begin at 360, line 45
  EXPECT_EQ(held_out_of(text, 0.1).substr(0, 8), "line 45\n");
}

TEST(ByteDataSplitOfOneFile, IsCutAtTheByteWhereNothingEnds) {
  EXPECT_EQ(held_out_of(std::string(90, 'a') + std::string(10, 'b'), 0.1), std::string(10, 'b'));
}

TEST(ByteDataSplitOfOneFile, ReadsEachPartFromItsOwnBytes) {
  const auto folder = fresh_folder();
  write_file(folder / "one.txt", std::string(80, 'a') + std::string(20, 'b'));
  const ByteData data = split(folder, 0.2);
  std::vector<std::int32_t> tokens(9);
  for (std::int64_t i = 0; i < 30; ++i) {
    data.train.fill(i, tokens);
    EXPECT_THAT(tokens, ::testing::Each('a'));
    data.held_out->fill(i, tokens);
    EXPECT_THAT(tokens, ::testing::Each('b'));
  }
}

TEST(ByteDataSplitOfOneFile, SaysWhichPartIsTooSmall) {
  const auto folder = files_of({100});
  EXPECT_EQ(message_of<ConfigError>([&] { split(folder, 0.05); }),
            "held-out data: 5 bytes of '" + (folder / "000").string() +
                "', but one sample of --seq-length 8 takes 9; give longer files, a shorter --seq-length, or "
                "--held-out-fraction 0 for no evaluation");
}

TEST(ByteDataSplit, SaysWhichSideIsTooSmall) {
  // The largest file is held out when none is long enough, here for 8 + 1 bytes.
  EXPECT_EQ(
      message_of<ConfigError>([&] {
        split(files_of({5, 4, 3, 2}), 0.01);
      }),
      "held-out data: 5 bytes in 1 file(s), but one sample of --seq-length 8 takes 9; give longer files, a shorter "
      "--seq-length, or --held-out-fraction 0 for no evaluation");
  EXPECT_EQ(
      message_of<ConfigError>([&] {
        split(files_of({5, 100}), 0.01);
      }),
      "training data: 5 bytes in 1 file(s), but one sample of --seq-length 8 takes 9; give more data or a shorter "
      "--seq-length");
}

}  // namespace
}  // namespace loom::data
