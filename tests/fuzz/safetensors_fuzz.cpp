// Files of tensors: once a file is open, every byte of every tensor can be read.
#include "engine/formats/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(safetensors) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const io::SafetensorsFile file(fuzz::written("model.safetensors", fuzz::text_of(data, size)));
    unsigned sum = 0;
    for (const io::StoredTensor& tensor : file.tensors()) {
      for (const std::byte byte : tensor.rows(0, tensor.row_count())) sum += std::to_integer<unsigned>(byte);
      if (file.find(tensor.name) == nullptr) fuzz::found("a tensor that is not found by its name", tensor.name);
    }
    [[maybe_unused]] volatile const unsigned read = sum;
  });
}
