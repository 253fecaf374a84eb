// Promise: where ranks share experts, sequences or matrices, a rank that throws or stalls in a training step ends all
//          of them with the first cause, within the deadline; a peer's text names its exchange, module, group and the
//          rank.
// World:   2 ranks as threads, and 4, of which 0 and 1 share; a Qwen3-MoE of two layers; rank 1 fails in the second
//          step. A deadline of 2 s where one must pass, of a minute where none may.
#include <gmock/gmock.h>
#include <latch>
#include <map>
#include <mutex>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"
#include "tests/cli/failing_axes.h"
#include "tests/support/files.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using Where = FailingAxes::Where;

constexpr const char* kReason = "[rank 1] the loss is not a number";

struct Ended {
  std::map<int, std::string> texts;  // of each rank
  std::string job;                   // of the first failure
};

Ended ended(FailingAxes& job, int ranks, std::chrono::milliseconds deadline, device::ExecutorKind executor,
            const std::function<void(int rank)>& after = nullptr) {
  Ended result;
  std::mutex mutex;
  const auto main = [&](RankContext& context, comm::World& world) {
    try {
      job.run(context, world, executor);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      result.texts[context.rank()] = error.what();
      if (after) after(context.rank());
      throw;
    }
  };
  try {
    launch::run_ranks(ranks, {deadline}, main);
  } catch (const std::exception& error) {
    result.job = error.what();
  }
  return result;
}

struct Setting {
  const char* name;
  const Sharing& sharing;
  Where where;
  device::ExecutorKind executor;

  std::string exchange() const { return where == Where::kForward ? sharing.in_forward : sharing.in_backward; }
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class AxesFailure : public ::testing::TestWithParam<Setting> {
 protected:
  Ended thrown(int ranks) {
    const Setting& setting = GetParam();
    FailingAxes job(setting.sharing, ranks, fresh_folder(), setting.where,
                    [] { raise<DeviceError>("the loss is not a number"); });
    return ended(job, ranks, std::chrono::minutes(1), setting.executor);
  }
};

TEST_P(AxesFailure, OfARankThatThrowsIsTheReasonOfItsPeer) {
  const Ended result = thrown(2);
  EXPECT_EQ(result.job, kReason);
  EXPECT_EQ(result.texts.at(1), kReason);
  EXPECT_THAT(result.texts.at(0), HasSubstr(fmt::format("rank 1 failed first: {}", kReason)));
  if (GetParam().executor != device::ExecutorKind::kInline) return;  // another lane may have learnt of it first
  EXPECT_THAT(result.texts.at(0), HasSubstr("[rank 0] " + GetParam().exchange()));
  EXPECT_THAT(result.texts.at(0), HasSubstr(fmt::format(" in group '{}' (ranks 0,1): ", GetParam().sharing.axis)));
}

TEST_P(AxesFailure, OfARankThatThrowsIsTheReasonOfThoseThatShareNothingWithIt) {
  const Ended result = thrown(4);
  EXPECT_EQ(result.job, kReason);
  for (const int rank : {0, 2, 3}) {
    EXPECT_THAT(result.texts.at(rank), HasSubstr(fmt::format("[rank {}] ", rank)));
    EXPECT_THAT(result.texts.at(rank), HasSubstr(fmt::format("rank 1 failed first: {}", kReason)));
  }
}

constexpr auto kInline = device::ExecutorKind::kInline, kThreaded = device::ExecutorKind::kThreaded;
INSTANTIATE_TEST_SUITE_P(Settings, AxesFailure,
                         ::testing::Values(Setting{"ExpertsInForward", kExperts, Where::kForward, kInline},
                                           Setting{"ExpertsInBackward", kExperts, Where::kBackward, kInline},
                                           Setting{"ExpertsInBackwardThreaded", kExperts, Where::kBackward, kThreaded},
                                           Setting{"RingInForward", kRing, Where::kForward, kInline},
                                           Setting{"RingInForwardThreaded", kRing, Where::kForward, kThreaded},
                                           Setting{"RingInBackward", kRing, Where::kBackward, kInline},
                                           Setting{"TensorInForward", kTensor, Where::kForward, kInline},
                                           Setting{"TensorInBackward", kTensor, Where::kBackward, kInline},
                                           Setting{"TensorInForwardThreaded", kTensor, Where::kForward, kThreaded},
                                           Setting{"SequenceInForward", kSequence, Where::kForward, kInline},
                                           Setting{"SequenceInBackward", kSequence, Where::kBackward, kInline},
                                           Setting{"SequenceInBackwardThreaded", kSequence, Where::kBackward,
                                                   kThreaded}),
                         [](const auto& info) { return info.param.name; });

TEST(AxesStall, IsNamedWithinTheDeadline) {
  for (const Sharing& sharing : {kExperts, kRing, kTensor, kSequence}) {
    std::latch given_up(1);
    FailingAxes job(sharing, 2, fresh_folder(), Where::kForward, [&] { given_up.wait(); });
    const Ended result = ended(job, 2, std::chrono::seconds(2), kInline, [&](int rank) {
      if (rank == 0) given_up.count_down();
    });
    EXPECT_EQ(result.job, result.texts.at(0));
    EXPECT_THAT(result.texts.at(0), HasSubstr(std::string("[rank 0] ") + sharing.in_forward));
    EXPECT_THAT(result.texts.at(0),
                HasSubstr(fmt::format(" in group '{}' (ranks 0,1): rank 1 did not come within 2 s (it last entered ",
                                      sharing.axis)));
    EXPECT_THAT(result.texts.at(1), HasSubstr("rank 0 failed first: [rank 0] "));
  }
}

// A program that trains without pretrain(), whose agreement compares the files before (tests/train/same_job_test.cpp).
TEST(AxesThatDiffer, EndAllRanksBeforeTheFirstStep) {
  const auto no_fault = [] {};
  const std::filesystem::path folder = fresh_folder();
  const auto job_of = [&](const char* name, const char* keys) {
    std::filesystem::create_directories(folder / name);
    return std::make_unique<FailingAxes>(Sharing{keys, kRing.module, "", "", ""}, 4, folder / name, Where::kForward,
                                         no_fault);
  };
  const auto plain = job_of("plain", ""), experts = job_of("experts", kExperts.keys), ring = job_of("ring", kRing.keys),
             ulysses = job_of("ulysses", "ulysses_parallel_size: 2\n"), tensor = job_of("tensor", kTensor.keys),
             sequence = job_of("sequence", kSequence.keys),
             gathered = job_of("gathered", "tensor_parallel_size: 2\nloss_parallel: false\n"),
             column =
                 job_of("column", "tensor_parallel_size: 2\ncolwise_parallel: [model.layers.0.self_attn.q_proj]\n");
  const auto texts_of = [&](FailingAxes& usual, FailingAxes& other) {
    std::map<int, std::string> texts;
    std::mutex mutex;
    try {
      launch::run_ranks(4, {std::chrono::minutes(1)}, [&](RankContext& context, comm::World& world) {
        try {
          (context.rank() == 2 ? other : usual).run(context, world, kInline);
        } catch (const Error& error) {
          const std::lock_guard lock(mutex);
          texts[context.rank()] = error.what();
          throw;
        }
      });
    } catch (const Error&) {
    }
    return texts;
  };
  using ::testing::_;
  using ::testing::AllOf;
  using ::testing::Each;
  using ::testing::Pair;
  const auto differ = [](const char* difference) {
    return Each(Pair(_, AllOf(HasSubstr("ranks differ in fsdp2_config.yaml: "), HasSubstr(difference))));
  };
  EXPECT_THAT(texts_of(*plain, *experts), differ("expert_parallel_size: ranks 0-1,3 have 1, rank 2 has 2"));
  EXPECT_THAT(texts_of(*ring, *ulysses), differ("ulysses_parallel_size: ranks 0-1,3 have 1, rank 2 has 2"));
  EXPECT_THAT(texts_of(*plain, *ring), differ("ring_attention_size: ranks 0-1,3 have 1, rank 2 has 2"));
  EXPECT_THAT(texts_of(*plain, *tensor), differ("tensor_parallel_size: ranks 0-1,3 have 1, rank 2 has 2"));
  EXPECT_THAT(texts_of(*tensor, *sequence), differ("sequence_parallel: ranks 0-1,3 have false, rank 2 has true"));
  EXPECT_THAT(texts_of(*tensor, *gathered), differ("loss_parallel: ranks 0-1,3 have true, rank 2 has false"));
  EXPECT_THAT(texts_of(*tensor, *column), differ("colwise_parallel: "));
  for (FailingAxes* other : {tensor.get(), sequence.get(), gathered.get(), column.get()}) {
    EXPECT_EQ(texts_of(*plain, *other).size(), 4U);
  }
}

}  // namespace
}  // namespace loom::test
