// Promise: a safetensors file gives names, dtypes, shapes and the bytes of whole tensors or of rows.
// File:    matrix int16 [3, 2] = 1..6, scalar uint8 [] = 7, empty fp32 [0, 4]; data of 12 + 1 bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

using test::fresh_folder;
using test::message_of;
using test::safetensors_header;
using test::write_file;
using ::testing::ElementsAre;

std::filesystem::path three_tensors() {
  std::string text = safetensors_header(R"({"scalar":{"dtype":"U8","shape":[],"data_offsets":[12,13]},)"
                                        R"("__metadata__":{"format":"pt","step":"3"},)"
                                        R"("matrix":{"dtype":"I16","shape":[3,2],"data_offsets":[0,12]},)"
                                        R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[12,12]}}   )");
  for (const char value : {1, 2, 3, 4, 5, 6}) text.append({value, '\0'});
  text += '\7';
  return write_file(fresh_folder() / "three.safetensors", text);
}

std::vector<std::int16_t> int16s(std::span<const std::byte> bytes) {
  std::vector<std::int16_t> values(bytes.size() / 2);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(SafetensorsFile, ListsTensorsInTheOrderOfTheirBytes) {
  const SafetensorsFile file(three_tensors());
  std::vector<std::string> names;
  for (const StoredTensor& tensor : file.tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("matrix", "empty", "scalar"));
}

TEST(SafetensorsFile, GivesDtypeShapeAndBytes) {
  const SafetensorsFile file(three_tensors());
  EXPECT_EQ(file.at("matrix").dtype, DType::kI16);
  EXPECT_EQ(file.at("matrix").shape, Shape({3, 2}));
  EXPECT_THAT(int16s(file.at("matrix").bytes), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(file.at("scalar").shape, Shape());
  EXPECT_THAT(file.at("scalar").bytes, ElementsAre(std::byte{7}));
  EXPECT_TRUE(file.at("empty").bytes.empty());
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(SafetensorsFile, GivesTheRowsARankAsksFor) {
  const SafetensorsFile file(three_tensors());
  EXPECT_THAT(int16s(file.rows("matrix", 1, 3)), ElementsAre(3, 4, 5, 6));
  EXPECT_TRUE(file.rows("matrix", 3, 3).empty());
  EXPECT_TRUE(file.rows("empty", 0, 0).empty());
  EXPECT_THAT(file.rows("scalar", 0, 1), ElementsAre(std::byte{7}));
}

TEST(SafetensorsFile, GivesTheBoxARankAsksFor) {
  const SafetensorsFile file(three_tensors());
  const auto box = [](const StoredTensor& tensor, const Offset& offset, const Shape& shape) {
    std::vector<std::byte> bytes(shape.numel() * element_bytes(tensor.dtype));
    tensor.read_box(offset, shape, bytes);
    return bytes;
  };
  const StoredTensor& matrix = file.at("matrix");
  EXPECT_THAT(int16s(box(matrix, {0, 1}, {3, 1})), ElementsAre(2, 4, 6));
  EXPECT_THAT(int16s(box(matrix, {1, 0}, {2, 1})), ElementsAre(3, 5));
  EXPECT_THAT(int16s(box(matrix, {1, 0}, {2, 2})), ElementsAre(3, 4, 5, 6));
  EXPECT_TRUE(box(matrix, {3, 0}, {0, 2}).empty());
  EXPECT_THAT(box(file.at("scalar"), {}, {}), ElementsAre(std::byte{7}));
  EXPECT_EQ(message_of<InvariantError>([&] {
              box(matrix, {1, 1}, {2, 2});
            }),
            "internal: a box [2, 2] at (1, 1) of tensor 'matrix' [3, 2]");
  std::vector<std::byte> small(2);
  EXPECT_EQ(message_of<InvariantError>([&] {
              matrix.read_box({0, 1}, {3, 1}, small);
            }),
            "internal: 2 bytes for a box [3, 1] of tensor 'matrix'");
}

TEST(SafetensorsFile, KnowsEveryDtype) {
  const std::vector<std::pair<std::string, DType>> dtypes{
      {"F32", DType::kF32}, {"BF16", DType::kBF16}, {"F16", DType::kF16}, {"F64", DType::kF64}, {"I64", DType::kI64},
      {"I32", DType::kI32}, {"I16", DType::kI16},   {"I8", DType::kI8},   {"U8", DType::kU8},   {"BOOL", DType::kBool}};
  for (const auto& [name, dtype] : dtypes) {
    const std::int64_t size_bytes = element_bytes(dtype);
    const std::string header =
        R"({"t":{"dtype":")" + name + R"(","shape":[1],"data_offsets":[0,)" + std::to_string(size_bytes) + "]}}";
    const SafetensorsFile file(
        write_file(fresh_folder() / name, safetensors_header(header) + std::string(size_bytes, '\1')));
    EXPECT_EQ(file.at("t").dtype, dtype) << name;
  }
}

TEST(SafetensorsFile, KeepsTheMetadata) {
  EXPECT_THAT(SafetensorsFile(three_tensors()).metadata(),
              ElementsAre(std::pair("format", "pt"), std::pair("step", "3")));
}

TEST(SafetensorsFile, MayHoldNoTensors) {
  const SafetensorsFile file(write_file(fresh_folder() / "none", safetensors_header("{}")));
  EXPECT_TRUE(file.tensors().empty());
}

TEST(SafetensorsFile, MayBeMoved) {
  SafetensorsFile first(three_tensors());
  const SafetensorsFile file = std::move(first);
  EXPECT_THAT(int16s(file.rows("matrix", 0, 1)), ElementsAre(1, 2));
}

TEST(SafetensorsFile, SuggestsTheNearestName) {
  const auto path = three_tensors();
  const SafetensorsFile file(path);
  EXPECT_EQ(message_of<ConfigError>([&] { file.at("matrxi"); }),
            path.string() + ": no tensor 'matrxi'; did you mean 'matrix'?");
  EXPECT_EQ(message_of<ConfigError>([&] { file.at("lm_head.weight"); }),
            path.string() + ": no tensor 'lm_head.weight' among its 3");
}

TEST(SafetensorsFile, RefusesRowsThatAreNotThere) {
  const SafetensorsFile file(three_tensors());
  EXPECT_EQ(message_of<InvariantError>([&] { file.rows("matrix", 2, 4); }),
            "internal: rows [2, 4) of tensor 'matrix', which has 3");
  EXPECT_THROW(file.rows("matrix", 2, 1), InvariantError);
  EXPECT_THROW(file.rows("matrix", -1, 1), InvariantError);
}

}  // namespace
}  // namespace loom::io
