// Promise: an archive of torch.save is read as what its writer put in, or refused with file and offset: whatever bit
//          of it is damaged, wherever it is cut, and whatever tricks of the zip format it plays.
#include "engine/formats/torch/torch_zip.h"

#include <algorithm>
#include <limits>
#include <map>

#include "engine/io/checksum.h"
#include "tests/formats/archives.h"

namespace loom::io {
namespace {

using namespace std::string_literals;
using namespace loom::io::testing;

// One entry, each figure as it stands in the file; what is not set is right.
struct Entry {
  std::string name = "archive/a";
  std::string content = "0123456789";
  std::uint64_t method = 0;
  std::uint64_t flags = 0;
  std::uint64_t local_flags = std::numeric_limits<std::uint64_t>::max();
  std::string local_name = {};
  std::uint64_t local_size = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t size = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t stored_size = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t header = std::numeric_limits<std::uint64_t>::max();
  std::string extra = {};  // of the directory
  std::string behind = {};

  static std::uint64_t or_else(std::uint64_t figure, std::uint64_t right) {
    return figure == std::numeric_limits<std::uint64_t>::max() ? right : figure;
  }
};

// The directory's end, with zip64 or without.
struct End {
  std::uint64_t more_entries = 0;
  std::uint64_t more_size = 0;
  std::uint64_t more_begin = 0;
  std::string comment = {};
  bool has64 = false;
  std::uint64_t more_entries64 = 0;
  std::uint64_t more_record = 0;  // in the locator
};

std::string zip_of(const std::vector<Entry>& entries, const End& end = {}, const std::string& front = {}) {
  std::string file = front;
  std::string directory;
  for (const Entry& entry : entries) {
    const std::uint64_t header = file.size();
    const std::string name = entry.local_name.empty() ? entry.name : entry.local_name;
    const std::uint32_t crc = crc32(bytes_of(entry.content));
    const std::uint64_t size = entry.content.size();
    const std::uint64_t local = Entry::or_else(entry.local_size, size);
    file += "PK\3\4\0\0"s + little(Entry::or_else(entry.local_flags, entry.flags), 2) + little(entry.method, 2) +
            little(0, 4) + little(crc, 4) + little(local, 4) + little(local, 4) + little(name.size(), 2) +
            little(0, 2) + name + entry.content + entry.behind;
    directory += "PK\1\2\0\0\0\0"s + little(entry.flags, 2) + little(entry.method, 2) + little(0, 4) + little(crc, 4) +
                 little(Entry::or_else(entry.stored_size, size), 4) + little(Entry::or_else(entry.size, size), 4) +
                 little(entry.name.size(), 2) + little(entry.extra.size(), 2) + std::string(10, '\0') +
                 little(Entry::or_else(entry.header, header), 4) + entry.name + entry.extra;
  }
  const std::uint64_t begin = file.size();
  file += directory;
  if (end.has64) {
    const std::uint64_t record = file.size();
    const std::uint64_t count = entries.size() + end.more_entries64;
    file += "PK\6\6"s + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 8) + little(count, 8) +
            little(count, 8) + little(directory.size(), 8) + little(begin, 8) + "PK\6\7"s + little(0, 4) +
            little(record + end.more_record, 8) + little(1, 4);
  }
  const std::uint64_t count = entries.size() + end.more_entries;
  return file + "PK\5\6"s + little(0, 4) + little(count, 2) + little(count, 2) +
         little(directory.size() + end.more_size, 4) + little(begin + end.more_begin, 4) +
         little(end.comment.size(), 2) + end.comment;
}

std::string refusal(const std::string& file) {
  return message_of<FileDamage>([&] {
    const MemorySource source(bytes_of(file), "z");
    const TorchZip zip(source);
    for (const char* name : {"a", "b"}) {
      if (const TorchZipEntry* entry = zip.find(name)) zip.content(*entry, 1000);
    }
  });
}

std::string content(const std::string& file, const std::string& name = "a") {
  const MemorySource source(bytes_of(file), "z");
  const TorchZip zip(source);
  return text_of(zip.content(zip.at(name), 1000));
}

TEST(TorchZip, IsWrittenAndReadAgain) {
  std::string file;
  TorchZipWriter zip(into(file));
  zip.entry("data.pkl", "pickle");
  zip.begin("data/0", 5);
  zip.append(bytes_of("01"));
  zip.append(bytes_of("234"));
  zip.end();
  zip.entry("version", "");
  zip.finish();
  EXPECT_EQ(zip.written(), file.size());
  const MemorySource source(bytes_of(file), "z");
  const TorchZip read(source);
  for (const auto& [name, expected] :
       std::vector<std::pair<std::string, std::string>>{{"data.pkl", "pickle"}, {"data/0", "01234"}, {"version", ""}}) {
    EXPECT_EQ(text_of(read.content(read.at(name), 100)), expected);
    EXPECT_EQ(read.at(name).begin % 64, 0u) << name;
  }
  EXPECT_EQ(read.find("archive/version"), nullptr);
  EXPECT_EQ(message_of<FileDamage>([&] { read.at("byteorder"); }),
            "z: offset 0: the archive has no entry 'byteorder'; it is none of torch.save");
  EXPECT_EQ(message_of<FileDamage>([&] { read.content(read.at("data/0"), 4); }),
            fmt::format("z: offset {}: 'data/0' has 5 bytes; at most 4 are read", read.at("data/0").begin));
}

TEST(TorchZip, ReadsWhatPyTorchWroteAndOtherWriters) {
  const std::string file = read_file(golden("transposed.pt"));
  const MemorySource source(bytes_of(file), "z");
  const TorchZip zip(source);
  EXPECT_EQ(zip.at("data/0").size, 24u);
  EXPECT_EQ(text_of(zip.content(zip.at("byteorder"), 10)), "little");
  EXPECT_EQ(content(zip_of({{}})), "0123456789");  // figures in the local header, no descriptor
  EXPECT_EQ(content(zip_of({{.name = "a"}})), "0123456789");
  EXPECT_EQ(content(zip_of({{}, {.name = "archive/b", .content = "B"}}, {.has64 = true}), "b"), "B");
  EXPECT_EQ(content(zip_of({{.flags = 8, .local_size = 0xffffffff, .behind = std::string(24, 'd')}})), "0123456789");
  EXPECT_EQ(content(zip_of({{.size = 0xffffffff,
                             .stored_size = 0xffffffff,
                             .extra = "\7\0\1\0x"s + little(1, 2) + little(16, 2) + little(10, 8) + little(10, 8)}})),
            "0123456789");
}

TEST(TorchZip, IsRefusedWhereverItIsCut) {
  const std::string file = tensor_archive<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_THROW(elements_of<float>(file.substr(0, size)), FileDamage) << size;
    EXPECT_THROW(elements_of<float>(file.substr(file.size() - size)), FileDamage) << size;
  }
  EXPECT_EQ(refusal(""),
            "z: offset 0: no zip archive of torch.save: its directory is missing; the file is cut short or "
            "another one");
}

// The local header's and the descriptor's copies of checksum and sizes are zero or not looked at.
TEST(TorchZip, EveryBitMayChangeAndTheContentIsRightOrRefused) {
  const std::vector<float> elements{0, 1, 2, 3, 4, 5};
  for (const std::string& good : {tensor_archive<float>({2, 3}, elements), read_file(golden("parameter.pt"))}) {
    const std::vector<float> wanted = elements_of<float>(good);
    int refused = 0;
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
      try {
        EXPECT_EQ(elements_of<float>(bad), wanted) << "bit " << bit;
      } catch (const FileDamage& error) {
        ++refused;
        EXPECT_TRUE(std::string_view(error.what()).starts_with("t.pt: offset ")) << error.what();
      }
    }
    EXPECT_GT(refused, static_cast<int>(2 * good.size()));
  }
}

TEST(TorchZip, RefusesCompressedAndEncryptedEntries) {
  const auto text = [](int offset) {
    return fmt::format(
        "z: offset {}: the zip entry archive/a is compressed or encrypted; torch.save stores entries as they "
        "are",
        offset);
  };
  const int directory = 49;
  EXPECT_EQ(refusal(zip_of({{.method = 8}})), text(directory));
  EXPECT_EQ(refusal(zip_of({{.flags = 1}})), text(directory));
  EXPECT_EQ(refusal(zip_of({{.stored_size = 9}})), text(directory));
  EXPECT_EQ(refusal(zip_of({{.size = 11}})), text(directory));
}

TEST(TorchZip, RefusesADirectoryThatSaysOtherThanTheEntries) {
  const std::string other = "z: offset 0: the zip entry archive/a is another one in the directory";
  EXPECT_EQ(refusal(zip_of({{.local_name = "archive/b"}})), other);
  EXPECT_EQ(refusal(zip_of({{.local_name = "archive/abc"}})), other);
  EXPECT_EQ(refusal(zip_of({{.local_flags = 1}})), other);
  EXPECT_EQ(refusal(zip_of({{.local_flags = 8}})), other);
  EXPECT_EQ(refusal(zip_of({{.local_size = 5}})), other);
  EXPECT_EQ(refusal(zip_of({{.header = 1}})), "z: offset 1: no zip entry, but archive/a should be here");
}

TEST(TorchZip, RefusesEntriesThatOverlapLeaveHolesOrStandTwice) {
  const std::string good = "archive/b";
  EXPECT_EQ(refusal(zip_of({{}, {}})), "z: offset 88: the zip entry a occurs twice");
  EXPECT_EQ(refusal(zip_of({{}, {.name = "other/a"}})), "z: offset 86: the zip entry a occurs twice");
  EXPECT_EQ(refusal(zip_of({{.behind = "x"}})),
            "z: offset 49: 1 bytes behind the zip entry archive/a that belong to nothing");
  EXPECT_EQ(refusal(zip_of({{.flags = 8}})),
            "z: offset 49: 0 bytes behind the zip entry archive/a that belong to nothing");
  EXPECT_EQ(refusal(zip_of({{}}, {}, "x")), "z: offset 0: bytes that belong to no zip entry");
  // Two names of one entry: the second one's header is the first one's.
  EXPECT_EQ(refusal(zip_of({{}, {.name = good, .header = 0}})),
            "z: offset 0: the zip entry archive/b is another one in the directory");
  // An entry whose content holds the next entry as a whole.
  const std::string inner = zip_of({{.name = good}});
  const std::string inner_entry = inner.substr(0, 49);
  EXPECT_EQ(refusal(zip_of({{.content = inner_entry}, {.name = good, .header = 39}})),
            "z: offset 39: the zip entry archive/a should have 49 bytes, which do not end before 39");
}

TEST(TorchZip, GiganticFiguresAreComparedWithTheFile) {
  const std::string size64 =
      little(1, 2) + little(16, 2) + little(std::uint64_t{1} << 62, 8) + little(std::uint64_t{1} << 62, 8);
  EXPECT_EQ(
      refusal(zip_of({{.local_size = 0xffffffff, .size = 0xffffffff, .stored_size = 0xffffffff, .extra = size64}})),
      "z: offset 39: the zip entry archive/a should have 4611686018427387904 bytes, which do not end before 49");
  const std::string header64 = little(1, 2) + little(8, 2) + little(std::uint64_t{1} << 63, 8);
  EXPECT_EQ(refusal(zip_of({{.header = 0xffffffff, .extra = header64}})),
            "z: offset 138: expected 39 bytes here, but the part ends after 0; the file is cut short");
  EXPECT_EQ(refusal(zip_of({{.size = 0xffffffff, .stored_size = 0xffffffff}})),
            "z: offset 49: a zip entry needs a zip64 field and has none");
  EXPECT_EQ(refusal(zip_of({{.size = 0xffffffff, .stored_size = 0xffffffff, .extra = "\1\0\x08\0"s + little(10, 8)}})),
            "z: offset 49: a zip entry's zip64 field is too short");
  EXPECT_EQ(refusal(zip_of({{.size = 0xffffffff, .stored_size = 0xffffffff, .extra = "\1\0\xff\xff"s}})),
            "z: offset 49: a zip entry needs a zip64 field and has none");
}

TEST(TorchZip, RefusesAnEndThatIsNotAsItShouldBe) {
  const std::string missing =
      "z: offset 0: no zip archive of torch.save: its directory is missing; the file is cut short or another one";
  EXPECT_EQ(refusal(zip_of({{}}, {.comment = "hello"})), missing);
  // A comment that ends like an archive of its own: the directory it names is not in front of it.
  const std::string second = zip_of({{.content = "other"}});
  EXPECT_NE(
      refusal(zip_of({{}}, {.comment = second})).find("the zip directory should be 55 bytes at 44, but it ends at "),
      std::string::npos);
  EXPECT_EQ(refusal(zip_of({{}}) + "x"), missing);
  EXPECT_EQ(refusal(zip_of({{}}, {.more_entries = 1})), "z: offset 104: the zip directory is cut short");
  EXPECT_EQ(refusal(zip_of({{}, {.name = "archive/b"}}, {.more_entries = 0xffff})),
            "z: offset 153: the zip directory should end here, behind 1 entries");
  EXPECT_EQ(refusal(zip_of({{}}, {.more_size = 1})),
            "z: offset 104: the zip directory should be 56 bytes at 49, but it ends at 104");
  EXPECT_EQ(refusal(zip_of({{}}, {.more_begin = 1000})),
            "z: offset 104: the zip directory should be 55 bytes at 1049, but it ends at 104");
  EXPECT_EQ(refusal(zip_of({{}}, {.more_entries = 0xfffe})), "z: offset 104: the zip64 locator is missing");
}

TEST(TorchZip, RefusesAnEndOfZip64ThatLies) {
  EXPECT_EQ(refusal(zip_of({{}}, {.has64 = true, .more_entries64 = 1})),
            "z: offset 104: the two records of the zip directory's end differ");
  EXPECT_EQ(refusal(zip_of({{}}, {.more_entries = 0xfffe, .has64 = true, .more_entries64 = std::uint64_t{1} << 60})),
            "z: offset 104: the zip directory is cut short");
  EXPECT_EQ(refusal(zip_of({{}}, {.more_begin = 1, .has64 = true})),
            "z: offset 104: the two records of the zip directory's end differ");
  EXPECT_EQ(refusal(zip_of({{}}, {.has64 = true, .more_record = std::uint64_t{1} << 40})),
            "z: offset 160: the zip64 record of the directory is not in front of its locator");
}

// The bytes around a part of a file are other parts: an archive that begins or ends in them is none.
TEST(TorchZip, StaysWithinItsPart) {
  const std::string file = zip_of({{.content = "first"}}) + zip_of({{.content = "other"}});
  const std::size_t half = file.size() / 2;
  EXPECT_EQ(content(file.substr(0, half)), "first");
  EXPECT_EQ(content(file.substr(half)), "other");
  EXPECT_THROW(content(file), FileDamage);
  EXPECT_THROW(content(file.substr(half - 1)), FileDamage);
  EXPECT_THROW(content(file.substr(0, half + 1)), FileDamage);
}

// A file that is zeros but where something else was written.
class SparseFile final : public ByteSource {
 public:
  std::uint64_t size() const override { return size_; }
  std::string where(std::uint64_t at) const override { return fmt::format("sparse: offset {}", at); }
  void append(std::span<const std::byte> bytes) {
    parts_[size_] = text_of(bytes);
    size_ += bytes.size();
  }
  void append_zeros(std::uint64_t count) { size_ += count; }

 protected:
  void read_inside(std::uint64_t at, std::span<std::byte> to) const override {
    std::ranges::fill(to, std::byte{0});
    for (const auto& [begin, part] : parts_) {
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (begin + i >= at && begin + i - at < to.size()) to[begin + i - at] = static_cast<std::byte>(part[i]);
      }
    }
  }

 private:
  std::map<std::uint64_t, std::string> parts_;
  std::uint64_t size_ = 0;
};

// The largest content without zip64 fields of its own, whose successor's place needs one; and the smallest with them.
TEST(TorchZip, GoesBeyondFourGibibytes) {
  const std::vector<std::byte> zeros(1 << 20);
  for (const std::uint64_t size : {std::uint64_t{0xfffffffe}, std::uint64_t{0xffffffff}}) {
    SparseFile file;
    TorchZipWriter zip([&](std::span<const std::byte> piece) {
      const bool is_zeros = piece.data() >= zeros.data() && piece.data() < zeros.data() + zeros.size();
      is_zeros ? file.append_zeros(piece.size()) : file.append(piece);
    });
    zip.entry("first", "1");
    zip.begin("big", size);
    for (std::uint64_t left = size; left > 0;) {
      const auto piece = std::span(zeros).first(std::min<std::uint64_t>(left, zeros.size()));
      zip.append(piece);
      left -= piece.size();
    }
    zip.end();
    zip.entry("last", "2");
    zip.finish();
    EXPECT_EQ(zip.written(), file.size());
    const TorchZip read(file);
    EXPECT_EQ(read.at("big").size, size);
    EXPECT_EQ(read.at("big").begin % 64, 0u);
    EXPECT_EQ(text_of(read.content(read.at("first"), 10)), "1");
    EXPECT_EQ(text_of(read.content(read.at("last"), 10)), "2");
    EXPECT_GT(read.at("last").begin, size);
  }
}

// Files that are mostly holes cost no memory.
TEST(TorchZip, DirectoriesAndDescriptionsHaveABound) {
  constexpr std::uint64_t kSize = 65 << 20;
  SparseFile directory;
  directory.append_zeros(kSize);
  directory.append(bytes_of("PK\5\6"s + little(0, 4) + little(1, 2) + little(1, 2) + little(kSize, 4) + little(0, 4) +
                            little(0, 2)));
  EXPECT_EQ(message_of<FileDamage>([&] { TorchZip{directory}; }),
            "sparse: offset 68157440: a zip directory of 68157440 bytes; at most 67108864 are read");
  SparseFile description;
  TorchZipWriter zip([&](std::span<const std::byte> piece) {
    piece.size() >= 1000 ? description.append_zeros(piece.size()) : description.append(piece);
  });
  zip.entry("data.pkl", std::string(kSize, '\0'));
  zip.finish();
  EXPECT_EQ(message_of<FileDamage>([&] { read_torch_value(description); }),
            "sparse: offset 64: 'data.pkl' has 68157440 bytes; at most 67108864 are read");
}

TEST(TorchZip, AWriterThatGivesOtherThanItSaidIsAMistakeOfTheProgram) {
  std::string file;
  TorchZipWriter zip(into(file));
  zip.begin("a", 2);
  EXPECT_THROW(zip.append(bytes_of("012")), InvariantError);
  EXPECT_THROW(zip.end(), InvariantError);
}

}  // namespace
}  // namespace loom::io
