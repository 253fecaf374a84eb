// Configuration files of every dialect, YAML and JSON (an input that begins with '{'). What is read is written in three
// dialects.
#include "engine/dialects/write.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(dialect) {
  using namespace loom;
  const std::string_view text = fuzz::text_of(data, size);
  const bool json = text.starts_with('{');
  dialects::Context context;
  context.world = 8;
  context.world_given = true;
  return fuzz::answered_or_refused([&] {
    const auto file = dialects::translate_text(text, json ? "f.json" : "f.yaml", {}, context);
    dialects::raise_refused(file);
    const dialects::Resolved job = dialects::resolve(file, context);
    for (const auto dialect : {dialects::Dialect::kFlat, dialects::Dialect::kNative, dialects::Dialect::kLlm}) {
      dialects::write(job, dialect, context);
    }
  });
}
