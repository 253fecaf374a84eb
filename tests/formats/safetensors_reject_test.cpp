// Promise: no malformed file is read; the error names the file, the tensor and what is wrong with it.
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

using test::fresh_folder;
using test::message_of;
using test::safetensors_header;
using test::write_file;

// The error of opening a file of these bytes, without its path.
std::string rejection(const std::string& bytes) {
  const auto path = write_file(fresh_folder() / "bad.safetensors", bytes);
  const std::string message = message_of<ConfigError>([&] { SafetensorsFile{path}; });
  const std::string prefix = path.string() + ": ";
  EXPECT_TRUE(message.starts_with(prefix)) << message;
  return message.substr(std::min(prefix.size(), message.size()));
}

// The error of one tensor entry 't' with 8 bytes of data.
std::string entry_rejection(const std::string& entry) {
  return rejection(safetensors_header("{\"t\":" + entry + "}") + std::string(8, 'x'));
}

TEST(SafetensorsRejects, AFileTooShortForAHeaderLength) {
  EXPECT_EQ(rejection("1234567"), "not a safetensors file: 7 bytes, but the header's length alone takes 8");
}

TEST(SafetensorsRejects, AHeaderLongerThanTheFile) {
  EXPECT_EQ(rejection(safetensors_header("{}    ").substr(0, 12)),
            "the header should take 6 bytes, but 4 follow its length; the file is truncated or not safetensors");
  EXPECT_EQ(rejection(std::string(8, '\xff') + "{}"),  // 2^64 - 1
            "the header should take 18446744073709551615 bytes, but 2 follow its length; the file is truncated or not "
            "safetensors");
}

TEST(SafetensorsRejects, MalformedJson) {
  EXPECT_EQ(rejection(safetensors_header("")), "not a safetensors file: the header does not start with '{'");
  EXPECT_EQ(rejection(safetensors_header("[1]")), "not a safetensors file: the header does not start with '{'");
  EXPECT_EQ(rejection(safetensors_header(R"({"t":})")), "the header is not valid JSON (at byte 6 of 6)");
  EXPECT_EQ(rejection(safetensors_header(R"({"t":1e999})")), "the header is not valid JSON (a number is out of range)");
}

TEST(SafetensorsRejects, MetadataThatIsNotTexts) {
  EXPECT_EQ(rejection(safetensors_header(R"({"__metadata__":[]})")), "\"__metadata__\" is not an object of texts");
  EXPECT_EQ(rejection(safetensors_header(R"({"__metadata__":{"step":3}})")),
            "\"__metadata__\": the value of 'step' is not a text");
}

TEST(SafetensorsRejects, EntriesWithMissingOrUnknownParts) {
  EXPECT_EQ(entry_rejection("3"), "tensor 't': its entry is not an object");
  EXPECT_EQ(entry_rejection(R"({"shape":[2],"data_offsets":[0,8]})"), "tensor 't': \"dtype\" is missing or not a text");
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","data_offsets":[0,8]})"),
            "tensor 't': \"shape\" is missing or not a list");
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[2]})"),
            "tensor 't': \"data_offsets\" is missing or not [begin, end]");
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"stride":[1]})"),
            "tensor 't': unknown key 'stride'");
}

TEST(SafetensorsRejects, ADtypeItDoesNotKnow) {
  EXPECT_EQ(entry_rejection(R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})"),
            "tensor 't': dtype 'F8_E4M3' is not supported; use F32, BF16, F16, F64, I64, I32, I16, I8, U8 or BOOL");
}

TEST(SafetensorsRejects, SizesThatAreNotCounts) {
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
            "tensor 't': shape [-2] is not a list of sizes");
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
            "tensor 't': shape [2.0] is not a list of sizes");
  // 2^32 * 2^31 elements of 4 bytes are 2^65 bytes.
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[4294967296,2147483648],"data_offsets":[0,8]})"),
            "tensor 't': shape [4294967296, 2147483648] has too many elements");
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[0,4294967296,2147483648],"data_offsets":[0,0]})"),
            "tensor 't': shape [0, 4294967296, 2147483648] has too many elements");
}

TEST(SafetensorsRejects, OffsetsThatDoNotFitTheShape) {
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
            "tensor 't': shape [3] of F32 takes 12 bytes, but its data_offsets [0, 8] hold 8");
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
            "tensor 't': data_offsets [8, 0] end before they begin");
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"),
            "tensor 't': \"data_offsets\" is missing or not [begin, end]");
}

TEST(SafetensorsRejects, OverlappingTensors) {
  EXPECT_EQ(rejection(safetensors_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                                         R"("b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})") +
                      std::string(12, 'x')),
            "tensor 'b': data_offsets [4, 12] overlap the offsets of tensor 'a', which end at 8");
}

TEST(SafetensorsRejects, Holes) {
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
            "tensor 't': data_offsets [4, 8] leave a hole of 4 bytes before them");
}

TEST(SafetensorsRejects, ATruncatedFile) {  // a takes 8 bytes, b 8 more; 11 are there
  EXPECT_EQ(
      rejection(safetensors_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                                   R"("b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})") +
                std::string(11, 'x')),
      "tensor 'b': data_offsets [8, 16] leave the file: 16 bytes of data are promised, 11 are present; the file is "
      "truncated, fetch it again");
}

TEST(SafetensorsRejects, BytesAfterTheLastTensor) {
  EXPECT_EQ(entry_rejection(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
            "4 bytes of data are promised, 8 are present; the rest belongs to no tensor");
}

TEST(SafetensorsRejects, ATensorNamedTwice) {
  const std::string entry = R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  EXPECT_EQ(rejection(safetensors_header("{" + entry + "," + entry + "}") + std::string(8, 'x')),
            "tensor 'a': named twice in the header");
}

// Reads every byte of every tensor, so that a sanitizer sees one that leaves the file.
std::uint64_t sum_of_all_bytes(const SafetensorsFile& file) {
  std::uint64_t sum = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    for (const std::byte b : tensor.rows(0, tensor.row_count())) sum += static_cast<std::uint64_t>(b);
  }
  return sum;
}

TEST(SafetensorsRejects, WhateverIsDoneToAGoodFileByAnErrorOrReadsItInBounds) {
  const std::string good = safetensors_header(R"({"__metadata__":{"format":"pt"},)"
                                              R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                                              R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}})") +
                           std::string(24, 'x');
  const std::string alphabet = "0123456789-.,:[]{}\"eaFUI \xff";
  const auto path = fresh_folder() / "mutant.safetensors";
  constexpr std::uint64_t kSeed = 20240611;
  int rejected = 0;
  constexpr int kMutants = 4000;
  for (std::uint64_t mutant = 0; mutant < kMutants; ++mutant) {
    std::string bytes = good;
    const Philox4 draw = philox(kSeed, mutant);
    const std::size_t place = draw[0] % bytes.size();
    switch (draw[1] % 4) {
      case 0:
        bytes[place] = alphabet[draw[2] % alphabet.size()];
        break;
      case 1:
        bytes[place] = static_cast<char>(draw[2]);
        break;
      case 2:
        bytes.resize(place);
        break;
      default:
        bytes.insert(place, 1 + draw[3] % 3, alphabet[draw[2] % alphabet.size()]);
        break;
    }
    write_file(path, bytes);
    try {
      sum_of_all_bytes(SafetensorsFile(path));
    } catch (const ConfigError& error) {
      ++rejected;
      ASSERT_TRUE(std::string(error.what()).starts_with(path.string())) << "seed " << kSeed << " mutant " << mutant;
    }
  }
  // Data bytes (24 of about 200) and names may change freely; nearly all else must not.
  EXPECT_GT(rejected, kMutants / 2);
  EXPECT_LT(rejected, kMutants);
}

TEST(SafetensorsRejects, RandomBytes) {
  const auto path = fresh_folder() / "noise.safetensors";
  for (std::uint64_t file = 0; file < 500; ++file) {
    const Philox4 draw = philox(7, file);
    std::string header(draw[0] % 64, '\0');
    for (std::size_t i = 0; i < header.size(); ++i) header[i] = static_cast<char>(philox(11, file, i)[0]);
    write_file(path, safetensors_header("{" + header));
    EXPECT_THROW(SafetensorsFile{path}, ConfigError) << "file " << file;
  }
}

TEST(SafetensorsRejects, DeepNestingWithoutRunningOutOfStack) {
  EXPECT_EQ(rejection(safetensors_header("{\"t\":" + std::string(100000, '['))), "nested deeper than 64 levels");
}

}  // namespace
}  // namespace loom::io
