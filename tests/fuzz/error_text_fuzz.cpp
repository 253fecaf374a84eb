// Error texts: a log as it is, in two parts, so that lines that are not whole are read too.
#include <nlohmann/json.hpp>

#include "engine/explain/hang.h"
#include "engine/explain/log_reader.h"
#include "engine/explain/trace_fault.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(error_text) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const std::string_view log = fuzz::text_of(data, size);
    const explain::LogTexts whole = explain::read_text(log);
    explain::LogReader reader;
    reader.take(log.substr(0, size / 2));
    reader.take(log.substr(size / 2));
    if (reader.finish().reports != whole.reports) fuzz::found("a text that its parts change", log);
    for (const explain::ErrorReport& report : whole.reports) {
      if (to_json(report).at("kind") == "") fuzz::found("a text without a kind", log);
    }
    explain::hangs_of(whole);
    const auto finding = explain::finding_of(whole.trace);
    if (finding && finding->ranks.empty()) fuzz::found("a trace without ranks", log);
  });
}
