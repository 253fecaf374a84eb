// Parquet files, read to their 20000th row: records are made of every slice.
#include "engine/text/records/record.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(parquet) {
  using namespace loom;
  const auto path = fuzz::written("a.parquet", fuzz::text_of(data, size));
  return fuzz::answered_or_refused([&] {
    const auto reader = data::open_records(path);
    for (std::size_t rows = 0; rows < 20000;) {
      const auto batch = reader->next();
      if (!batch) break;
      for (const data::Record& record : batch->records()) {
        ++rows;
        if (record.columns.dump().empty()) fuzz::found("a record of nothing", record.where);
      }
    }
    if (reader->done_bytes() > reader->all_bytes()) fuzz::found("more than all bytes", path.string());
  });
}
