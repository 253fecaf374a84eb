// What both targets of torch.save's files do with an archive: a tensor is read whole, and a value shown.
#pragma once

#include <vector>

#include "engine/io/torch_file.h"
#include "tests/fuzz/fuzz.h"

namespace loom::fuzz {

inline void read_tensor(const io::ByteSource& source) {
  const io::TorchTensor tensor(source);
  const Offset begin(static_cast<std::size_t>(tensor.shape().ndim()), 0);
  const auto bytes = static_cast<std::uint64_t>(tensor.shape().numel() * element_bytes(tensor.dtype()));
  if (bytes > source.size()) found("a tensor larger than its file", to_string(tensor.shape()));
  std::vector<std::byte> elements(bytes);
  for (const bool verify : {false, true}) tensor.read_box(begin, tensor.shape(), elements, verify);
}

inline int read_archive(const io::ByteSource& source) {
  answered_or_refused([&] { read_tensor(source); });
  return answered_or_refused([&] { check_message("value " + io::read_torch_value(source).repr()); });
}

}  // namespace loom::fuzz
