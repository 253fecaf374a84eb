// Software (configs/software).
#include "engine/virtual_time/software.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace loom;
  return fuzz::answered_or_refused([&] { virtual_time::parse_software(fuzz::text_of(data, size), "software.yaml"); });
}
