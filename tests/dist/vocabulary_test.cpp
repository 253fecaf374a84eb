// Promise: embedding and cross-entropy of a vocabulary that ranks share are those of the whole vocabulary, and so are
//          their gradients; losses have the same bits on all ranks; logits never travel.
// World:   2, 3 and 4 ranks as threads, a vocabulary of 11; plans as rank 0 and 1 of a simulated world of 2.

#include "engine/dist/vocabulary.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <optional>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/dist/operators.h"
#include "engine/tensor/ops/linear_loss.h"
#include "tests/dist/dist_ranks.h"
#include "tests/tensor/tensors.h"

namespace loom::dist {
namespace {

using test::Doubles;
using testing::Each;
using testing::HasSubstr;

constexpr std::int64_t kVocab = 11, kBatch = 2, kSeq = 9, kRows = kBatch * kSeq, kHidden = 5;
constexpr std::int64_t kIgnored = -100;
constexpr int kWorlds[] = {2, 3, 4};

struct Part {
  std::int64_t first, rows;
};
enum class Cut { kEqual, kUneven };
constexpr Cut kCuts[] = {Cut::kEqual, Cut::kUneven};

// Equal parts end in padding; of uneven ones the first of 4 is empty.
Part part_of(Cut cut, int rank, int ranks) {
  if (cut == Cut::kEqual) {
    const std::int64_t rows = (kVocab + ranks - 1) / ranks;
    return {rank * rows, rows};
  }
  const auto first = [=](std::int64_t r) { return r * r * kVocab / (ranks * ranks); };
  return {first(rank), first(rank + 1) - first(rank)};
}

struct Precision {
  DType dtype;
  double tolerance;
};
constexpr Precision kPrecisions[] = {
    {DType::kF64, 1e-12}, {DType::kF32, 2e-6}, {DType::kBF16, 4e-3}, {DType::kF16, 5e-4}};

// Some targets of 5 are ignored.
std::vector<std::int64_t> targets_with(int ignored) {
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < kRows; ++i) targets.push_back(i % 5 < ignored ? kIgnored : (7 * i + 3) % kVocab);
  return targets;
}
Tensor tensor_of(const std::vector<std::int64_t>& ids) { return Tensor::from(ids, {kBatch, kSeq}); }

// Columns of logits [rows, V] and rows of a table [V, dim]; padding is 1000.
Doubles columns(const Doubles& logits, const Part& part) {
  Doubles values;
  for (std::size_t row = 0; row < logits.size() / kVocab; ++row) {
    for (std::int64_t id = part.first; id < part.first + part.rows; ++id) {
      values.push_back(id < kVocab ? logits[row * kVocab + static_cast<std::size_t>(id)] : 1000);
    }
  }
  return values;
}
Doubles table_rows(const Doubles& table, std::int64_t dim, const Part& part) {
  Doubles values;
  for (std::int64_t i = part.first * dim; i < (part.first + part.rows) * dim; ++i) {
    values.push_back(i < kVocab * dim ? table[static_cast<std::size_t>(i)] : 1000);
  }
  return values;
}

void expect_near(const Doubles& actual, const Doubles& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << what << ", " << i;
}

// What a part gives must be these numbers of the whole; padding's gradient is 0.
Doubles without_padding(Doubles values) {
  for (double& value : values) value = value == 1000 ? 0 : value;
  return values;
}

struct Outcome {
  double loss = 0;
  Doubles gradient;        // of the logits, or the weight
  Doubles input_gradient;  // of x
};

using RankOutcomes = std::vector<Outcome>;

RankOutcomes on_ranks(int ranks, const std::function<Outcome(const Channel&)>& body) {
  RankOutcomes outcomes(static_cast<std::size_t>(ranks));
  test::run_dist(ranks, [&](const Channel& channel, comm::World& world) {
    outcomes[static_cast<std::size_t>(world.rank())] = body(channel);
  });
  return outcomes;
}

void expect_alike(const RankOutcomes& outcomes, const std::string& what) {
  for (const Outcome& of : outcomes) {
    EXPECT_EQ(of.loss, outcomes[0].loss) << what;
    EXPECT_EQ(of.input_gradient, outcomes[0].input_gradient) << what;
  }
}

// --- Cross-entropy. The gradient that comes in is 3.

Outcome whole_loss(DType dtype, const Doubles& logits, const std::vector<std::int64_t>& targets) {
  const test::OneRank rank;
  const Tensor x = test::leaf(logits, {kBatch, kSeq, kVocab}, dtype);
  const Tensor loss = ops::cross_entropy(x, tensor_of(targets));
  autograd::backward(ops::scale(loss, 3.0));
  return {loss.item(), test::grad(x), {}};
}

RankOutcomes shared_loss(int ranks, Cut cut, DType dtype, const Doubles& logits,
                         const std::vector<std::int64_t>& targets) {
  return on_ranks(ranks, [&](const Channel& channel) -> Outcome {
    const Part part = part_of(cut, channel.rank(), ranks);
    const Tensor x = test::leaf(columns(logits, part), {kBatch, kSeq, part.rows}, dtype);
    const Tensor loss = vocabulary_cross_entropy(x, tensor_of(targets), part.first, kVocab, channel, "head");
    autograd::backward(ops::scale(loss, 3.0));
    return {loss.item(), test::grad(x), {}};
  });
}

void expect_whole_loss(int ranks, Cut cut, const RankOutcomes& actual, const Outcome& whole, double tolerance,
                       const std::string& what) {
  for (int r = 0; r < ranks; ++r) {
    const Outcome& of = actual[static_cast<std::size_t>(r)];
    EXPECT_NEAR(of.loss, whole.loss, tolerance) << what;
    expect_near(of.gradient, without_padding(columns(whole.gradient, part_of(cut, r, ranks))), tolerance, what);
  }
  expect_alike(actual, what);
}

TEST(ASharedCrossEntropy, IsThatOfTheJoinedLogits) {
  const Doubles logits = test::normals(kRows * kVocab, 1);
  for (const Precision& precision : kPrecisions) {
    for (const int ignored : {0, 2}) {
      const std::vector<std::int64_t> targets = targets_with(ignored);
      const Outcome whole = whole_loss(precision.dtype, logits, targets);
      for (const int ranks : kWorlds) {
        for (const Cut cut : kCuts) {
          expect_whole_loss(ranks, cut, shared_loss(ranks, cut, precision.dtype, logits, targets), whole,
                            precision.tolerance, fmt::format("{} ranks, {}", ranks, name(precision.dtype)));
        }
      }
    }
  }
}

TEST(ASharedCrossEntropy, IsZeroWhereAllTargetsAreIgnored) {
  const std::vector<std::int64_t> targets = targets_with(5);
  for (const Outcome& of : shared_loss(3, Cut::kEqual, DType::kF32, test::normals(kRows * kVocab, 1), targets)) {
    EXPECT_EQ(of.loss, 0);
    EXPECT_THAT(of.gradient, Each(0));
  }
}

// The scores of a rank's part may all be far below the largest. Expected from the same scores in fp64.
TEST(ASharedCrossEntropy, IsStableForLargeScores) {
  Doubles logits = test::normals(kRows * kVocab, 1);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const bool high = i / kVocab % 3 == 0 || (i / kVocab % 3 == 1 && i % kVocab < 4);
    logits[i] = static_cast<float>(logits[i] + (high ? 1e4 : -1e4));
  }
  std::vector<std::int64_t> targets = targets_with(0);
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] %= 4;
  const Outcome whole = whole_loss(DType::kF64, logits, targets);
  EXPECT_LT(whole.loss, 10);
  for (const Cut cut : kCuts) {
    expect_whole_loss(3, cut, shared_loss(3, cut, DType::kF32, logits, targets), whole, 1e-6, "fp32");
    expect_whole_loss(3, cut, shared_loss(3, cut, DType::kF64, logits, targets), whole, 1e-11, "fp64");
  }
}

TEST(ASharedCrossEntropy, TakesAVocabularySmallerThanTheRanks) {
  for (const Outcome& of : on_ranks(3, [](const Channel& channel) -> Outcome {
         const std::int64_t rows = channel.rank() < 2 ? 1 : 0;
         const Tensor x = test::leaf(Doubles(static_cast<std::size_t>(2 * rows), 1.0), {2, rows});
         const Tensor loss = vocabulary_cross_entropy(x, test::ids({1, 0}), channel.rank(), 2, channel, "head");
         autograd::backward(loss);
         return {loss.item(), test::grad(x), {}};
       })) {
    EXPECT_NEAR(of.loss, std::log(2.0), 1e-15);
    EXPECT_TRUE(of.gradient.empty() || std::abs(of.gradient[0] + of.gradient[1]) < 1e-15);
  }
}

TEST(ASharedCrossEntropy, TakesNoTargets) {
  for (const Outcome& of : on_ranks(2, [](const Channel& channel) -> Outcome {
         const Tensor x = Tensor::zeros({0, 4}, DType::kF32).set_requires_grad(true);
         const Tensor none = Tensor::from(std::vector<std::int64_t>{}, {0});
         const Tensor loss = vocabulary_cross_entropy(x, none, channel.rank() * 4, 8, channel, "head");
         autograd::backward(loss);
         return {loss.item(), test::grad(x), {}};
       })) {
    EXPECT_EQ(of.loss, 0);
  }
}

// Three numbers a target beside the logits, and the loss; backward writes over logits that nobody else has.
TEST(ASharedCrossEntropy, KeepsThreeNumbersATarget) {
  const auto rounded = [](std::int64_t bytes) { return (bytes + 511) / 512 * 512; };
  constexpr std::int64_t kTokens = 1024, kColumns = 512;
  test::run_dist(2, [&](const Channel& channel, comm::World&) {
    const auto bytes = [] { return device::Device::current().memory().stats(); };
    const Tensor parameter = Tensor::zeros({kTokens, kColumns}, DType::kF32).set_requires_grad(true);
    const Tensor targets = Tensor::zeros({kTokens}, DType::kI64);
    Tensor logits = ops::scale(parameter, 2.0);
    device::Device::current().memory().reset_peaks();
    const std::int64_t before = bytes().total_bytes;
    const Tensor loss =
        vocabulary_cross_entropy(logits, targets, channel.rank() * kColumns, 2 * kColumns, channel, "head");
    EXPECT_EQ(bytes().total_bytes - before, rounded(4 * kTokens) + rounded(8 * kTokens) + rounded(4));
    EXPECT_LE(bytes().peak_bytes - before, 2 * rounded(4 * kTokens) + rounded(8 * kTokens));
    logits = {};
    device::Device::current().memory().reset_peaks();
    const std::int64_t kept = bytes().total_bytes;
    autograd::backward(loss);
    EXPECT_LE(bytes().peak_bytes - kept, parameter.nbytes() + rounded(4));  // the parameter's gradient
  });
}

// --- In chunks

RankOutcomes chunked(int ranks, Cut cut, DType dtype, const std::vector<std::int64_t>& targets, std::int64_t chunk) {
  const Doubles table = test::normals(kVocab * kHidden, 2);
  return on_ranks(ranks, [&](const Channel& channel) -> Outcome {
    const Part part = part_of(cut, channel.rank(), ranks);
    const Tensor x = test::leaf(test::normals(kRows * kHidden, 1), {kBatch, kSeq, kHidden}, dtype);
    const Tensor weight = test::leaf(table_rows(table, kHidden, part), {part.rows, kHidden}, dtype);
    const Tensor input = with_summed_gradient(x, channel, "head");
    const Tensor loss =
        vocabulary_linear_cross_entropy(input, weight, tensor_of(targets), chunk, part.first, kVocab, channel, "head");
    autograd::backward(ops::scale(loss, 3.0));
    return {loss.item(), test::grad(weight), test::grad(x)};
  });
}

TEST(ASharedLossInChunks, IsThatOfTheWholeLayer) {
  for (const Precision& precision : {kPrecisions[0], Precision{DType::kF32, 4e-6}}) {
    const std::vector<std::int64_t> targets = targets_with(2);
    Outcome whole;
    {
      const test::OneRank rank;
      const Tensor x = test::leaf(test::normals(kRows * kHidden, 1), {kBatch, kSeq, kHidden}, precision.dtype);
      const Tensor weight = test::leaf(test::normals(kVocab * kHidden, 2), {kVocab, kHidden}, precision.dtype);
      const Tensor loss = ops::cross_entropy(ops::linear(x, weight, {}), tensor_of(targets));
      autograd::backward(ops::scale(loss, 3.0));
      whole = {loss.item(), test::grad(weight), test::grad(x)};
    }
    for (const std::int64_t chunk : {std::int64_t{2}, kSeq}) {
      for (const int ranks : kWorlds) {
        for (const Cut cut : kCuts) {
          const RankOutcomes actual = chunked(ranks, cut, precision.dtype, targets, chunk);
          for (int r = 0; r < ranks; ++r) {
            const Outcome& of = actual[static_cast<std::size_t>(r)];
            const std::string what = fmt::format("rank {} of {}, chunk {}", r, ranks, chunk);
            EXPECT_NEAR(of.loss, whole.loss, precision.tolerance) << what;
            expect_near(of.input_gradient, whole.input_gradient, precision.tolerance, what);
            expect_near(of.gradient, without_padding(table_rows(whole.gradient, kHidden, part_of(cut, r, ranks))),
                        precision.tolerance, what);
          }
          expect_alike(actual, "chunks");
        }
      }
    }
  }
}

// --- Embedding

Tensor weighted_sum(const Tensor& y) {
  return test::sum(ops::mul(y, test::constant(test::normals(y.numel(), 3), y.shape(), y.dtype())));
}

TEST(ASharedEmbedding, HasTheBitsOfTheWholeTable) {
  const Doubles table = test::normals(kVocab * kHidden, 2);
  const std::vector<std::int64_t> ids = targets_with(0);
  for (const Precision& precision : kPrecisions) {
    Doubles rows, gradient;
    {
      const test::OneRank rank;
      const Tensor weight = test::leaf(table, {kVocab, kHidden}, precision.dtype);
      const Tensor y = ops::embedding(tensor_of(ids), weight);
      autograd::backward(weighted_sum(y));
      rows = test::values(y);
      gradient = test::grad(weight);
    }
    for (const int ranks : kWorlds) {
      for (const Cut cut : kCuts) {
        test::run_dist(ranks, [&](const Channel& channel, comm::World&) {
          const Part part = part_of(cut, channel.rank(), ranks);
          const Tensor weight = test::leaf(table_rows(table, kHidden, part), {part.rows, kHidden}, precision.dtype);
          const Tensor own = vocabulary_embedding(tensor_of(ids), weight, part.first, kVocab);
          const Tensor y = all_reduce(own, channel, "embedding", Loss::kOfAll);
          autograd::backward(weighted_sum(y));
          EXPECT_EQ(test::values(y), rows);
          EXPECT_EQ(test::grad(weight), without_padding(table_rows(gradient, kHidden, part)));
        });
      }
    }
  }
}

// The gradient of every row but the padding's; each id is met.
TEST(ASharedEmbedding, GivesThePaddingNoGradient) {
  const Doubles table = test::normals(kVocab * kHidden, 2);
  const std::vector<std::int64_t> ids = targets_with(0);
  for (const std::int64_t padding : {std::int64_t{0}, std::int64_t{5}, kVocab - 1}) {
    Doubles gradient;
    {
      const test::OneRank rank;
      const Tensor weight = test::leaf(table, {kVocab, kHidden});
      autograd::backward(weighted_sum(ops::embedding(tensor_of(ids), weight)));
      gradient = test::grad(weight);
    }
    const auto dropped = gradient.begin() + padding * kHidden;
    ASSERT_NE(*dropped, 0);
    std::fill_n(dropped, kHidden, 0);
    for (const int ranks : kWorlds) {
      for (const Cut cut : kCuts) {
        test::run_dist(ranks, [&](const Channel& channel, comm::World&) {
          const Part part = part_of(cut, channel.rank(), ranks);
          const Tensor weight = test::leaf(table_rows(table, kHidden, part), {part.rows, kHidden});
          const Tensor own = vocabulary_embedding(tensor_of(ids), weight, part.first, kVocab, padding);
          autograd::backward(weighted_sum(all_reduce(own, channel, "embedding", Loss::kOfAll)));
          EXPECT_EQ(test::grad(weight), without_padding(table_rows(gradient, kHidden, part))) << padding;
        });
      }
    }
  }
}

// --- Plans

constexpr std::int64_t kTokens = 64, kElement = 4;  // fp32
constexpr std::int64_t kTargetBytes = 3 * kElement;

// Embedding, head and loss, whole or in chunks of 16 tokens, forward and backward.
void step(const Channel& channel, std::optional<std::int64_t> chunk) {
  const std::int64_t first = channel.rank() * 6;
  const Tensor table = Tensor::zeros({6, kHidden}, DType::kF32).set_requires_grad(true);
  const Tensor head = Tensor::zeros({6, kHidden}, DType::kF32).set_requires_grad(true);
  const Tensor ids = Tensor::zeros({1, kTokens}, DType::kI64);
  const Tensor embedded = vocabulary_embedding(ids, table, first, kVocab);
  const Tensor x = with_summed_gradient(all_reduce(embedded, channel, "embedding", Loss::kOfAll), channel, "embedding");
  const Tensor loss = chunk ? vocabulary_linear_cross_entropy(x, head, ids, *chunk, first, kVocab, channel, "head")
                            : vocabulary_cross_entropy(ops::linear(x, head, {}), ids, first, kVocab, channel, "head");
  autograd::backward(loss);
}

device::Recording planned(int rank, int ranks, std::optional<std::int64_t> chunk) {
  RankContext context(rank, ranks);
  const RankScope scope(context);
  device::Device& device = device::Device::install(context, {.dry_run = true});
  const auto world = comm::make_simulated_world(rank, ranks);
  const device::Recorder recorder(device);
  step(Channel{world->everyone("tp")}, chunk);
  return recorder.recording();
}

TEST(APlanOfASharedVocabulary, IssuesWhatTheRunIssues) {
  for (const std::optional<std::int64_t> chunk : {std::optional<std::int64_t>(), std::optional<std::int64_t>(16)}) {
    std::vector<device::Recording> run(2);
    test::run_dist(2, [&](const Channel& channel, comm::World& world) {
      const device::Recorder recorder(device::Device::current());
      step(channel, chunk);
      run[static_cast<std::size_t>(world.rank())] = recorder.recording();
    });
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(test::events_of(planned(rank, 2, chunk)), test::events_of(run[static_cast<std::size_t>(rank)])) << rank;
    }
  }
}

// Bytes that a rank receives, by tag.
std::map<std::string, std::int64_t> received(const device::Recording& recording) {
  std::map<std::string, std::int64_t> bytes;
  for (const device::Entry& e : recording.entries) {
    if (e.kind == device::EntryKind::kCollective) bytes[recording.text(e.subject)] += e.cost.link_bytes;
  }
  return bytes;
}

// A ring's all-reduce of n bytes: 2 n (N - 1) / N. Loss: three numbers a target, in forward alone.
TEST(VolumesOfASharedVocabulary, FollowTheirFormulas) {
  for (const int ranks : {2, 4}) {
    const auto all_reduced = [&](std::int64_t bytes) { return 2 * bytes * (ranks - 1) / ranks; };
    for (const std::optional<std::int64_t> chunk : {std::optional<std::int64_t>(), std::optional<std::int64_t>(16)}) {
      const auto bytes = received(planned(0, ranks, chunk));
      EXPECT_EQ(bytes.at("head largest") + bytes.at("head sums"), all_reduced(kTargetBytes * kTokens));
      EXPECT_EQ(bytes.at("embedding"), 2 * all_reduced(kElement * kTokens * kHidden));  // forward, and x's gradient
      EXPECT_EQ(bytes.size(), 3u);
    }
  }
}

// --- Errors

// What each rank's error says.
std::map<int, std::string> texts_of(const std::function<void(const Channel&)>& main) {
  std::map<int, std::string> texts;
  std::mutex mutex;
  const auto noted = [&](const Channel& channel, comm::World& world) {
    try {
      main(channel);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      texts[world.rank()] = error.what();
      throw;
    }
  };
  try {
    test::run_dist(2, noted);
  } catch (const Error&) {
  }
  return texts;
}

TEST(ErrorsOfASharedVocabulary, NameTheIdAndTheWholeVocabulary) {
  const auto embedding = texts_of([](const Channel& channel) {
    vocabulary_embedding(test::ids({0, 11}), Tensor::zeros({6, 2}, DType::kF32), channel.rank() * 6, kVocab);
  });
  const auto loss = texts_of([](const Channel& channel) {
    vocabulary_cross_entropy(Tensor::zeros({2, 6}, DType::kF32), test::ids({0, 11}), channel.rank() * 6, kVocab,
                             channel, "head");
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(embedding.at(rank), HasSubstr("embedding: id 11 at position 1 is outside the vocabulary [0, 11); the "
                                              "tokenizer and the model's vocab_size do not fit"));
    EXPECT_THAT(loss.at(rank), HasSubstr("cross_entropy: target 11 in row 1 is outside the vocabulary [0, 11); fix the "
                                         "labels, or mark the row with ignore_index -100"));
  }
}

TEST(ErrorsOfASharedVocabulary, NameShapesThatDoNotFit) {
  const auto refusal = [](const std::function<void(const Channel&)>& body) { return texts_of(body)[0]; };
  EXPECT_THAT(
      refusal([](const Channel& channel) {
        vocabulary_cross_entropy(Tensor::zeros({2, 6}, DType::kF32), test::ids({0}), 0, kVocab, channel, "h");
      }),
      HasSubstr("vocabulary_cross_entropy: logits [2, 6] with targets [1]; one target for each row of logits is "
                "needed"));
  EXPECT_THAT(
      refusal([](const Channel& channel) {
        vocabulary_linear_cross_entropy(Tensor::zeros({1, 3, 4}, DType::kF32), Tensor::zeros({6, 5}, DType::kF32),
                                        test::ids({0}), 1, 0, kVocab, channel, "h");
      }),
      HasSubstr("vocabulary_linear_cross_entropy: input fp32 [1, 3, 4] with weight fp32 [6, 5] and targets [1]; "
                "[..., S, H], [V, H] in one dtype and [..., S] are needed"));
  EXPECT_THAT(
      refusal([](const Channel&) { vocabulary_embedding(test::ids({0}), Tensor::zeros({6}, DType::kF32), 0, kVocab); }),
      HasSubstr("vocabulary_embedding: weight [6]; a weight is [rows, dim]"));
  EXPECT_THAT(refusal([](const Channel&) {
                vocabulary_embedding(test::ids({0}), Tensor::zeros({6, 2}, DType::kF32), -6, kVocab);
              }),
              HasSubstr("vocabulary_embedding: the part begins at id -6 of a vocabulary of 11; both are 0 or more"));
}

TEST(ARankThatFailsBeforeALoss, EndsAllWithItsCause) {
  const auto texts = texts_of([](const Channel& channel) {
    if (channel.rank() == 1) raise<DeviceError>("no room");
    vocabulary_cross_entropy(Tensor::zeros({2, 6}, DType::kF32), test::ids({0, 1}), 0, kVocab, channel, "head");
  });
  EXPECT_EQ(texts.at(0),
            "[rank 0] all_reduce 'head largest' in group 'ep' (ranks 0,1): rank 1 failed first: [rank 1] no room");
  EXPECT_EQ(texts.at(1), "[rank 1] no room");
}

}  // namespace
}  // namespace loom::dist
