// Promise: a checkpoint of torch.distributed.checkpoint is read bit for bit, in any boxes; a file that is missing, cut
//          short, changed, foreign or outside of the folder is an error that names it.
#include "engine/formats/dcp/dcp_folder.h"

#include <csignal>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine/core/error.h"
#include "engine/formats/dcp/dcp_file_writer.h"
#include "tests/formats/archives.h"

namespace loom::io {
namespace {

using namespace std::string_literals;
using namespace loom::io::testing;
namespace fs = std::filesystem;

template <class T>
std::vector<T> box_of(const DcpFolder& folder, std::string_view name, const Offset& offset, const Shape& shape) {
  const DcpItem* item = folder.find(name);
  EXPECT_NE(item, nullptr) << name;
  std::vector<T> elements(static_cast<std::size_t>(shape.numel()));
  folder.read_box(*item, offset, shape, std::as_writable_bytes(std::span(elements)));
  return elements;
}

// A copy of what PyTorch wrote: "w" [3, 2] fp32, rows 0 and 1 in __0_0, row 2 in __1_0; "c" [2, 3] bf16, columns 0 and
// 1 in __0_0.
fs::path golden_copy(std::string_view name = "dcp") {
  const fs::path folder = fresh_folder() / "checkpoint";
  fs::copy(golden(name), folder);
  return folder;
}

void change_byte(const fs::path& path, std::uint64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const int old = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(old ^ 1));
}

// Where the elements of the first piece of "w" begin in its file.
std::uint64_t begin_of_w(const fs::path& folder) {
  const std::string floats("\0\0\0\0\0\0\x80\x3f", 8);  // 0, 1
  return read_file(folder / "__0_0.distcp").find(floats);
}

std::string opening_error(const fs::path& folder) {
  return message_of<ConfigError>([&] { DcpFolder{folder}; });
}

std::string reading_error(const fs::path& folder, std::string_view name = "w") {
  return message_of<FileDamage>([&] {
    const DcpFolder opened(folder);
    const DcpItem& item = *opened.find(name);
    std::vector<std::byte> to(static_cast<std::size_t>(item.shape.numel() * element_bytes(item.dtype)));
    opened.read_box(item, Offset(static_cast<std::size_t>(item.shape.ndim()), 0), item.shape, to);
  });
}

TEST(DcpFolder, ReadsWhatPyTorchWrote) {
  const DcpFolder folder(golden("dcp"));
  EXPECT_EQ(box_of<float>(folder, "w", {0, 0}, {3, 2}), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(box_of<double>(folder, "s", {}, {}), std::vector<double>{2.5});
  std::vector<float> c;
  for (const bf16 value : box_of<bf16>(folder, "c", {0, 0}, {2, 3})) c.push_back(static_cast<float>(value));
  EXPECT_EQ(c, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(folder.value(*folder.find("step")), PlainValue::whole(3));
  EXPECT_EQ(folder.value(*folder.find("note")), PlainValue::text("a\nb"));
  EXPECT_EQ(folder.value(*folder.find("nested.pair")).repr(), "(1, -2.5)");
  EXPECT_EQ(folder.value(*folder.find("nested.raw")), PlainValue::bytes("\0\xff"s));
  EXPECT_EQ(folder.find("W"), nullptr);
}

TEST(DcpFolder, ReadsAnyBoxOfAnyPieces) {
  const DcpFolder folder(golden("dcp"));
  EXPECT_EQ(box_of<float>(folder, "w", {1, 0}, {2, 2}), (std::vector<float>{2, 3, 4, 5}));  // across the files
  EXPECT_EQ(box_of<float>(folder, "w", {1, 1}, {2, 1}), (std::vector<float>{3, 5}));
  EXPECT_EQ(box_of<float>(folder, "w", {2, 0}, {1, 1}), std::vector<float>{4});
  EXPECT_EQ(box_of<float>(folder, "w", {3, 0}, {0, 2}), std::vector<float>{});
  EXPECT_EQ(box_of<bf16>(folder, "c", {0, 1}, {2, 2})[3].bits, bf16(5).bits);
  std::vector<std::byte> to(8);
  EXPECT_THROW(folder.read_box(*folder.find("w"), {2, 0}, {2, 2}, to), InvariantError);
  EXPECT_THROW(folder.read_box(*folder.find("w"), {0, 0}, {2, 2}, to), InvariantError);
  EXPECT_THROW(folder.read_box(*folder.find("step"), {}, {}, to), InvariantError);
  EXPECT_THROW((void)folder.value(*folder.find("w")), InvariantError);
}

TEST(DcpFolder, ReadsTheSafetensorsOfHuggingFaceStorageWriter) {
  for (const char* name : {"hf", "whole"}) {  // each process its shard; put together
    const DcpFolder folder(golden(name));
    ASSERT_EQ(folder.metadata().items.size(), 2u) << name;
    EXPECT_EQ(box_of<float>(folder, "w", {0, 0}, {3, 2}), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(box_of<float>(folder, "w", {1, 1}, {2, 1}), (std::vector<float>{3, 5}));
    EXPECT_EQ(box_of<bf16>(folder, "c", {1, 1}, {1, 2})[1].bits, bf16(5).bits);
  }
}

// --- writing

// "w" [2, 4] in four pieces of [1, 2] and a value, in one file.
DcpMetadata write_checkpoint(const fs::path& folder) {
  DcpMetadata metadata;
  metadata.files = {dcp_file_name(3)};
  DcpItem item{"w", {"w"}, true, DType::kI32, {2, 4}, {}};
  DcpFileWriter writer(folder / metadata.files[0]);
  for (const Offset& at : {Offset{0, 0}, Offset{0, 2}, Offset{1, 0}, Offset{1, 2}}) {
    const auto first = static_cast<std::int32_t>(4 * at[0] + at[1]);
    const std::vector<std::int32_t> elements{first, first + 1};
    item.pieces.push_back(
        writer.tensor(DType::kI32, {1, 2}, [&](const ByteSink& sink) { sink(std::as_bytes(std::span(elements))); }));
    item.pieces.back().offset = at;
  }
  metadata.items.push_back(std::move(item));
  metadata.items.push_back({"note", {"note"}, false, DType::kF32, {}, {writer.value(PlainValue::text("x"))}});
  const FileSum sum = writer.finish();
  EXPECT_EQ(sum.size_bytes, fs::file_size(folder / metadata.files[0]));
  write_dcp_metadata_file(folder, metadata);
  return metadata;
}

TEST(DcpFolder, ReadsWhatItsWriterWrote) {
  const fs::path path = fresh_folder();
  write_checkpoint(path);
  const DcpFolder folder(path);
  EXPECT_EQ(folder.metadata().files, std::vector<std::string>{"__3_0.distcp"});
  EXPECT_EQ(box_of<std::int32_t>(folder, "w", {0, 0}, {2, 4}), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(box_of<std::int32_t>(folder, "w", {0, 1}, {2, 2}), (std::vector<std::int32_t>{1, 2, 5, 6}));
  EXPECT_EQ(folder.value(*folder.find("note")), PlainValue::text("x"));
}

TEST(DcpFolder, AWriterTakesNoNameThatIsTaken) {
  const fs::path path = fresh_folder() / "__0_0.distcp";
  write_file(path, "mine");
  EXPECT_EQ(message_of<Error>([&] { DcpFileWriter{path}; }), path.string() + ": cannot create: File exists");
  EXPECT_EQ(read_file(path), "mine");
  fs::remove(path);
  fs::create_symlink("elsewhere", path);
  EXPECT_THROW(DcpFileWriter{path}, Error);
  EXPECT_FALSE(fs::exists(path.parent_path() / "elsewhere"));
}

// A file that may not grow stands for a disk without room.
TEST(DcpFolder, AFullDiskIsAnError) {
  struct rlimit was {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &was), 0);
  const struct rlimit little_room { .rlim_cur = 1000, .rlim_max = was.rlim_max };
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little_room), 0);
  const fs::path full = fresh_folder() / "full";
  const std::string message = message_of<Error>([&] {
    SummedFile file(full);
    file.append(std::vector<std::byte>(5000));
    file.finish();
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &was), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(message, full.string() + ": cannot write: File too large");
}

// --- damage

TEST(DcpFolder, AFolderWithoutACheckpointSaysSo) {
  const fs::path empty = fresh_folder();
  const std::string text =
      ": no checkpoint of torch.distributed.checkpoint: neither .metadata nor a .safetensors file is here";
  EXPECT_EQ(opening_error(empty), empty.string() + text);
  EXPECT_EQ(opening_error(empty / "none"), (empty / "none").string() + text);
}

TEST(DcpFolder, FilesThatAreMissingOrCutShortAreFoundWhenItIsOpened) {
  const fs::path folder = golden_copy();
  const fs::path file = folder / "__0_0.distcp";
  fs::resize_file(file, 3000);
  EXPECT_EQ(opening_error(folder),
            file.string() + ": 'c' should take 1577 bytes at offset 1577, but the file has 3000; it is cut short");
  fs::remove(file);
  EXPECT_EQ(opening_error(folder), file.string() + ": missing, but the checkpoint's .metadata names it");
  fs::resize_file(folder / ".metadata", 100);
  EXPECT_TRUE(opening_error(folder).starts_with((folder / ".metadata").string() + ": offset "))
      << opening_error(folder);
  write_file(folder / ".metadata", "");
  EXPECT_EQ(opening_error(folder),
            (folder / ".metadata").string() +
                ": offset 0: the pickle takes 1 bytes here, but 0 are left; the file is cut short");
}

TEST(DcpFolder, AFlippedByteOfATensorIsFoundWithFileAndOffset) {
  const fs::path folder = golden_copy();
  const std::uint64_t at = begin_of_w(folder);
  change_byte(folder / "__0_0.distcp", at + 9);
  const std::string message = reading_error(folder);
  EXPECT_TRUE(message.starts_with(
      fmt::format("{}: offset {}: the content of 'data/0' has the checksum ", (folder / "__0_0.distcp").string(), at)))
      << message;
  EXPECT_TRUE(message.ends_with("was written; the file is damaged")) << message;
}

// Ranks that read disjoint boxes verify each piece once: the one that reads its first element.
TEST(DcpFolder, APieceIsVerifiedByWhoeverReadsItsFirstElement) {
  const fs::path path = golden_copy();
  change_byte(path / "__0_0.distcp", begin_of_w(path) + 9);  // row 1 of w
  const DcpFolder folder(path);
  EXPECT_THROW(box_of<float>(folder, "w", {0, 0}, {1, 2}), FileDamage);
  EXPECT_THROW(box_of<float>(folder, "w", {0, 0}, {3, 1}), FileDamage);
  EXPECT_NE(box_of<float>(folder, "w", {1, 0}, {1, 2}), (std::vector<float>{2, 3}));
  EXPECT_EQ(box_of<float>(folder, "w", {2, 0}, {1, 2}), (std::vector<float>{4, 5}));  // another piece
}

TEST(DcpFolder, AFlippedByteOfADescriptionIsFound) {
  const fs::path folder = golden_copy();
  const std::size_t at = read_file(folder / "__1_0.distcp").find("\x80\x02K\x03");  // data.pkl of "step"
  change_byte(folder / "__1_0.distcp", at + 3);
  const DcpFolder opened(folder);
  const std::string message = message_of<FileDamage>([&] { (void)opened.value(*opened.find("step")); });
  EXPECT_TRUE(message.starts_with(fmt::format("{}: offset {}: the content of 'data.pkl' has the checksum ",
                                              (folder / "__1_0.distcp").string(), at)))
      << message;
}

TEST(DcpFolder, AnotherFileInAFilesPlaceIsNoArchive) {
  const fs::path folder = golden_copy();
  write_file(folder / "__0_0.distcp", std::string(5000, 'x'));
  EXPECT_EQ(reading_error(folder), (folder / "__0_0.distcp").string() +
                                       ": offset 0: no zip archive of torch.save: its directory is missing; the "
                                       "file is cut short or another one");
}

TEST(DcpFolder, AFileThatChangesWhileItIsOpenIsNotRead) {
  const fs::path path = golden_copy();
  const DcpFolder folder(path);
  const std::string bytes = read_file(path / "__0_0.distcp");
  fs::remove(path / "__0_0.distcp");
  write_file(path / "__0_0.distcp", bytes);
  EXPECT_EQ(message_of<Error>([&] {
              box_of<float>(folder, "w", {0, 0}, {3, 2});
            }),
            (path / "__0_0.distcp").string() +
                ": was replaced by another file since the run opened it; leave the file as it "
                "is while a run reads it, and start again");
  fs::resize_file(path / "__1_0.distcp", 10);
  EXPECT_THROW(box_of<float>(folder, "w", {2, 0}, {1, 2}), Error);
}

TEST(DcpFolder, LinksOutOfTheFolderAndWhatIsNoFileAreRefused) {
  const fs::path folder = golden_copy();
  const fs::path file = folder / "__1_0.distcp";
  const fs::path outside = folder.parent_path() / "outside";
  fs::rename(file, outside);
  fs::create_symlink("../outside", file);
  EXPECT_EQ(opening_error(folder), file.string() + ": a symbolic link out of the checkpoint's folder, to " +
                                       fs::canonical(outside).string() + "; put the file itself there");
  fs::remove(file);
  fs::create_symlink("/dev/zero", file);
  EXPECT_EQ(opening_error(folder), file.string() +
                                       ": a symbolic link out of the checkpoint's folder, to /dev/zero; put the "
                                       "file itself there");
  fs::remove(file);
  fs::create_symlink("nowhere", file);
  EXPECT_EQ(opening_error(folder), file.string() + ": missing, but the checkpoint's .metadata names it");
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(opening_error(folder), file.string() + ": not a regular file");
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_EQ(opening_error(folder), file.string() + ": not a regular file");
  fs::remove(file);
  fs::rename(outside, folder / "real");
  fs::create_symlink("real", file);  // a link within the folder
  EXPECT_EQ(box_of<float>(DcpFolder(folder), "w", {2, 0}, {1, 2}), (std::vector<float>{4, 5}));
  fs::rename(folder / ".metadata", outside);
  fs::create_symlink("../outside", folder / ".metadata");
  EXPECT_TRUE(opening_error(folder).starts_with((folder / ".metadata").string() + ": a symbolic link out of"));
}

TEST(DcpFolder, TheFilesAndMetadataSayTheSame) {
  const fs::path path = fresh_folder();
  DcpMetadata metadata = write_checkpoint(path);
  const auto rewritten = [&] {
    fs::remove(path / ".metadata");
    write_dcp_metadata_file(path, metadata);
    return path;
  };
  const std::string file = (path / "__3_0.distcp").string();
  metadata.items[0].dtype = DType::kF32;
  EXPECT_EQ(reading_error(rewritten()), file + ": offset 0: 'w' is int32 [1, 2] here, but .metadata says fp32 [1, 2]");
  metadata.items[0].dtype = DType::kI32;
  metadata.items[0].shape = {4, 2};
  for (std::int64_t i = 0; i < 4; ++i) metadata.items[0].pieces[static_cast<std::size_t>(i)].offset = {i, 0};
  EXPECT_EQ(box_of<std::int32_t>(DcpFolder(rewritten()), "w", {3, 0}, {1, 2}), (std::vector<std::int32_t>{6, 7}));
  metadata.items[0].shape = {8, 1};
  for (std::int64_t i = 0; i < 4; ++i) {
    metadata.items[0].pieces[static_cast<std::size_t>(i)].offset = {2 * i, 0};
    metadata.items[0].pieces[static_cast<std::size_t>(i)].shape = {2, 1};
  }
  EXPECT_EQ(reading_error(rewritten()), file + ": offset 0: 'w' is int32 [1, 2] here, but .metadata says int32 [2, 1]");
}

// A small file cannot claim large tensors: each piece has bytes of its own, and enough of them.
TEST(DcpFolder, PiecesHaveBytesOfTheirOwn) {
  const fs::path path = fresh_folder();
  DcpMetadata metadata = write_checkpoint(path);
  const auto error = [&] {
    fs::remove(path / ".metadata");
    write_dcp_metadata_file(path, metadata);
    return opening_error(path);
  };
  const std::string file = (path / "__3_0.distcp").string();
  const DcpItem good = metadata.items[0];
  metadata.items[0].pieces[1].begin = 0;
  EXPECT_EQ(error(), file + ": offset 0: the bytes of 'w' and 'w' overlap");
  metadata.items[0] = good;
  const std::int64_t huge = std::int64_t{1} << 40;
  metadata.items[0].shape = {1, huge};
  metadata.items[0].pieces = {good.pieces[0]};
  metadata.items[0].pieces[0].shape = {1, huge};
  EXPECT_EQ(error(), fmt::format("{}: offset 0: 'w' has a piece [1, {}] of {} bytes, but {} bytes for it", file, huge,
                                 4 * huge, good.pieces[0].length));
  metadata.items[0].pieces[0].begin = std::uint64_t{1} << 62;
  EXPECT_EQ(error(),
            fmt::format("{}: 'w' should take {} bytes at offset 4611686018427387904, but the file has {}; it is cut "
                        "short",
                        file, good.pieces[0].length, fs::file_size(file)));
}

// A tied tensor is saved once under all its names.
TEST(DcpFolder, NamesOfOneTensorMayShareItsBytes) {
  const fs::path path = fresh_folder();
  const DcpMetadata written = write_checkpoint(path);
  const DcpItem w = written.items[0];
  const auto beside_w = [&](const DcpItem& tied) {
    DcpMetadata metadata = written;
    metadata.items.push_back(tied);
    metadata.items.back().name = "tied";
    fs::remove(path / ".metadata");
    write_dcp_metadata_file(path, metadata);
    return path;
  };
  const DcpFolder folder(beside_w(w));
  EXPECT_EQ(box_of<std::int32_t>(folder, "tied", {0, 1}, {2, 2}), (std::vector<std::int32_t>{1, 2, 5, 6}));
  EXPECT_TRUE(are_tied(*folder.find("w"), *folder.find("tied")));
  EXPECT_FALSE(are_tied(*folder.find("w"), *folder.find("note")));
  const std::string file = (path / "__3_0.distcp").string();
  const std::string refusal = file + ": offset 0: the bytes of 'w' and 'tied' overlap";
  DcpItem other = w;
  other.dtype = DType::kF32;
  EXPECT_EQ(opening_error(beside_w(other)), refusal);
  other = w;
  other.shape = {1, 2};
  other.pieces = {w.pieces[0]};
  EXPECT_EQ(opening_error(beside_w(other)), refusal);
  other = w;
  std::swap(other.pieces[0].offset, other.pieces[1].offset);
  EXPECT_EQ(opening_error(beside_w(other)), refusal);
  other = w;
  other.pieces[0].begin += 8;
  other.pieces[0].length -= 8;
  EXPECT_EQ(opening_error(beside_w(other)), fmt::format("{}: offset 8: the bytes of 'w' and 'tied' overlap", file));
}

// What a save reads back before it says that it is one.
TEST(DcpFolder, HeadersAreHeldAgainstTheMetadataWithoutTheContent) {
  const fs::path path = fresh_folder();
  DcpMetadata metadata = write_checkpoint(path);
  const std::string file = (path / "__3_0.distcp").string();
  const auto error = [&] {
    fs::remove(path / ".metadata");
    write_dcp_metadata_file(path, metadata);
    return message_of<FileDamage>([&] { DcpFolder(path).check_headers(); });
  };
  DcpFolder(path).check_headers();
  DcpFolder(golden("dcp")).check_headers();
  metadata.items[0].dtype = DType::kF32;
  EXPECT_EQ(error(), file + ": offset 0: 'w' is int32 [1, 2] here, but .metadata says fp32 [1, 2]");
  metadata.items[0].dtype = DType::kI32;
  std::swap(metadata.items[0].pieces[3].begin, metadata.items[1].pieces[0].begin);
  std::swap(metadata.items[0].pieces[3].length, metadata.items[1].pieces[0].length);
  EXPECT_TRUE(error().starts_with(file + ": offset ")) << error();
}

TEST(DcpFolder, AMetadataFileLargerThanAnyIsRefused) {
  const fs::path folder = fresh_folder();
  write_file(folder / ".metadata", "");
  fs::resize_file(folder / ".metadata", std::uint64_t{1} << 40);  // a hole
  EXPECT_EQ(opening_error(folder),
            (folder / ".metadata").string() + ": 1099511627776 bytes; at most 2147483648 are read");
}

// --- safetensors with boxes

std::string shard(const std::string& info, const std::string& shape = "[1,2]", int bytes = 2) {
  std::string quoted;
  for (const char c : info) quoted += c == '"' ? "\\\""s : std::string(1, c);
  return loom::test::safetensors_header(R"({"__metadata__":{"DCP_SHARDING_INFO":")" + quoted +
                                        R"("},"w":{"dtype":"U8","shape":)" + shape + R"(,"data_offsets":[0,)" +
                                        std::to_string(bytes) + "]}}") +
         std::string(static_cast<std::size_t>(bytes), 'x');
}

TEST(DcpFolder, ShardingInfoThatIsWrongIsRefused) {
  const fs::path folder = fresh_folder();
  const fs::path file = folder / "shard.safetensors";
  const auto error = [&](const std::string& info, const std::string& shape = "[1,2]") {
    write_file(file, shard(info, shape, shape == "[1,2]" ? 2 : 0));
    return opening_error(folder);
  };
  const std::string where = file.string() + ": DCP_SHARDING_INFO: ";
  EXPECT_EQ(error("[]"), where + "no object of JSON");
  EXPECT_TRUE(error("{").starts_with(where + "not valid JSON")) << error("{");
  for (const char* info :
       {"{}", R"({"w":3})", R"({"w":{}})", R"({"w":{"saved_offsets":[0]}})", R"({"w":{"saved_offsets":0}})"}) {
    EXPECT_EQ(error(info), where + "no saved_offsets of 'w'") << info;
  }
  for (const char* number : {"-1", "0.5", "\"0\"", "9223372036854775807", "18446744073709551615"}) {
    EXPECT_EQ(error(fmt::format(R"({{"w":{{"saved_offsets":[{},0]}}}})", number)),
              where + "saved_offsets of 'w' is not a list of places")
        << number;
  }
  EXPECT_EQ(error(R"({"w":{"saved_offsets":[9223372036854775806,0]}})").substr(folder.string().size()),
            ": 'w' [9223372036854775807, 2]: too many elements");
  EXPECT_EQ(error(R"({"w":{"saved_offsets":[4611686018427387904,0]}})", "[4611686018427387904,0]"),
            where + "saved_offsets of 'w' is not a list of places");
  EXPECT_EQ(error(R"({"w":{"saved_offsets":[1,0]}})").substr(folder.string().size()),
            ": 'w' [2, 2]: its pieces hold 2 of 4 elements");
}

TEST(DcpFolder, ShardsOfOneTensorFitTogether) {
  const fs::path folder = fresh_folder();
  const std::string first = shard(R"({"w":{"saved_offsets":[0,0]}})");
  write_file(folder / "a.safetensors", first);
  write_file(folder / "b.safetensors", shard(R"({"w":{"saved_offsets":[1,0]}})"));
  EXPECT_EQ(DcpFolder(folder).find("w")->shape, (Shape{2, 2}));
  write_file(folder / "b.safetensors", first);
  EXPECT_EQ(opening_error(folder), folder.string() + ": 'w' [1, 2]: its pieces overlap");
  write_file(folder / "b.safetensors", shard(R"({"w":{"saved_offsets":[1]}})", "[2]"));
  EXPECT_EQ(opening_error(folder),
            (folder / "b.safetensors").string() + ": 'w' is uint8 [2], and uint8 [1, 2] in another file");
  fs::remove(folder / "b.safetensors");
  write_file(folder.parent_path() / "dcp_folder_outside.safetensors", first);
  fs::create_symlink("../dcp_folder_outside.safetensors", folder / "b.safetensors");
  EXPECT_TRUE(opening_error(folder).starts_with((folder / "b.safetensors").string() + ": a symbolic link out of"));
  fs::remove(folder.parent_path() / "dcp_folder_outside.safetensors");
}

}  // namespace
}  // namespace loom::io
