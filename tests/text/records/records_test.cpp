// Promise: every format gives the records that are in it, in their order and with their places; parquet's are those
//          that pyarrow reads; a file that is not what its name says is refused with file and line.
// World:   small files, those of tests/formats/data/parquet (tests/interop/make_parquet.py) and of tests/reference/sft.
#include <algorithm>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/text/records/record.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

using Json = nlohmann::ordered_json;
using loom::test::fresh_folder;
using loom::test::message_of;
using loom::test::read_file;
using loom::test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kTests = std::filesystem::path(LOOM_SOURCE_DIR) / "tests";
const std::filesystem::path kParquet = kTests / "formats/data/parquet";
const std::filesystem::path kInputs = kTests / "reference/sft/inputs";

struct Found {
  std::vector<Json> columns;
  std::vector<std::string> places;  // without the file's name
};

Found read(const std::filesystem::path& path) {
  const auto reader = open_records(path);
  std::vector<std::unique_ptr<RecordBatch>> batches;
  while (auto batch = reader->next()) batches.push_back(std::move(batch));
  EXPECT_EQ(reader->done_bytes(), reader->all_bytes());
  Found found;
  for (const auto& batch : batches) {
    for (Record& record : batch->records()) {
      found.columns.push_back(std::move(record.columns));
      EXPECT_TRUE(record.where.starts_with(path.string())) << record.where;
      found.places.push_back(record.where.substr(path.string().size()));
    }
  }
  return found;
}

std::filesystem::path made(const std::string& name, std::string_view text) {
  return write_file(fresh_folder() / name, text);
}

std::vector<std::string> texts(const std::vector<Json>& values) {
  std::vector<std::string> texts;
  for (const Json& value : values) texts.push_back(value.dump());
  return texts;
}

std::vector<std::string> columns(const std::string& name, std::string_view text) {
  return texts(read(made(name, text)).columns);
}

// What is said of a file, behind the path of its folder.
std::string refused(const std::filesystem::path& path) {
  const std::string message = message_of<ConfigError>([&] { read(path); });
  const std::string folder = path.parent_path().string() + "/";
  EXPECT_TRUE(message.starts_with(folder)) << message;
  return message.substr(std::min(folder.size(), message.size()));
}

std::string refused(const std::string& name, std::string_view text) { return refused(made(name, text)); }

TEST(Jsonl, GivesAnObjectALineWithItsPlace) {
  const Found found =
      read(made("a.jsonl", "\xef\xbb\xbf{\"b\": 1, \"a\": [true, null]}\r\n\n  \t\n{\"text\": \"\u6607\"}"));
  EXPECT_THAT(texts(found.columns), ElementsAre(R"({"b":1,"a":[true,null]})", "{\"text\":\"\u6607\"}"));
  EXPECT_THAT(found.places, ElementsAre(":1", ":4"));
}

TEST(Jsonl, IsTheSameInManyBatches) {
  std::string text;
  for (int i = 0; i < 9000; ++i) {
    text += Json{{"n", i}, {"text", std::string(static_cast<std::size_t>(i % 311), 'x')}}.dump() + "\n";
  }
  const auto path = made("a.jsonl", text);
  const auto reader = open_records(path);
  std::size_t batches = 0;
  for (; reader->next(); ++batches) EXPECT_LE(reader->done_bytes(), text.size());
  EXPECT_GE(batches, 4u);
  const Found found = read(path);
  ASSERT_EQ(found.columns.size(), 9000u);
  for (std::size_t i = 0; i < 9000; ++i) {
    ASSERT_EQ(found.columns[i].at("n"), i);
    ASSERT_EQ(found.places[i], ":" + std::to_string(i + 1));
  }
}

TEST(Jsonl, HasALineThatIsLongerThanABatch) {
  const std::string text(3'000'000, 'y');
  const Found found = read(made("a.jsonl", "{\"n\":1}\n{\"text\":\"" + text + "\"}\n{\"n\":3}\n"));
  ASSERT_EQ(found.columns.size(), 3u);
  EXPECT_EQ(found.columns[1].at("text"), text);
  EXPECT_EQ(found.places[2], ":3");
}

TEST(Jsonl, RefusesWhatIsNoObjectOfJson) {
  EXPECT_EQ(refused("a.jsonl", "{\"a\":1}\n{\"a\":}\n"), "a.jsonl:2: not valid JSON (at byte 6 of 6)");
  EXPECT_EQ(refused("a.jsonl", "\n{\"a\":1, \"a\":2}"), "a.jsonl:2: key 'a' is given twice; keep one");
  EXPECT_EQ(refused("a.jsonl", "{\"a\":1e999}"), "a.jsonl:1: not valid JSON (a number is out of range)");
  EXPECT_EQ(refused("a.jsonl", "{\"a\":" + std::string(70, '[')), "a.jsonl:1: nested deeper than 64 levels");
  EXPECT_EQ(refused("a.jsonl", "{\"a\":\"\xff\"}"),
            "a.jsonl:1: byte 7 of the line is no UTF-8 (0xff); convert the file to UTF-8");
  EXPECT_EQ(refused("a.jsonl", "[{\"a\":1}]"),
            "a.jsonl:1: a record is an object, this is a list; write one object a line, or one list of objects in a "
            ".json file");
  EXPECT_EQ(
      refused("a.jsonl", "{\n \"a\": 1\n}\n"),
      "a.jsonl:1: the object does not end on its line; write one object a line, or one list of objects in a .json "
      "file (one object whose fields are columns is not read)");
}

TEST(Jsonl, HasManyKeysOnce) {
  Json object;
  for (int i = 0; i < 40; ++i) object["k" + std::to_string(i)] = i;
  EXPECT_THAT(columns("a.jsonl", object.dump()), ElementsAre(object.dump()));
  std::string twice = object.dump();
  twice.back() = ',';
  EXPECT_EQ(refused("a.jsonl", twice + "\"k20\":1}"), "a.jsonl:1: key 'k20' is given twice; keep one");
}

TEST(Json, IsAListOrAnObjectALine) {
  const std::vector<std::string> both = {R"({"a":"[\"}"})", R"({"a":2})"};
  const Found list = read(made("a.json", " \n[ {\"a\":\n \"[\\\"}\"},\n{\"a\":2}\n]\n"));
  EXPECT_EQ(texts(list.columns), both);
  EXPECT_THAT(list.places, ElementsAre(":2", ":4"));
  EXPECT_EQ(columns("a.json", "\n{\"a\": \"[\\\"}\"}\n{\"a\": 2}"), both);
  EXPECT_TRUE(columns("a.json", "[]").empty());
  EXPECT_TRUE(columns("a.json", " \n").empty());
}

TEST(Json, HasAListOfManyBatches) {
  std::string text = "[";
  for (int i = 0; i < 5000; ++i) {
    text += (i ? ",\n" : "") + Json{{"n", i}, {"t", std::string(static_cast<std::size_t>(i % 701), '{')}}.dump();
  }
  const Found found = read(made("a.json", text + "]"));
  ASSERT_EQ(found.columns.size(), 5000u);
  for (std::size_t i = 0; i < 5000; ++i) {
    ASSERT_EQ(found.columns[i].at("n"), i);
    ASSERT_EQ(found.places[i], ":" + std::to_string(i + 1));
  }
}

TEST(Json, RefusesListsThatAreBroken) {
  EXPECT_EQ(refused("a.json", "[{\"a\":1},\n{\"a\":2}"), "a.json:2: the file ends within the list; is it whole?");
  EXPECT_EQ(refused("a.json", "[{\"a\":1},\n{\"a\":"), "a.json:2: the file ends within this object; is it whole?");
  EXPECT_EQ(refused("a.json", "[{\"a\":1}\n{\"a\":2}]"),
            "a.json:2: '{' where a comma or the end of the list is due; the file has to be one list of objects");
  EXPECT_EQ(refused("a.json", "[1]"), "a.json:1: '1' where an object is due; the file has to be one list of objects");
  EXPECT_EQ(refused("a.json", "[{\"a\":1},]"),
            "a.json:1: ']' where an object is due; the file has to be one list of objects");
  EXPECT_EQ(refused("a.json", "[{\"a\":1}]\n x"), "a.json:2: text behind the end of the list");
  EXPECT_EQ(refused("a.json", "[\n{\"a\":[1}}]"), "a.json:2: not valid JSON (at byte 8 of 9)");
}

TEST(Json, RefusesAnObjectWhoseFieldsAreColumns) {
  EXPECT_EQ(
      refused("a.json", R"({"text": ["a", "b"], "n": [1, 2]})"),
      "a.json:1: the file is one object whose fields are columns; write one object a line, or one list of objects");
  EXPECT_THAT(refused("a.json", "{\"text\": [\"a\",\n\"b\"]}"),
              HasSubstr("one object whose fields are columns is not read"));
  EXPECT_EQ(columns("a.json", R"({"messages": [{"role": "user"}]})").size(), 1u);
}

TEST(Csv, HasTheFieldsOfRfc4180) {
  const Found found =
      read(made("a.csv", "\xef\xbb\xbftext,\"b \"\"c\"\"\",\r\n\"x, \"\"y\"\"\r\nz\",6\" high,\r\n\n,q,\"r\"\n"));
  EXPECT_THAT(texts(found.columns), ElementsAre(R"({"text":"x, \"y\"\r\nz","b \"c\"":"6\" high","Unnamed: 2":null})",
                                                R"({"text":null,"b \"c\"":"q","Unnamed: 2":"r"})"));
  EXPECT_THAT(found.places, ElementsAre(":2", ":5"));
}

TEST(Csv, HasColumnsOfNumbersWhereEveryValueIsOne) {
  EXPECT_THAT(columns("a.csv", "i,r,t,e,big,mixed\n1,2,3,,9223372036854775808,1\n-7,+2.5e1,x,,1,nan\n,,,,,2\n"),
              ElementsAre(R"({"i":1,"r":2.0,"t":"3","e":null,"big":"9223372036854775808","mixed":"1"})",
                          R"({"i":-7,"r":25.0,"t":"x","e":null,"big":"1","mixed":"nan"})",
                          R"({"i":null,"r":null,"t":null,"e":null,"big":null,"mixed":"2"})"));
}

TEST(Csv, DecidesAColumnByTheWholeFile) {
  std::string text = "n,text\n";
  for (int i = 0; i < 60000; ++i) text += std::to_string(i) + ",\"a\nb\"\n";
  EXPECT_EQ(read(made("a.csv", text)).columns.at(0).at("n"), 0);
  const Found found = read(made("a.csv", text + "x,y"));
  ASSERT_EQ(found.columns.size(), 60001u);
  EXPECT_EQ(found.columns[0].at("n"), "0");
  EXPECT_EQ(found.columns[59999].at("n"), "59999");
  EXPECT_EQ(found.places[60000], ":120002");
}

TEST(Csv, RefusesBrokenRows) {
  EXPECT_EQ(refused("a.csv", "a,b\n1,2\n1,2,3\n"),
            "a.csv:3: the row has 3 fields, the first row names 2 columns; quote fields that have commas");
  EXPECT_EQ(refused("a.csv", "a,b\n\n1"),
            "a.csv:3: the row has 1 fields, the first row names 2 columns; quote fields that have commas");
  EXPECT_EQ(refused("a.csv", "a,b\n1,\"2\n3,4\n"), "a.csv:2: a quoted field that begins here does not end");
  EXPECT_EQ(refused("a.csv", "a\n\"2\"3\n"),
            "a.csv:2: text behind the closing quote of a field; write a quote inside of a field twice");
  EXPECT_EQ(refused("a.csv", "a,a\n"), "a.csv:1: two columns have the name 'a'; rename one");
  EXPECT_EQ(refused("a.csv", "\n\n"), "a.csv: the file has no first row, which names the columns");
  EXPECT_EQ(refused("a.csv", "a,b\n1,\"\n\xe9\"\n"),
            "a.csv:2: byte 5 of the line is no UTF-8 (0xe9); convert the file to UTF-8");
}

TEST(Txt, IsALineARecord) {
  const Found found = read(made("a.txt", "\xef\xbb\xbfone\r\n\n{\"two\"}\nthree\r"));
  EXPECT_THAT(texts(found.columns),
              ElementsAre(R"({"text":"one"})", R"({"text":""})", R"({"text":"{\"two\"}"})", R"({"text":"three"})"));
  EXPECT_THAT(found.places, ElementsAre(":1", ":2", ":3", ":4"));
  EXPECT_EQ(refused("a.txt", "a\n\xc3"), "a.txt:2: byte 1 of the line is no UTF-8 (0xc3); convert the file to UTF-8");
}

class ParquetRecords : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(ParquetRecords, AreThoseThatPyarrowReads) {
  const auto& [file, rows] = GetParam();
  const Found found = read(kParquet / (file + ".parquet"));
  EXPECT_EQ(texts(found.columns), texts(read(kParquet / (rows + ".jsonl")).columns));
  for (std::size_t i = 0; i < found.places.size(); ++i) EXPECT_EQ(found.places[i], ": row " + std::to_string(i + 1));
}

std::vector<std::pair<std::string, std::string>> parquet_files() {
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string file : {"values", "required", "nested", "no_rows"}) files.emplace_back(file, file);
  for (const std::string file : {"none", "snappy", "gzip", "zstd", "lz4", "plain", "v2", "v2_plain", "delta", "split",
                                 "pages", "groups", "checked"}) {
    files.emplace_back(file, "rows");
  }
  return files;
}

INSTANTIATE_TEST_SUITE_P(Files, ParquetRecords, ::testing::ValuesIn(parquet_files()),
                         [](const auto& info) { return info.param.first; });

bool has_columns(const Json& record, const Json& columns) {
  return std::all_of(columns.items().begin(), columns.items().end(), [&](const auto& item) {
    return record.contains(item.key()) && record.at(item.key()) == item.value();
  });
}

// They have some of the columns, and alpaca.parquet not all of the rows.
TEST(ParquetInputs, AreRowsOfTheirJsonl) {
  for (const auto& [name, count] : {std::pair("alpaca", 17u), std::pair("sharegpt", 18u)}) {
    const Found parquet = read(kInputs / (std::string(name) + ".parquet"));
    const Found jsonl = read(kInputs / (std::string(name) + ".jsonl"));
    EXPECT_EQ(parquet.columns.size(), count);
    auto at = jsonl.columns.begin();
    for (const Json& row : parquet.columns) {
      at = std::find_if(at, jsonl.columns.end(), [&](const Json& record) { return has_columns(record, row); });
      ASSERT_NE(at++, jsonl.columns.end()) << row.dump();
    }
  }
}

TEST(ParquetInputs, RefuseColumnsThatAreNotRead) {
  const auto words = [](const std::string& file) { return refused(kParquet / ("refused_" + file + ".parquet")); };
  const std::string next = "; write it as text (STRING) or numbers (INT32, INT64, FLOAT, DOUBLE), or leave it out";
  EXPECT_EQ(words("binary"), "refused_binary.parquet: column 'odd' is BYTE_ARRAY, which is not read" + next);
  EXPECT_EQ(words("date"), "refused_date.parquet: column 'odd' is INT32 (DATE), which is not read" + next);
  EXPECT_EQ(words("timestamp"),
            "refused_timestamp.parquet: column 'odd' is INT64 (TIMESTAMP), which is not read" + next);
  EXPECT_EQ(words("int96"), "refused_int96.parquet: column 'odd' is INT96, which is not read" + next);
  EXPECT_EQ(words("fixed"), "refused_fixed.parquet: column 'odd' is FIXED_LEN_BYTE_ARRAY, which is not read" + next);
  EXPECT_EQ(words("half"),
            "refused_half.parquet: column 'odd' is FIXED_LEN_BYTE_ARRAY (FLOAT16), which is not read" + next);
  EXPECT_EQ(words("decimal"),
            "refused_decimal.parquet: column 'odd' is FIXED_LEN_BYTE_ARRAY (DECIMAL), which is not read" + next);
  EXPECT_EQ(
      words("map"),
      "refused_map.parquet: column 'odd' is a MAP, which is not read; write it as a list of structs or leave it out");
  EXPECT_EQ(words("brotli"),
            "refused_brotli.parquet: column 'odd' is compressed by BROTLI, which is not read; use SNAPPY, GZIP, ZSTD, "
            "LZ4_RAW or none");
}

TEST(References, AreReadWhole) {
  EXPECT_EQ(read(kInputs / "table.csv").columns.size(), 9u);
  EXPECT_EQ(read(kInputs / "table.csv").columns[3].at("n"), 3);
  EXPECT_EQ(read(kInputs / "lines.txt").columns.size(), 7u);
  const Found list = read(kInputs / "alpaca_array.json");
  const Found lines = read(kInputs / "alpaca.jsonl");
  ASSERT_GT(list.columns.size(), 3u);
  for (std::size_t i = 0; i < list.columns.size(); ++i) EXPECT_EQ(list.columns[i], lines.columns[i]) << i;
}

TEST(RecordFiles, AreThoseOfTheExtensionThatMostFilesHave) {
  const auto folder = fresh_folder();
  for (const std::string name : {"b.jsonl", "a.jsonl", "c.json", "d.csv", ".e.csv", "f.csv.gz", "g", "sub/h.csv"}) {
    write_file(folder / name, "");
  }
  EXPECT_THAT(record_files("--input", folder), ElementsAre(folder / "a.jsonl", folder / "b.jsonl"));
  write_file(folder / "z.json", "");
  EXPECT_THAT(record_files("--input", folder), ElementsAre(folder / "c.json", folder / "z.json"));
  EXPECT_THAT(record_files("--input", folder / "d.csv"), ElementsAre(folder / "d.csv"));
}

TEST(RecordFiles, RefuseWhatIsNotRead) {
  const auto folder = fresh_folder();
  const auto words = [&](const std::filesystem::path& path) {
    const std::string message = message_of<ConfigError>([&] { record_files("--input", path); });
    const std::string begin = "--input: " + folder.string();
    EXPECT_TRUE(message.starts_with(begin)) << message;
    return message.substr(std::min(begin.size(), message.size()));
  };
  EXPECT_EQ(words(folder / "none"), "/none: no such file or folder");
  EXPECT_EQ(
      words(folder),
      ": the folder has no file that is read (.json, .jsonl, .csv, .txt, .parquet); folders in it are not searched");
  EXPECT_EQ(words(write_file(folder / "a.jsonl.gz", "")),
            "/a.jsonl.gz: compressed files are not read, except within parquet; decompress it first");
  EXPECT_EQ(words(folder), "/a.jsonl.gz: compressed files are not read, except within parquet; decompress it first");
  EXPECT_EQ(words(write_file(folder / "a.bin", "")),
            "/a.bin: the name does not say what the file is; .json, .jsonl, .csv, .txt and .parquet are read");
  EXPECT_EQ(words(write_file(folder / "a.arrow", "")),
            "/a.arrow: Arrow files are not read; write the data set as parquet (Dataset.to_parquet) or jsonl");
  EXPECT_EQ(words(folder),
            "/a.arrow: Arrow files are not read; write the data set as parquet (Dataset.to_parquet) or jsonl");
}

}  // namespace
}  // namespace loom::data
