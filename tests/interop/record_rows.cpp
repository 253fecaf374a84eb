// Prints the records of a file, one JSON object a line.
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/text/records/record.h"

int main(int argc, char** argv) {
  using namespace loom;
  if (argc != 2) {
    fmt::print(stderr, "usage: {} FILE\n", argv[0]);
    return 2;
  }
  try {
    const auto reader = data::open_records(argv[1]);
    while (const auto batch = reader->next()) {
      for (const data::Record& record : batch->records()) fmt::print("{}\n", record.columns.dump());
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
