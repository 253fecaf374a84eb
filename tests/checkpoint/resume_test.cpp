// Promise: ranks begin with one checkpoint, and find another one if a run that saves beside them removes it; a folder
//          of another kind is named with the next step.
// World:   two ranks as threads; checkpoints of one value. The other run is the test itself.
#include "engine/checkpoint/resume.h"

#include <functional>
#include <gmock/gmock.h>

#include "engine/checkpoint/directories.h"
#include "engine/core/error.h"
#include "engine/formats/dcp/dcp_file_writer.h"
#include "engine/launch/run_ranks.h"
#include "tests/checkpoint/checkpoints.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::write_file;
using ::testing::EndsWith;
using ::testing::HasSubstr;

void save(const fs::path& folder, std::int64_t iteration, std::int64_t keep_last) {
  CheckpointStore store(folder);
  const fs::path directory = store.begin({iteration});
  const std::string file = io::dcp_file_name(0);
  io::DcpMetadata metadata;
  const std::string other = io::dcp_file_name(1);
  metadata.files = {file, other};
  io::DcpFileWriter writer(directory / file);
  metadata.items.push_back(
      {"iteration", {"iteration"}, false, DType::kF32, {}, {writer.value(io::PlainValue::whole(iteration))}});
  io::DcpFileWriter second(directory / other);
  metadata.items.push_back({"note", {"note"}, false, DType::kF32, {}, {second.value(io::PlainValue::whole(0))}});
  metadata.items.back().pieces.front().file = 1;
  const auto listed = [](const std::string& name, const io::FileSum& sum) {
    return ManifestFile{name, static_cast<std::int64_t>(sum.size_bytes), sum.crc32c};
  };
  Manifest manifest{{iteration}, {listed(file, writer.finish()), listed(other, second.finish())}};
  manifest.files.push_back(listed(std::string(io::kDcpMetadataFile), io::write_dcp_metadata_file(directory, metadata)));
  store.commit(manifest);
  store.remove_old(keep_last);
}

// What every rank has read in the end; `meanwhile` happens at each reading of rank 1.
std::vector<std::int64_t> read_by_two(const fs::path& folder, std::optional<std::int64_t> requested,
                                      const std::function<void(const Resumed&)>& meanwhile) {
  std::vector<std::int64_t> read(2, -1);
  launch::run_ranks(2, {std::chrono::seconds(60)}, [&](RankContext&, comm::World& world) {
    const auto everyone = world.everyone("test");
    resume(folder, requested, *everyone, [&](const io::DcpFolder& checkpoint, const Resumed& from) {
      checkpoint.value(*checkpoint.find("note"));  // of the other file: the first is opened again
      if (everyone->rank() == 1) meanwhile(from);
      read[static_cast<std::size_t>(everyone->rank())] = checkpoint.value(*checkpoint.find("iteration")).as_whole();
    });
  });
  return read;
}

TEST(Resume, LooksAgainWhereTheChosenCheckpointIsRemovedMeanwhile) {
  const fs::path folder = fresh_folder();
  save(folder, 1, 1);
  std::int64_t next = 2;
  const auto three_times = [&](const Resumed&) {
    if (next <= 4) save(folder, next++, 1);
  };
  EXPECT_EQ(read_by_two(folder, std::nullopt, three_times), (std::vector<std::int64_t>{4, 4}));
}

TEST(Resume, SaysWhatIsThereWhereTheOneThatWasAskedForIsRemoved) {
  const fs::path folder = fresh_folder();
  save(folder, 1, 1);
  const auto prune = [&](const Resumed&) { save(folder, 2, 1); };
  EXPECT_EQ(message_of<ConfigError>([&] { read_by_two(folder, 1, prune); }),
            (folder / "iter_0000001").string() + ": it is not there; the folder has the iteration 2");
}

TEST(Resume, EndsWhereTheWholeFolderIsRemoved) {
  const fs::path folder = fresh_folder();
  save(folder, 1, 1);
  const std::string error = message_of<ConfigError>(
      [&] { read_by_two(folder, std::nullopt, [&](const Resumed&) { fs::remove_all(folder); }); });
  EXPECT_THAT(error, HasSubstr("--load: no whole checkpoint is in " + folder.string() + ": "));
  EXPECT_THAT(error, EndsWith("; take another copy of it, or leave --load out to begin anew"));
}

TEST(Resume, RefusesAFolderOfAnotherKindByTheNextStep) {
  const fs::path folder = fresh_folder();
  write_file(folder / "config.json", "{}");
  EXPECT_EQ(message_of<ConfigError>([&] { read_by_two(folder, std::nullopt, [](const Resumed&) {}); }),
            "--load: " + folder.string() +
                " is a Hugging Face folder and no checkpoint; to begin with its weights, give it as "
                "--init-from-hf-path " +
                folder.string());
}

}  // namespace
}  // namespace loom::checkpoint
