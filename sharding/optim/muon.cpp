#include "sharding/optim/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "engine/core/error.h"
#include "engine/kernels/momentum.h"
#include "engine/nn/optim/moments.h"
#include "engine/tensor/autograd.h"
#include "sharding/fsdp/fsdp_state.h"
#include "sharding/lanes.h"

namespace loom::sharding {
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

// How the ranks of an axis hold a matrix: `padded_rows` each, the last ones padded.
struct Muon::Shards {
  std::shared_ptr<comm::ProcessGroup> ranks;
  std::int64_t padded_rows = 0;
};

// One matrix on its way through a step.
class Muon::Update {
 public:
  // Moves the momentum, and begins to gather.
  Update(Muon& muon, const nn::ParameterGroup& group, const nn::OptimizedParameter& parameter, const Tensor& grad)
      : muon_(muon), group_(group), parameter_(parameter) {
    const auto found = muon.shards_.find(parameter.value.id());
    if (found != muon.shards_.end()) shards_ = found->second;
    const Shape& local = parameter.value.shape();
    Shape padded = local;
    if (shards_.ranks != nullptr) padded[0] = shards_.padded_rows;
    own_ = temporary(padded);
    move_momentum(grad);
    if (shards_.ranks != nullptr) gather();
  }

  // Waits for the whole, orthogonalizes it and updates the shard.
  void finish(const ops::NewtonSchulz& iteration) {
    const Shape& whole = parameter_.shard.global_shape;
    const bool is_gathered = shards_.ranks != nullptr;
    if (is_gathered) device().stream(StreamId::kCompute).wait(gathered_);
    const Tensor update = ops::orthogonalized(is_gathered ? full_.rows(0, whole[0]) : own_, iteration);
    full_ = own_ = {};
    const Tensor& value = parameter_.value;
    if (value.numel() == 0) return;
    const Tensor own_rows = is_gathered ? update.rows(parameter_.shard.offset[0], value.shape()[0]) : update;
    const double lr = group_.lr.value();
    const kernels::MuonUpdate op{
        .dtype = value.dtype(),
        .update_dtype = own_rows.dtype(),
        .elems = value.numel(),
        .lr = lr,
        .weight_decay = group_.weight_decay.value(),
        .step = lr * muon_.options_.extra_scale * scale_of(muon_.options_.scale, whole[-2], whole[-1])};
    const device::Cost cost{3.0 * static_cast<double>(value.numel()), own_rows.nbytes() + value.nbytes(),
                            value.nbytes()};
    device().launch("muon_update", cost, [&] { kernels::muon_update(op, own_rows.raw(), value.raw()); });
    value.storage()->bump_version();
  }

 private:
  static device::Device& device() { return device::Device::current(); }
  Tensor temporary(const Shape& shape) const {
    return Tensor::empty(shape, update_dtype(parameter_.value), device::MemCategory::kTemporary, "Muon's update");
  }

  void move_momentum(const Tensor& grad) {
    const Tensor& value = parameter_.value;
    Tensor& buffer = muon_.buffers_[value.id()];
    if (!buffer.defined()) buffer = nn::moment_like(value);
    const kernels::MuonMomentum op{.dtype = value.dtype(),
                                   .grad_dtype = grad.dtype(),
                                   .update_dtype = own_.dtype(),
                                   .elems = value.numel(),
                                   .momentum = muon_.options_.momentum,
                                   .nesterov = muon_.options_.nesterov};
    const device::Cost cost{4.0 * static_cast<double>(value.numel()), grad.nbytes() + buffer.nbytes(),
                            buffer.nbytes() + own_.nbytes()};
    device().launch("muon_momentum", cost, [&, own = own_] {
      auto* to = static_cast<std::byte*>(own.raw());
      const auto used = static_cast<std::size_t>(value.numel() * element_bytes(own.dtype()));
      kernels::muon_momentum(op, grad.raw(), buffer.raw(), to);
      std::memset(to + used, 0, static_cast<std::size_t>(own.nbytes()) - used);
    });
  }

  void gather() {
    Shape whole = own_.shape();
    whole[0] *= shards_.ranks->size();
    full_ = temporary(whole);
    const auto bytes = static_cast<std::size_t>(own_.nbytes());
    std::function<void()> run;
    if (!device().dry_run()) {
      const comm::GatherPart part{own_.raw(), full_.raw(), bytes};
      run = [ranks = shards_.ranks, part, path = parameter_.path, from = own_.storage()->keep_alive(),
             to = full_.storage()->keep_alive()] {
        ranks->all_gather(kGatherLane, {&part, 1}, path);
      };
    }
    device::Stream& stream = device().stream(StreamId::kGather);
    stream.wait(device().stream(StreamId::kCompute).record());
    stream.submit({"all_gather",
                   parameter_.path,
                   {.link_bytes = full_.nbytes() - own_.nbytes(), .unit = device::Unit::kLink},
                   std::move(run),
                   device::Collective{device::CollectiveKind::kAllGather, full_.nbytes(), &shards_.ranks->ranks()}});
    gathered_ = stream.record();
  }

  Muon& muon_;
  const nn::ParameterGroup& group_;
  const nn::OptimizedParameter& parameter_;
  Shards shards_;
  Tensor own_;   // this rank's rows of the update
  Tensor full_;  // all ranks' rows
  device::Event gathered_;
};

namespace {

// Why a matrix cannot be updated, or nothing.
std::optional<std::string> refusal(const nn::OptimizedParameter& parameter, const Param* param) {
  const Shape& whole = parameter.shard.global_shape;
  if (parameter.value.dtype() != DType::kF32 && parameter.value.dtype() != DType::kF64) {
    return fmt::format("it is {}; Muon keeps parameters in fp32 or fp64, and param_dtype says what is gathered",
                       name(parameter.value.dtype()));
  }
  if (parameter.value.storage()->place() == Place::kHost) {
    return "its shard is in host memory (offload_to_cpu); Muon updates on the device: set offload_to_cpu: false, or "
           "use "
           "--optimizer adam";
  }
  const Shape& together = param == nullptr ? parameter.value.shape() : param->shape();
  if (whole.ndim() == 2 && together != whole) {
    return fmt::format("the ranks of its shard axis have {} of {} together; Muon needs whole matrices",
                       to_string(together), to_string(whole));
  }
  return std::nullopt;
}

}  // namespace

Muon::Muon(nn::Module& root, nn::ParameterGroups groups, const MuonOptions& options, const nn::AdamWOptions& adamw)
    : Optimizer(std::move(groups)), options_(options), rest_(adamw) {
  std::unordered_map<const void*, std::pair<const Param*, const ParamGroup*>> owners;
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) owners[param->sharded().id()] = {param.get(), state->group()};
  }
  for (nn::ParameterGroup& group : this->groups()) {
    if (!group.lr) group.lr = adamw.lr;
    if (!group.weight_decay) group.weight_decay = adamw.weight_decay;
    if (!group.hidden_matrices) continue;
    for (const nn::OptimizedParameter& parameter : group.parameters) {
      const auto found = owners.find(parameter.value.id());
      const auto [param, owner] = found == owners.end() ? decltype(found->second){} : found->second;
      if (const auto why = refusal(parameter, param)) config_error("Muon: parameter '{}': {}", parameter.path, *why);
      const bool is_matrix = parameter.shard.global_shape.ndim() == 2;
      if (param == nullptr || !is_matrix || owner->axes().shard.size() == 1) continue;
      shards_[parameter.value.id()] = {owner->axes().shard.shared_group(), param->chunk().padded_rows};
    }
  }
}

Muon::~Muon() = default;

void Muon::step_matrices(const nn::ParameterGroup& group) {
  const ops::NewtonSchulz iteration = iteration_of(options_.coefficients, options_.steps);
  std::optional<Update> running;
  for (const nn::OptimizedParameter& parameter : group.parameters) {
    const Tensor grad = parameter.value.grad();
    if (!grad.defined()) continue;
    Update next(*this, group, parameter, grad);
    if (running) running->finish(iteration);
    running.emplace(std::move(next));
  }
  if (running) running->finish(iteration);
}

void Muon::step() {
  const autograd::NoGrad no_grad;
  for (const nn::ParameterGroup& group : groups()) {
    if (group.hidden_matrices) {
      step_matrices(group);
    } else {
      rest_.step(group);
    }
  }
}

nn::StateNames Muon::state_names(const nn::ParameterGroup& group) const {
  if (!group.hidden_matrices) return rest_.state_names();
  return {{"momentum_buffer"}, {}};
}

nn::ParameterState Muon::state_of(const nn::OptimizedParameter& parameter) const {
  const auto found = buffers_.find(parameter.value.id());
  if (found == buffers_.end()) return rest_.state_of(parameter);
  return {{"momentum_buffer", nn::LocalTensor{found->second, parameter.shard}}};
}

nn::ParameterState Muon::make_state(const nn::ParameterGroup& group, const nn::OptimizedParameter& parameter,
                                    const nn::ParameterState& numbers) {
  if (!group.hidden_matrices) return rest_.make_state(parameter, numbers);
  Tensor& buffer = buffers_[parameter.value.id()];
  if (!buffer.defined()) buffer = nn::empty_moment_like(parameter.value);
  return state_of(parameter);
}

void Muon::drop_state(const nn::OptimizedParameter& parameter) {
  buffers_.erase(parameter.value.id());
  rest_.drop_state(parameter);
}

std::map<std::string, double> Muon::options(const nn::ParameterGroup& group) const {
  if (!group.hidden_matrices) return rest_.options();
  return {{"momentum", options_.momentum},
          {"nesterov", options_.nesterov ? 1.0 : 0.0},
          {"ns_steps", static_cast<double>(options_.steps)}};
}

void Muon::set_options(const nn::ParameterGroup& group, const std::map<std::string, double>& options) {
  if (!group.hidden_matrices) return rest_.set_options(options);
  options_.momentum = options.at("momentum");
  options_.nesterov = options.at("nesterov") != 0;
  options_.steps = static_cast<int>(options.at("ns_steps"));
}

}  // namespace loom::sharding
