// A snapshot of torch.cuda.memory; what is read is written and read again.
#include <span>

#include "engine/formats/torch/memory_snapshot.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(memory_snapshot) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const io::MemorySnapshot read = io::read_memory_snapshot(std::as_bytes(std::span(data, size)), "snapshot.pickle");
    const std::string written = io::write_memory_snapshot(read);
    const io::MemorySnapshot again =
        io::read_memory_snapshot(std::as_bytes(std::span(written.data(), written.size())), "written.pickle");
    if (again.segments.size() != read.segments.size()) fuzz::found("another number of segments", written);
  });
}
