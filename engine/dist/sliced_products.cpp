#include "engine/dist/sliced_products.h"

#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/dist/exchange_in_flight.h"
#include "engine/dist/operators.h"
#include "engine/dist/token_slices.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/kept_results.h"

namespace loom::dist {
namespace {

using autograd::Grads;
using autograd::Needs;
using autograd::Saved;
using ops::LinearMatrix;

Shape with_last(const Shape& shape, std::int64_t last) {
  Shape result = shape;
  result[-1] = last;
  return result;
}

std::int64_t outputs_of(const LinearMatrix& matrix) { return matrix.weight.shape()[matrix.out_in ? 0 : 1]; }
std::int64_t inputs_of(const LinearMatrix& matrix) { return matrix.weight.shape()[matrix.out_in ? 1 : 0]; }

// The gathers of all slices, in their order.
class GathersInFlight {
 public:
  GathersInFlight(const Tensor& part, const TokenSlices& slices, const Channel& channel, const std::string& tag)
      : whole_(Tensor::empty(slices.whole_of(part.shape()), part.dtype())) {
    for (int i = 0; i < slices.count(); ++i) {
      if (slices.rows(i) == 0) continue;
      flights_.emplace_back(part, gather_of_slice(part, slices, i, whole_, channel, tag), channel, tag);
    }
  }

  const Tensor& whole() const { return whole_; }
  // What is next has arrived. `slice` has rows.
  void wait_next() { flights_.at(arrived_++).wait(); }
  void wait_all() {
    while (arrived_ < flights_.size()) wait_next();
  }

 private:
  Tensor whole_;
  std::vector<ExchangeInFlight> flights_;  // go before what they write to
  std::size_t arrived_ = 0;
};

// Sums over the ranks of stacks that products fill one after the other.
class SumsInFlight {
 public:
  // Of stacks of `shape`, whole.
  SumsInFlight(const Shape& shape, DType dtype, const TokenSlices& slices, const Channel& channel, std::string tag)
      : slices_(slices),
        channel_(channel),
        tag_(std::move(tag)),
        stacks_(Tensor::empty(shape, dtype)),
        part_(Tensor::empty(part_of_whole(shape, slices.ranks()), dtype)) {}

  // [t rows(i), N]
  Tensor stack(int i) const {
    const Tensor rows = stacks_.view({stacks_.numel() / stacks_.shape()[-1], stacks_.shape()[-1]});
    return rows.rows(slices_.begin(i) * slices_.ranks(), slices_.rows(i) * slices_.ranks());
  }
  // It is filled.
  void start(int i) {
    const Tensor filled = stack(i);
    flights_.emplace_back(filled, sum_of_slice(filled, slices_, i, part_, channel_, tag_), channel_, tag_);
  }
  // All stacks, one behind another.
  const Tensor& stacks() const { return stacks_; }
  Tensor wait() {
    for (ExchangeInFlight& flight : flights_) flight.wait();
    return part_;
  }

 private:
  const TokenSlices slices_;
  const Channel channel_;
  const std::string tag_;
  Tensor stacks_, part_;
  std::vector<ExchangeInFlight> flights_;  // go before what they read and write
};

void check_product(const Tensor& x, const LinearMatrix& matrix) {
  autograd::check_inputs("linear", std::vector<Tensor>{matrix.weight, matrix.bias});
  check_model(inputs_of(matrix) == x.shape()[-1] && matrix.weight.dtype() == x.dtype(),
              "linear: input {} {} with weight {} {}; a weight takes an input of as many inputs, in one dtype",
              name(x.dtype()), to_string(x.shape()), name(matrix.weight.dtype()), to_string(matrix.weight.shape()));
}

// Of one layer, in backward: without dx.
void add_parameter_gradients(Grads& result, const Tensor& x, const Tensor& dy, const LinearMatrix& matrix,
                             const Needs& needs) {
  if (needs[1]) result[1] = ops::linear_dw(x, dy, matrix.out_in);
  if (needs[2]) result[2] = ops::bias_gradient(dy);
}

// The gradient of x of these rows of dy, in the places of dy.
void add_input_gradient(const Tensor& dy, const TokenSlices& slices, int slice, const LinearMatrix& matrix,
                        const Tensor& dx) {
  for (const TokenSlices::Segment& segment : slices.segments(slice)) {
    ops::linear_dx_of_rows(dy, segment.in_whole, matrix, dx, segment.in_whole);
  }
}

}  // namespace

// --- Colwise

// Shared by the nodes of one forward.
class GatheredInput::Gather {
 public:
  Gather(const Tensor& x, const Options& options, Channel channel, std::string tag)
      : options_(options),
        channel_(std::move(channel)),
        tag_(std::move(tag)),
        slices_(x.shape(), channel_.size(), options.slices),
        part_(x.detach()),
        there_(std::make_unique<GathersInFlight>(x, slices_, channel_, tag_)) {}

  void record(const std::shared_ptr<Gather>& self, const Tensor& x) const {
    autograd::record("all_gather", {x}, {}, {there_->whole()},
                     [self](Saved, const Grads& grads, const Needs&) -> Grads { return {self->sum_of(grads[0])}; });
    there_->whole().meta_data().guard = std::make_shared<Arriving>(self);
  }

  // Of forward; then the nodes keep what they need themselves.
  std::unique_ptr<GathersInFlight>& there() { return there_; }
  void wait() {
    there_->wait_all();
    arrived_ = true;
  }
  void forget() {
    there_.reset();
    part_ = {};
  }

  Tensor product(const std::shared_ptr<Gather>& self, const LinearMatrix& matrix) {
    const Tensor x = there_->whole(), none;
    check_product(x, matrix);
    const bool sliced = !arrived_ && slices_.count() > 1;
    if (!sliced) wait();
    const Tensor y = autograd::compute_or_recall(autograd::Producer::kMatrixProduct, [&] {
                       return std::vector{sliced ? sliced_product(matrix) : whole_product(matrix)};
                     }).front();
    wait();
    const bool keeps = matrix.weight.requires_grad();
    const Tensor& kept = options_.gathers_again ? part_ : x;
    if (options_.gathers_again && keeps && autograd::will_record(std::vector<Tensor>{x, matrix.weight})) ++readers_;
    autograd::record("linear", {x, matrix.weight, matrix.bias},
                     {keeps ? kept : none, x.requires_grad() ? matrix.weight : none}, {y},
                     [self, sliced, out_in = matrix.out_in](Saved saved, const Grads& grads, const Needs& needs) {
                       return self->backward(saved, grads[0], {saved[1], out_in}, needs, sliced);
                     });
    return y;
  }

 private:
  class Arriving final : public autograd::UseGuard {
   public:
    explicit Arriving(std::weak_ptr<Gather> gather) : gather_(std::move(gather)) {}
    void check(std::string_view op) const override {
      const auto gather = gather_.lock();
      check_model(gather == nullptr || gather->arrived_,
                  "{} reads hidden states that are still gathered for '{}': between a block and its layers nothing may "
                  "read them; use overlap_slices: 1",
                  op, gather == nullptr ? "" : gather->tag_);
    }

   private:
    const std::weak_ptr<Gather> gather_;
  };

  Tensor sliced_product(const LinearMatrix& matrix) {
    const Tensor& x = there_->whole();
    const Tensor y = Tensor::empty(with_last(x.shape(), outputs_of(matrix)), x.dtype());
    for (int i = 0; i < slices_.count(); ++i) {
      if (slices_.rows(i) == 0) continue;
      there_->wait_next();
      for (const TokenSlices::Segment& segment : slices_.segments(i)) {
        ops::linear_of_rows(x, segment.in_whole, matrix, y, segment.in_whole);
      }
    }
    return y;
  }

  Tensor whole_product(const LinearMatrix& matrix) const {
    const Tensor& x = there_->whole();
    const Tensor y = Tensor::empty(with_last(x.shape(), outputs_of(matrix)), x.dtype());
    const ops::RowRanges all{0, x.numel() / x.shape()[-1]};
    ops::linear_of_rows(x, all, matrix, y, all);
    return y;
  }

  // --- In backward

  // The part of a rank of the sum of the ranks' gradients.
  Tensor sum_of(const Tensor& gradient) {
    if (sums_ == nullptr) return reduce_scatter(gradient, 1, channel_, tag_);
    require(gradient.is_same(sums_->stacks()), "the gradient of the input of '{}' changed while it was summed", tag_);
    return std::exchange(sums_, nullptr)->wait();
  }

  Grads backward(Saved saved, const Tensor& dy, const LinearMatrix& matrix, const Needs& needs, bool sliced) {
    if (options_.gathers_again && needs[1]) gather_again(saved[0]);
    Grads result(3);
    if (needs[0]) result[0] = sliced ? sliced_gradient(dy, matrix) : whole_gradient(dy, matrix);
    add_parameter_gradients(result, needs[1] && options_.gathers_again ? gathered_again() : saved[0], dy, matrix,
                            needs);
    return result;
  }

  Tensor whole_gradient(const Tensor& dy, const LinearMatrix& matrix) const {
    const Tensor dx = Tensor::empty(with_last(dy.shape(), inputs_of(matrix)), dy.dtype());
    const ops::RowRanges all{0, dy.numel() / dy.shape()[-1]};
    ops::linear_dx_of_rows(dy, all, matrix, dx, all);
    return dx;
  }

  // Of the layer that reads the input first, whose gradient comes last: each slice is summed at once. The result has
  // the stacks, which sum_of() knows.
  Tensor sliced_gradient(const Tensor& dy, const LinearMatrix& matrix) {
    sums_ =
        std::make_unique<SumsInFlight>(with_last(dy.shape(), inputs_of(matrix)), dy.dtype(), slices_, channel_, tag_);
    const Tensor others = autograd::take_gradient_sum(0);
    for (int i = 0; i < slices_.count(); ++i) {
      if (slices_.rows(i) == 0) continue;
      const Tensor stack = sums_->stack(i);
      for (const TokenSlices::Segment& segment : slices_.segments(i)) {
        ops::linear_dx_of_rows(dy, segment.in_whole, matrix, stack, segment.in_stack);
        if (others.defined()) ops::add_rows(others, segment.in_whole, stack, segment.in_stack);
      }
      sums_->start(i);
    }
    return sums_->stacks();
  }

  // At the first of the layers.
  void gather_again(const Tensor& part) {
    if (again_ != nullptr) return;
    again_ = std::make_unique<GathersInFlight>(part, TokenSlices(part.shape(), channel_.size(), 1), channel_, tag_);
  }
  // The last of the layers takes it away.
  Tensor gathered_again() {
    again_->wait_all();
    const Tensor whole = again_->whole();
    if (--readers_ == 0) again_.reset();
    return whole;
  }

  const Options options_;
  const Channel channel_;
  const std::string tag_;
  const TokenSlices slices_;
  Tensor part_;
  std::unique_ptr<GathersInFlight> there_;
  bool arrived_ = false;
  int readers_ = 0;                         // layers that will need the input in backward
  std::unique_ptr<GathersInFlight> again_;  // in backward
  std::unique_ptr<SumsInFlight> sums_;
};

GatheredInput::GatheredInput(const Tensor& x, const Options& options, const Channel& channel, const std::string& tag)
    : gather_(std::make_shared<Gather>(x, options, channel, tag)) {
  gather_->record(gather_, x);
}

GatheredInput::~GatheredInput() { gather_->forget(); }

const Tensor& GatheredInput::whole() const { return gather_->there()->whole(); }
void GatheredInput::wait() { gather_->wait(); }
Tensor GatheredInput::product(const LinearMatrix& matrix) { return gather_->product(gather_, matrix); }

// --- Rowwise

namespace {

Grads product_and_sum_backward(Saved saved, const Tensor& gradient, const LinearMatrix& matrix, const Needs& needs,
                               const TokenSlices& slices, const Channel& channel, const std::string& tag) {
  GathersInFlight gathers(gradient, slices, channel, tag);
  const Tensor& dy = gathers.whole();
  Grads result(3);
  if (needs[0]) {
    result[0] = Tensor::empty(with_last(dy.shape(), inputs_of(matrix)), dy.dtype());
    for (int i = 0; i < slices.count(); ++i) {
      if (slices.rows(i) == 0) continue;
      gathers.wait_next();
      add_input_gradient(dy, slices, i, matrix, result[0]);
    }
  }
  gathers.wait_all();
  add_parameter_gradients(result, saved[0], dy, matrix, needs);
  return result;
}

}  // namespace

Tensor product_and_sum(const Tensor& x, const LinearMatrix& matrix, int slices, const Channel& channel,
                       const std::string& tag) {
  check_product(x, matrix);
  const Shape part = part_of_whole(with_last(x.shape(), outputs_of(matrix)), channel.size());
  const TokenSlices cut(part, channel.size(), slices);
  const Tensor none;
  autograd::Recording recording("linear_reduce_scatter", {x, matrix.weight, matrix.bias},
                                {matrix.weight.requires_grad() ? x : none, x.requires_grad() ? matrix.weight : none});
  SumsInFlight sums(with_last(x.shape(), outputs_of(matrix)), x.dtype(), cut, channel, tag);
  for (int i = 0; i < cut.count(); ++i) {
    if (cut.rows(i) == 0) continue;
    const Tensor stack = sums.stack(i);
    for (const TokenSlices::Segment& segment : cut.segments(i)) {
      ops::linear_of_rows(x, segment.in_whole, matrix, stack, segment.in_stack);
    }
    sums.start(i);
  }
  const Tensor y = sums.wait();
  recording.finish(
      {y}, [cut, channel, tag, out_in = matrix.out_in](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
        return product_and_sum_backward(saved, grads[0], {saved[1], out_in}, needs, cut, channel, tag);
      });
  return y;
}

}  // namespace loom::dist
