// Promise: whatever ends a save, the checkpoints before it and the tracker are whole, and a run can go on.
// Faults:  the process ends after each step of a commit, or is killed at any moment; files beyond a size limit; a disk
//          that is full (a tmpfs of one MiB, where the kernel lets the test mount one); links and files in the way; a
//          file system that cannot exchange two names.
#include "engine/checkpoint/checkpoint_store.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>

#include "engine/checkpoint/directories.h"
#include "engine/checkpoint/save_parts.h"
#include "engine/core/error.h"
#include "tests/checkpoint/checkpoints.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;
using checkpoint_test::save;
using checkpoint_test::save_all;
using checkpoint_test::write_files;
using checkpoint_test::write_listed;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr std::array kSteps{CommitStep::kFilesFlushed, CommitStep::kManifestWritten, CommitStep::kRenamed,
                            CommitStep::kTrackerWritten, CommitStep::kFormerRemoved};

std::string tracker_text(const fs::path& folder) { return read_file(folder / "latest_checkpointed_iteration.txt"); }

// The bytes of a checkpoint that verify() finds whole.
std::string whole_bytes(const fs::path& folder, std::int64_t iteration) {
  const CheckpointFolder checkpoints(folder);
  const Verdict verdict = checkpoints.verify({iteration}, VerifyDepth::kChecksums);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kWhole) << iteration << ": " << verdict.reason;
  return read_file(checkpoints.path_of({iteration}) / "__0_0.distcp");
}

std::int64_t chosen(const fs::path& folder) {
  return CheckpointFolder(folder).choose(std::nullopt, VerifyDepth::kChecksums)->id.iteration.value();
}

// Another process saves, and ends without a word after `step`.
void save_and_die(const fs::path& folder, std::int64_t iteration, std::string_view text, CommitStep step) {
  constexpr int kDied = 41;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    CheckpointStore store(folder);
    store.watch_commits([&](CommitStep done) {
      if (done == step) ::_exit(kDied);
    });
    save(store, {iteration}, text);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kDied);
}

// No file of this process grows beyond `bytes`, as if the disk were full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const struct rlimit limit { bytes, before_.rlim_max };
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  sighandler_t handler_;
  struct rlimit before_ {};
};

TEST(CheckpointStore, WritesMegatronsLayout) {
  const fs::path folder = fresh_folder() / "new" / "save";
  CheckpointStore store(folder);
  const fs::path directory = store.begin({10});
  EXPECT_EQ(directory.parent_path(), folder);
  EXPECT_THAT(directory.filename().string(), ::testing::MatchesRegex("\\.iter_0000010\\.tmp-[0-9a-f]{16}"));
  store.commit(write_files(directory, {10}, "one"));
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("iter_0000010", "latest_checkpointed_iteration.txt"));
  EXPECT_THAT(names_in(folder / "iter_0000010"),
              UnorderedElementsAre("__0_0.distcp", ".metadata", "shardloom_manifest.json"));
  EXPECT_EQ(tracker_text(folder), "10");
  EXPECT_EQ(whole_bytes(folder, 10), "one");
  EXPECT_EQ(parse_manifest(read_file(folder / "iter_0000010" / kManifestName), "m").files[1],
            (ManifestFile{"__0_0.distcp", 3, io::crc32c(std::as_bytes(std::span("one", 3)))}));
  save(store, kRelease);
  EXPECT_EQ(tracker_text(folder), "release");
}

// What `main` returns in another process, which sees a disk of one MiB at `disk`; nothing where the kernel does not let
// it mount one.
std::optional<std::string> on_a_small_disk(const fs::path& disk, const std::function<std::string()>& main) {
  constexpr int kNotAllowed = 77;
  std::array<int, 2> pipe{};
  EXPECT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
      ::_exit(kNotAllowed);
    }
    const std::string text = main();
    ::_exit(::write(pipe[1], text.data(), text.size()) < 0 ? 1 : 0);
  }
  ::close(pipe[1]);
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t got = 0; (got = ::read(pipe[0], piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) return std::nullopt;
  EXPECT_EQ(status, 0);
  return text;
}

// Writes until the disk has no room; the error.
std::string fill(const fs::path& path) {
  std::ofstream file(path, std::ios::binary);
  const std::string piece(1 << 16, 'x');
  while (file.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
  }
  return std::strerror(errno);
}

TEST(CheckpointStore, AKillAfterAnyStepLeavesAWholeCheckpointToBeginWith) {
  for (const CommitStep step : kSteps) {
    SCOPED_TRACE(static_cast<int>(step));
    const fs::path folder = fresh_folder();
    save_all(folder, {5});
    save_and_die(folder, 10, "two", step);
    const bool is_told = step >= CommitStep::kTrackerWritten;
    EXPECT_EQ(tracker_text(folder), is_told ? "10" : "5");
    EXPECT_EQ(chosen(folder), is_told ? 10 : 5);
    EXPECT_EQ(whole_bytes(folder, 5), "one");
    EXPECT_EQ(fs::exists(folder / "iter_0000010"), step >= CommitStep::kRenamed);

    save_all(folder, {10, 15});  // the next run
    EXPECT_EQ(chosen(folder), 15);
    EXPECT_EQ(whole_bytes(folder, 10), "one");
    EXPECT_THAT(names_in(folder), UnorderedElementsAre("iter_0000005", "iter_0000010", "iter_0000015",
                                                       "latest_checkpointed_iteration.txt"));
  }
}

TEST(CheckpointStore, AKillOfTheFirstSaveLeavesNothingOrTheWholeOfIt) {
  for (const CommitStep step : kSteps) {
    SCOPED_TRACE(static_cast<int>(step));
    const fs::path folder = fresh_folder();
    save_and_die(folder, 10, "two", step);
    const auto choice = CheckpointFolder(folder).choose(std::nullopt, VerifyDepth::kChecksums);
    EXPECT_EQ(choice.has_value(), step >= CommitStep::kRenamed);
  }
}

TEST(CheckpointStore, AnIterationSavedAgainIsAlwaysWholeOldOrNew) {
  for (const CommitStep step : kSteps) {
    SCOPED_TRACE(static_cast<int>(step));
    const fs::path folder = fresh_folder();
    save_all(folder, {10});
    save_and_die(folder, 10, "two", step);
    EXPECT_EQ(whole_bytes(folder, 10), step >= CommitStep::kRenamed ? "two" : "one");
    CheckpointStore store(folder);
    store.abandon({10});
    store.begin({20});
    EXPECT_EQ(names_in(folder).size(), 3u) << "leftovers of the run that died";
  }
}

TEST(CheckpointStore, AFullDiskBeforeTheRenameLeavesWhatWasThere) {
  const fs::path folder = fresh_folder();
  save_all(folder, {5});
  CheckpointStore store(folder);
  const fs::path directory = store.begin({10});
  const Manifest manifest = write_files(directory, {10}, "two");
  {
    const FileSizeLimit full(0);
    EXPECT_EQ(message_of<Error>([&] { store.commit(manifest); }),
              (directory / kManifestName).string() + ": cannot write: File too large");
  }
  store.abandon({10});
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("iter_0000005", "latest_checkpointed_iteration.txt"));
  EXPECT_EQ(chosen(folder), 5);
  save(store, {10}, "two");
  EXPECT_EQ(chosen(folder), 10);
}

TEST(CheckpointStore, AFullDiskAtTheTrackerLeavesTheFormerTracker) {
  const fs::path folder = fresh_folder();
  save_all(folder, {5, 10});
  write_file(folder / "latest_checkpointed_iteration.txt", "5");
  CheckpointStore store(folder);
  const fs::path directory = store.begin({10});
  const Manifest manifest = write_files(directory, {10}, "two");
  std::optional<FileSizeLimit> full;
  store.watch_commits([&](CommitStep step) {
    if (step == CommitStep::kRenamed) full.emplace(0);
  });
  const std::string text = message_of<Error>([&] { store.commit(manifest); });
  full.reset();
  EXPECT_EQ(text, (folder / "latest_checkpointed_iteration.txt").string() + ": cannot write: File too large");
  store.abandon({10});
  EXPECT_EQ(tracker_text(folder), "5");
  EXPECT_EQ(chosen(folder), 5);
  EXPECT_EQ(whole_bytes(folder, 10), "two");
  EXPECT_THAT(names_in(folder),
              UnorderedElementsAre("iter_0000005", "iter_0000010", "latest_checkpointed_iteration.txt"));
}

TEST(CheckpointStore, AFullDiskLeavesTheFormerCheckpointAndIsSaid) {
  const fs::path folder = fresh_folder();
  const auto said = on_a_small_disk(folder, [&]() -> std::string {
    save_all(folder, {5});
    CheckpointStore store(folder);
    const fs::path directory = store.begin({10});
    const std::string full = fill(directory / "__0_0.distcp");
    write_failed_part(directory, 0, full);
    std::string failure;
    try {
      gather_parts(directory, 1, std::chrono::milliseconds(0));
    } catch (const Error& error) {
      failure = error.what();
    }
    store.abandon({10});
    const std::int64_t former = chosen(folder);
    save(store, {15});
    return fmt::format("{}; {}; {}; {}", full, failure, former, chosen(folder));
  });
  if (!said) GTEST_SKIP() << "the kernel lets this user mount nothing";
  EXPECT_EQ(*said,
            "No space left on device; rank 0 could not save: its files could not be written, nor why (is the disk "
            "full?); 5; 15");
}

TEST(CheckpointStore, AKillAtAnyMomentLosesNothingThatWasCommitted) {
  constexpr int kKills = 25;
  const fs::path folder = fresh_folder();
  const auto begin = std::chrono::steady_clock::now();
  save_all(folder, {1});
  const auto save_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
  std::mt19937 random(1234);
  std::int64_t newest = 1;
  for (int kill = 0; kill < kKills; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      CheckpointStore store(folder);
      for (std::int64_t iteration = newest + 1;; ++iteration) {
        save(store, {iteration}, "checkpoint of " + fmt::to_string(iteration));
        store.remove_old(2);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(random()) % (4 * save_us)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it ended by itself";
    const std::int64_t found = chosen(folder);
    EXPECT_EQ(fmt::to_string(found), tracker_text(folder)) << "kill " << kill;
    EXPECT_GE(found, newest);
    newest = found;
  }
  EXPECT_GT(newest, 1) << "no save came to its end";
  CheckpointStore store(folder);
  save(store, {newest + 10});
  store.remove_old(2);
  EXPECT_EQ(names_in(folder).size(), 3u) << "two iterations and the tracker";
}

TEST(CheckpointStore, CommitsNoFileThatIsNotAsTheManifestSays) {
  const fs::path folder = fresh_folder();
  CheckpointStore store(folder);
  const fs::path directory = store.begin({10});
  Manifest manifest = write_files(directory, {10}, "one");
  manifest.files.push_back({"__1_0.distcp", 1, 0});
  EXPECT_EQ(message_of<Error>([&] { store.commit(manifest); }), directory.string() + ": __1_0.distcp is not there");
  manifest.files.back() = write_listed(directory, "__1_0.distcp", "12");
  manifest.files.back().size_bytes = 3;
  EXPECT_EQ(message_of<Error>([&] { store.commit(manifest); }),
            directory.string() + ": __1_0.distcp has 2 bytes, but its writer says 3");
  fs::remove(directory / "__1_0.distcp");
  fs::create_symlink("/etc/hostname", directory / "__1_0.distcp");
  EXPECT_EQ(message_of<Error>([&] { store.commit(manifest); }),
            directory.string() + ": __1_0.distcp is a symbolic link, which is not followed");
  EXPECT_FALSE(fs::exists(folder / "iter_0000010"));
}

TEST(CheckpointStore, RefusesALinkOrAFileInItsWay) {
  const fs::path folder = fresh_folder();
  const fs::path place = folder / "save" / "iter_0000010";
  const fs::path tracker = folder / "save" / "latest_checkpointed_iteration.txt";
  CheckpointStore store(folder / "save");
  const auto refusal = [&] { return message_of<ConfigError>([&] { store.begin({10}); }); };
  fs::create_directory(folder / "mine");
  fs::create_symlink("../mine", place);
  EXPECT_EQ(refusal(),
            place.string() + ": is a symbolic link, which is not followed; move it away, or save into another folder");
  fs::remove(place);
  write_file(place, "");
  EXPECT_EQ(refusal(), place.string() + ": is a file; move it away, or save into another folder");
  fs::remove(place);
  fs::create_symlink("../mine", tracker);
  EXPECT_EQ(refusal(), tracker.string() +
                           ": is a symbolic link, which is not followed; move it away, or save into another folder");
  fs::remove(tracker);
  const fs::path directory = store.begin({10});
  fs::create_symlink("../mine", place);
  const Manifest manifest = write_files(directory, {10}, "one");
  EXPECT_THAT(message_of<ConfigError>([&] { store.commit(manifest); }), HasSubstr("is a symbolic link"));
  EXPECT_THAT(names_in(folder / "mine"), IsEmpty());
}

TEST(CheckpointStore, SaysWhyTheFolderCannotBeMade) {
  const fs::path folder = fresh_folder();
  write_file(folder / "file", "");
  EXPECT_EQ(message_of<ConfigError>([&] { CheckpointStore{folder / "file" / "save"}; }),
            (folder / "file" / "save").string() + ": cannot create: Not a directory");
}

TEST(CheckpointStore, RemovesLeftoversOfDeadRunsAndNothingElse) {
  const fs::path folder = fresh_folder();
  const std::string hex = "0123456789abcdef";
  for (const std::string& name : {".iter_0000010.tmp-" + hex, ".release.tmp-" + hex}) {
    write_file(folder / name / "deep" / "file", "x");
  }
  write_file(folder / (".latest_checkpointed_iteration.txt." + hex + ".tmp"), "1");
  fs::create_directory(folder / "mine");
  write_file(folder / "mine" / "file", "x");
  fs::create_symlink("mine", folder / (".iter_0000020.tmp-" + hex));
  const std::vector<std::string> kept = {"mine",
                                         ".shardloom.lock",
                                         ".iter_0000010.tmp-",
                                         ".iter_0000010.tmp-0123456789ABCDEF",
                                         ".iter_10.tmp-" + hex,
                                         "iter_0000010.tmp-" + hex,
                                         ".metrics.jsonl." + hex + ".tmp"};
  for (const std::string& name : kept) fs::create_directory(folder / name);
  CheckpointStore store(folder);
  const fs::path first = store.begin({10});
  const fs::path second = store.begin({20});
  std::vector<std::string> expected = kept;
  expected.push_back(first.filename());  // begun, and of this store
  expected.push_back(second.filename());
  EXPECT_THAT(names_in(folder), ::testing::UnorderedElementsAreArray(expected));
  EXPECT_TRUE(fs::exists(folder / "mine" / "file"));
}

TEST(CheckpointStore, BeginsAnewAndAbandons) {
  const fs::path folder = fresh_folder();
  CheckpointStore store(folder);
  const fs::path first = store.begin({10});
  write_file(first / "a", "x");
  const fs::path second = store.begin({10});
  EXPECT_NE(first, second);
  EXPECT_FALSE(fs::exists(first));
  store.abandon({10});
  store.abandon({10});
  EXPECT_THAT(names_in(folder), IsEmpty());
}

TEST(CheckpointStore, KeepsTheNewestWholeOnesThatItWrote) {
  const fs::path folder = fresh_folder();
  save_all(folder, {10, 20, 30, 40, 60, 50});
  CheckpointStore store(folder);
  save(store, kRelease);
  write_file(folder / "latest_checkpointed_iteration.txt", "50");
  write_file(folder / "iter_0000005" / ".metadata", "foreign");
  fs::remove(folder / "iter_0000040" / ".metadata");  // torn: it does not count as one of the kept
  EXPECT_THAT(store.remove_old(2), ElementsAre(20, 10));
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("iter_0000005", "iter_0000030", "iter_0000040", "iter_0000050",
                                                     "iter_0000060", "release", "latest_checkpointed_iteration.txt"));
  EXPECT_THAT(store.remove_old(1), ElementsAre(30));
  EXPECT_EQ(chosen(folder), 50);
}

TEST(CheckpointStore, NeverRemovesWhatTheTrackerNames) {
  const fs::path folder = fresh_folder();
  save_all(folder, {10, 20});
  CheckpointStore store(folder);
  save(store, kRelease);
  EXPECT_THAT(store.remove_old(1), IsEmpty());
  fs::remove(folder / "latest_checkpointed_iteration.txt");
  EXPECT_THAT(store.remove_old(1), IsEmpty());
  write_file(folder / "latest_checkpointed_iteration.txt", "10");
  EXPECT_THAT(store.remove_old(1), IsEmpty());
  EXPECT_EQ(names_in(folder).size(), 4u);
}

TEST(CheckpointStore, MovesTheFormerAsideWhereNamesCannotBeExchanged) {
  const fs::path folder = fresh_folder();
  write_file(folder / "from" / "new", "");
  write_file(folder / "iter_0000010" / "old", "");
  const auto cannot = [](const fs::path&, const fs::path&) { return false; };
  const fs::path aside = replace_directory(folder / "from", folder / "iter_0000010", cannot);
  EXPECT_TRUE(is_temporary(aside.filename()));
  EXPECT_THAT(names_in(aside), ElementsAre("old"));
  EXPECT_THAT(names_in(folder / "iter_0000010"), ElementsAre("new"));
  EXPECT_THAT(message_of<Error>([&] { replace_directory(folder / "absent", folder / "iter_0000010", cannot); }),
              EndsWith("absent: cannot rename to iter_0000010: No such file or directory"));
  EXPECT_THAT(names_in(folder / "iter_0000010"), ElementsAre("new")) << "it is back";
}

TEST(CheckpointStore, AThrowingWatchIsAnErrorLikeAnyOther) {
  const fs::path folder = fresh_folder();
  save_all(folder, {5});
  CheckpointStore store(folder);
  store.watch_commits([](CommitStep step) {
    if (step == CommitStep::kManifestWritten) raise<Error>("cable pulled");
  });
  EXPECT_EQ(message_of<Error>([&] { save(store, {10}); }), "cable pulled");
  store.abandon({10});
  EXPECT_EQ(chosen(folder), 5);
}

}  // namespace
}  // namespace loom::checkpoint
