// Device profiles (configs/devices).
#include "engine/virtual_time/profile_file.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(device_profile) {
  using namespace loom;
  return fuzz::answered_or_refused([&] { virtual_time::parse_profile(fuzz::text_of(data, size), "device.yaml"); });
}
