// What the tests of checkpoint formats share: bytes as sources, damage of them, and the files of
// tests/formats/data, which PyTorch wrote (tests/reference/generate/dcp_goldens.py).
#pragma once

#include <filesystem>
#include <gtest/gtest.h>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/torch/torch_file.h"
#include "engine/io/byte_source.h"
#include "tests/support/files.h"

namespace loom::io::testing {

using loom::test::fresh_folder;
using loom::test::message_of;
using loom::test::read_file;
using loom::test::write_file;

inline std::filesystem::path golden(std::string_view name) {
  return std::filesystem::path(LOOM_SOURCE_DIR) / "tests/formats/data" / name;
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Little endian.
inline std::string little(std::uint64_t value, std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return bytes;
}

inline ByteSink into(std::string& text) {
  return [&text](std::span<const std::byte> piece) { text += text_of(piece); };
}

// The archive of a tensor whose elements are these.
template <class T>
std::string tensor_archive(const Shape& shape, const std::vector<T>& elements) {
  std::string archive;
  write_torch_tensor(into(archive), dtype_of<T>, shape,
                     [&](const ByteSink& sink) { sink(std::as_bytes(std::span(elements))); });
  return archive;
}

// An archive with this description and a storage of its own.
inline std::string archive_of(std::string_view pickle, std::string_view storage,
                              std::string_view byte_order = "little") {
  std::string archive;
  TorchZipWriter zip(into(archive));
  zip.entry("data.pkl", pickle);
  zip.entry("byteorder", byte_order);
  zip.entry("data/0", storage);
  zip.finish();
  return archive;
}

// All elements of the tensor that `archive` is, checksum compared.
template <class T>
std::vector<T> elements_of(std::string_view archive) {
  const MemorySource source(bytes_of(archive), "t.pt");
  const TorchTensor tensor(source);
  EXPECT_EQ(tensor.dtype(), dtype_of<T>);
  std::vector<T> elements(static_cast<std::size_t>(tensor.shape().numel()));
  tensor.read_box(Offset(static_cast<std::size_t>(tensor.shape().ndim()), 0), tensor.shape(),
                  std::as_writable_bytes(std::span(elements)), true);
  return elements;
}

inline PlainValue value_of(std::string_view archive) {
  return read_torch_value(MemorySource(bytes_of(archive), "v.pt"));
}

}  // namespace loom::io::testing
