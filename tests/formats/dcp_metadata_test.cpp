// Promise: .metadata is read as torch.distributed.checkpoint wrote it and written as it reads it; one that contradicts
//          itself, or claims more than it has, is refused with what is wrong.
#include "engine/formats/dcp/dcp_metadata.h"

#include "engine/formats/torch/pickle_writer.h"
#include "tests/formats/archives.h"

namespace loom::io {
namespace {

using namespace std::string_literals;
using namespace loom::io::testing;

// "model.w" [4, 2] in two pieces and the value "step", in two files.
DcpMetadata sample() {
  DcpMetadata metadata;
  metadata.files = {"__0_0.distcp", "__1_0.distcp"};
  metadata.items = {{"model.w",
                     {"model", "w"},
                     true,
                     DType::kF32,
                     {4, 2},
                     {{.offset = {0, 0}, .shape = {3, 2}, .file = 0, .begin = 0, .length = 1000},
                      {.offset = {3, 0}, .shape = {1, 2}, .file = 1, .begin = 0, .length = 900}}},
                    {"step",
                     {"step"},
                     false,
                     DType::kF32,
                     {},
                     {{.offset = {}, .shape = {}, .file = 0, .begin = 1000, .length = 500}}}};
  return metadata;
}

DcpMetadata reread(const DcpMetadata& metadata) {
  return read_dcp_metadata(bytes_of(write_dcp_metadata(metadata)), "m");
}

// Behind "m: " and the offset, where there is one.
std::string refusal(const std::string& bytes) {
  const std::string message = message_of<FileDamage>([&] { read_dcp_metadata(bytes_of(bytes), "m"); });
  EXPECT_TRUE(message.starts_with("m: ")) << message;
  const std::string rest = message.substr(3);
  return rest.starts_with("offset ") ? rest.substr(rest.find(": ") + 2) : rest;
}

std::string refusal(const DcpMetadata& metadata) { return refusal(write_dcp_metadata(metadata)); }

std::string replaced(std::string text, const std::string& from, const std::string& to, bool last = false) {
  const std::size_t at = last ? text.rfind(from) : text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_same(const DcpMetadata& a, const DcpMetadata& b) {
  EXPECT_EQ(a.files, b.files);
  ASSERT_EQ(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    EXPECT_EQ(a.items[i].name, b.items[i].name);
    EXPECT_EQ(a.items[i].path, b.items[i].path);
    EXPECT_EQ(a.items[i].is_tensor, b.items[i].is_tensor);
    EXPECT_EQ(a.items[i].dtype, b.items[i].dtype);
    EXPECT_EQ(a.items[i].shape, b.items[i].shape);
    ASSERT_EQ(a.items[i].pieces.size(), b.items[i].pieces.size());
    for (std::size_t p = 0; p < a.items[i].pieces.size(); ++p) {
      const DcpPiece& x = a.items[i].pieces[p];
      const DcpPiece& y = b.items[i].pieces[p];
      EXPECT_EQ(std::tie(x.offset, x.shape.sizes(), x.file, x.begin, x.length),
                std::tie(y.offset, y.shape.sizes(), y.file, y.begin, y.length));
    }
  }
}

TEST(DcpMetadata, IsReadAsPyTorchWroteIt) {
  const DcpMetadata metadata = read_dcp_metadata(bytes_of(read_file(golden("dcp/.metadata"))), "m");
  ASSERT_EQ(metadata.items.size(), 7u);
  const DcpItem& w = *metadata.find("w");
  EXPECT_EQ(w.dtype, DType::kF32);
  EXPECT_EQ(w.shape, (Shape{3, 2}));
  ASSERT_EQ(w.pieces.size(), 2u);
  EXPECT_EQ(w.pieces[1].offset, (Offset{2, 0}));
  EXPECT_EQ(w.pieces[1].shape, (Shape{1, 2}));
  EXPECT_EQ(metadata.files[w.pieces[1].file], "__1_0.distcp");
  const DcpItem& c = *metadata.find("c");
  EXPECT_EQ(c.dtype, DType::kBF16);
  EXPECT_EQ(c.pieces[1].offset, (Offset{0, 2}));
  EXPECT_EQ(metadata.find("s")->shape, Shape{});
  EXPECT_EQ(metadata.find("nested.pair")->path, (std::vector<DcpKey>{"nested", "pair"}));
  EXPECT_FALSE(metadata.find("step")->is_tensor);
  EXPECT_EQ(metadata.find("nested"), nullptr);
}

TEST(DcpMetadata, IsWrittenAndReadTheSame) {
  expect_same(reread(sample()), sample());
  const DcpMetadata golden_metadata = read_dcp_metadata(bytes_of(read_file(golden("dcp/.metadata"))), "m");
  expect_same(reread(golden_metadata), golden_metadata);
}

TEST(DcpMetadata, PathsMayHoldPlacesOfLists) {
  DcpMetadata metadata = sample();
  metadata.items[1].name = "optimizer.0.lr";
  metadata.items[1].path = {"optimizer", std::int64_t{0}, "lr"};
  expect_same(reread(metadata), metadata);
}

TEST(DcpMetadata, EmptyPiecesAndTensorsCoverNothing) {
  DcpMetadata metadata = sample();
  metadata.items[0].pieces.push_back({.offset = {4, 0}, .shape = {0, 2}, .file = 1, .begin = 900, .length = 800});
  expect_same(reread(metadata), metadata);
  metadata.items[0].shape = {0, 2};
  metadata.items[0].pieces = {{.offset = {0, 0}, .shape = {0, 2}, .file = 1, .begin = 0, .length = 800}};
  metadata.files = {"__1_0.distcp", "__0_0.distcp"};
  metadata.items[0].pieces[0].file = 0;
  metadata.items[1].pieces[0].file = 1;
  expect_same(reread(metadata), metadata);
}

TEST(DcpMetadata, PiecesCoverTheirTensorOnce) {
  DcpMetadata metadata = sample();
  DcpPiece& second = metadata.items[0].pieces[1];
  second.shape = {1, 1};
  EXPECT_EQ(refusal(metadata), "'model.w' [4, 2]: its pieces hold 7 of 8 elements");
  second.offset = {2, 0};
  second.shape = {2, 1};
  EXPECT_EQ(refusal(metadata), "'model.w' [4, 2]: the pieces [3, 2] at (0, 0) and [2, 1] at (2, 0) overlap");
  second.shape = {2, 2};
  EXPECT_EQ(refusal(metadata), "'model.w' [4, 2]: its pieces overlap");
  second.offset = {3, 1};
  second.shape = {1, 2};
  EXPECT_EQ(refusal(metadata), "'model.w' [4, 2]: the piece [1, 2] at (3, 1) is not a part of it");
  second.offset = {3};
  EXPECT_EQ(refusal(metadata), "'model.w' [4, 2]: the piece [1, 2] at (3) is not a part of it");
  second.offset = {3, -1};
  EXPECT_EQ(refusal(metadata), "expected a size here");
}

TEST(DcpMetadata, PiecesMayBeCutOnSeveralDims) {
  DcpItem item{"w", {"w"}, true, DType::kF32, {4, 4}, {}};
  for (const std::int64_t row : {0, 2}) {
    for (const std::int64_t column : {0, 3}) {
      item.pieces.push_back({.offset = {row, column}, .shape = {2, column == 0 ? 3 : 1}});
    }
  }
  EXPECT_NO_THROW(check_pieces(item, "m"));
  std::swap(item.pieces[0], item.pieces[3]);  // in any order
  EXPECT_NO_THROW(check_pieces(item, "m"));
  item.pieces[1].offset = {1, 3};
  EXPECT_THROW(check_pieces(item, "m"), FileDamage);
}

TEST(DcpMetadata, SizesThatNoMachineHasAreRefused) {
  DcpMetadata metadata = sample();
  const std::int64_t huge = std::int64_t{1} << 31;
  metadata.items[0].shape = {huge, huge};
  metadata.items[0].pieces = {{.offset = {0, 0}, .shape = {huge, huge}, .file = 0, .begin = 0, .length = 1000}};
  EXPECT_EQ(refusal(metadata), "'model.w' [2147483648, 2147483648]: too many elements");
  metadata.items[0].shape = {0, huge, huge};
  EXPECT_EQ(refusal(metadata), "'model.w' [0, 2147483648, 2147483648]: too many elements");
  metadata.items[0].shape = Shape(std::vector<std::int64_t>(65, 1));
  EXPECT_EQ(refusal(metadata), "a tensor of 65 dims; 64 is the most");
}

TEST(DcpMetadata, FilesAreNamesInTheCheckpointsOwnFolder) {
  for (const std::string& name : {"../x"s, "/etc/passwd"s, "a/b"s, ".."s, "."s, ""s, "a\0b"s, std::string(256, 'x')}) {
    DcpMetadata metadata = sample();
    metadata.files[1] = name;
    const std::string message = refusal(metadata);
    EXPECT_TRUE(message.ends_with("' should be the name of a file in the checkpoint's folder")) << message;
  }
}

TEST(DcpMetadata, APieceHasOnePlaceAndAPlaceOnePiece) {
  const std::string good = write_dcp_metadata(sample());
  // The fqn in the last MetadataIndex ("step") and in the one before it.
  const std::string step =
      "\x8c\x03"
      "fqn\x8c\x04step";
  const std::string w =
      "\x8c\x03"
      "fqn\x8c\x07model.w";
  EXPECT_EQ(refusal(replaced(good, step,
                             "\x8c\x03"
                             "fqn\x8c\x04stop")),
            "a place of 'stop', which is not an item");
  EXPECT_EQ(refusal(replaced(good, w, step, true)), "a second place of a piece of 'step'");
  EXPECT_EQ(refusal(replaced(good, step, w)), "'offset' is missing");
  // The second piece's place says it is the first's.
  const std::string places = good.substr(good.find("storage_data"));
  const std::size_t three = places.find("K\x03K\0t"s);
  std::string twice = good;
  twice[good.find("storage_data") + three + 1] = '\0';
  EXPECT_EQ(refusal(twice), "a second place of a piece of 'model.w'");
  twice[good.find("storage_data") + three + 1] = '\2';
  EXPECT_EQ(refusal(twice), "a place of a piece that 'model.w' has not");
}

TEST(DcpMetadata, PiecesAndPlacesAreAsMany) {
  DcpMetadata metadata = sample();
  metadata.items[1].pieces.clear();  // a value without a place
  EXPECT_EQ(refusal(metadata), "'step' has a piece without a place in a file");
  // The chunk list's two pieces against no places at all: millions could be claimed by reference.
  const std::string good = write_dcp_metadata(sample());
  const std::size_t places = good.find("storage_data") + 12;
  const std::size_t meta = good.find("\x8c\x0cstorage_meta");
  EXPECT_EQ(refusal(good.substr(0, places) + "}" + good.substr(meta)),
            "2 pieces up to here, but storage_data has places of 0");
}

// One chunk of 64 dims, referred to 1000 times in 7000 bytes: what is shared is not copied without bound.
TEST(DcpMetadata, SizesAreNoMoreThanTheFileHasBytes) {
  DcpMetadata metadata = sample();
  const std::vector<std::int64_t> ones(64, 1);
  metadata.items[0].shape = Shape(ones);
  metadata.items[0].pieces.resize(1);
  metadata.items[0].pieces[0].shape = Shape(ones);
  metadata.items[0].pieces[0].offset = Offset(64, 0);
  std::string bytes = write_dcp_metadata(metadata);
  std::string again = "r"s + little(8, 4);  // the writer has kept 8 classes up to here
  std::string places;
  for (int i = 0; i < 1000; ++i) {
    again += "j"s + little(8, 4);
    places += "NN";
  }
  bytes = replaced(bytes, "ubeub", "ub" + again + "eub");  // behind the chunk
  bytes = replaced(bytes, "ubu\x8c\x0cstorage_meta", "ub" + places + "u\x8c\x0cstorage_meta");
  EXPECT_EQ(refusal(bytes), "more sizes than the file has bytes: they refer to one another");
}

TEST(DcpMetadata, NamesStandOnceAndPathsAreThoseOfTheirNames) {
  DcpMetadata metadata = sample();
  metadata.items[1].name = "model.w";
  EXPECT_EQ(refusal(metadata), "'model.w' occurs twice");
  metadata = sample();
  metadata.items[1].path = {"step", "step"};
  EXPECT_EQ(refusal(metadata), "a path that is longer than its name 'step'");
  metadata.items[1].path = {};
  EXPECT_EQ(refusal(metadata), "expected the path of 'step' here");
}

TEST(DcpMetadata, WhatIsWrittenThroughExtensionsIsRefused) {
  const std::string good = write_dcp_metadata(sample());
  const std::size_t last = good.rfind("\x8c\x06length");
  const std::size_t end = good.find('u', last + 8);  // of the state of the last _StorageInfo
  const auto with = [&](const std::string& value) {
    return good.substr(0, end) + "\x8c\x15transform_descriptors" + value + good.substr(end);
  };
  EXPECT_EQ(refusal(with("](\x8c\x04zstde")),
            "the file was written through an extension (compression); write it without");
  expect_same(read_dcp_metadata(bytes_of(with("N")), "m"), sample());
  expect_same(read_dcp_metadata(bytes_of(with("]")), "m"), sample());
}

TEST(DcpMetadata, ObjectsAreOfTheClassesThatShouldStandThere) {
  const std::string good = write_dcp_metadata(sample());
  EXPECT_EQ(refusal(replaced(good, "\x8c\x08Metadata", "\x8c\x0bStorageMeta")), "expected a Metadata here");
  EXPECT_EQ(refusal(replaced(good,
                             "\x8c\x14"
                             "ChunkStorageMetadata",
                             "\x8c\x14"
                             "BytesStorageMetadata")),
            "expected a ChunkStorageMetadata here");
  EXPECT_EQ(refusal(replaced(good, "\x8c\x0dMetadataIndex", "\x8c\x0bStorageMeta")), "expected a MetadataIndex here");
  EXPECT_EQ(
      refusal(replaced(good, "\x8c\x0c_StorageInfo", "\x8c\x0c_StorageInfX")),
      "the pickle names torch.distributed.checkpoint.filesystem._StorageInfX, which this file has no use for; nothing "
      "of it was run. Take the file from where it was made, and only from someone you trust");
  EXPECT_EQ(refusal(replaced(good, "state_dict_metadata", "state_dict_metadatX")), "'state_dict_metadata' is missing");
  EXPECT_EQ(refusal(replaced(good,
                             "\x8c\x07"
                             "float32",
                             "\x8c\x07"
                             "float33"))
                .substr(0, 32),
            "the pickle names torch.float33, ");
  EXPECT_EQ(refusal(replaced(good,
                             "\x8c\x07"
                             "float32",
                             "\x8c\x04Size")),
            "expected a dtype of torch here");
  EXPECT_EQ(refusal("\x80\x04N."s), "expected a Metadata here");
  EXPECT_EQ(refusal("\x80\x04}."s), "expected a Metadata here");
}

// Older versions keep the dtype in a dict, and the classes in another module.
TEST(DcpMetadata, TheOlderClassOfPropertiesIsReadToo) {
  std::string bytes = write_dcp_metadata(sample());
  const std::string name = "\x8c\x10TensorProperties";
  bytes = replaced(bytes, "\x8c\x25torch.distributed.checkpoint.metadata" + name,
                   "\x8c\x30torch.distributed._shard.sharded_tensor.metadata" + name);
  expect_same(read_dcp_metadata(bytes_of(bytes), "m"), sample());
}

}  // namespace
}  // namespace loom::io
