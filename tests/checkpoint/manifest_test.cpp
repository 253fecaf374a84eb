// Promise: a manifest says what was written, and a text that is none is refused with its place.
#include "engine/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::checkpoint {
namespace {

using test::message_of;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Manifest kTwoFiles{.id = {10}, .files = {{"b\"\xc3\xa9", 3, 0xe3069283}, {"a", 0, 0}}};

// A manifest with one file whose member `key` is `value`.
std::string with(const std::string& key, const std::string& value) {
  std::string text = R"({"format_version": 1, "iteration": 10, "files": [)";
  for (const auto& [name, usual] :
       {std::pair<std::string, std::string>{"name", "\"a\""}, {"size_bytes", "1"}, {"crc32c", "\"00000000\""}}) {
    text += (name == "name" ? "{\"" : ", \"") + name + "\": " + (name == key ? value : usual);
  }
  return text + "}]}";
}

std::string refusal(const std::string& text) {
  return message_of<ConfigError>([&] { parse_manifest(text, "m.json"); });
}

TEST(Manifest, IsOneFileALineSortedByName) {
  EXPECT_EQ(to_json(kTwoFiles),
            "{\"format_version\": 1, \"iteration\": 10, \"files\": [\n"
            "  {\"name\":\"a\",\"size_bytes\":0,\"crc32c\":\"00000000\"},\n"
            "  {\"name\":\"b\\\"\xc3\xa9\",\"size_bytes\":3,\"crc32c\":\"e3069283\"}]}\n");
}

TEST(Manifest, ReadsWhatItWrites) {
  const Manifest read = parse_manifest(to_json(kTwoFiles), "m.json");
  EXPECT_EQ(read.id, CheckpointId{10});
  EXPECT_EQ(read.files, (std::vector<ManifestFile>{kTwoFiles.files[1], kTwoFiles.files[0]}));
  const Manifest release{.id = kRelease, .files = {}};
  EXPECT_EQ(parse_manifest(to_json(release), "m.json"), release);
  EXPECT_THAT(to_json(release), HasSubstr("\"iteration\": null"));
}

TEST(Manifest, NamesDirectoriesAsMegatron) {
  EXPECT_EQ(CheckpointId{10}.directory_name(), "iter_0000010");
  EXPECT_EQ(CheckpointId{12345678}.directory_name(), "iter_12345678");
  EXPECT_EQ(kRelease.directory_name(), "release");
  EXPECT_EQ(kRelease.text(), "release");
  EXPECT_EQ(CheckpointId{10}.text(), "10");
}

TEST(Manifest, RefusesNamesThatLeaveTheDirectory) {
  for (const char* name : {"../a", "/etc/passwd", "a/b", "..", ".", "a/"}) {
    EXPECT_EQ(refusal(with("name", "\"" + std::string(name) + "\"")),
              "m.json: files[0].name is \"" + std::string(name) +
                  "\"; use the name of a file in the directory itself, without '/'");
  }
  EXPECT_THAT(refusal(with("name", "\"\"")), EndsWith("use a file's name"));
  EXPECT_THAT(refusal(with("name", "\"a\\u0000b\"")), EndsWith("use UTF-8 without zero bytes"));
  EXPECT_THAT(refusal(with("name", "\"" + std::string(256, 'a') + "\"")), EndsWith("use at most 255 bytes"));
  for (const char* name : {"shardloom_manifest.json", ".part_3.json"}) {
    EXPECT_THAT(refusal(with("name", "\"" + std::string(name) + "\"")),
                EndsWith("the store itself uses this name; use another one"));
  }
}

TEST(Manifest, RefusesNumbersThatAreNone) {
  EXPECT_THAT(refusal(with("size_bytes", "-1")),
              EndsWith("size_bytes is -1; a whole number of at least 0 is expected"));
  for (const char* value : {"1e30", "9223372036854775808", "1.5", "\"1\"", "[1]", "true"}) {
    EXPECT_THAT(refusal(with("size_bytes", value)), EndsWith("; a whole number is expected")) << value;
  }
  for (const char* value : {"\"\"", "\"E3069283\"", "\"e306928\"", "\"e30692831\"", "\"+1111111\""}) {
    EXPECT_THAT(refusal(with("crc32c", value)), EndsWith("use 8 hex digits in lower case")) << value;
  }
  EXPECT_THAT(refusal(with("crc32c", "5")), EndsWith("a text is expected"));
  EXPECT_EQ(parse_manifest(with("size_bytes", "9223372036854775807"), "m.json").files[0].size_bytes,
            9223372036854775807);
}

TEST(Manifest, RefusesOtherDocuments) {
  EXPECT_THAT(refusal("{"), StartsWith("m.json"));
  EXPECT_THAT(refusal(""), StartsWith("m.json"));
  EXPECT_THAT(refusal("[]"), StartsWith("m.json"));
  EXPECT_THAT(refusal(std::string(100000, '[')), StartsWith("m.json"));
  EXPECT_THAT(refusal("{}"), EndsWith("format_version is absent; a whole number of at least 0 is expected"));
  EXPECT_EQ(refusal(R"({"format_version": 2, "parts": 3})"),
            "m.json: format_version is 2; this program reads version 1; use a newer program");
  EXPECT_THAT(refusal(R"({"format_version": 1, "files": []})"), HasSubstr("iteration is absent"));
  EXPECT_THAT(refusal(R"({"format_version": 1, "iteration": 1})"), EndsWith("files is absent; a list is expected"));
  EXPECT_THAT(refusal(R"({"format_version": 1, "iteration": 1, "files": {}})"), EndsWith("a list is expected"));
  EXPECT_THAT(refusal(R"({"format_version": 1, "iteration": 1, "files": [], "more": 1})"),
              EndsWith("unknown key 'more'"));
  EXPECT_THAT(refusal(R"({"format_version": 1, "iteration": 1, "files": ["a"]})"), StartsWith("m.json: files[0]"));
}

TEST(Manifest, RefusesMoreBytesThanThereAre) {
  const std::string file = R"({"name": "A", "size_bytes": 9223372036854775807, "crc32c": "00000000"})";
  const auto of = [](const std::string& files) {
    return R"({"format_version": 1, "iteration": 1, "files": [)" + files + "]}";
  };
  EXPECT_EQ(parse_manifest(of(file), "m.json").files.front().size_bytes, INT64_MAX);
  std::string other = file;
  other.replace(other.find('A'), 1, "B");
  EXPECT_THAT(refusal(of(file + ", " + other)), EndsWith("together they have more bytes than 63 bits count"));
}

TEST(Manifest, RefusesAFileThatStandsTwice) {
  const std::string entry = R"({"name": "a", "size_bytes": 1, "crc32c": "00000000"})";
  EXPECT_EQ(refusal(R"({"format_version": 1, "iteration": 1, "files": [)" + entry + ", " + entry + "]}"),
            "m.json: files has 'a' twice; list each file once");
}

}  // namespace
}  // namespace loom::checkpoint
