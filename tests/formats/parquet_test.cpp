// Promise: a parquet file is read page by page in memory that its bytes bound; what lies about its sizes, levels or
//          values is refused with file, column, row group and byte, before anything is allocated for it.
// World:   files of one column, made by hand, and those of tests/formats/data/parquet, which pyarrow wrote. That the
//          values are pyarrow's is shown by tests/text/records/records_test.cpp.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/formats/parquet/delta_numbers.h"
#include "engine/formats/parquet/parquet_file.h"
#include "engine/formats/parquet/parquet_schema.h"
#include "engine/io/byte_source.h"
#include "engine/io/checksum.h"
#include "tests/formats/parquet_maker.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

using namespace std::string_literals;
using namespace loom::io::testing;
using loom::test::fresh_folder;
using loom::test::message_of;
using loom::test::read_file;
using loom::test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = ParquetField::Kind;

const std::filesystem::path kGoldens = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/formats/data/parquet";

std::filesystem::path made(std::string_view bytes) { return write_file(fresh_folder() / "t.parquet", bytes); }

std::vector<ParquetRows> read(const std::filesystem::path& path, std::uint64_t most = 1000) {
  ParquetFile file(path);
  std::vector<ParquetRows> all;
  while (auto rows = file.next(std::uint64_t{1} << 20, most)) all.push_back(std::move(*rows));
  EXPECT_EQ(file.done_bytes(), file.all_bytes());
  return all;
}

// What is said of a file that is damaged, behind its name.
std::string damage(std::string_view bytes) {
  const auto path = made(bytes);
  const std::string message = message_of<FileDamage>([&] { read(path); });
  const std::string begin = path.string() + ": ";
  EXPECT_TRUE(message.starts_with(begin)) << message;
  return message.substr(std::min(begin.size(), message.size()));
}

std::string column_damage(const ColumnText& column, std::size_t byte = 4) {
  const std::string message = damage(parquet_text(column));
  const std::string begin = "column 'c', row group 0, byte " + std::to_string(byte) + ": ";
  EXPECT_TRUE(message.starts_with(begin)) << message;
  return message.substr(std::min(begin.size(), message.size()));
}

std::string plain(std::string_view text) { return little32(text.size()) + std::string(text); }

ColumnText texts(PageText page) { return {.rows = page.values, .pages = {std::move(page)}}; }

ColumnText integers(PageText page, std::int64_t rows) {
  return {.type = 1, .converted = -1, .rows = rows, .pages = {std::move(page)}};
}

TEST(Parquet, GivesRowsInSlices) {
  const auto path = made(parquet_text(texts({.values = 3, .bytes = plain("a") + plain("") + plain("bc")})));
  const auto slices = read(path, 2);
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].first_row, 0u);
  EXPECT_EQ(slices[0].leaves[0].text, "a");
  EXPECT_THAT(slices[0].leaves[0].text_ends, ElementsAre(1, 1));
  EXPECT_EQ(slices[1].first_row, 2u);
  EXPECT_EQ(slices[1].count, 1u);
  EXPECT_EQ(slices[1].leaves[0].text, "bc");
}

TEST(Parquet, StopsASliceWhereItHasItsBytes) {
  const std::string page = plain(std::string(500, 'a')) + plain(std::string(500, 'b')) + plain("c");
  ParquetFile file(made(parquet_text(texts({.values = 3, .bytes = page}))));
  EXPECT_EQ(file.rows(), 3u);
  EXPECT_EQ(file.next(600, 100)->count, 2u);
  EXPECT_EQ(file.next(600, 100)->count, 1u);
  EXPECT_FALSE(file.next(600, 100));
}

TEST(Parquet, ReadsOverPagesAndRowGroupsOfPyarrow) {
  const auto pages = read(kGoldens / "pages.parquet");
  ASSERT_EQ(pages.size(), 1u);
  EXPECT_EQ(pages[0].count, 40u);
  const auto groups = read(kGoldens / "groups.parquet");
  ASSERT_EQ(groups.size(), 6u);
  EXPECT_EQ(groups[5].first_row, 35u);
  EXPECT_EQ(groups[5].count, 5u);
}

// All that was read, as bytes.
std::string content(const std::filesystem::path& path) {
  std::string bytes;
  const auto add = [&](const auto& numbers) {
    const auto raw = std::as_bytes(std::span(numbers));
    bytes.append(reinterpret_cast<const char*>(raw.data()), raw.size());
  };
  for (const ParquetRows& rows : read(path)) {
    for (const LeafEntries& leaf : rows.leaves) {
      add(leaf.definition);
      add(leaf.repetition);
      add(leaf.integers);
      add(leaf.reals);
      add(leaf.text);
      add(leaf.text_ends);
    }
  }
  return bytes;
}

// The checksum does not cover a page's head, some of whose fields do not matter.
TEST(Parquet, NeverGivesOtherValuesWhereAPageWasDamaged) {
  const std::string whole = read_file(kGoldens / "checked.parquet");
  const std::string expected = content(kGoldens / "checked.parquet");
  const auto path = fresh_folder() / "t.parquet";
  const std::string tail = whole.substr(whole.size() - 8);
  const std::size_t pages_end = whole.size() - 8 - ByteCursor(tail).number<std::uint32_t>();
  int refused = 0;
  for (std::size_t i = 1; i < pages_end; i += 5) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x24);
    write_file(path, changed);
    try {
      EXPECT_EQ(content(path), expected) << "byte " << i;
    } catch (const ConfigError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path.string())) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(pages_end / 5 * 3 / 4));
}

TEST(Parquet, RefusesAFileThatWasCut) {
  const std::string whole = read_file(kGoldens / "checked.parquet");
  for (std::size_t i = 0; i < whole.size(); i += 47) EXPECT_FALSE(damage(whole.substr(0, i)).empty()) << i;
}

TEST(Parquet, RefusesWhatIsNoParquet) {
  EXPECT_EQ(damage("PAR1"), "the file has 4 bytes; a parquet file has 12 at least");
  EXPECT_EQ(damage("{\"a\": 12345}\n"),
            "a parquet file begins and ends with PAR1, this one with '{\"a\"' and '45}\\n'");
  EXPECT_EQ(damage("PAR1" + little32(77) + "PAR1"), "metadata of 77 bytes is claimed, the file has 12");
  EXPECT_EQ(damage("PAR1\xff\xff"s + little32(2) + "PAR1"),
            "its metadata: a field has the type 15 of Thrift, which is another one than the format's");
  EXPECT_EQ(damage("PAR1"s + '\x19' + little32(1) + "PAR1"), "its metadata: 1 bytes are claimed where 0 are left");
  EXPECT_EQ(damage("PAR1\x29\xfc\xff\xff\x03"s + little32(5) + "PAR1"),
            "its metadata: a list of 65535 items in 0 bytes");
  EXPECT_EQ(damage("PAR1" + std::string(40, '\x1c') + little32(40) + "PAR1"),
            "its metadata: nested deeper than 32 levels");
}

TEST(Parquet, RefusesEncryption) {
  const auto path = made("PARE" + little32(0) + "PARE");
  EXPECT_EQ(message_of<ConfigError>([&] { read(path); }),
            path.string() + ": the file is encrypted, which is not read; write it without encryption");
}

TEST(Parquet, RefusesMetadataThatContradictsItself) {
  ColumnText column = texts({.bytes = plain("a")});
  column.values = 2;
  EXPECT_EQ(damage(parquet_text(column)), "its metadata: column 'c' has 2 values for 1 rows");
  column.values = {};
  column.bytes = 1'000'000;
  EXPECT_THAT(column_damage(column), HasSubstr("1000000 bytes from byte 4 on are claimed, the file has "));
  column.bytes = 3;
  EXPECT_THAT(column_damage(column), HasSubstr("bytes are claimed where"));
  column.bytes = {};
  column.codec = 9;
  EXPECT_THAT(message_of<ConfigError>([&] { read(made(parquet_text(column))); }),
              HasSubstr("column 'c' is compressed by codec 9, which is not read"));
}

TEST(Parquet, RefusesPagesThatLieAboutTheirSize) {
  EXPECT_THAT(column_damage(texts({.bytes = plain("a"), .compressed = 2'000'000'000})),
              HasSubstr("a page of 2000000000 bytes where the column has"));
  EXPECT_EQ(column_damage(texts({.bytes = plain("a"), .uncompressed = 6})), "5 bytes without compression, 6 claimed");
  EXPECT_EQ(column_damage(texts({.bytes = plain("a"), .uncompressed = -1})), "a page of 5 bytes that becomes -1");
  EXPECT_EQ(column_damage(texts({.values = 3, .bytes = plain("a") + plain("b")})),
            "4 bytes are claimed where 0 are left");
  EXPECT_EQ(column_damage(texts({.bytes = little32(4'000'000'000) + "a"})),
            "4000000000 bytes are claimed where 1 are left");
  ColumnText short_column = texts({.bytes = plain("a")});
  short_column.rows = 2;
  EXPECT_THAT(damage(parquet_text(short_column)), HasSubstr("the column ends 1 values too early"));
  ColumnText long_column = texts({.values = 2, .bytes = plain("a") + plain("b")});
  long_column.rows = 1;
  EXPECT_EQ(column_damage(long_column), "a page of 2 values where the column has 1 left");
}

TEST(Parquet, RefusesMoreThanACodecCanMake) {
  for (const auto& [codec, name] : {std::pair(1, "SNAPPY"), {2, "GZIP"}, {6, "ZSTD"}, {7, "LZ4_RAW"}}) {
    ColumnText column = texts({.bytes = "abc", .uncompressed = 1'000'000'000});
    column.codec = codec;
    EXPECT_EQ(column_damage(column), "3 bytes of "s + name + " cannot become the 1000000000 that are claimed");
    column = texts({.bytes = "abc", .uncompressed = 60});
    column.codec = codec;
    EXPECT_EQ(column_damage(column), "3 bytes are not "s + name + " that becomes 60 bytes");
  }
}

TEST(Parquet, ComparesChecksumsThatAreThere) {
  const std::string bytes = plain("a");
  const auto sum = static_cast<std::int32_t>(crc32(std::as_bytes(std::span(bytes))));
  EXPECT_EQ(read(made(parquet_text(texts({.bytes = bytes, .crc = sum})))).size(), 1u);
  EXPECT_EQ(column_damage(texts({.bytes = bytes, .crc = sum ^ 1})),
            fmt::format("the page's bytes have the CRC-32 {:08x}, but its head has {:08x}",
                        static_cast<std::uint32_t>(sum), static_cast<std::uint32_t>(sum ^ 1)));
}

TEST(Parquet, RefusesDictionariesThatDoNotFit) {
  const PageText dictionary{.type = 2, .values = 1, .bytes = plain("a")};
  const auto column = [&](std::string indices) {
    return ColumnText{.pages = {dictionary, {.encoding = 8, .bytes = std::move(indices)}}};
  };
  EXPECT_EQ(read(made(parquet_text(column("\x01\x02\x00"s)))).at(0).leaves[0].text, "a");
  const std::size_t page = 4 + dictionary.text().size();
  EXPECT_EQ(column_damage(column("\x01\x02\x01"s), page), "entry 1 of a dictionary of 1");
  EXPECT_EQ(column_damage(column("\x21"s), page), "numbers of 33 bits; at most 32 are read");
  EXPECT_EQ(column_damage(column("\x01\x02\x04"s), page), "4 in 1 bits");
  EXPECT_EQ(column_damage(texts({.encoding = 8, .bytes = "\x01\x02\x00"s})),
            "values of a dictionary that the column has not");
  EXPECT_EQ(column_damage({.pages = {dictionary, dictionary}}, page), "a second dictionary");
  EXPECT_EQ(column_damage({.pages = {{.type = 2, .values = 9, .bytes = plain("a")}}}),
            "4 bytes are claimed where 0 are left");
}

TEST(Parquet, RefusesLevelsThatDoNotFit) {
  const auto column = [](std::string levels) {
    return ColumnText{.repetition = 1, .pages = {{.bytes = little32(levels.size()) + levels + plain("a")}}};
  };
  EXPECT_EQ(read(made(parquet_text(column("\x02\x01"s)))).at(0).leaves[0].text, "a");
  EXPECT_EQ(read(made(parquet_text(column("\x02\x00"s)))).at(0).leaves[0].text, "");
  EXPECT_EQ(column_damage(column("\x02\x02"s)), "2 in 1 bits");
  EXPECT_EQ(column_damage(column("")), "1 bytes are claimed where 0 are left");
  EXPECT_EQ(column_damage(column("\x00"s)), "1 bytes are claimed where 0 are left");
  EXPECT_EQ(column_damage({.repetition = 1, .pages = {{.bytes = little32(70)}}}),
            "70 bytes are claimed where 0 are left");
}

TEST(Parquet, EndsAListThatIsLargerThanMemory) {
  // 2^31 - 1 entries of one row in a page of 20 bytes: an item each, and one entry of the dictionary.
  const std::int64_t many = 2147483647;
  const std::string run = "\xfe\xff\xff\xff\x0f\x01"s;
  const std::string first = "\x02\x00"s;
  ColumnText column{.repetition = 2, .values = many};
  column.pages.push_back({.type = 2, .values = 1, .bytes = plain("a")});
  column.pages.push_back({.values = many,
                          .encoding = 8,
                          .bytes = little32(8) + first + run + little32(6) + run + "\x00\xfe\xff\xff\xff\x0f"s});
  EXPECT_EQ(column_damage(column, 4 + column.pages[0].text().size()), "a row of more than 268435456 bytes; split it");
}

TEST(Parquet, GivesManyRowsOfAFewBytesInSlices) {
  const std::int64_t many = 2147483647;
  ColumnText column{.rows = many};
  column.pages.push_back({.type = 2, .values = 1, .bytes = plain("abc")});
  column.pages.push_back({.values = many, .encoding = 8, .bytes = "\x00\xfe\xff\xff\xff\x0f"s});
  ParquetFile file(made(parquet_text(column)));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(file.next(100'000'000, 4096)->count, 4096u);
}

TEST(Parquet, RefusesNumbersThatAreNotThere) {
  EXPECT_EQ(column_damage(integers({.values = 2, .bytes = little32(7)}, 2)), "4 bytes are claimed where 0 are left");
  EXPECT_EQ(column_damage(integers({.encoding = 7, .bytes = ""}, 1)), "INT32 has not the encoding DELTA_BYTE_ARRAY");
  EXPECT_EQ(column_damage(integers({.encoding = 5, .bytes = "\x80\x01\x03\x01\x00"s}, 1)),
            "a block of 128 numbers in 3 parts");
  EXPECT_EQ(
      column_damage(integers({.values = 2, .encoding = 5, .bytes = "\x80\x01\x04\x02\x00\x00\x41\x00\x00\x00"s}, 2)),
      "numbers of 65 bits");
  EXPECT_EQ(column_damage(integers({.values = 2, .encoding = 5, .bytes = "\x80\x01\x04\x01\x02"s}, 2)),
            "fewer numbers than values");
  EXPECT_EQ(column_damage(integers({.values = 2, .encoding = 9, .bytes = little32(1)}, 2)),
            "fewer numbers than values");
  EXPECT_EQ(column_damage(integers({.encoding = 9, .bytes = "abcde"}, 1)), "5 bytes of numbers of 4");
  EXPECT_EQ(column_damage(texts({.encoding = 7, .bytes = "\x80\x01\x04\x01\x02"s + "\x80\x01\x04\x01\x02"s + "a"s})),
            "1 bytes of a text of 0 are used again");
  EXPECT_EQ(column_damage(texts({.encoding = 6, .bytes = "\x80\x01\x04\x01\x01"s})), "a text of -1 bytes");
}

TEST(Parquet, RefusesEncodingsByTheirName) {
  const auto path = made(parquet_text(integers({.encoding = 4, .bytes = little32(1)}, 1)));
  EXPECT_EQ(message_of<ConfigError>([&] { read(path); }),
            path.string() +
                ": column 'c', row group 0, byte 4: the encoding BIT_PACKED is not read; write the file with "
                "PLAIN or a dictionary");
}

TEST(Parquet, CountsDifferencesOverBlocks) {
  // 130 numbers: 5, then 129 differences of 1; blocks of 128 in 4 parts, all of width 0.
  const std::string bytes = "\x80\x01\x04\x82\x01\x0a"s + "\x02\0\0\0\0"s + "\x04\0\0\0\0"s + "rest";
  DeltaNumbers numbers(bytes);
  std::int64_t last = 0;
  for (int i = 0; i < 130; ++i) last = numbers.next();
  EXPECT_EQ(last, 5 + 128 + 2);
  EXPECT_EQ(numbers.rest(), "rest");
  EXPECT_EQ(DeltaNumbers(bytes).rest(), "rest");
}

// Schemas, written as name, repetition, children; a leaf has none.
SchemaElement group(std::string name, Repetition repetition, int children, bool is_list = false) {
  SchemaElement element;
  element.name = std::move(name);
  element.repetition = repetition;
  element.children = children;
  if (is_list) element.converted = 3;
  return element;
}

SchemaElement leaf(std::string name, Repetition repetition) {
  SchemaElement element = group(std::move(name), repetition, 0);
  element.type = ParquetType::kInt64;
  return element;
}

std::string shown(const ParquetField& field) {
  if (field.kind == Kind::kList) return field.name + "[" + shown(field.children.at(0)) + "]";
  if (field.kind != Kind::kObject) return field.name;
  std::string text = field.name + "{";
  for (const ParquetField& child : field.children) text += shown(child) + ",";
  return text + "}";
}

TEST(ParquetSchema, ReadsListsOfOlderWritersAsTheSpecificationSays) {
  constexpr auto kOne = Repetition::kRequired;
  constexpr auto kSome = Repetition::kOptional;
  constexpr auto kMany = Repetition::kRepeated;
  const auto field = [](std::vector<SchemaElement> elements) {
    elements.insert(elements.begin(), group("schema", kOne, 1));
    return shown(make_schema(elements, "f").fields.at(0));
  };
  EXPECT_EQ(field({group("a", kSome, 1, true), group("list", kMany, 1), leaf("element", kSome)}), "a[element]");
  EXPECT_EQ(field({group("a", kSome, 1, true), leaf("item", kMany)}), "a[]");
  EXPECT_EQ(field({group("a", kSome, 1, true), group("item", kMany, 2), leaf("x", kOne), leaf("y", kOne)}),
            "a[{x,y,}]");
  EXPECT_EQ(field({group("a", kSome, 1, true), group("array", kMany, 1), leaf("x", kOne)}), "a[{x,}]");
  EXPECT_EQ(field({group("a", kSome, 1, true), group("a_tuple", kMany, 1), leaf("x", kOne)}), "a[{x,}]");
  EXPECT_EQ(field({group("a", kSome, 1, true), group("item", kMany, 1), leaf("x", kMany)}), "a[{x[],}]");
  EXPECT_EQ(field({leaf("a", kMany)}), "a[]");
  EXPECT_EQ(field({group("a", kMany, 1), leaf("x", kOne)}), "a[{x,}]");
}

TEST(ParquetSchema, RefusesTreesThatDoNotClose) {
  const auto problem = [](const std::vector<SchemaElement>& elements) {
    return message_of<BadBytes>([&] { make_schema(elements, "f"); });
  };
  constexpr auto kOne = Repetition::kRequired;
  EXPECT_EQ(problem({}), "the schema is empty");
  EXPECT_EQ(problem({group("schema", kOne, 2), leaf("a", kOne)}), "the schema ends within a group");
  EXPECT_EQ(problem({group("schema", kOne, 1), leaf("a", kOne), leaf("b", kOne)}),
            "the schema has 3 entries, 2 of them used");
  EXPECT_EQ(problem({group("schema", kOne, -1)}), "a group of -1 columns");
  EXPECT_EQ(problem({group("schema", kOne, 1), group("a", kOne, 0)}), "column 'a' is a group without columns");
  EXPECT_EQ(problem({group("schema", kOne, 1), group("a", kOne, 2, true)}), "column 'a' is a list of 2 columns");
  EXPECT_EQ(problem({group("schema", kOne, 1), group("a", kOne, 1, true), leaf("b", kOne)}),
            "column 'a' is a list that does not repeat");
  EXPECT_EQ(problem(std::vector<SchemaElement>(60, group("a", Repetition::kOptional, 1))),
            "columns nested deeper than 48 levels");
  EXPECT_EQ(message_of<ConfigError>([&] {
              make_schema({group("schema", kOne, 2), leaf("a", kOne), leaf("a", kOne)}, "f");
            }),
            "f: two columns have the name 'a'; rename one");
}

}  // namespace
}  // namespace loom::io
