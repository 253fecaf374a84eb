// What both targets of torch.save's files do with an archive: a tensor is read whole, those of a mapping too, and a
// value is shown.
#pragma once

#include <vector>

#include "engine/formats/torch/torch_file.h"
#include "tests/fuzz/fuzz.h"

namespace loom::fuzz {

inline void read_tensor(const io::ByteSource& source, const io::TorchTensor& tensor) {
  const Offset begin(static_cast<std::size_t>(tensor.shape().ndim()), 0);
  const auto bytes = static_cast<std::uint64_t>(tensor.shape().numel() * element_bytes(tensor.dtype()));
  if (bytes > source.size()) found("a tensor larger than its file", to_string(tensor.shape()));
  std::vector<std::byte> elements(bytes);
  for (const bool verify : {false, true}) tensor.read_box(begin, tensor.shape(), elements, verify);
}

inline void read_mapping(const io::ByteSource& source) {
  const io::TorchMapping mapping(source);
  for (const std::string& key : mapping.keys()) {
    if (!mapping.has(key)) continue;
    for (const auto& [name, tensor] : mapping.tensors(key)) {
      check_message(name);
      read_tensor(source, tensor);
    }
  }
  mapping.tensors("model");
}

inline int read_archive(const io::ByteSource& source) {
  answered_or_refused([&] { read_tensor(source, io::TorchTensor(source)); });
  answered_or_refused([&] { read_mapping(source); });
  return answered_or_refused([&] { check_message("value " + io::read_torch_value(source).repr()); });
}

}  // namespace loom::fuzz
