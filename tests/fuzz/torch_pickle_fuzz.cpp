// data.pkl of an archive of torch.save beside a storage of 64 bytes.
#include "tests/fuzz/torch_read.h"

LOOM_FUZZ_TARGET(torch_pickle) {
  using namespace loom;
  std::vector<std::byte> bytes;
  io::TorchZipWriter zip(
      [&](std::span<const std::byte> piece) { bytes.insert(bytes.end(), piece.begin(), piece.end()); });
  zip.entry("data.pkl", fuzz::text_of(data, size));
  zip.entry("data/0", std::string(64, '\1'));
  zip.finish();
  return fuzz::read_archive(io::MemorySource(bytes, "file.pt"));
}
