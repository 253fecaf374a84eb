#include "engine/nn/optim/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "engine/core/error.h"
#include "engine/kernels/momentum.h"
#include "engine/nn/optim/moments.h"
#include "engine/tensor/autograd.h"

namespace loom::nn {
namespace {

using Triple = std::array<double, 3>;
using device::StreamId;

constexpr Triple kQuintic[] = {{4.0848, -6.8946, 2.9270},
                               {3.9505, -6.3029, 2.6377},
                               {3.7418, -5.5913, 2.3037},
                               {2.8769, -3.1427, 1.2046},
                               {2.8366, -3.0525, 1.2012}};
constexpr Triple kPolarExpress[] = {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250},
                                    {3.2856, -2.4153, 0.4853},   {2.2779, -1.6198, 0.3985}, {1.8726, -1.2307, 0.3585},
                                    {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}};

constexpr comm::Lane kLane{5};  // FSDP has lanes 1 to 3, operators lane 4

device::Device& device() { return device::Device::current(); }

DType update_dtype(const Tensor& parameter) { return parameter.dtype() == DType::kF64 ? DType::kF64 : DType::kBF16; }

}  // namespace

ops::NewtonSchulz iteration_of(MuonCoefficients coefficients, int steps) {
  ops::NewtonSchulz iteration = ops::newton_schulz(steps);
  for (std::size_t i = 0; i < iteration.coefficients.size(); ++i) {
    if (coefficients == MuonCoefficients::kQuintic) iteration.coefficients[i] = kQuintic[i % std::size(kQuintic)];
    if (coefficients == MuonCoefficients::kPolarExpress) {
      iteration.coefficients[i] = kPolarExpress[std::min(i, std::size(kPolarExpress) - 1)];
    }
  }
  return iteration;
}

double scale_of(MuonScale scale, std::int64_t rows, std::int64_t columns) {
  const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
  if (scale == MuonScale::kSpectral) return std::sqrt(std::max(a, b));
  if (scale == MuonScale::kUnitRmsNorm) return std::sqrt(a / b);
  return std::sqrt(std::max(1.0, a / b));
}

// One matrix on its way through a step.
class Muon::Matrix {
 public:
  // Moves the momentum; rows() is then this rank's part of the update.
  Matrix(Muon& muon, const ParameterGroup& group, const OptimizedParameter& parameter)
      : muon_(muon), group_(group), parameter_(parameter), shards_(muon.shards_of(parameter)) {
    Shape padded = parameter.value.shape();
    if (shards_.ranks != nullptr) padded[0] = shards_.padded_rows;
    rows_ = temporary(padded);
    move_momentum(parameter.value.grad());
  }

  const std::string& path() const { return parameter_.path; }
  const Tensor& rows() const { return rows_; }
  device::StreamId stream() const { return shards_.stream; }

  // All ranks' rows, with the padding; it has bytes only at its owner.
  void make_full() {
    Shape whole = rows_.shape();
    whole[0] *= shards_.ranks->size();
    full_ = temporary(whole);
  }
  const Tensor& full() const { return full_; }

  // Replaces the update: full() at its owner, or rows() if no other rank shares the matrix.
  void orthogonalize(const ops::NewtonSchulz& iteration) {
    if (!full_.defined()) {
      rows_ = ops::orthogonalized(rows_, iteration);
      return;
    }
    const Tensor whole = full_.rows(0, parameter_.shard.global_shape[0]);
    const Tensor update = ops::orthogonalized(whole, iteration);
    const device::Cost cost{
        .read_bytes = update.nbytes(), .written_bytes = update.nbytes(), .unit = device::Unit::kCopy};
    device().launch("copy", cost,
                    [&] { std::memcpy(whole.raw(), update.raw(), static_cast<std::size_t>(update.nbytes())); });
  }

  // Adds rows() to the shard.
  void apply() const {
    const Tensor& value = parameter_.value;
    if (value.numel() == 0) return;
    const Shape& whole = parameter_.shard.global_shape;
    const double lr = group_.lr.value();
    const kernels::MuonUpdate op{
        .dtype = value.dtype(),
        .update_dtype = rows_.dtype(),
        .elems = value.numel(),
        .lr = lr,
        .weight_decay = group_.weight_decay.value(),
        .step = lr * muon_.options_.extra_scale * scale_of(muon_.options_.scale, whole[-2], whole[-1])};
    const device::Cost cost{3.0 * static_cast<double>(value.numel()),
                            value.numel() * element_bytes(rows_.dtype()) + value.nbytes(), value.nbytes()};
    device().launch("muon_update", cost, [&] { kernels::muon_update(op, rows_.raw(), value.raw()); });
    value.storage()->bump_version();
  }

 private:
  Tensor temporary(const Shape& shape) const {
    return Tensor::empty(shape, update_dtype(parameter_.value), device::MemCategory::kTemporary, "Muon's update");
  }

  void move_momentum(const Tensor& grad) {
    const Tensor& value = parameter_.value;
    Tensor& buffer = muon_.buffers_[value.id()];
    if (!buffer.defined()) buffer = moment_like(value);
    const kernels::MuonMomentum op{.dtype = value.dtype(),
                                   .grad_dtype = grad.dtype(),
                                   .update_dtype = rows_.dtype(),
                                   .elems = value.numel(),
                                   .momentum = muon_.options_.momentum,
                                   .nesterov = muon_.options_.nesterov};
    const device::Cost cost{4.0 * static_cast<double>(value.numel()), grad.nbytes() + buffer.nbytes(),
                            buffer.nbytes() + rows_.nbytes()};
    device().launch("muon_momentum", cost, [&] {
      auto* to = static_cast<std::byte*>(rows_.raw());
      const auto used = static_cast<std::size_t>(value.numel() * element_bytes(rows_.dtype()));
      kernels::muon_momentum(op, grad.raw(), buffer.raw(), to);
      std::memset(to + used, 0, static_cast<std::size_t>(rows_.nbytes()) - used);
    });
  }

  Muon& muon_;
  const ParameterGroup& group_;
  const OptimizedParameter& parameter_;
  const RowShards shards_;
  Tensor rows_;
  Tensor full_;
};

// As many matrices as ranks share them, each with an owner; or one matrix that no other rank shares.
class Muon::Round {
 public:
  // Begins to gather. `ranks`: null where nothing is shared. Matrix i belongs to the i-th rank, or, going `back`, to
  // the i-th from the end.
  Round(std::vector<Matrix> matrices, comm::ProcessGroup* ranks, bool back)
      : matrices_(std::move(matrices)), ranks_(ranks), back_(back) {
    if (ranks_ == nullptr) return;
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      if (is_own(i)) matrices_[i].make_full();
    }
    moved_ = submit("gather", true);
  }

  // Waits for the whole updates, orthogonalizes the own ones and begins to scatter them.
  void orthogonalize(const ops::NewtonSchulz& iteration) {
    if (ranks_ != nullptr) device().stream(StreamId::kCompute).wait(moved_);
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      if (ranks_ == nullptr || is_own(i)) matrices_[i].orthogonalize(iteration);
    }
    if (ranks_ != nullptr) moved_ = submit("scatter", false);
  }

  // Waits for this rank's rows and updates the shards.
  void finish() {
    if (ranks_ != nullptr) device().stream(StreamId::kCompute).wait(moved_);
    for (const Matrix& matrix : matrices_) matrix.apply();
  }

 private:
  int owner(std::size_t i) const {
    const auto place = static_cast<int>(i);
    return back_ ? ranks_->size() - 1 - place : place;
  }
  bool is_own(std::size_t i) const { return owner(i) == ranks_->rank(); }

  device::Event submit(std::string_view name, bool to_owners) const {
    std::int64_t sent = 0, largest = 0, received = 0;
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      const std::int64_t bytes = matrices_[i].rows().nbytes();
      sent += bytes;
      largest = std::max(largest, bytes * ranks_->size());
      if (is_own(i)) received += bytes * (ranks_->size() - 1);
    }
    device::Stream& stream = device().stream(matrices_.front().stream());
    stream.wait(device().stream(StreamId::kCompute).record());
    stream.submit({name,
                   matrices_.front().path(),
                   {.link_bytes = received, .unit = device::Unit::kLink},
                   device().dry_run() ? nullptr : work(to_owners),
                   device::Collective{device::CollectiveKind::kAllToAll, std::max(sent, largest), &ranks_->ranks(),
                                      ranks_->name()}});
    return stream.record();
  }

  // What this rank holds of the matrices of each owner, and each rank's rows of the whole matrix that is its own.
  std::function<void()> work(bool to_owners) const {
    const auto members = static_cast<std::size_t>(ranks_->size());
    std::vector<comm::Incoming> parts(members), whole(members);
    std::vector<std::shared_ptr<void>> owners;
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      const Tensor &rows = matrices_[i].rows(), &full = matrices_[i].full();
      const auto bytes = static_cast<std::size_t>(rows.nbytes());
      parts[static_cast<std::size_t>(owner(i))] = {rows.raw(), bytes};
      owners.push_back(rows.storage()->keep_alive());
      if (!full.defined()) continue;
      for (std::size_t r = 0; r < members; ++r) whole[r] = {static_cast<std::byte*>(full.raw()) + r * bytes, bytes};
      owners.push_back(full.storage()->keep_alive());
    }
    const std::vector<comm::Incoming>& from = to_owners ? parts : whole;
    std::vector<comm::Outgoing> sends;
    for (const comm::Incoming& part : from) sends.push_back({part.data, part.bytes});
    return [ranks = ranks_, sends = std::move(sends), receives = to_owners ? whole : parts, owners = std::move(owners),
            path = matrices_.front().path()] { ranks->all_to_all(kLane, sends, receives, path); };
  }

  std::vector<Matrix> matrices_;
  comm::ProcessGroup* ranks_;
  bool back_;
  device::Event moved_;
};

namespace {

// Why a matrix cannot be updated, or nothing.
std::optional<std::string> refusal(const OptimizedParameter& parameter, const Shape& together) {
  const Shape& whole = parameter.shard.global_shape;
  if (parameter.value.dtype() != DType::kF32 && parameter.value.dtype() != DType::kF64) {
    return fmt::format(
        "it is {}; Muon keeps parameters in fp32 or fp64, and param_dtype is the dtype of the gather: write "
        "--params-dtype fp32, or use --optimizer adam",
        name(parameter.value.dtype()));
  }
  if (parameter.value.storage()->place() == Place::kHost) {
    return "its shard is in host memory (offload_to_cpu); Muon updates on the device: set offload_to_cpu: false, or "
           "use "
           "--optimizer adam";
  }
  if (whole.ndim() == 2 && together != whole) {
    return fmt::format("the ranks of its shard axis have {} of {} together; Muon needs whole matrices",
                       to_string(together), to_string(whole));
  }
  return std::nullopt;
}

}  // namespace

Muon::Muon(ParameterGroups groups, const ShardedParameters& sharded, const MuonOptions& options,
           const AdamWOptions& adamw)
    : Optimizer(std::move(groups)), options_(options), rest_(adamw) {
  for (ParameterGroup& group : this->groups()) {
    if (!group.hidden_matrices && options.scalar_lr) group.lr_mult *= *options.scalar_lr / adamw.lr;
    if (!group.lr) group.lr = adamw.lr * group.lr_mult;
    if (!group.weight_decay) group.weight_decay = adamw.weight_decay;
    if (!group.hidden_matrices) continue;
    for (const OptimizedParameter& parameter : group.parameters) {
      const auto found = sharded.find(parameter.value.id());
      const bool is_whole = found == sharded.end();
      const auto why = refusal(parameter, is_whole ? parameter.value.shape() : found->second.together);
      if (why) config_error("Muon: parameter '{}': {}", parameter.path, *why);
      const bool is_matrix = parameter.shard.global_shape.ndim() == 2;
      if (!is_whole && is_matrix && found->second.dim != 0) {
        config_error("Muon: parameter '{}' is cut on dim {}; cut matrices on dim 0", parameter.path, found->second.dim);
      }
      if (!is_whole && is_matrix && found->second.ranks->size() > 1) shards_.insert(*found);
    }
  }
}

Muon::~Muon() = default;

RowShards Muon::shards_of(const OptimizedParameter& parameter) const {
  const auto found = shards_.find(parameter.value.id());
  return found == shards_.end() ? RowShards{} : found->second;
}

// The matrices that one group of ranks shares are together, the largest first; each other matrix is alone.
std::vector<Muon::Deal> Muon::deal(const ParameterGroup& group) const {
  std::vector<Deal> alone;
  std::vector<Deal> shared;
  for (const OptimizedParameter& parameter : group.parameters) {
    if (!parameter.value.grad().defined()) continue;
    comm::ProcessGroup* ranks = shards_of(parameter).ranks.get();
    if (ranks == nullptr) {
      alone.push_back({nullptr, false, {&parameter}});
      continue;
    }
    const auto same = std::ranges::find(shared, ranks, &Deal::ranks);
    Deal& all = same == shared.end() ? shared.emplace_back(Deal{ranks, false, {}}) : *same;
    all.matrices.push_back(&parameter);
  }
  std::vector<Deal> rounds = std::move(alone);
  for (Deal& all : shared) {
    std::ranges::stable_sort(all.matrices, std::greater{},
                             [](const auto* matrix) { return matrix->shard.global_shape.numel(); });
    const auto size = static_cast<std::size_t>(all.ranks->size());
    for (std::size_t begin = 0; begin < all.matrices.size(); begin += size) {
      const std::size_t end = std::min(begin + size, all.matrices.size());
      rounds.push_back({all.ranks, begin / size % 2 == 1, {all.matrices.begin() + begin, all.matrices.begin() + end}});
    }
  }
  return rounds;
}

Muon::Round Muon::begin(const ParameterGroup& group, const Deal& deal) {
  std::vector<Matrix> matrices;
  for (const OptimizedParameter* parameter : deal.matrices) matrices.emplace_back(*this, group, *parameter);
  return {std::move(matrices), deal.ranks, deal.back};
}

// While a round is orthogonalized, the next one gathers and the one before it scatters.
void Muon::step_matrices(const ParameterGroup& group) {
  const ops::NewtonSchulz iteration = iteration_of(options_.coefficients, options_.steps);
  std::deque<Round> running;
  const auto advance = [&] {
    running.back().orthogonalize(iteration);
    if (running.size() == 1) return;
    running.front().finish();
    running.pop_front();
  };
  for (const Deal& deal : deal(group)) {
    std::optional<Round> next(begin(group, deal));
    if (!running.empty()) advance();
    running.push_back(std::move(*next));
  }
  if (!running.empty()) advance();
  for (Round& round : running) round.finish();
}

void Muon::step() {
  const autograd::NoGrad no_grad;
  for (const ParameterGroup& group : groups()) {
    if (group.hidden_matrices) {
      step_matrices(group);
    } else {
      rest_.step(group);
    }
  }
}

StateNames Muon::state_names(const ParameterGroup& group) const {
  if (!group.hidden_matrices) return rest_.state_names();
  return {{"momentum_buffer"}, {}};
}

ParameterState Muon::state_of(const OptimizedParameter& parameter) const {
  const auto found = buffers_.find(parameter.value.id());
  if (found == buffers_.end()) return rest_.state_of(parameter);
  return {{"momentum_buffer", LocalTensor{found->second, parameter.shard}}};
}

ParameterState Muon::make_state(const ParameterGroup& group, const OptimizedParameter& parameter,
                                const ParameterState& numbers) {
  if (!group.hidden_matrices) return rest_.make_state(parameter, numbers);
  Tensor& buffer = buffers_[parameter.value.id()];
  if (!buffer.defined()) buffer = empty_moment_like(parameter.value);
  return state_of(parameter);
}

void Muon::drop_state(const OptimizedParameter& parameter) {
  buffers_.erase(parameter.value.id());
  rest_.drop_state(parameter);
}

std::map<std::string, double> Muon::options(const ParameterGroup& group) const {
  if (!group.hidden_matrices) return rest_.options();
  return {{"momentum", options_.momentum},
          {"nesterov", options_.nesterov ? 1.0 : 0.0},
          {"ns_steps", static_cast<double>(options_.steps)}};
}

void Muon::set_options(const ParameterGroup& group, const std::map<std::string, double>& options) {
  if (!group.hidden_matrices) return rest_.set_options(options);
  options_.momentum = options.at("momentum");
  options_.nesterov = options.at("nesterov") != 0;
  options_.steps = static_cast<int>(options.at("ns_steps"));
}

}  // namespace loom::nn
