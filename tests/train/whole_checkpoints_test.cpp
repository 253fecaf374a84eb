// Promise: a run goes on from a checkpoint only where every byte of it is the one that was saved, and the same on all
//          ranks: a flipped bit, a file of another iteration, a renamed folder and another rank's disk are found.
// World:   1 to 3 ranks as threads; checkpoints of a tiny model with its optimizer, saved by two ranks.
#include <gmock/gmock.h>
#include <mutex>
#include <random>

#include "engine/checkpoint/resume.h"
#include "engine/core/error.h"
#include "engine/train/run_checkpoints.h"
#include "tests/train/saved_arguments_of.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;

class WholeCheckpoints : public TinyTrainers {
 protected:
  WholeCheckpoints() : folder(arguments.parallel.fsdp2_config_path->parent_path() / "run") {
    arguments.checkpoint.ckpt_format = CheckpointFormat::kTorchDcp;
    arguments.checkpoint.save = folder;
  }

  // Checkpoints of these iterations by two ranks.
  void save_at(const std::vector<std::int64_t>& saves) {
    const TrainingInputs inputs = read_inputs(arguments, callbacks);
    launch::run_ranks(kRanks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, rank_setup(arguments));
      Trainer trainer(arguments, callbacks, inputs, world);
      RunCheckpoints checkpoints(trainer, arguments, saved_arguments_of(arguments), world, [](const std::string&) {});
      while (trainer.state().step < saves.back()) {
        trainer.step();
        if (std::ranges::count(saves, trainer.state().step) > 0) checkpoints.save();
      }
      checkpoints.finish();
    });
  }

  // What each of `ranks` ends with that reads a checkpoint of its folder; empty: all is read.
  std::vector<std::string> ends(const std::vector<fs::path>& folders) const {
    std::vector<std::string> texts(folders.size());
    std::mutex mutex;
    try {
      launch::run_ranks(static_cast<int>(folders.size()), {std::chrono::seconds(60)},
                        [&](RankContext& context, comm::World& world) {
                          const auto rank = static_cast<std::size_t>(context.rank());
                          try {
                            const auto everyone = world.everyone();
                            checkpoint::resume(folders[rank], std::nullopt, *everyone,
                                               [](const io::DcpFolder&, const checkpoint::Resumed&) {});
                          } catch (const std::exception& error) {
                            const std::lock_guard lock(mutex);
                            texts[rank] = error.what();
                            throw;
                          }
                        });
    } catch (const Error&) {  // that of a rank, which is in `texts`
    }
    return texts;
  }
  std::string refusal(const fs::path& path, std::size_t ranks = 1) const {
    const std::vector<std::string> texts = ends(std::vector<fs::path>(ranks, path));
    EXPECT_THAT(texts, Each(texts.front()));
    return texts.front();
  }

  fs::path folder;
};

std::vector<fs::path> files_of(const fs::path& checkpoint) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// Any bit of any file that the manifest names, with and without the optimizer among what is read.
TEST_F(WholeCheckpoints, EveryFlippedBitIsFound) {
  save_at({2});
  const fs::path checkpoint = folder / "iter_0000002";
  const std::vector<fs::path> files = files_of(checkpoint);
  ASSERT_EQ(files.size(), 4U);    // of two ranks, .metadata, the manifest
  std::mt19937 random(20261123);  // NOLINT: the same bits in every run
  for (const std::size_t ranks : {1, 3}) {
    ASSERT_EQ(refusal(checkpoint, ranks), "");
    for (int i = 0; i < 65; ++i) {
      const fs::path& file = files[static_cast<std::size_t>(i) % 3];
      ASSERT_NE(file.filename(), "shardloom_manifest.json");
      const std::string whole = test::read_file(file);
      std::string flipped = whole;
      const std::size_t bit = std::uniform_int_distribution<std::size_t>(0, whole.size() * 8 - 1)(random);
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
      test::write_file(file, flipped);
      EXPECT_THAT(refusal(checkpoint, ranks), HasSubstr("--load: no whole checkpoint is in " + checkpoint.string()))
          << file << " bit " << bit;
      test::write_file(file, whole);
    }
  }
}

// As a backup that was restored in part leaves it: the same sizes, each file whole in itself.
TEST_F(WholeCheckpoints, AFileOfAnotherIterationIsFound) {
  save_at({2, 3});
  const fs::path file = folder / "iter_0000003" / "__1_0.distcp";
  fs::copy_file(folder / "iter_0000002" / "__1_0.distcp", file, fs::copy_options::overwrite_existing);
  EXPECT_EQ(refusal(folder, 2), "");  // the older one is taken
  for (const std::size_t ranks : {1, 2, 3}) {
    EXPECT_THAT(refusal(file.parent_path(), ranks),
                ::testing::ContainsRegex("__1_0.distcp has the checksum [0-9a-f]{8}, but shardloom_manifest.json says "
                                         "[0-9a-f]{8}; "))
        << ranks;
  }
}

TEST_F(WholeCheckpoints, FolderManifestAndFilesSayOneIteration) {
  save_at({2, 3});
  const fs::path two = folder / "iter_0000002", three = folder / "iter_0000003";
  const fs::path copy = folder / "best";
  fs::copy(two, copy);
  EXPECT_EQ(refusal(copy), "");  // a name that says no iteration
  const fs::path renamed = folder / "iter_0000005";
  fs::rename(copy, renamed);
  EXPECT_THAT(refusal(renamed), HasSubstr("its shardloom_manifest.json belongs to iter_0000002"));
  std::string manifest = test::read_file(two / "shardloom_manifest.json");
  manifest.replace(manifest.find("\"iteration\": 2"), 14, "\"iteration\": 5");
  test::write_file(renamed / "shardloom_manifest.json", manifest);
  EXPECT_THAT(refusal(renamed), HasSubstr("its files hold iteration 2, but shardloom_manifest.json says 5"));
  fs::remove(renamed / "shardloom_manifest.json");
  EXPECT_THAT(refusal(renamed), HasSubstr("its files hold iteration 2, but the folder's name says 5"));
  EXPECT_EQ(refusal(three), "");
}

TEST_F(WholeCheckpoints, TheManifestNamesEveryFileThatIsRead) {
  save_at({2});
  const fs::path manifest = folder / "iter_0000002" / "shardloom_manifest.json";
  std::string text = test::read_file(manifest);
  const std::size_t begin = text.find("  {\"name\":\"__1_0.distcp\"");
  ASSERT_NE(begin, std::string::npos);
  const std::size_t comma = text.rfind(',', begin);
  text.erase(comma, text.find('}', begin) + 1 - comma);
  test::write_file(manifest, text);
  EXPECT_THAT(refusal(folder / "iter_0000002"),
              HasSubstr(".metadata names __1_0.distcp, but shardloom_manifest.json does not"));
}

// Disks of their own: each rank's folder holds a checkpoint of the same iteration of another run.
TEST_F(WholeCheckpoints, RanksThatReadDifferentRunsAreTold) {
  save_at({2});
  const fs::path other = folder.parent_path() / "other";
  fs::rename(folder, other);
  arguments.schedule.lr = 2e-3;
  save_at({2});
  const auto expect_told = [&] {
    const std::vector<std::string> texts = ends({folder, folder, other});
    for (const std::string& text : texts) {
      EXPECT_THAT(text, HasSubstr("--load: ranks do not read the same checkpoint in "));
      EXPECT_THAT(text, ::testing::ContainsRegex("file __0_0.distcp: ranks 0-1 have [0-9]+ bytes with the checksum "
                                                 "[0-9a-f]{8}, rank 2 has [0-9]+ bytes with the checksum [0-9a-f]{8}"));
      EXPECT_THAT(text, HasSubstr("; put one and the same checkpoint where every rank reads it"));
    }
  };
  expect_told();
  for (const fs::path& run : {folder, other}) fs::remove(run / "iter_0000002" / "shardloom_manifest.json");
  expect_told();  // by the checksums within the files, as another program leaves them
}

// The same checkpoint on two disks, one of them damaged: whoever reads there says so.
TEST_F(WholeCheckpoints, ACopyOnADiskOfItsOwnIsSummedThere) {
  save_at({2});
  const fs::path other = folder.parent_path() / "other";
  fs::copy(folder, other, fs::copy_options::recursive);
  EXPECT_THAT(ends({folder, other, other}), Each(""));
  const fs::path file = other / "iter_0000002" / "__0_0.distcp";
  std::string bytes = test::read_file(file);
  bytes[bytes.size() / 3] ^= 1;
  test::write_file(file, bytes);
  const std::vector<std::string> texts = ends({folder, other, other});
  EXPECT_THAT(texts, Each(HasSubstr("__0_0.distcp has the checksum ")));
  EXPECT_THAT(texts, Each(HasSubstr(" (ranks 1,2)")));
}

}  // namespace
}  // namespace loom::train
