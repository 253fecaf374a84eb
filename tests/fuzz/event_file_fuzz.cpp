// Event files: a file as it is, and an Event with the checksums of a record around it, so that fields are reached too.
#include "engine/formats/events/event_file.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(event_file) {
  using namespace loom;
  const std::string_view input = fuzz::text_of(data, size);
  const auto read = [](std::string_view bytes) {
    return fuzz::answered_or_refused([&] {
      std::size_t sum = 0;
      io::read_scalars(fuzz::written("tfevents", bytes), [&](const io::Scalar& scalar) {
        for (const char c : scalar.tag) sum += static_cast<unsigned char>(c);
      });
      [[maybe_unused]] volatile const std::size_t used = sum;
    });
  };
  read(input);
  return read(io::event_record(input));
}
