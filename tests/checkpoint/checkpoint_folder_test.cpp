// Promise: a run begins with the newest whole checkpoint up to the tracker's, never with a torn one, and is told why
//          others were passed over.
// World:   checkpoints of two files, "__0_0.distcp" (3 bytes) and ".metadata" (5 bytes).
#include "engine/checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "engine/core/error.h"
#include "tests/checkpoint/checkpoints.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;
using checkpoint_test::save;
using checkpoint_test::save_all;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr auto kAll = VerifyDepth::kChecksums;

std::string torn_reason(const fs::path& folder, VerifyDepth depth = VerifyDepth::kSizes) {
  const Verdict verdict = CheckpointFolder(folder).verify({10}, depth);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kTorn);
  return verdict.reason;
}

fs::path one_checkpoint() {
  const fs::path folder = fresh_folder();
  save_all(folder, {10});
  return folder;
}

std::vector<std::string> passed_lines(const Choice& choice) {
  std::vector<std::string> lines;
  for (const auto& one : choice.passed) lines.push_back(one.path.filename().string() + ": " + one.reason);
  return lines;
}

TEST(CheckpointFolder, IsEmptyWhereThereIsNone) {
  const CheckpointFolder folder(fresh_folder() / "absent");
  EXPECT_THAT(folder.iterations(), IsEmpty());
  EXPECT_FALSE(folder.tracker());
  EXPECT_FALSE(folder.choose(std::nullopt, kAll));
}

TEST(CheckpointFolder, ListsIterationsNewestFirstAndNothingElse) {
  const fs::path folder = fresh_folder();
  for (const char* name : {"iter_0000005", "iter_0000020", "iter_12345678", "release", ".iter_0000030.tmp-0", "iter_7",
                           "iter_00000020", "iter_", "iter_-000001", "iter_000002x", "iter_99999999999999999999"}) {
    fs::create_directory(folder / name);
  }
  EXPECT_THAT(CheckpointFolder(folder).iterations(), ElementsAre(12345678, 20, 5));
}

TEST(CheckpointFolder, ReadsTheTracker) {
  const fs::path folder = fresh_folder();
  const CheckpointFolder checkpoints(folder);
  const fs::path tracker = checkpoints.tracker_path();
  EXPECT_EQ(tracker.filename(), "latest_checkpointed_iteration.txt");
  for (const char* text : {"10", "10\n", " \t10\r\n", "0000010"}) {
    write_file(tracker, text);
    EXPECT_EQ(checkpoints.tracker(), CheckpointId{10}) << text;
  }
  write_file(tracker, "release\n");
  EXPECT_EQ(checkpoints.tracker(), kRelease);
}

TEST(CheckpointFolder, RefusesATrackerThatIsNone) {
  const fs::path folder = fresh_folder();
  const CheckpointFolder checkpoints(folder);
  const std::string tracker = checkpoints.tracker_path().string();
  const auto refusal = [&] { return message_of<ConfigError>([&] { checkpoints.choose(std::nullopt, kAll); }); };
  const std::string advice = "; write an iteration of the folder, or release";
  for (const char* text : {"-1", "+1", "1.0", "0x10", "10 20", "99999999999999999999", "Release", "iter_0000010"}) {
    write_file(tracker, text);
    EXPECT_EQ(refusal(), tracker + ": says '" + text + "'" + advice);
  }
  write_file(tracker, " \n");
  EXPECT_EQ(refusal(), tracker + ": is empty" + advice);
  write_file(tracker, "\x1b[2J" + std::string(1, '\0') + "\n9");
  EXPECT_EQ(refusal(), tracker + ": says '\\x1b[2J\\x00\\n9'" + advice);
  write_file(tracker, std::string(1 << 20, '1'));
  EXPECT_THAT(refusal().size(), ::testing::Lt(600u));
}

TEST(CheckpointFolder, RefusesATrackerThatIsNoFile) {
  const fs::path folder = fresh_folder();
  const CheckpointFolder checkpoints(folder);
  const fs::path tracker = checkpoints.tracker_path();
  const auto refusal = [&] { return message_of<ConfigError>([&] { checkpoints.tracker(); }); };
  fs::create_symlink("/etc/hostname", tracker);
  EXPECT_EQ(refusal(),
            tracker.string() +
                ": is a symbolic link, which is not followed; make it a file with an iteration or release in it");
  fs::remove(tracker);
  fs::create_directory(tracker);
  EXPECT_THAT(refusal(), HasSubstr(": is a directory; "));
  fs::remove(tracker);
  ASSERT_EQ(::mkfifo(tracker.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr(": is neither a file nor a directory; "));
}

TEST(CheckpointFolder, FindsAWholeCheckpointWhole) {
  const CheckpointFolder folder(one_checkpoint());
  for (const VerifyDepth depth : {VerifyDepth::kSizes, kAll}) {
    const Verdict verdict = folder.verify({10}, depth);
    EXPECT_EQ(verdict.kind, Verdict::Kind::kWhole) << verdict.reason;
  }
}

TEST(CheckpointFolder, FindsATruncatedFile) {
  const fs::path folder = one_checkpoint();
  fs::resize_file(folder / "iter_0000010" / ".metadata", 4);
  EXPECT_EQ(torn_reason(folder), ".metadata has 4 bytes, but shardloom_manifest.json says 5");
  fs::resize_file(folder / "iter_0000010" / ".metadata", std::uintmax_t{1} << 40);  // sparse: not read
  EXPECT_EQ(torn_reason(folder, kAll), ".metadata has 1099511627776 bytes, but shardloom_manifest.json says 5");
}

TEST(CheckpointFolder, FindsAFlippedBitWhereItReadsTheBytes) {
  const fs::path folder = one_checkpoint();
  write_file(folder / "iter_0000010" / "__0_0.distcp", "ong");
  EXPECT_TRUE(CheckpointFolder(folder).verify({10}, VerifyDepth::kSizes).usable());
  EXPECT_THAT(torn_reason(folder, kAll),
              ::testing::MatchesRegex("__0_0\\.distcp has the checksum [0-9a-f]{8}, but shardloom_manifest\\.json says "
                                      "[0-9a-f]{8}"));
}

TEST(CheckpointFolder, FindsAMissingFile) {
  const fs::path folder = one_checkpoint();
  fs::remove(folder / "iter_0000010" / "__0_0.distcp");
  EXPECT_EQ(torn_reason(folder), "__0_0.distcp is not there");
}

TEST(CheckpointFolder, FollowsNoLinkOutOfTheDirectory) {
  const fs::path folder = one_checkpoint();
  const fs::path file = folder / "iter_0000010" / "__0_0.distcp";
  fs::rename(file, folder / "elsewhere");
  fs::create_symlink("../elsewhere", file);
  EXPECT_EQ(torn_reason(folder), "__0_0.distcp is a symbolic link, which is not followed");
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_EQ(torn_reason(folder), "__0_0.distcp is a directory, not a file");
  const fs::path manifest = folder / "iter_0000010" / kManifestName;
  fs::rename(manifest, folder / "manifest");
  fs::create_symlink("../manifest", manifest);
  EXPECT_EQ(torn_reason(folder), "shardloom_manifest.json is a symbolic link, which is not followed");
}

TEST(CheckpointFolder, RefusesALinkOrAFileInThePlaceOfADirectory) {
  const fs::path folder = one_checkpoint();
  fs::rename(folder / "iter_0000010", folder / "away");
  EXPECT_EQ(torn_reason(folder), "it is not there");
  fs::create_symlink("away", folder / "iter_0000010");
  EXPECT_EQ(torn_reason(folder), "it is a symbolic link, which is not followed");
  fs::remove(folder / "iter_0000010");
  write_file(folder / "iter_0000010", "");
  EXPECT_EQ(torn_reason(folder), "it is a file, not a directory");
}

TEST(CheckpointFolder, FindsAManifestThatIsNone) {
  const fs::path folder = one_checkpoint();
  const fs::path manifest = folder / "iter_0000010" / kManifestName;
  const std::string good = read_file(manifest);
  write_file(manifest, good.substr(0, good.size() / 2));
  EXPECT_THAT(torn_reason(folder), StartsWith("shardloom_manifest.json: not valid JSON (at byte "));
  write_file(manifest, to_json(Manifest{.id = {20}, .files = {}}));
  EXPECT_EQ(torn_reason(folder), "its shardloom_manifest.json belongs to iter_0000020");
  write_file(manifest, to_json(Manifest{.id = {10}, .files = {{"__0_0.distcp", 9223372036854775807, 0}}}));
  EXPECT_EQ(torn_reason(folder, kAll),
            "__0_0.distcp has 3 bytes, but shardloom_manifest.json says 9223372036854775807");
  write_file(manifest, R"({"format_version": 1, "iteration": 10, "files": [{"name": "../../secret", )"
                       R"("size_bytes": 1, "crc32c": "00000000"}]})");
  EXPECT_THAT(torn_reason(folder), EndsWith("use the name of a file in the directory itself, without '/'"));
  fs::resize_file(manifest, std::uintmax_t{1} << 40);
  EXPECT_EQ(torn_reason(folder), "shardloom_manifest.json has 1099511627776 bytes; one of ours has at most 16777216");
}

TEST(CheckpointFolder, TakesAForeignCheckpointAsItIsAndSaysSo) {
  const fs::path folder = fresh_folder();
  write_file(folder / "iter_0000010" / "__0_0.distcp", "x");
  EXPECT_EQ(torn_reason(folder), "it has neither shardloom_manifest.json nor .metadata");
  write_file(folder / "iter_0000010" / ".metadata", "x");
  const Verdict verdict = CheckpointFolder(folder).verify({10}, kAll);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kForeign);
  EXPECT_EQ(verdict.reason, "another program wrote it, without shardloom_manifest.json: its files are not checked");
  fs::remove(folder / "iter_0000010" / ".metadata");
  fs::create_symlink("__0_0.distcp", folder / "iter_0000010" / ".metadata");
  EXPECT_EQ(torn_reason(folder), ".metadata is a symbolic link, which is not followed");
}

TEST(CheckpointFolder, BeginsWithTheTrackersCheckpoint) {
  const fs::path folder = fresh_folder();
  save_all(folder, {10, 30, 20});
  const auto choice = CheckpointFolder(folder).choose(std::nullopt, kAll);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->id, CheckpointId{20});
  EXPECT_EQ(choice->path, folder / "iter_0000020");
  EXPECT_THAT(choice->passed, IsEmpty());
}

TEST(CheckpointFolder, FallsBackToTheNewestWholeOneBelow) {
  const fs::path folder = fresh_folder();
  save_all(folder, {10, 20, 40, 30});
  fs::remove(folder / "iter_0000030" / ".metadata");
  write_file(folder / "iter_0000020" / "__0_0.distcp", "ong");
  const auto choice = CheckpointFolder(folder).choose(std::nullopt, kAll);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->id, CheckpointId{10});
  EXPECT_THAT(passed_lines(*choice), ElementsAre("iter_0000030: .metadata is not there",
                                                 StartsWith("iter_0000020: __0_0.distcp has the checksum ")));
}

TEST(CheckpointFolder, WithoutATrackerBeginsWithTheNewestWholeOne) {
  const fs::path folder = fresh_folder();
  save_all(folder, {10, 20});
  fs::create_directory(folder / "iter_0000030");
  fs::remove(folder / "latest_checkpointed_iteration.txt");
  const auto choice = CheckpointFolder(folder).choose(std::nullopt, kAll);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->id, CheckpointId{20});
  EXPECT_THAT(passed_lines(*choice),
              ElementsAre("latest_checkpointed_iteration.txt: it is not there; the newest whole checkpoint is taken",
                          "iter_0000030: it has neither shardloom_manifest.json nor .metadata"));
}

TEST(CheckpointFolder, BeginsWithReleaseWhereTheTrackerSaysSo) {
  const fs::path folder = fresh_folder();
  save_all(folder, {10});
  CheckpointStore store(folder);
  save(store, kRelease);
  const auto choice = CheckpointFolder(folder).choose(std::nullopt, kAll);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->id, kRelease);
  fs::remove(folder / "release" / ".metadata");
  EXPECT_EQ(
      message_of<ConfigError>([&] { CheckpointFolder(folder).choose(std::nullopt, kAll); }),
      folder.string() + ": none of its checkpoints is whole: release: .metadata is not there; give another folder");
}

TEST(CheckpointFolder, SaysWhyNoneIsWhole) {
  const fs::path folder = fresh_folder();
  for (const char* name :
       {"iter_0000001", "iter_0000002", "iter_0000003", "iter_0000004", "iter_0000005", "iter_0000006"}) {
    fs::create_directory(folder / name);
  }
  write_file(folder / "latest_checkpointed_iteration.txt", "7");
  const std::string nothing = "it has neither shardloom_manifest.json nor .metadata; ";
  EXPECT_EQ(message_of<ConfigError>([&] { CheckpointFolder(folder).choose(std::nullopt, kAll); }),
            folder.string() + ": none of its checkpoints is whole: iter_0000007: it is not there; iter_0000006: " +
                nothing + "iter_0000005: " + nothing + "iter_0000004: " + nothing + "iter_0000003: " + nothing +
                "and 2 more; give another folder");
}

TEST(CheckpointFolder, GivesExactlyWhatIsAskedFor) {
  const fs::path folder = fresh_folder();
  save_all(folder, {10, 20, 30});
  const CheckpointFolder checkpoints(folder);
  EXPECT_EQ(checkpoints.choose(10, kAll)->id, CheckpointId{10});
  fs::remove(folder / "iter_0000020" / ".metadata");
  EXPECT_EQ(message_of<ConfigError>([&] { checkpoints.choose(20, kAll); }),
            (folder / "iter_0000020").string() + ": .metadata is not there; the folder has the iterations 30, 20, 10");
  EXPECT_EQ(message_of<ConfigError>([&] { checkpoints.choose(7, kAll); }),
            (folder / "iter_0000007").string() + ": it is not there; the folder has the iterations 30, 20, 10");
  EXPECT_EQ(message_of<ConfigError>([&] { CheckpointFolder(folder / "no").choose(7, kAll); }),
            (folder / "no" / "iter_0000007").string() + ": it is not there; the folder has no iterations");
}

}  // namespace
}  // namespace loom::checkpoint
