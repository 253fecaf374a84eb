// Promise: a pair .bin/.idx is read as Megatron wrote it, byte for byte; one that is not right is refused with file,
//          field and byte, before anything of it is used; and a pair is written whole or not at all.
// World:   the smallest file of the reference: lengths 2 1 3, int32, documents [0, 2, 3].
#include "engine/formats/indexed/indexed_dataset.h"

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/formats/indexed/indexed_writer.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Tokens = std::vector<std::int32_t>;

constexpr std::size_t kOffsetsAt = 34 + 3 * 4;
constexpr std::size_t kDocumentsAt = kOffsetsAt + 3 * 8;

template <class T>
void put(std::string& bytes, std::size_t at, T value) {
  bytes.replace(at, sizeof(T), std::string(reinterpret_cast<const char*>(&value), sizeof(T)));
}

// By hand, field by field.
std::string three_idx() {
  std::string bytes("MMIDIDX\0\0", 9);
  bytes.resize(94);
  put<std::uint64_t>(bytes, 9, 1);
  put<std::uint8_t>(bytes, 17, 4);
  put<std::uint64_t>(bytes, 18, 3);
  put<std::uint64_t>(bytes, 26, 3);
  const std::int32_t lengths[] = {2, 1, 3};
  const std::int64_t offsets[] = {0, 8, 12};
  const std::int64_t documents[] = {0, 2, 3};
  for (std::size_t i = 0; i < 3; ++i) {
    put(bytes, 34 + 4 * i, lengths[i]);
    put(bytes, kOffsetsAt + 8 * i, offsets[i]);
    put(bytes, kDocumentsAt + 8 * i, documents[i]);
  }
  return bytes;
}

std::string three_bin() {
  std::string bytes(24, '\0');
  for (std::int32_t i = 0; i < 6; ++i) put(bytes, 4 * static_cast<std::size_t>(i), 5 + i);
  return bytes;
}

fs::path pair_of(const fs::path& folder, const std::string& idx, const std::string& bin = three_bin()) {
  write_file(folder / "three.idx", idx);
  write_file(folder / "three.bin", bin);
  return folder / "three";
}

Tokens tokens_of(const IndexedDataset& pair, std::int64_t sequence) {
  Tokens tokens(static_cast<std::size_t>(pair.length(sequence)));
  pair.read(sequence, 0, tokens);
  return tokens;
}

void write_three(const fs::path& prefix, IndexedDtype dtype = IndexedDtype::kI32) {
  IndexedWriter writer(prefix, dtype);
  writer.add_sequence(Tokens{5, 6});
  writer.add_sequence(Tokens{7});
  writer.end_document();
  writer.add_sequence(Tokens{8, 9, 10});
  writer.end_document();
  writer.commit();
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// --- Reading

TEST(IndexedDataset, ReadsSequencesAndDocuments) {
  const IndexedDataset pair(pair_of(fresh_folder(), three_idx()));
  EXPECT_EQ(pair.dtype(), IndexedDtype::kI32);
  EXPECT_EQ(pair.sequence_count(), 3);
  EXPECT_EQ(pair.document_count(), 2);
  EXPECT_EQ(pair.token_count(), 6);
  EXPECT_FALSE(pair.has_modes());
  EXPECT_EQ(pair.document_begin(1), 2);
  EXPECT_THAT(tokens_of(pair, 0), ElementsAre(5, 6));
  EXPECT_THAT(tokens_of(pair, 1), ElementsAre(7));
  EXPECT_THAT(tokens_of(pair, 2), ElementsAre(8, 9, 10));
  Tokens middle(1);
  pair.read(2, 1, middle);
  EXPECT_THAT(middle, ElementsAre(9));
  EXPECT_THROW(pair.read(1, 1, middle), InvariantError);
}

TEST(IndexedDataset, ReadsEveryTypeOfNumber) {
  for (const auto dtype : {IndexedDtype::kU8, IndexedDtype::kI8, IndexedDtype::kI16, IndexedDtype::kU16,
                           IndexedDtype::kI32, IndexedDtype::kI64}) {
    const fs::path prefix = fresh_folder() / "p";
    write_three(prefix, dtype);
    const IndexedDataset pair(prefix);
    EXPECT_EQ(pair.dtype(), dtype);
    EXPECT_EQ(fs::file_size(bin_path(prefix)), 6 * static_cast<std::uintmax_t>(element_bytes(dtype)));
    EXPECT_THAT(tokens_of(pair, 2), ElementsAre(8, 9, 10)) << name_of(dtype);
  }
}

TEST(IndexedDataset, KeepsNegativeLabelsAndIdsAbove32767) {
  const fs::path folder = fresh_folder();
  const auto round = [&](IndexedDtype dtype, const Tokens& tokens) {
    IndexedWriter writer(folder / "p", dtype);
    writer.add_sequence(tokens);
    writer.end_document();
    writer.commit();
    return tokens_of(IndexedDataset(folder / "p"), 0);
  };
  EXPECT_THAT(round(IndexedDtype::kI32, {-100, 151643}), ElementsAre(-100, 151643));
  EXPECT_THAT(round(IndexedDtype::kU16, {0, 65535}), ElementsAre(0, 65535));
}

TEST(IndexedDataset, AllowsEmptyDocumentsAndSequencesAndFiles) {
  const fs::path folder = fresh_folder();
  {
    IndexedWriter writer(folder / "p", IndexedDtype::kU16);
    writer.end_document();
    writer.add_sequence({});
    writer.add_sequence(Tokens{1});
    writer.end_document();
    writer.commit();
  }
  const IndexedDataset pair(folder / "p");
  EXPECT_EQ(pair.document_count(), 2);
  EXPECT_THAT(tokens_of(pair, 0), IsEmpty());
  EXPECT_THAT(tokens_of(pair, 1), ElementsAre(1));
  IndexedWriter(folder / "none", IndexedDtype::kI32).commit();
  EXPECT_EQ(IndexedDataset(folder / "none").sequence_count(), 0);
}

TEST(IndexedDataset, ReadsModes) {
  const fs::path folder = fresh_folder();
  IndexedWriter writer(folder / "p", IndexedDtype::kI32, IndexedWriter::Modes::kOnePerSequence);
  writer.add_sequence(Tokens{1, 2}, 0);
  writer.add_sequence(Tokens{3}, 1);
  writer.end_document();
  writer.commit();
  const IndexedDataset pair(folder / "p");
  EXPECT_TRUE(pair.has_modes());
  EXPECT_EQ(pair.mode(0), 0);
  EXPECT_EQ(pair.mode(1), 1);
  EXPECT_EQ(fs::file_size(folder / "p.idx"), 34U + 12 * 2 + 8 * 2 + 2);
}

TEST(IndexedDataset, TakesUint16ForVocabulariesBelow65500) {
  EXPECT_EQ(dtype_of_vocabulary(65499), IndexedDtype::kU16);
  EXPECT_EQ(dtype_of_vocabulary(65500), IndexedDtype::kI32);
}

// --- What is not right

struct Lie {
  const char* what;
  std::function<void(std::string& idx, std::string& bin)> tell;
  const char* message;  // behind the file's name
};

const std::vector<Lie>& lies() {
  static const std::vector<Lie> all = {
      {"short", [](auto& idx, auto&) { idx.resize(33); }, "three.idx: it has 33 bytes, and its header alone has 34"},
      {"empty", [](auto& idx, auto&) { idx.clear(); }, "three.idx: it has 0 bytes"},
      {"magic", [](auto& idx, auto&) { idx[3] = 'X'; }, "three.idx: it does not begin with MMIDIDX and two zeros"},
      {"version", [](auto& idx, auto&) { put<std::uint64_t>(idx, 9, 2); },
       "three.idx: the version at byte 9 is 2, and only 1 is known"},
      {"code 0", [](auto& idx, auto&) { idx[17] = 0; },
       "three.idx: the dtype code at byte 17 is 0, and the codes are 1 to 8"},
      {"code 9", [](auto& idx, auto&) { idx[17] = 9; }, "the dtype code at byte 17 is 9"},
      {"sequences", [](auto& idx, auto&) { put<std::uint64_t>(idx, 18, 6); },
       "three.idx: the number of sequences at byte 18 is 6, and the 94 bytes of the file hold at most 5"},
      {"sequences of 64 bits", [](auto& idx, auto&) { put<std::uint64_t>(idx, 18, ~0ULL / 12 + 4); },
       "the number of sequences at byte 18 is 1537228672809129305"},
      {"documents", [](auto& idx, auto&) { put<std::uint64_t>(idx, 26, 4); },
       "three.idx: the number of entries of the document index at byte 26 is 4; it is 1 or more, and the 94 bytes of "
       "the file hold at most 3"},
      {"documents of 64 bits", [](auto& idx, auto&) { put<std::uint64_t>(idx, 26, ~0ULL / 8 + 4); },
       "the number of entries of the document index at byte 26 is 2305843009213693955"},
      {"no documents", [](auto& idx, auto&) { put<std::uint64_t>(idx, 26, 0); }, "at byte 26 is 0; it is 1 or more"},
      {"size", [](auto& idx, auto&) { idx += "ab"; },
       "three.idx: it has 96 bytes; 3 sequences and 3 entries of the document index take 94, and 97 with modes"},
      {"length", [](auto& idx, auto&) { put<std::int32_t>(idx, 38, -1); },
       "three.idx: the length of sequence 1 at byte 38 is -1; it is 0 or more"},
      {"length too long", [](auto& idx, auto&) { put<std::int32_t>(idx, 42, 4); },
       "three.idx: sequence 2 (length 4 at byte 42) ends at byte 28 of three.bin, which has 24"},
      {"offset", [](auto& idx, auto&) { put<std::int64_t>(idx, 54, 4); },
       "three.idx: the offset of sequence 1 at byte 54 is 4, and the lengths before it make 8"},
      {"offset below 0", [](auto& idx, auto&) { put<std::int64_t>(idx, 46, -8); },
       "three.idx: the offset of sequence 0 at byte 46 is -8, and the lengths before it make 0"},
      {"first document", [](auto& idx, auto&) { put<std::int64_t>(idx, 70, 1); },
       "three.idx: entry 0 of the document index at byte 70 is 1; it is 0"},
      {"documents backwards", [](auto& idx, auto&) { put<std::int64_t>(idx, 86, 1); },
       "three.idx: entry 2 of the document index at byte 86 is 1; it is 2 to 3"},
      {"document above", [](auto& idx, auto&) { put<std::int64_t>(idx, 78, 4); },
       "three.idx: entry 1 of the document index at byte 78 is 4; it is 0 to 3"},
      {"last document", [](auto& idx, auto&) { put<std::int64_t>(idx, 86, 2); },
       "three.idx: the last entry of the document index at byte 86 is 2, and there are 3 sequences"},
      {"short bin", [](auto&, auto& bin) { bin.resize(20); },
       "three.idx: sequence 2 (length 3 at byte 42) ends at byte 24 of three.bin, which has 20"},
      {"long bin", [](auto&, auto& bin) { bin += "1234"; },
       "three.bin: it has 28 bytes, and the sequences of three.idx end at byte 24; the two are not of one pair"},
  };
  return all;
}

TEST(IndexedDataset, RefusesWhatIsNotRightWithFileFieldAndByte) {
  const fs::path folder = fresh_folder();
  for (const Lie& lie : lies()) {
    std::string idx = three_idx();
    std::string bin = three_bin();
    lie.tell(idx, bin);
    const fs::path prefix = pair_of(folder, idx, bin);
    const std::string message = message_of<ConfigError>([&] { const IndexedDataset pair(prefix); });
    EXPECT_THAT(message, AllOf(HasSubstr(lie.message), HasSubstr("; write the pair again, or give"))) << lie.what;
  }
}

// Every byte of the .idx in turn, and every length of it: nothing but an answer or a refusal.
TEST(IndexedDataset, NeverLeavesTheFiles) {
  const fs::path prefix = pair_of(fresh_folder(), three_idx());
  const auto read_all = [&](const std::string& idx) {
    fs::remove(idx_path(prefix));  // some file systems flush a file that is cut and written again
    write_file(idx_path(prefix), idx);
    try {
      const IndexedDataset pair(prefix);
      for (std::int64_t i = 0; i < pair.sequence_count(); ++i) tokens_of(pair, i);
    } catch (const ConfigError&) {
    }
  };
  for (std::size_t at = 0; at < three_idx().size(); ++at) {
    for (const char value : {'\0', '\1', '\x7f', '\x80', '\xff'}) {
      std::string idx = three_idx();
      idx[at] = value;
      read_all(idx);
    }
    read_all(three_idx().substr(0, at));
  }
}

TEST(IndexedDataset, SaysWhatIsMissingAndWhatToGive) {
  const fs::path folder = fresh_folder();
  const auto message = [](const fs::path& prefix) {
    return message_of<ConfigError>([&] { const IndexedDataset pair(prefix); });
  };
  EXPECT_EQ(message(folder / "none"), (folder / "none.idx").string() +
                                          ": there is no such file; give the path of a .bin/.idx pair without its "
                                          "ending");
  write_three(folder / "a_text_document");
  EXPECT_THAT(message(folder / "a"), HasSubstr("; give " + (folder / "a_text_document").string()));
  EXPECT_THAT(message(folder / "a_text_document.bin"),
              HasSubstr("; give the prefix without .bin: " + (folder / "a_text_document").string()));
  fs::remove(folder / "a_text_document.idx");
  EXPECT_THAT(message(folder / "a_text_document"),
              HasSubstr("a_text_document.idx: there is no such file beside a_text_document.bin; write the pair again"));
}

TEST(IndexedDataset, RefusesNumbersThatAreNoTokenIds) {
  const fs::path folder = fresh_folder();
  std::string idx = three_idx();
  idx[17] = 7;
  const IndexedDataset floats(pair_of(folder, idx));
  EXPECT_THAT(message_of<ConfigError>([&] { tokens_of(floats, 0); }),
              HasSubstr("three.bin: it holds float32, which are not token ids; give a pair of integers"));
  write_three(folder / "wide", IndexedDtype::kI64);
  std::string bin = read_file(folder / "wide.bin");
  put<std::int64_t>(bin, 32, std::int64_t{1} << 31);
  write_file(folder / "wide.bin", bin);
  const IndexedDataset wide(folder / "wide");
  EXPECT_THAT(message_of<ConfigError>([&] { tokens_of(wide, 2); }),
              HasSubstr("wide.bin: token 1 of sequence 2 is 2147483648; token ids are -2147483648 to 2147483647"));
}

TEST(IndexedDataset, FindsWhatOthersDidToTheFilesSince) {
  const fs::path folder = fresh_folder();
  const fs::path prefix = pair_of(folder, three_idx());
  const IndexedDataset pair(prefix);
  EXPECT_NO_THROW(pair.check_unchanged());
  fs::resize_file(folder / "three.bin", 12);
  EXPECT_THAT(message_of<Error>([&] { pair.check_unchanged(); }),
              HasSubstr("three.bin: had 24 bytes and has 12 now since the run opened it; leave the file as it is"));
  fs::remove(folder / "three.bin");
  EXPECT_THAT(message_of<Error>([&] { pair.check_unchanged(); }), HasSubstr("three.bin: cannot be read any more"));
}

// --- Writing

TEST(IndexedWriter, WritesTheSmallestFileByteForByte) {
  const fs::path folder = fresh_folder();
  write_three(folder / "three");
  EXPECT_EQ(fs::file_size(folder / "three.idx"), 34U + 12 * 3 + 8 * 3);
  EXPECT_EQ(read_file(folder / "three.idx"), three_idx());
  EXPECT_EQ(read_file(folder / "three.bin"), three_bin());
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("three.idx", "three.bin"));
}

TEST(IndexedWriter, MergingTwoPairsEqualsWritingAllOfIt) {
  const fs::path folder = fresh_folder();
  write_three(folder / "a");
  {
    IndexedWriter writer(folder / "merged", IndexedDtype::kI32);
    writer.add_all(IndexedDataset(folder / "a"));
    writer.add_all(IndexedDataset(folder / "a"));
    writer.commit();
    IndexedWriter once(folder / "once", IndexedDtype::kI32);
    for (int twice = 0; twice < 2; ++twice) {
      once.add_sequence(Tokens{5, 6});
      once.add_sequence(Tokens{7});
      once.end_document();
      once.add_sequence(Tokens{8, 9, 10});
      once.end_document();
    }
    EXPECT_EQ(once.document_count(), 4);
    once.commit();
  }
  EXPECT_EQ(read_file(folder / "merged.idx"), read_file(folder / "once.idx"));
  EXPECT_EQ(read_file(folder / "merged.bin"), read_file(folder / "once.bin"));
}

TEST(IndexedWriter, RefusesToMergeTwoTypes) {
  const fs::path folder = fresh_folder();
  write_three(folder / "narrow", IndexedDtype::kU16);
  IndexedWriter writer(folder / "merged", IndexedDtype::kI32);
  EXPECT_THAT(message_of<ConfigError>([&] { writer.add_all(IndexedDataset(folder / "narrow")); }),
              AllOf(HasSubstr("narrow.idx: it has uint16 without modes, and "),
                    HasSubstr("merged.idx is written as int32 without modes; merge pairs of one kind")));
}

TEST(IndexedWriter, RefusesNumbersThatAreNoTokenIds) {
  const fs::path prefix = fresh_folder() / "made";
  EXPECT_EQ(message_of<ConfigError>([&] { IndexedWriter(prefix, IndexedDtype::kF64); }),
            prefix.string() + ".bin: a pair of token ids holds integers, not float64; give pairs of integers");
  EXPECT_TRUE(fs::is_empty(prefix.parent_path()));
}

TEST(IndexedWriter, RefusesAnIdThatTheTypeDoesNotHold) {
  const fs::path folder = fresh_folder();
  IndexedWriter writer(folder / "p", IndexedDtype::kU16);
  writer.add_sequence(Tokens{1});
  EXPECT_THAT(message_of<ConfigError>([&] {
                writer.add_sequence(Tokens{1, 65536});
              }),
              HasSubstr("p.bin: token 1 of sequence 1 is 65536, and uint16 holds 0 to 65535; write int32"));
  EXPECT_THROW(writer.add_sequence(Tokens{-1}), ConfigError);
}

TEST(IndexedWriter, LeavesNothingAndTheOldPairWithoutCommit) {
  const fs::path folder = fresh_folder();
  write_three(folder / "p");
  {
    IndexedWriter writer(folder / "p", IndexedDtype::kU16);
    writer.add_sequence(Tokens(2'000'000, 7));
    writer.end_document();
  }
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("p.idx", "p.bin"));
  EXPECT_EQ(read_file(folder / "p.idx"), three_idx());
  EXPECT_EQ(read_file(folder / "p.bin"), three_bin());
}

TEST(IndexedWriter, SaysThatTheDiskIsFullAndLeavesTheOldPair) {
  const fs::path folder = fresh_folder();
  write_three(folder / "p");
  const std::string message = message_of<Error>([&] {
    IndexedWriter writer(folder / "p", IndexedDtype::kI32);
    const test::FileSizeLimit limit(1 << 20);
    for (int i = 0; i < 100; ++i) writer.add_sequence(Tokens(100'000, i));
    writer.end_document();
    writer.commit();
  });
  EXPECT_THAT(message, HasSubstr("p.bin: cannot write: File too large"));
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("p.idx", "p.bin"));
  EXPECT_THAT(tokens_of(IndexedDataset(folder / "p"), 2), ElementsAre(8, 9, 10));
}

TEST(IndexedWriter, ReplacesAPairAndReadersOfTheOldOneFindOut) {
  const fs::path folder = fresh_folder();
  write_three(folder / "p");
  const IndexedDataset old(folder / "p");
  write_three(folder / "p", IndexedDtype::kU16);
  EXPECT_EQ(IndexedDataset(folder / "p").dtype(), IndexedDtype::kU16);
  EXPECT_THAT(message_of<Error>([&] { old.check_unchanged(); }), HasSubstr("p.idx: was replaced by another file"));
  EXPECT_THAT(tokens_of(old, 2), ElementsAre(8, 9, 10));  // still that of before
}

using Writers = std::vector<std::unique_ptr<IndexedWriter>>;

Writers two_writers(const fs::path& folder, std::int32_t token) {
  Writers writers;
  for (const char* name : {"a", "b"}) {
    writers.push_back(std::make_unique<IndexedWriter>(folder / name, IndexedDtype::kI32));
    writers.back()->add_sequence(Tokens{token});
    writers.back()->end_document();
  }
  return writers;
}

TEST(IndexedWriter, MakesSeveralPairsVisibleTogether) {
  const fs::path folder = fresh_folder();
  IndexedWriter::commit_all(two_writers(folder, 1));
  IndexedWriter::commit_all(two_writers(folder, 2));
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("a.bin", "a.idx", "b.bin", "b.idx"));
  for (const char* name : {"a", "b"}) EXPECT_THAT(tokens_of(IndexedDataset(folder / name), 0), ElementsAre(2));
}

TEST(IndexedWriter, LeavesAllOldPairsWhereOneOfSeveralCannotBeWhole) {
  const fs::path folder = fresh_folder();
  IndexedWriter::commit_all(two_writers(folder, 1));
  {
    const Writers writers = two_writers(folder, 2);
    for (int i = 0; i < 1000; ++i) writers.back()->end_document();  // 8 bytes each in b.idx, written by commit_all()
    const test::FileSizeLimit limit(4096);
    EXPECT_EQ(message_of<Error>([&] { IndexedWriter::commit_all(writers); }),
              (folder / "b.idx").string() + ": cannot write: File too large");
  }
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("a.bin", "a.idx", "b.bin", "b.idx"));
  for (const char* name : {"a", "b"}) EXPECT_THAT(tokens_of(IndexedDataset(folder / name), 0), ElementsAre(1));
}

TEST(IndexedWriter, SaysHowFarAMergeIsAndMayBeStoppedThere) {
  const fs::path folder = fresh_folder();
  IndexedWriter::commit_all(two_writers(folder, 1));
  IndexedWriter writer(folder / "merged", IndexedDtype::kI32);
  std::int64_t bytes = 0;
  writer.add_all(IndexedDataset(folder / "a"), [&](std::int64_t more) { bytes += more; });
  EXPECT_EQ(bytes, 4);
  EXPECT_EQ(message_of<Error>(
                [&] { writer.add_all(IndexedDataset(folder / "b"), [](std::int64_t) { raise<Error>("stopped"); }); }),
            "stopped");
}

TEST(IndexedWriter, NeedsItsFolder) {
  EXPECT_THAT(message_of<ConfigError>([] { IndexedWriter("/nowhere/p", IndexedDtype::kI32); }),
              HasSubstr("/nowhere/p.bin: cannot create: No such file or directory"));
}

}  // namespace
}  // namespace loom::io
