// Promise: rank 0 commits what every rank says it wrote, or knows which rank failed, and why, or which is missing.
// World:   ranks as threads that share nothing but the directory.
#include "engine/checkpoint/save_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "engine/checkpoint/directories.h"
#include "engine/core/error.h"
#include "tests/checkpoint/checkpoints.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using checkpoint_test::write_listed;
using test::fresh_folder;
using test::message_of;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<ManifestFile> rank_files(const fs::path& directory, int rank) {
  return {write_listed(directory, fmt::format("__{}_0.distcp", rank), std::string(rank + 1, 'x'))};
}

std::string failure_of(const fs::path& directory, int world, std::chrono::milliseconds patience = 0ms) {
  return message_of<Error>([&] { gather_parts(directory, world, patience, 1ms); });
}

TEST(SaveParts, OfAllRanksMakeOneCheckpoint) {
  constexpr int kWorld = 8;
  CheckpointStore store(fresh_folder());
  const fs::path directory = store.begin({10});
  std::vector<std::jthread> ranks;
  for (int rank = kWorld - 1; rank >= 0; --rank) {
    ranks.emplace_back([&, rank] {
      std::this_thread::sleep_for(3ms * rank);
      write_part(directory, rank, rank_files(directory, rank));
    });
  }
  const std::vector<ManifestFile> files = gather_parts(directory, kWorld, 60s, 1ms);
  ASSERT_EQ(files.size(), 8u);
  EXPECT_EQ(files.front().name, "__0_0.distcp");
  EXPECT_EQ(files.back().size_bytes, 8);
  store.commit({{10}, files});
  EXPECT_EQ(store.folder().verify({10}, VerifyDepth::kChecksums).kind, Verdict::Kind::kWhole);
  EXPECT_EQ(names_in(store.folder().path_of({10})).size(), 9u) << "files and manifest, no parts";
}

TEST(SaveParts, AreNotSaidOfAFileThatDoesNotComeBackAsItWasWritten) {
  const fs::path directory = fresh_folder();
  const std::vector<ManifestFile> files = rank_files(directory, 2);
  write_file(directory / files[0].name, "xyx");  // as the disk gives it back
  EXPECT_EQ(message_of<Error>([&] { write_part(directory, 2, files); }),
            fmt::format("{}: __2_0.distcp has the checksum {}, but its writer says {}: the disk does not "
                        "return the bytes that were written; check that disk, or save to another one",
                        directory.string(), hex_digits(io::crc32c(std::as_bytes(std::span("xyx", 3)))),
                        hex_digits(files[0].crc32c)));
  EXPECT_THAT(names_in(directory), ElementsAre("__2_0.distcp"));
}

TEST(SaveParts, OfARankWithoutFilesCountToo) {
  const fs::path directory = fresh_folder();
  write_part(directory, 0, rank_files(directory, 0));
  write_part(directory, 1, {});
  EXPECT_EQ(gather_parts(directory, 2, 0ms).size(), 1u);
  EXPECT_THAT(names_in(directory), ElementsAre("__0_0.distcp"));
}

TEST(SaveParts, NameTheRankThatFailedOnceAllHaveSpoken) {
  const fs::path directory = fresh_folder();
  write_failed_part(directory, 2, "[rank 2] /save/x: cannot write: No space left on device");
  bool last_has_written = false;
  std::jthread late([&] {
    std::this_thread::sleep_for(30ms);
    write_part(directory, 0, {});
    last_has_written = true;
    write_part(directory, 1, {});
  });
  EXPECT_EQ(failure_of(directory, 3, 60s), "rank 2 could not save: /save/x: cannot write: No space left on device");
  late.join();
  EXPECT_TRUE(last_has_written);
}

TEST(SaveParts, NameSeveralRanksThatFailedAndThoseThatAreMissing) {
  const fs::path directory = fresh_folder();
  write_failed_part(directory, 1, "full");
  write_failed_part(directory, 3, "full too");
  EXPECT_EQ(failure_of(directory, 5, 10ms),
            "rank 1 could not save: full; rank 3 failed too; ranks 0, 2, 4 have not finished writing into " +
                directory.string() + " within 0.01 s");
}

TEST(SaveParts, NameTheRanksThatAreMissingAfterAWhile) {
  const fs::path directory = fresh_folder();
  write_part(directory, 0, {});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(failure_of(directory, 2, 50ms), "rank 1 has not finished writing into " + directory.string() +
                                                " within 0.05 s; check its log, and whether it runs");
  EXPECT_GE(std::chrono::steady_clock::now() - start, 50ms);
  EXPECT_EQ(failure_of(directory, 4096), "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 4087 more have not finished writing into " +
                                             directory.string() +
                                             " within 0 s; check their logs, and whether they run");
}

TEST(SaveParts, SayThatARankFailedEvenWhereNothingCanBeWritten) {
  const fs::path directory = fresh_folder();
  fs::create_directory(directory / ".part_0.json");  // in the way: stands for a disk without room for it
  write_failed_part(directory, 0, "why");
  EXPECT_THAT(names_in(directory), UnorderedElementsAre(".part_0.json", ".part_0.failed"));
  fs::remove(directory / ".part_0.json");
  EXPECT_EQ(failure_of(directory, 1),
            "rank 0 could not save: its files could not be written, nor why (is the disk full?)");
  write_failed_part(directory / "absent", 0, "why");  // only logged
}

TEST(SaveParts, BoundWhatAFailedRankSays) {
  const fs::path directory = fresh_folder();
  write_failed_part(directory, 0, "\x1b\xff" + std::string(1 << 20, 'x'));
  const std::string text = failure_of(directory, 1);
  EXPECT_THAT(text, HasSubstr("rank 0 could not save: \\x1b\\xffxxx"));
  EXPECT_LT(text.size(), 5000u);
}

TEST(SaveParts, AreWrittenOnlyForFilesThatAreThere) {
  const fs::path directory = fresh_folder();
  EXPECT_EQ(message_of<Error>([&] {
              write_part(directory, 0, std::vector<ManifestFile>{{"a", 1, 0}});
            }),
            directory.string() + ": a is not there");
  EXPECT_THAT(names_in(directory), ::testing::IsEmpty());
}

TEST(SaveParts, OfTwoRanksNameNoFileTwice) {
  const fs::path directory = fresh_folder();
  const std::vector<ManifestFile> files = rank_files(directory, 0);
  for (int rank = 0; rank < 3; ++rank) write_part(directory, rank, rank == 1 ? std::vector<ManifestFile>{} : files);
  EXPECT_EQ(failure_of(directory, 3), "ranks 0 and 2 both wrote '__0_0.distcp'");
}

TEST(SaveParts, ThatAreNoneAreRefusedWithTheirPath) {
  const fs::path directory = fresh_folder();
  const fs::path part = directory / ".part_0.json";
  write_file(part, R"({"rank": 1, "files": []})");
  EXPECT_EQ(failure_of(directory, 1), part.string() + ": rank is 1; its name says rank 0");
  write_file(part, R"({"rank": 0, "files": [{"name": "../x", "size_bytes": 0, "crc32c": "00000000"}]})");
  EXPECT_THAT(failure_of(directory, 1), EndsWith("use the name of a file in the directory itself, without '/'"));
  write_file(part, "{");
  EXPECT_THAT(failure_of(directory, 1), HasSubstr(part.string()));
  fs::remove(part);
  fs::create_symlink("/etc/hostname", part);
  EXPECT_EQ(failure_of(directory, 1), part.string() + ": is a symbolic link, which is not followed");
}

}  // namespace
}  // namespace loom::checkpoint
