// Zip archives of torch.save. Their checksums keep what is inside as it was: torch_pickle_fuzz.cpp changes that.
#include "tests/fuzz/torch_read.h"

LOOM_FUZZ_TARGET(torch_file) {
  using namespace loom;
  return fuzz::read_archive(io::MemorySource(std::as_bytes(std::span(data, size)), "file.pt"));
}
