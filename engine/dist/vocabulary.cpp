#include "engine/dist/vocabulary.h"

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/dist/collectives.h"
#include "engine/kernels/vocabulary.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/linear_loss.h"
#include "engine/tensor/ops/padding.h"

namespace loom::dist {
namespace {

using autograd::Grads;
using autograd::Needs;
using autograd::Saved;
using kernels::VocabularyPart;

template <class Run>
void launch(std::string_view kernel, double flops, std::int64_t read_bytes, std::int64_t written_bytes, Run&& run) {
  const device::Cost cost{.flops = flops, .read_bytes = read_bytes, .written_bytes = written_bytes};
  device::Device::current().launch(kernel, cost, std::forward<Run>(run));
}

void check_ids(std::string_view op, std::int64_t first, std::int64_t vocab) {
  check_model(first >= 0 && vocab >= 0, "{}: the part begins at id {} of a vocabulary of {}; both are 0 or more", op,
              first, vocab);
}

// --- Embedding

// Of the bytes of all ids' rows, those that a rank has of ids in equal shares.
std::int64_t own_bytes(const kernels::Embedding& op, const Tensor& rows) {
  return op.vocab == 0 ? 0 : rows.nbytes() * op.table_rows() / op.vocab;
}

Tensor embedding_gradient(const kernels::Embedding& op, const Tensor& ids, const Tensor& dy, std::int64_t padding) {
  const Tensor dweight = Tensor::empty({op.table_rows(), op.dim}, op.dtype);
  launch("vocabulary_embedding_grad", static_cast<double>(own_bytes(op, dy)) / element_bytes(op.dtype),
         ids.nbytes() + own_bytes(op, dy), dweight.nbytes(), [&] {
           kernels::embedding_backward(op, ids.raw(), dy.raw(), dweight.raw());
           ops::drop_padding_row(dweight, padding, op.first);
         });
  return dweight;
}

// --- Cross-entropy

// Of the joined logits, alike on all ranks; fp32, fp64 for fp64.
struct Statistics {
  Tensor largest;  // [rows]
  Tensor sums;     // [2, rows]: of exp(logit - largest), and the targets' logits

  void* exps() const { return sums.rows(0, 1).raw(); }
  void* target_logits() const { return sums.rows(1, 1).raw(); }
};

VocabularyPart part_of(const Tensor& logits, const Tensor& targets, std::int64_t first, std::int64_t vocab,
                       std::int64_t ignore_index) {
  return {logits.dtype(), targets.numel(), logits.shape()[-1], first, vocab, targets.dtype(), ignore_index};
}

void check_targets(const Tensor& logits, const Tensor& targets) {
  const Shape& shape = logits.shape();
  std::int64_t rows = 1;
  for (int dim = 0; dim + 1 < shape.ndim(); ++dim) rows *= shape[dim];
  check_model(shape.ndim() >= 1 && targets.numel() == rows,
              "vocabulary_cross_entropy: logits {} with targets {}; one target for each row of logits is needed",
              to_string(shape), to_string(targets.shape()));
}

double flops_of(const Tensor& logits) { return 3.0 * static_cast<double>(logits.numel()); }

Statistics statistics_of(const VocabularyPart& op, const Tensor& logits, const Tensor& targets, const Channel& channel,
                         const std::string& tag) {
  const DType dtype = op.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const Statistics own{Tensor::empty({op.rows}, dtype), Tensor::empty({2, op.rows}, dtype)};
  launch("vocabulary_statistics", flops_of(logits), logits.nbytes() + targets.nbytes(),
         own.largest.nbytes() + own.sums.nbytes(), [&] {
           kernels::vocabulary_statistics(op, logits.raw(), targets.raw(), own.largest.raw(), own.exps(),
                                          own.target_logits());
         });
  if (channel.size() == 1) return own;
  const Statistics all{reduced(own.largest, comm::ReduceOp::max(), channel, tag + " largest"), own.sums};
  launch("vocabulary_rescale", 2.0 * static_cast<double>(op.rows), 3 * own.largest.nbytes(), own.largest.nbytes(),
         [&] { kernels::vocabulary_rescale(op, own.largest.raw(), all.largest.raw(), all.exps()); });
  reduce_in_place(all.sums, comm::ReduceOp::sum(), channel, tag + " sums");
  return all;
}

ops::SumOfLosses losses_of(const VocabularyPart& op, const Tensor& targets, const Statistics& all) {
  kernels::CrossEntropySum sum;
  launch("vocabulary_loss", 3.0 * static_cast<double>(op.rows),
         targets.nbytes() + all.largest.nbytes() + all.sums.nbytes(), 0, [&] {
           sum = kernels::vocabulary_loss(op, targets.raw(), all.largest.raw(), all.exps(), all.target_logits());
         });
  return {sum.loss, sum.rows};
}

// dlogits, which may be the logits, of losses of which each counts row_scale() times.
template <class RowScale>
void write_gradient(const VocabularyPart& op, const Tensor& logits, const Tensor& targets, const Statistics& all,
                    const RowScale& row_scale, const Tensor& dlogits) {
  launch("vocabulary_cross_entropy_grad", flops_of(logits),
         logits.nbytes() + targets.nbytes() + 2 * all.largest.nbytes(), dlogits.nbytes(), [&] {
           kernels::vocabulary_gradient(op, logits.raw(), targets.raw(), all.largest.raw(), all.exps(), row_scale(),
                                        dlogits.raw());
         });
}

double value_of(const Tensor& scalar) {
  double value = 0;
  kernels::cast(1, scalar.dtype(), scalar.raw(), DType::kF64, &value);
  return value;
}

Tensor logits_gradient(const VocabularyPart& op, Saved saved, std::int64_t counted, const Tensor& gradient) {
  const Tensor& logits = saved[0];
  // The saved tensor is the only owner of the logits' bytes, which are no longer needed.
  const bool reuse = logits.is_owned_by(1);
  const Tensor dlogits = reuse ? logits.detach() : Tensor::empty(logits.shape(), logits.dtype());
  const auto row_scale = [&] { return counted == 0 ? 0.0 : value_of(gradient) / static_cast<double>(counted); };
  write_gradient(op, logits, saved[1], {saved[2], saved[3]}, row_scale, dlogits);
  return dlogits;
}

}  // namespace

Tensor vocabulary_embedding(const Tensor& ids, const Tensor& weight, std::int64_t first, std::int64_t vocab,
                            std::int64_t padding) {
  check_ids("vocabulary_embedding", first, vocab);
  check_model(weight.shape().ndim() == 2, "vocabulary_embedding: weight {}; a weight is [rows, dim]",
              to_string(weight.shape()));
  const std::int64_t rows = weight.shape()[0], dim = weight.shape()[1];
  const kernels::Embedding op{.dtype = weight.dtype(),
                              .count = ids.numel(),
                              .vocab = vocab,
                              .dim = dim,
                              .id_dtype = ids.dtype(),
                              .first = first,
                              .rows = rows};
  std::vector<std::int64_t> sizes = ids.shape().sizes();
  sizes.push_back(dim);
  const Tensor y = Tensor::empty(Shape(sizes), weight.dtype());
  launch("vocabulary_embedding", 0, ids.nbytes() + own_bytes(op, y), y.nbytes(),
         [&] { kernels::embedding_forward(op, ids.raw(), weight.raw(), y.raw()); });
  autograd::record("vocabulary_embedding", {weight}, {ids}, {y},
                   [op, padding](Saved saved, const Grads& grads, const Needs&) -> Grads {
                     return {embedding_gradient(op, saved[0], grads[0], padding)};
                   });
  return y;
}

Tensor vocabulary_cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t first, std::int64_t vocab,
                                const Channel& channel, const std::string& tag, std::int64_t ignore_index) {
  check_ids("vocabulary_cross_entropy", first, vocab);
  check_targets(logits, targets);
  const VocabularyPart op = part_of(logits, targets, first, vocab, ignore_index);
  const Statistics all = statistics_of(op, logits, targets, channel, tag);
  const auto [sum, counted] = losses_of(op, targets, all);
  const Tensor loss = Tensor::full({}, all.largest.dtype(), counted == 0 ? 0.0 : sum / static_cast<double>(counted));
  autograd::record("vocabulary_cross_entropy", {logits}, {logits, targets, all.largest, all.sums}, {loss},
                   [op, counted = counted](Saved saved, const Grads& grads, const Needs&) -> Grads {
                     return {logits_gradient(op, saved, counted, grads[0])};
                   });
  return loss;
}

Tensor vocabulary_linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, std::int64_t chunk,
                                       std::int64_t first, std::int64_t vocab, const Channel& channel,
                                       const std::string& tag, std::int64_t ignore_index) {
  check_ids("vocabulary_linear_cross_entropy", first, vocab);
  return ops::linear_loss("vocabulary_linear_cross_entropy", x, weight, targets, chunk,
                          [&](const Tensor& logits, const Tensor& wanted, bool gradient) {
                            const VocabularyPart op = part_of(logits, wanted, first, vocab, ignore_index);
                            const Statistics all = statistics_of(op, logits, wanted, channel, tag);
                            const ops::SumOfLosses losses = losses_of(op, wanted, all);
                            if (gradient)
                              write_gradient(
                                  op, logits, wanted, all, [] { return 1.0; }, logits);
                            return losses;
                          });
}

}  // namespace loom::dist
