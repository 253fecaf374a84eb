// Promise: a snapshot of a run stands beside the plan of its job: the same job agrees to the byte; a run whose one
//          setting was another is explained by that setting; what the plan does not have is said with its size and
//          place.
// World:   tests/support/small_plan.h; snapshots are those of plans.
#include "engine/explain/snapshot_explanation.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/cli/hub_callbacks.h"
#include "engine/io/atomic_file.h"
#include "engine/plan/plan_trace.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::explain {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SnapshotExplained : public ::testing::Test {
 protected:
  train::TrainSections job(const std::string& keys) const {
    test::write_file(folder / "fsdp2.yaml",
                     "sharding_size: auto\n"
                     "sub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n" +
                         keys);
    train::TrainSections a = plan::arguments();
    a.parallel.fsdp2_config_path = folder / "fsdp2.yaml";
    return a;
  }

  // The snapshot of a run with these keys.
  std::filesystem::path run(const std::string& keys) const {
    train::TrainSections a = job(keys);
    a.memory.record_allocator = true;
    io::write_text(folder / "run.pickle",
                   plan::to_memory_snapshot(plan::estimate_step(a, cli::hub_callbacks(a), profile)));
    return folder / "run.pickle";
  }

  SnapshotExplanation explained(const std::filesystem::path& snapshot, const std::string& keys) const {
    const train::TrainSections a = job(keys);
    const train::PretrainCallbacks callbacks = cli::hub_callbacks(a);
    return explain_snapshot(snapshot, {a, callbacks, profile});
  }

  const std::filesystem::path folder = test::fresh_folder();
  const virtual_time::HardwareProfile profile = plan::profile();
};

constexpr const char* kMixed = "param_dtype: bf16\nreduce_dtype: fp32\n";

TEST_F(SnapshotExplained, TheSameJobAgreesToTheByte) {
  const SnapshotExplanation found = explained(run(kMixed), kMixed);
  EXPECT_TRUE(found.agrees);
  EXPECT_EQ(found.lineup.distance(), 0);
  EXPECT_THAT(found.lineup.unplanned, IsEmpty());
  EXPECT_THAT(found.tried, IsEmpty());
  EXPECT_THAT(found.lineup.rows,
              Contains(AllOf(Field(&LineupRow::category, "shard"), Field(&LineupRow::group, ""),
                             Field(&LineupRow::found_blocks, 8 * 12 + 3))));  // of eight layers, and of the root
  EXPECT_THAT(found.lineup.rows,                                              // the peak is in backward
              Contains(AllOf(Field(&LineupRow::category, "unsharded"), Field(&LineupRow::group, ""))));
  EXPECT_THAT(to_text(found), HasSubstr("the plan explains the snapshot: they differ by at most a hundredth"));
}

TEST_F(SnapshotExplained, ASettingThatTheRunHadOtherwiseIsNamed) {
  const std::string mixed = kMixed;
  for (const std::string keys : {"reshard_after_forward: false\n", "recompute_modules: [\"model.layers.{*}\"]\n"}) {
    const SnapshotExplanation found = explained(run(mixed + keys), mixed);
    ASSERT_TRUE(found.explains) << to_text(found);
    EXPECT_THAT(found.tried.front().change, HasSubstr(keys.substr(0, keys.find(':'))));
    EXPECT_THAT(to_json(found).at("nearest"), found.tried.front().change);
  }
  const SnapshotExplanation found = explained(run("reduce_dtype: fp32\n"), mixed);
  EXPECT_EQ(found.tried.front().change, "param_dtype: null") << to_text(found);
  EXPECT_EQ(found.tried.front().distance_bytes, 0);
}

TEST_F(SnapshotExplained, WhatNoSettingExplainsIsSaidWithItsSizeAndPlace) {
  io::MemorySnapshot snapshot = io::read_memory_snapshot(run(kMixed));
  snapshot.texts.insert(snapshot.texts.end(), {"/home/me/train.py", "keep_logits"});
  const auto texts = static_cast<std::int32_t>(snapshot.texts.size());
  snapshot.frames.push_back({texts - 2, 31, texts - 1});
  snapshot.stacks.push_back({static_cast<std::int32_t>(snapshot.frames.size()) - 1});
  const std::int64_t address = std::int64_t{1} << 50, bytes = 12345 << 10;
  snapshot.segments.push_back({.address = address, .total_size = bytes});
  snapshot.segments.back().blocks = {{.address = address,
                                      .size = bytes,
                                      .state = io::SnapshotState::kActive,
                                      .stack = static_cast<std::int32_t>(snapshot.stacks.size()) - 1}};
  io::write_text(folder / "run.pickle", io::write_memory_snapshot(snapshot));
  const SnapshotExplanation found = explained(folder / "run.pickle", kMixed);
  EXPECT_FALSE(found.agrees);
  EXPECT_FALSE(found.explains);
  EXPECT_EQ(found.lineup.distance(), bytes);
  ASSERT_EQ(found.lineup.unplanned.size(), 1u);
  EXPECT_EQ(found.lineup.unplanned[0].place, "train.py:31 keep_logits");
  EXPECT_THAT(to_text(found), AllOf(HasSubstr("1 block of 12.06 MiB, allocated in train.py:31 keep_logits"),
                                    HasSubstr("settings explains the difference")));
  EXPECT_TRUE(to_json(found).at("nearest").is_null());
}

}  // namespace
}  // namespace loom::explain
