// Promise: what a checkpoint holds is shown as it is, damage is found in its file, and two checkpoints are compared
//          tensor by tensor however they are stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/checkpoint/manifest.h"
#include "engine/convert/inspect/compare_checkpoints.h"
#include "engine/convert/inspect/inspection.h"
#include "engine/core/error.h"
#include "engine/formats/dcp/dcp_file_writer.h"
#include "tests/convert/weight_folders.h"

namespace loom::checkpoint_test {
namespace {

using namespace checkpoint;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// A checkpoint of two ranks without a manifest: a matrix cut between them, a vector, values.
fs::path two_rank_checkpoint(const fs::path& folder) {
  fs::create_directories(folder);
  io::DcpMetadata metadata;
  metadata.files = {"__0_0.distcp", "__1_0.distcp"};
  const auto content = [](const Named& tensor) {
    return [&tensor](const io::ByteSink& sink) { sink(std::as_bytes(std::span(tensor.bytes))); };
  };
  const Named upper = counting("w", {2, 2}), lower = counting("w", {1, 2}, 4), bias = counting("b", {2});
  io::DcpItem w{"model.w", {"model", "w"}, true, DType::kF32, {3, 2}, {}};
  io::DcpItem b{"model.b", {"model", "b"}, true, DType::kF32, {2}, {}};
  io::DcpItem step{"step", {"step"}, false, {}, {}, {}};
  io::DcpItem args{"args", {"args"}, false, {}, {}, {}};
  const auto put = [](io::DcpItem& item, io::DcpPiece piece, const Offset& offset, std::size_t file) {
    piece.offset = offset;
    piece.file = file;
    item.pieces.push_back(std::move(piece));
  };
  io::DcpFileWriter first(folder / "__0_0.distcp");
  put(w, first.tensor(DType::kF32, {2, 2}, content(upper)), {0, 0}, 0);
  put(step, first.value(io::PlainValue::whole(3)), {}, 0);
  put(args,
      first.value(io::PlainValue::dict({{io::PlainValue::text("lr"), io::PlainValue::real(0.25)},
                                        {io::PlainValue::text("bf16"), io::PlainValue::boolean(true)}})),
      {}, 0);
  first.finish();
  io::DcpFileWriter second(folder / "__1_0.distcp");
  put(w, second.tensor(DType::kF32, {1, 2}, content(lower)), {2, 0}, 1);
  put(b, second.tensor(DType::kF32, {2}, content(bias)), {0}, 1);
  second.finish();
  metadata.items = {w, b, step, args};
  io::write_dcp_metadata_file(folder, metadata);
  return folder;
}

void flip(const fs::path& file, std::string_view bytes) {
  std::string text = read_file(file);
  const std::size_t at = text.find(bytes);
  ASSERT_NE(at, std::string::npos);
  text[at] ^= 1;
  write_file(file, text);
}

TEST(Inspect, ShowsTensorsValuesAndFiles) {
  const fs::path path = two_rank_checkpoint(fresh_folder() / "dcp");
  const Inspection inspection = inspect(path);
  EXPECT_FALSE(inspection.damaged());
  const auto sizes = std::pair(fs::file_size(path / "__0_0.distcp"), fs::file_size(path / "__1_0.distcp"));
  EXPECT_EQ(to_text(inspection, false),
            fmt::format("{}: checkpoint of torch.distributed.checkpoint\n\n"
                        "tensor   dtype  shape   bytes  where\n"
                        "model.w  fp32   [3, 2]  24     2 boxes, [2, 2] in __0_0.distcp, __1_0.distcp\n"
                        "model.b  fp32   [2]     8      __1_0.distcp\n\n"
                        "value      content\n"
                        "step       3\n"
                        "args.lr    0.25\n"
                        "args.bf16  True\n\n"
                        "file          bytes  verdict\n"
                        "__0_0.distcp  {}   whole, checksums of 3 parts\n"
                        "__1_0.distcp  {}   whole, checksums of 2 parts\n\n"
                        "2 tensors (2 fp32): 8 elements, 32 bytes; 3 values; 2 files: {} bytes\n",
                        path.string(), sizes.first, sizes.second, sizes.first + sizes.second));
  EXPECT_THAT(to_text(inspection, true), HasSubstr("__1_0.distcp [1, 2] at (2, 0)\n"));
}

TEST(Inspect, GivesTheSameAsJson) {
  const fs::path path = two_rank_checkpoint(fresh_folder() / "dcp");
  const auto json = to_json(inspect(path));
  EXPECT_EQ(json["damaged"], false);
  EXPECT_EQ(json["tensors"][0].dump(), R"({"name":"model.w","dtype":"fp32","shape":[3,2],"size_bytes":24,"boxes":[)"
                                       R"({"offset":[0,0],"shape":[2,2],"file":"__0_0.distcp"},)"
                                       R"({"offset":[2,0],"shape":[1,2],"file":"__1_0.distcp"}]})");
  EXPECT_EQ(json["values"].dump(), R"({"step":3,"args.lr":0.25,"args.bf16":true})");
  EXPECT_EQ(json["files"][1]["verdict"], "whole, checksums of 2 parts");
}

TEST(Inspect, ShowsOnlyWhatTheFilterNames) {
  const fs::path path = two_rank_checkpoint(fresh_folder() / "dcp");
  const Inspection some = inspect(path, "args");
  EXPECT_THAT(some.tensors, IsEmpty());
  EXPECT_EQ(some.values.size(), 2u);
  EXPECT_EQ(inspect(path, "model.?").tensors.size(), 2u);
  EXPECT_EQ(inspect(path, "*.w").tensors.size(), 1u);
}

TEST(Inspect, FindsAFlippedBitByTheArchivesChecksum) {
  const fs::path path = two_rank_checkpoint(fresh_folder() / "dcp");
  flip(path / "__1_0.distcp", bytes_of<float>({4, 5}));
  const Inspection inspection = inspect(path);
  EXPECT_TRUE(inspection.damaged());
  EXPECT_FALSE(inspection.files[0].damaged);
  EXPECT_TRUE(inspection.files[1].damaged);
  EXPECT_THAT(inspection.files[1].verdict,
              StartsWith("DAMAGED, 1 of 2 parts: " + (path / "__1_0.distcp").string() + ": offset "));
  EXPECT_EQ(inspection.tensors.size(), 2u);
}

TEST(Inspect, FindsDamageByTheManifest) {
  const fs::path folder = fresh_folder();
  to_dcp(kReference / "logits/qwen2", folder / "dcp");
  const Inspection whole = inspect(folder / "dcp");
  EXPECT_FALSE(whole.damaged());
  ASSERT_EQ(whole.files.size(), 2u);  // with .metadata
  EXPECT_THAT(whole.files[1].verdict, ::testing::MatchesRegex("whole, crc32c [0-9a-f]{8}"));
  const fs::path file = folder / "dcp/release/__0_0.distcp";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 1;
  write_file(file, bytes);
  const Inspection flipped = inspect(folder / "dcp");
  EXPECT_TRUE(flipped.damaged());
  EXPECT_THAT(to_text(flipped, false), ::testing::ContainsRegex("DAMAGED: __0_0.distcp has the checksum [0-9a-f]{8}, "
                                                                "but shardloom_manifest.json says [0-9a-f]{8}"));
  fs::resize_file(file, 1000);
  EXPECT_THAT(to_text(inspect(folder / "dcp"), false),
              HasSubstr("DAMAGED: __0_0.distcp has 1000 bytes, but shardloom_manifest.json says"));
}

TEST(Inspect, FindsAFolderWithTheNameOfAnother) {
  const fs::path folder = fresh_folder();
  to_dcp(kReference / "logits/qwen2", folder / "dcp");
  fs::rename(folder / "dcp/release", folder / "iter_0000003");
  const Inspection inspection = inspect(folder / "iter_0000003");
  EXPECT_TRUE(inspection.damaged());
  EXPECT_THAT(to_text(inspection, false), HasSubstr("its shardloom_manifest.json belongs to release; "));
}

TEST(Inspect, FindsAFileThatTheManifestDoesNotHave) {
  const fs::path path = two_rank_checkpoint(fresh_folder() / "iter_0000003");
  write_file(path / kManifestName, to_json(Manifest{{3}, {}}));
  const Inspection inspection = inspect(path);
  EXPECT_TRUE(inspection.damaged());
  EXPECT_EQ(inspection.files.front().verdict, "DAMAGED: .metadata names it, but shardloom_manifest.json does not");
}

TEST(Inspect, ShowsWhatItCanOfACheckpointWhoseMetadataIsDamaged) {
  const fs::path path = two_rank_checkpoint(fresh_folder() / "dcp");
  write_file(path / ".metadata", read_file(path / ".metadata").substr(0, 100));
  const Inspection inspection = inspect(path);
  EXPECT_TRUE(inspection.damaged());
  EXPECT_THAT(to_text(inspection, false), HasSubstr("DAMAGED: " + (path / ".metadata").string() + ": offset "));
}

TEST(Inspect, ReadsHuggingFaceFoldersAndTheirFiles) {
  const Inspection folder = inspect(kReference / "logits/qwen2");
  EXPECT_EQ(folder.kind, "Hugging Face folder");
  EXPECT_EQ(folder.tensors.size(), 51u);
  const Inspection file = inspect(kReference / "logits/qwen2/logits.safetensors");
  EXPECT_EQ(file.kind, "safetensors file");
  EXPECT_THAT(to_text(file, false), HasSubstr("header and sizes agree; the format has no checksums"));
}

TEST(Inspect, FindsATruncatedSafetensorsFile) {
  const fs::path folder = fresh_folder();
  fs::copy(kReference / "logits/qwen2/model.safetensors", folder);
  fs::resize_file(folder / "model.safetensors", 20000);
  const Inspection inspection = inspect(folder);
  EXPECT_TRUE(inspection.damaged());
  EXPECT_THAT(inspection.problems.front(), HasSubstr("the file is truncated, fetch it again"));
}

// --- two of them

CheckpointDifference compared(const fs::path& a, const fs::path& b, const std::string& filter = {}) {
  OpenedCheckpoint opened_a(place_of(a));
  OpenedCheckpoint opened_b(place_of(b));
  return compare(opened_a, opened_b, filter);
}

TEST(Diff, FindsAFolderEqualToItsCheckpoint) {
  const fs::path folder = fresh_folder();
  to_dcp(kReference / "logits/qwen2", folder / "dcp");
  const CheckpointDifference difference = compared(folder / "dcp", kReference / "logits/qwen2");
  EXPECT_TRUE(difference.empty());
  EXPECT_EQ(to_text(difference), "51 tensors are equal, 0 differ, 0 are only in A, 0 only in B; 0 values differ\n");
}

// OpenGVLab's names, with q, k and v in one tensor.
TEST(Diff, FindsAFolderOfPublishedNamesEqualToItsCheckpoint) {
  const fs::path folder = fresh_folder();
  to_dcp(kReference / "vision/internvl", folder / "dcp");
  EXPECT_TRUE(compared(folder / "dcp", kReference / "vision/internvl").empty());
  EXPECT_TRUE(compared(kReference / "vision/internvl", folder / "dcp").empty());
}

TEST(Diff, ComparesNothingWithAFileThatIsNotTheManifests) {
  const fs::path folder = fresh_folder();
  to_dcp(kReference / "logits/qwen2", folder / "dcp");
  const fs::path file = folder / "dcp/release/__0_0.distcp";
  std::string bytes = read_file(file);
  bytes.back() ^= 1;
  write_file(file, bytes);
  EXPECT_THAT(message_of<ConfigError>([&] { compared(folder / "dcp", kReference / "logits/qwen2"); }),
              HasSubstr("__0_0.distcp has the checksum "));
}

TEST(Diff, DoesNotMindHowTensorsAreCut) {
  const fs::path folder = fresh_folder();
  const fs::path step_10 = kReference / "training/qwen2_w4_fp32/dcp/step_10";
  convert(DcpToDcp{.load_dir = step_10, .save_dir = folder / "dcp", .world_size = 3});
  EXPECT_TRUE(compared(step_10, folder / "dcp").empty());
}

TEST(Diff, SaysWhatDiffersAndWhere) {
  const fs::path folder = fresh_folder();
  write_weights(folder / "a.safetensors", {counting("same", {2}), counting("shape", {2, 3}), counting("value", {2, 2}),
                                           counting("dtype", {2}), counting("gone", {1})});
  write_weights(folder / "b.safetensors", {counting("same", {2}),
                                           counting("shape", {3, 2}),
                                           counting("value", {2, 2}, 0.5F),
                                           {"dtype", DType::kBF16, {2}, bytes_of<bf16>({bf16(0), bf16(1)})},
                                           counting("new", {1})});
  const CheckpointDifference difference = compared(folder / "a.safetensors", folder / "b.safetensors");
  EXPECT_EQ(to_text(difference),
            "only in A: 'gone'\n"
            "only in B: 'new'\n"
            "'dtype': fp32 in A, bf16 in B; all values are equal\n"
            "'shape': [2, 3] in A, [3, 2] in B\n"
            "'value': 4 of 4 elements differ, by at most 0.5; the first at (0, 0): 0 and 0.5\n"
            "1 tensors are equal, 3 differ, 1 are only in A, 1 only in B; 0 values differ\n");
  const auto json = to_json(difference);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["tensors"][2].dump(),
            R"({"name":"value","dtype":["fp32","fp32"],"shape":[[2,2],[2,2]],"elements":4,"largest":0.5,)"
            R"("first":[0,0],"first_values":[0.0,0.5]})");
  EXPECT_TRUE(compared(folder / "a.safetensors", folder / "b.safetensors", "same").empty());
}

TEST(Diff, ComparesValuesToo) {
  const fs::path folder = fresh_folder();
  two_rank_checkpoint(folder / "a");
  to_dcp(hf_folder(folder / "hf", "{}", {counting("b", {2})}), folder / "b");
  EXPECT_THAT(to_text(compared(folder / "a", folder / "b")),
              HasSubstr("value 'checkpoint_version': none in A, 3.0 in B\n"));
}

}  // namespace
}  // namespace loom::checkpoint_test
