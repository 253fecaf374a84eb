// Promise: what is written is the official format to the byte, and reads back as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::safetensors_header;
using ::testing::ElementsAre;

const std::vector<std::byte> kFour(4, std::byte{'d'});

TEST(WriteSafetensors, WritesTheOfficialFormatToTheByte) {
  const auto path = fresh_folder() / "a.safetensors";
  const std::vector<std::byte> two(2, std::byte{'b'});
  const std::vector<std::byte> eight(8, std::byte{'i'});
  write_safetensors(path, {{"z", DType::kBF16, {1}, std::span(two)},
                           {"b", DType::kF32, {1, 1}, std::span(kFour)},
                           {"a", DType::kF32, {1}, std::span(kFour)},
                           {"n", DType::kI64, {}, std::span(eight)}});
  // Widest dtype first, then by name; 251 bytes of JSON and five spaces make 256 = 32 * 8.
  const std::string json = R"({"__metadata__":{"format":"pt"},)"
                           R"("n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                           R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                           R"("b":{"dtype":"F32","shape":[1,1],"data_offsets":[12,16]},)"
                           R"("z":{"dtype":"BF16","shape":[1],"data_offsets":[16,18]}})";
  const std::string padding((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(read_file(path), safetensors_header(json + padding) + "iiiiiiii" + "dddd" + "dddd" + "bb");
}

TEST(WriteSafetensors, ReadsBackAsItWas) {
  const auto path = fresh_folder() / "a.safetensors";
  std::vector<float> values(600);
  std::iota(values.begin(), values.end(), -300.0f);
  const auto rows_one_by_one = [&](const ByteSink& sink) {
    for (std::size_t row = 0; row < 20; ++row) sink(std::as_bytes(std::span(values).subspan(row * 30, 30)));
  };
  write_safetensors(path,
                    {{"streamed", DType::kF32, {20, 30}, rows_one_by_one},
                     {"whole \"quoted\" \xc3\xa9", DType::kF32, {600}, std::as_bytes(std::span(values))},
                     {"none", DType::kF64, {3, 0}, std::span<const std::byte>()}},
                    {{"format", "pt"}, {"step", "10"}});
  const SafetensorsFile file(path);
  const auto expected = std::as_bytes(std::span(values));
  EXPECT_TRUE(std::ranges::equal(file.at("streamed").bytes, expected));
  EXPECT_TRUE(std::ranges::equal(file.at("whole \"quoted\" \xc3\xa9").bytes, expected));
  EXPECT_EQ(file.at("streamed").shape, Shape({20, 30}));
  EXPECT_EQ(file.at("none").shape, Shape({3, 0}));
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("format", "pt"), std::pair("step", "10")));
}

TEST(WriteSafetensors, AlignsEveryTensorToItsElement) {
  const auto path = fresh_folder() / "a.safetensors";
  const std::vector<std::byte> zeros(64);
  const auto bytes = [&](std::size_t n) { return std::span(zeros).first(n); };
  write_safetensors(path, {{"a", DType::kU8, {3}, bytes(3)},
                           {"b", DType::kF64, {1}, bytes(8)},
                           {"c", DType::kF16, {5}, bytes(10)},
                           {"d", DType::kI32, {3}, bytes(12)},
                           {"e", DType::kBool, {1}, bytes(1)}});
  for (const SafetensorsFile file(path); const StoredTensor& tensor : file.tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % element_bytes(tensor.dtype), 0u) << tensor.name;
  }
}

TEST(WriteSafetensors, LeavesTheOldFileWhenAProducerThrows) {
  const auto folder = fresh_folder();
  const auto path = test::write_file(folder / "a.safetensors", "old");
  const auto broken = [](const ByteSink&) { throw std::runtime_error("lost rank"); };
  EXPECT_THROW(write_safetensors(path, {{"t", DType::kF32, {1}, broken}}), std::runtime_error);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 1);
}

TEST(WriteSafetensors, RefusesContentOfTheWrongSize) {
  const auto path = fresh_folder() / "a.safetensors";
  EXPECT_EQ(message_of<InvariantError>([&] {
              write_safetensors(path, {{"t", DType::kF32, {3}, std::span(kFour)}});
            }),
            "internal: tensor 't': shape [3] of fp32 takes 12 bytes, but 4 were given");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(WriteSafetensors, RefusesNamesThatCannotBe) {
  const auto path = fresh_folder() / "a.safetensors";
  const TensorToWrite twice{"t", DType::kF32, {1}, std::span(kFour)};
  EXPECT_EQ(message_of<InvariantError>([&] {
              write_safetensors(path, {twice, twice});
            }),
            "internal: tensor 't' is written twice");
  EXPECT_EQ(message_of<InvariantError>([&] {
              write_safetensors(path, {{"__metadata__", DType::kF32, {1}, std::span(kFour)}});
            }),
            "internal: a tensor cannot be named '__metadata__'");
}

}  // namespace
}  // namespace loom::io
