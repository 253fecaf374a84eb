// Promise: flags of launch scripts that set nothing here are rows of the table: each once, and in no other row; what is
//          taken is taken, what is named is named as it was written, what is refused says what to write.
// World:   the table.
#include "engine/job/foreign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

namespace loom::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Foreign, EveryFlagIsInOneRow) {
  std::set<std::string_view> names;
  for (const Key& key : foreign_keys()) {
    EXPECT_TRUE(names.insert(key.name()).second) << key.name() << " twice";
    EXPECT_EQ(find_key(key.name()), &key) << key.name() << " is a key that sets a value too";
    EXPECT_NE(key.outcome, Outcome::kBuilt) << key.name();
    EXPECT_EQ(key.advice.empty(), key.accepted == kAnyValue) << key.name();
    EXPECT_EQ(key.agreement, Agreement::kValue) << key.name();  // ranks compare what sets a value
  }
  EXPECT_GT(names.size(), 70U);
}

TEST(Foreign, ValuesAreAcceptedOneByOne) {
  const Key& key = *find_key("--rotary-percent");
  EXPECT_TRUE(accepts(key, "1.0"));
  EXPECT_FALSE(accepts(key, "0.1"));
  EXPECT_FALSE(accepts(key, "1|1.0"));
  EXPECT_EQ(refusal(key, "0.1"),
            "--rotary-percent is 0.1; rotary positions of a part of each head are not built; write 1");
}

TEST(Foreign, WhatWasWrittenIsTakenNamedOrRefusedInTheTablesOrder) {
  WrittenFlags written;
  written.foreign = {{"--use-mcore-models", ""},
                     {"--num-workers", "4"},
                     {"--master-addr", "here"},
                     {"--nnodes", "2"},
                     {"--squared-relu", ""}};
  settle_foreign(written);
  EXPECT_THAT(written.without_effect, ElementsAre("--num-workers 4", "--use-mcore-models"));
  EXPECT_THAT(refused_foreign(written),
              ElementsAre("--nnodes is 2; a launcher has started this process, and says it; remove it",
                          "--squared-relu is not built; write --swiglu, or nothing for GELU"));
  EXPECT_THAT(refused_foreign({}), IsEmpty());
}

}  // namespace
}  // namespace loom::job
