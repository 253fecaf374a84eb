// Promise: the tables of docs/formats.md say what the code does, and suffice to read a pickle of ours or PyTorch's.
// World:   the page in this checkout.
#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>
#include <sstream>

#include "engine/formats/dcp/dcp_file_writer.h"
#include "engine/formats/torch/pickle_reader.h"
#include "engine/formats/torch/pickle_writer.h"
#include "tests/formats/archives.h"

namespace loom::io {
namespace {

using namespace std::string_literals;
using namespace loom::io::testing;
using Row = std::vector<std::string>;

// The rows of the table whose head begins with this cell, code marks removed.
std::vector<Row> table(const std::string& first, const std::string& second) {
  std::istringstream page(read_file(std::filesystem::path(LOOM_SOURCE_DIR) / "docs/formats.md"));
  std::vector<Row> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| " + first + " | " + second + " |")) inside = true;
    if (!line.starts_with("|")) inside = false;
    if (!inside || line.starts_with("| ---")) continue;
    std::erase(line, '`');
    Row cells;
    for (std::size_t at = 2; at < line.size();) {
      const std::size_t end = line.find('|', at);
      if (end == std::string::npos) break;
      std::string cell = line.substr(at, end - at);
      cell.erase(cell.find_last_not_of(' ') + 1);
      cells.push_back(std::move(cell));
      at = end + 2;
    }
    rows.push_back(std::move(cells));
  }
  EXPECT_GT(rows.size(), 1u) << first;
  if (!rows.empty()) rows.erase(rows.begin());
  return rows;
}

TEST(FormatsPage, HasEveryDtype) {
  const std::vector<Row> rows = table("dtype", "bytes");
  EXPECT_EQ(rows.size(), 10u);
  for (const Row& row : rows) {
    const auto dtype = parse_dtype(row[0]);
    ASSERT_TRUE(dtype) << row[0];
    EXPECT_EQ(std::to_string(element_bytes(*dtype)), row[1]);
    EXPECT_EQ(torch_name(*dtype), row[3]);
    EXPECT_EQ(parse_torch_dtype(row[3]), dtype);
    const std::string no_element(static_cast<std::size_t>(element_bytes(*dtype)), '\0');
    std::string archive;
    write_torch_tensor(into(archive), *dtype, {1}, [&](const ByteSink& sink) { sink(bytes_of(no_element)); });
    EXPECT_NE(archive.find("ctorch\n" + row[4] + "\n"), std::string::npos) << row[4];
    const auto path = fresh_folder() / "t.safetensors";
    write_safetensors(path, {{"t", *dtype, {1}, bytes_of(no_element)}});
    EXPECT_NE(read_file(path).find("\"" + row[2] + "\""), std::string::npos) << row[2];
  }
}

TEST(FormatsPage, HasTheEntriesOfAnArchiveInTheirOrder) {
  const std::string archive = tensor_archive<float>({1}, {1});
  std::map<std::size_t, std::string> by_place;
  const std::vector<Row> rows = table("entry", "content");
  const MemorySource source(bytes_of(archive), "t");
  const TorchZip zip(source);
  for (const Row& row : rows) {
    ASSERT_TRUE(row[0].starts_with("archive/")) << row[0];
    const TorchZipEntry& entry = zip.at(row[0].substr(8));
    by_place[entry.begin] = row[0];
    const std::string content = text_of(zip.content(entry, 1000));
    if (content.size() >= 7 || row[0] == "archive/data/0") continue;
    EXPECT_TRUE(row[1].starts_with(content.substr(0, content.find('\n')))) << row[0];
  }
  std::vector<std::string> in_file;
  for (const auto& [place, name] : by_place) in_file.push_back(name);
  std::vector<std::string> on_page;
  for (const Row& row : rows) on_page.push_back(row[0]);
  EXPECT_EQ(in_file, on_page);
  std::size_t entries = 0;
  for (std::size_t at = archive.find("PK\1\2"); at != std::string::npos; at = archive.find("PK\1\2", at + 1)) ++entries;
  EXPECT_EQ(entries, rows.size());
}

// --- classes

// Whether a reader takes the name of a class; a later error is another matter.
template <class Read>
bool may_be_named(const std::string& full_name, Read&& read) {
  const std::size_t dot = full_name.rfind('.');
  const std::string pickle =
      "\x80\x02"
      "c" +
      full_name.substr(0, dot) + "\n" + full_name.substr(dot + 1) + "\n.";
  try {
    read(pickle);
  } catch (const FileDamage& error) {
    return std::string_view(error.what()).find("the pickle names ") == std::string_view::npos;
  }
  return true;
}

bool in_metadata(const std::string& name) {
  return may_be_named(name, [](const std::string& pickle) { read_dcp_metadata(bytes_of(pickle), "m"); });
}

bool in_data(const std::string& name) {
  return may_be_named(name, [](const std::string& pickle) { value_of(archive_of(pickle, "")); });
}

TEST(FormatsPage, HasEveryClassThatMayBeNamed) {
  std::set<std::string> metadata;
  std::set<std::string> data;
  for (const Row& row : table("in", "class")) {
    ASSERT_TRUE(row[0] == ".metadata" || row[0] == "data.pkl") << row[0];
    (row[0] == ".metadata" ? metadata : data).insert(row[1]);
  }
  for (const Row& row : table("dtype", "bytes")) {
    for (auto* names : {&metadata, &data}) names->insert("torch." + row[3]);
    data.insert("torch." + row[4]);
  }
  for (const std::string& name : metadata) EXPECT_TRUE(in_metadata(name)) << name;
  for (const std::string& name : data) EXPECT_TRUE(in_data(name)) << name;
  for (const std::string& name : metadata) EXPECT_EQ(in_data(name), data.contains(name)) << name;
  for (const std::string& name : data) EXPECT_EQ(in_metadata(name), metadata.contains(name)) << name;
  // The page has as many classes as the source's table.
  const std::string source = read_file(std::filesystem::path(LOOM_SOURCE_DIR) / "engine/formats/dcp/dcp_metadata.cpp");
  const std::size_t begin = source.find("kClasses{{") + 10;
  const std::string list = source.substr(begin, source.find("}};", begin) - begin);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(list, '{')) + 10, metadata.size());
}

// --- opcodes

struct Opcode {
  std::string name;
  std::string argument;
  bool ours = false;
};

std::map<int, Opcode> opcodes() {
  std::map<int, Opcode> found;
  for (const Row& row : table("byte", "opcode")) {
    const int byte = std::stoi(row[0], nullptr, 16);
    EXPECT_TRUE(found.emplace(byte, Opcode{row[1], row[2], row.size() > 4 && row[4] == "."}).second) << row[0];
  }
  return found;
}

TEST(FormatsPage, HasEveryOpcodeThatIsRead) {
  const std::map<int, Opcode> known = opcodes();
  for (int byte = 0; byte < 256; ++byte) {
    const std::string pickle = "\x80\x04(NN"s + static_cast<char>(byte);
    const std::string message = message_of<FileDamage>(
        [&] { Pickle(bytes_of(pickle), "p", [](std::string_view, std::string_view) { return true; }); });
    const bool refused = message.find(", which no file of this format has") != std::string::npos;
    EXPECT_EQ(refused, !known.contains(byte) || known.at(byte).name == "PROTO") << fmt::format("{:#04x}", byte);
  }
}

std::uint64_t number(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

// Walks a pickle by the page alone, to its STOP, and gives the opcodes it met.
std::set<int> walk(const std::string& pickle, const std::map<int, Opcode>& known) {
  std::set<int> met;
  std::size_t at = 0;
  while (at < pickle.size()) {
    const int byte = static_cast<unsigned char>(pickle[at++]);
    const auto found = known.find(byte);
    if (found == known.end()) {
      ADD_FAILURE() << fmt::format("{:#04x} at {}", byte, at - 1);
      return met;
    }
    met.insert(byte);
    const std::string& argument = found->second.argument;
    if (argument == "2 lines") {
      at = pickle.find('\n', pickle.find('\n', at) + 1) + 1;
    } else if (!argument.empty()) {
      const auto size = static_cast<std::size_t>(argument[1] - '0');
      const bool counted = argument.ends_with(" + bytes");
      at += size + (counted ? number(std::string_view(pickle).substr(at, size)) : 0);
    }
    if (found->second.name == "STOP") break;
  }
  EXPECT_EQ(at, pickle.size());
  return met;
}

std::string description_of(const std::string& archive) {
  const MemorySource source(bytes_of(archive), "a");
  const TorchZip zip(source);
  return text_of(zip.content(zip.at("data.pkl"), 1 << 20));
}

// One of each kind and size.
PlainValue every_value() {
  std::vector<PlainValue> values{PlainValue(), PlainValue::boolean(true), PlainValue::boolean(false),
                                 PlainValue::real(1.5)};
  for (const int bits : {0, 8, 16, 40}) values.push_back(PlainValue::whole(std::int64_t{1} << bits));
  for (const std::size_t size : {std::size_t{1}, std::size_t{300}}) {
    values.push_back(PlainValue::text(std::string(size, 'x')));
    values.push_back(PlainValue::bytes(std::string(size, 'x')));
  }
  return PlainValue::dict({{PlainValue::text("k"), PlainValue::list({PlainValue::tuple(std::move(values))})}});
}

TEST(FormatsPage, SufficesToReadPicklesAndMarksTheOpcodesWeWrite) {
  const std::map<int, Opcode> known = opcodes();
  walk(read_file(golden("dcp/.metadata")), known);
  for (const char* name : {"value.pt", "parameter.pt", "uint16.pt"})
    walk(description_of(read_file(golden(name))), known);

  std::set<int> ours;
  const auto add = [&](const std::string& pickle) { ours.merge(walk(pickle, known)); };
  add(write_dcp_metadata(read_dcp_metadata(bytes_of(read_file(golden("dcp/.metadata"))), "m")));
  add(description_of(tensor_archive<float>({1}, {1})));
  for (const int protocol : {2, 4}) {
    PickleWriter out(protocol);
    out.value(every_value());
    add(out.finish());
  }
  std::set<int> marked;
  for (const auto& [byte, opcode] : known) {
    if (opcode.ours) marked.insert(byte);
  }
  EXPECT_EQ(ours, marked);
}

}  // namespace
}  // namespace loom::io
