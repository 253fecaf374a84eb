#include "tests/dist/operator_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/dist/vocabulary.h"
#include "engine/tensor/ops/general.h"

namespace loom::dist {
namespace {

Tensor sum_of(const std::vector<Tensor>& x) {
  Tensor sum = x[0];
  for (std::size_t r = 1; r < x.size(); ++r) sum = ops::add(sum, x[r]);
  return sum;
}

// Rows that rank `from` sends to rank `to`: none from rank 1 to anyone, several and different ones between others.
std::int64_t rows_between(int from, int to) { return from == 1 ? 0 : (2 * from + 3 * to + 1) % 5; }

std::vector<std::int64_t> counts(int ranks, const std::function<std::int64_t(int)>& of_rank) {
  std::vector<std::int64_t> all;
  for (int r = 0; r < ranks; ++r) all.push_back(of_rank(r));
  return all;
}

std::vector<std::int64_t> sent_by(int rank, int ranks) {
  return counts(ranks, [&](int to) { return rows_between(rank, to); });
}

RowCounts rows_of(int rank, int ranks) {
  return {sent_by(rank, ranks), counts(ranks, [&](int from) { return rows_between(from, rank); })};
}

// What each rank gets where x of every rank is cut along `cut` into parts of the given sizes, and joined along `join`.
std::vector<Tensor> exchanged(const std::vector<Tensor>& x, int cut, int join,
                              const std::function<std::vector<std::int64_t>(int rank)>& sizes) {
  std::vector<std::vector<Tensor>> received(x.size());
  for (std::size_t r = 0; r < x.size(); ++r) {
    const std::vector<Tensor> parts = ops::split(x[r], sizes(static_cast<int>(r)), cut);
    for (std::size_t to = 0; to < x.size(); ++to) received[to].push_back(parts[to]);
  }
  std::vector<Tensor> y;
  for (const std::vector<Tensor>& parts : received) y.push_back(ops::concat(parts, join));
  return y;
}

std::vector<std::int64_t> equal_sizes(const Tensor& x, int dim, std::size_t ranks) {
  return std::vector<std::int64_t>(ranks, x.shape()[dim] / static_cast<std::int64_t>(ranks));
}

Case exchange(int cut, int join) {
  return {"exchange_dims_" + std::to_string(cut) + "_" + std::to_string(join),
          [](int, int ranks) {
            return Shape{2 * ranks, ranks, 3 * ranks, 2};
          },
          [=](const Tensor& x, const Channel& channel) { return exchange_dims(x, cut, join, channel, "q"); },
          [=](const std::vector<Tensor>& x) {
            return exchanged(x, cut, join, [&](int) { return equal_sizes(x[0], cut, x.size()); });
          }};
}

Case gather(int dim, Loss loss) {
  return {"all_gather_" + std::to_string(dim) + (loss == Loss::kOfAll ? "_of_one_loss" : ""),
          [](int, int) {
            return Shape{3, 2, 5};
          },
          [=](const Tensor& x, const Channel& channel) { return all_gather(x, dim, channel, "kv", loss); },
          [=](const std::vector<Tensor>& x) { return std::vector<Tensor>(x.size(), ops::concat(x, dim)); },
          loss == Loss::kOfAll};
}

Case scatter(int dim) {
  return {"reduce_scatter_" + std::to_string(dim),
          [](int, int ranks) {
            return Shape{ranks, 2 * ranks, 3 * ranks};
          },
          [=](const Tensor& x, const Channel& channel) { return reduce_scatter(x, dim, channel, "o"); },
          [=](const std::vector<Tensor>& x) { return ops::split(sum_of(x), equal_sizes(x[0], dim, x.size()), dim); }};
}

Case reduce(Loss loss) {
  return {std::string("all_reduce") + (loss == Loss::kOfAll ? "_of_one_loss" : ""),
          [](int, int) {
            return Shape{3, 7};
          },
          [=](const Tensor& x, const Channel& channel) { return all_reduce(x, channel, "o", loss); },
          [](const std::vector<Tensor>& x) { return std::vector<Tensor>(x.size(), sum_of(x)); }, loss == Loss::kOfAll};
}

Case ring(int distance) {
  return {"shift_" + std::string(distance < 0 ? "back_" : "") + std::to_string(std::abs(distance)),
          [](int, int) {
            return Shape{3, 2};
          },
          [=](const Tensor& x, const Channel& channel) { return shift(x, distance, channel, "kv 0"); },
          [=](const std::vector<Tensor>& x) {
            const auto ranks = static_cast<int>(x.size());
            std::vector<Tensor> y;
            for (int r = 0; r < ranks; ++r) {
              y.push_back(ops::reshape(x[static_cast<std::size_t>(((r - distance) % ranks + ranks) % ranks)], {3, 2}));
            }
            return y;
          }};
}

// --- A vocabulary in parts: rank r has r + 2 ids.

std::int64_t first_id(int rank) { return rank * (rank + 3) / 2; }

Tensor some_ids(int ranks, std::int64_t other) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 8; ++i) ids.push_back(i == 5 ? other : (7 * i + 3) % first_id(ranks));
  return Tensor::from(ids, {8});
}

Case vocabulary_loss() {
  return {"vocabulary_cross_entropy",
          [](int rank, int) {
            return Shape{8, rank + 2};
          },
          [](const Tensor& x, const Channel& channel) {
            const int ranks = channel.size();
            return vocabulary_cross_entropy(x, some_ids(ranks, -100), first_id(channel.rank()), first_id(ranks),
                                            channel, "head");
          },
          [](const std::vector<Tensor>& x) {
            const Tensor targets = some_ids(static_cast<int>(x.size()), -100);
            return std::vector<Tensor>(x.size(), ops::cross_entropy(ops::concat(x, 1), targets));
          },
          true};
}

Case vocabulary_rows() {
  return {"vocabulary_embedding",
          [](int rank, int) {
            return Shape{rank + 2, 3};
          },
          [](const Tensor& x, const Channel& channel) {
            const int ranks = channel.size();
            const Tensor rows = vocabulary_embedding(some_ids(ranks, 0), x, first_id(channel.rank()), first_id(ranks));
            return all_reduce(rows, channel, "embedding", Loss::kOfAll);
          },
          [](const std::vector<Tensor>& x) {
            const Tensor ids = some_ids(static_cast<int>(x.size()), 0);
            return std::vector<Tensor>(x.size(), ops::embedding(ids, ops::concat(x, 0)));
          },
          true};
}

std::vector<Case> make_cases() {
  std::vector<Case> all{{"all_to_all",
                         [](int rank, int ranks) {
                           std::int64_t rows = 0;
                           for (const std::int64_t count : sent_by(rank, ranks)) rows += count;
                           return Shape{rows, 3};
                         },
                         [](const Tensor& x, const Channel& channel) {
                           return all_to_all(x, rows_of(channel.rank(), channel.size()), channel, "experts");
                         },
                         [](const std::vector<Tensor>& x) {
                           const auto ranks = static_cast<int>(x.size());
                           return exchanged(x, 0, 0, [=](int rank) { return sent_by(rank, ranks); });
                         }}};
  for (const auto& [cut, join] : {std::pair{0, 0}, {0, 2}, {1, 2}, {2, 1}, {2, 0}}) all.push_back(exchange(cut, join));
  for (const Loss loss : {Loss::kOfEachRank, Loss::kOfAll}) {
    for (const int dim : {0, 1, -1}) all.push_back(gather(dim, loss));
    all.push_back(reduce(loss));
  }
  for (const int dim : {0, 1, 2}) all.push_back(scatter(dim));
  for (const int distance : {1, -1, 2, 4}) all.push_back(ring(distance));
  all.push_back(vocabulary_loss());
  all.push_back(vocabulary_rows());
  return all;
}

double distance(const test::Doubles& a, const test::Doubles& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> all = make_cases();
  return all;
}

Tensor loss_of(const Tensor& y, int rank) {
  const Tensor weights = test::constant(test::normals(y.numel(), 1000 + static_cast<std::uint64_t>(rank)), y.shape());
  return test::sum(ops::mul(ops::mul(y, y), weights));
}

Tensor input_of(int rank, const Shape& shape) {
  return test::leaf(test::normals(shape.numel(), static_cast<std::uint64_t>(rank)), shape);
}

Outcome on_this_rank(const Case& of, const Channel& channel) {
  const Tensor x = input_of(channel.rank(), of.shape(channel.rank(), channel.size()));
  const Tensor y = of.part(x, channel);
  autograd::backward(loss_of(y, of.one_loss ? 0 : channel.rank()));
  return {test::values(y), test::grad(x)};
}

std::vector<Outcome> on_one_rank(const Case& of, int ranks) {
  const test::OneRank rank;
  std::vector<Tensor> x;
  for (int r = 0; r < ranks; ++r) x.push_back(input_of(r, of.shape(r, ranks)));
  const std::vector<Tensor> y = of.whole(x);
  Tensor loss = loss_of(y[0], 0);
  for (int r = 1; r < ranks && !of.one_loss; ++r) loss = ops::add(loss, loss_of(y[static_cast<std::size_t>(r)], r));
  autograd::backward(loss);
  std::vector<Outcome> outcomes;
  for (std::size_t r = 0; r < x.size(); ++r) outcomes.push_back({test::values(y[r]), test::grad(x[r])});
  return outcomes;
}

double distance(const Outcome& a, const Outcome& b) {
  return std::max(distance(a.values, b.values), distance(a.gradient, b.gradient));
}

}  // namespace loom::dist
