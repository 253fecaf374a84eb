// Promise: of processes that are ranks, one that was started with another value of any key of the job ends all of them
//          with an error that names the flag, the ranks and both values; what each rank may have for itself, and where
//          its files lie, is not compared.
// World:   3 ranks as threads, each with a job of its own; rank 1 differs. Every key there is, in turn.
#include "engine/job/agreement.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"
#include "engine/train/same_job.h"

namespace loom::job {
namespace {

using ::testing::Each;

// Values that a key of the kind may have.
std::vector<Value> candidates(const Key& key) {
  switch (key.kind) {
    case Kind::kToggle:
      return {true, false};
    case Kind::kWhole:
      return {std::int64_t{7}, std::int64_t{8}};
    case Kind::kReal:
      return {0.25, 0.125, 2.5};
    case Kind::kChoice: {
      std::vector<Value> words;
      for (const std::string& word : key.words()) words.emplace_back(word);
      return words;
    }
    case Kind::kText:
      return {std::string("other")};
    case Kind::kTexts:
      return {Texts{"other"}};
    case Kind::kNumbers:
      return {Numbers{7}, Numbers{8}};
  }
  return {};
}

// A job that has another value of the key than the default.
Job with_another(const Key& key) {
  const Value usual = key.get(Job{});
  Job job;
  for (const Value& value : candidates(key)) {
    key.set(job, value);
    if (key.get(job) != usual) return job;
  }
  ADD_FAILURE() << key.name() << ": this test knows no other value of it";
  return job;
}

// What each rank ends with, of which rank 1 is `other`; empty: they agree.
std::vector<std::string> ends(const Job& usual, const Job& other) {
  std::vector<std::string> texts(3);
  const std::vector<comm::SaidEntry> same = agreement_entries(usual), different = agreement_entries(other);
  launch::run_ranks(3, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    try {
      train::check_same_job(context.rank() == 1 ? different : same, *world.everyone());
    } catch (const ConfigError& error) {
      texts[static_cast<std::size_t>(context.rank())] = error.what();
    }
  });
  return texts;
}

TEST(Agreement, AKeyThatOneRankHasDifferentIsNamedToAll) {
  int compared = 0;
  for (const Key& key : keys()) {
    const Job other = with_another(key);
    const auto texts = ends(Job{}, other);
    if (key.agreement == Agreement::kNone) {
      EXPECT_THAT(texts, Each("")) << key.name();
      continue;
    }
    ++compared;
    const std::string usual = agreement_text(key, key.get(Job{}));
    const std::string value = key.agreement == Agreement::kContent ? "the flag" : agreement_text(key, key.get(other));
    EXPECT_THAT(texts, Each(fmt::format("ranks do not train the same: {}: ranks 0,2 have {}, rank 1 has {}; start "
                                        "every rank with the same flags, model and data",
                                        key.name(), usual, value)));
  }
  EXPECT_GT(compared, 150);
}

TEST(Agreement, FlagsOfAProgramAreAmongTheKeys) {
  Job usual, other;
  usual.written.added_flags = {{"--margin", "0.5"}};
  other.written.added_flags = {{"--margin", "0.25"}};
  EXPECT_THAT(ends(usual, other),
              Each("ranks do not train the same: --margin: ranks 0,2 have 0.5, rank 1 has 0.25; start every rank with "
                   "the same flags, model and data"));
}

}  // namespace
}  // namespace loom::job
