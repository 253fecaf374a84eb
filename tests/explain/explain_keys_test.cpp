// Promise: docs/outputs.md has every key of explain --json, and no other.
// World:   an explanation made by hand, with an entry in each list.
#include <gmock/gmock.h>

#include "engine/explain/explanation.h"
#include "tests/support/documented_keys.h"

namespace loom::explain {
namespace {

TEST(ExplainKeys, AreAllInTheDocument) {
  const ErrorReport text{.line = 1, .speaker = {0, 0}, .what = OutOfMemory{}};
  const SeenCollective seen{"ALLREDUCE", 1, 1};
  Explanation explanation{
      .source = "", .texts = {{text}, 1, 0}, .has_job = true, .memory = {}, .notes = {}, .hangs = {}};
  explanation.memory = ExplainedMemory{.report = text, .ranks = {}, .texts = 1, .place = MemoryPlace{}};
  explanation.memory->place->places.resize(1);
  explanation.memory->place->changes.resize(1);
  Hang hang;
  hang.collective = seen;
  hang.ranks.resize(1);
  hang.others.push_back({1, 0, seen, seen});
  HangPlace place;
  place.out_of_order.resize(1);
  explanation.hangs.push_back({hang, place});
  explanation.trace = ExplainedTrace{};
  explanation.trace->finding.ranks.resize(1);
  explanation.trace->finding.faults.resize(1);
  const std::set<std::string> leaves{"own", "most", "candidates", "issued", "skipped", "fields"};
  std::set<std::string> keys;
  test::add_keys(to_json(explanation), "", leaves, keys);
  EXPECT_THAT(test::documented_keys(std::filesystem::path(LOOM_SOURCE_DIR) / "docs/outputs.md", "## explain --json"),
              ::testing::ContainerEq(keys));
}

}  // namespace
}  // namespace loom::explain
