#include "engine/nn/optim/swapped_adamw.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/nn/optim/adamw_update.h"

namespace loom::nn {
namespace {

using device::StreamId;

constexpr std::int64_t kBlockBytes = 512;  // as device memory rounds

Tensor moment_on_host(const Tensor& parameter) {
  auto storage = std::make_shared<Storage>(Place::kHost, &device::Device::current(), parameter.nbytes(),
                                           device::MemCategory::kOptimizerState, "optimizer state", /*pinned=*/true);
  storage->allocate();
  return {std::move(storage), 0, parameter.shape(), parameter.dtype()};
}

std::byte* bytes_at(const Tensor& tensor, std::int64_t elem) {
  auto* const begin = static_cast<std::byte*>(tensor.raw());
  return begin == nullptr ? nullptr : begin + elem * element_bytes(tensor.dtype());
}

std::string name_of(const OptimizedParameter& parameter) {
  return parameter.path.empty() ? to_string(parameter.value.shape()) : "'" + parameter.path + "'";
}

}  // namespace

// A run of elements of one parameter, and of its moments.
struct SwappedAdamW::Piece {
  const ParameterGroup* group = nullptr;
  const OptimizedParameter* parameter = nullptr;
  Tensor grad;
  State* state = nullptr;
  std::int64_t begin = 0;
  std::int64_t elems = 0;

  std::int64_t moment_bytes() const { return elems * element_bytes(parameter->value.dtype()); }
};

// A batch on its way through the device.
class SwappedAdamW::Passage {
 public:
  // Issues the copies in, after `room`: their memory is free then.
  Passage(const Batch& batch, const AdamWOptions& options, const device::Event& room)
      : batch_(&batch), options_(&options) {
    device::Stream& stream = device().stream(StreamId::kH2D);
    stream.wait(room);
    const device::PoolScope pool(device().memory(), StreamId::kH2D);
    for (const Piece& piece : batch) {
      OnDevice& moments = moments_.emplace_back();
      moments.m = copied_in(piece, piece.state->m, stream);
      moments.v = copied_in(piece, piece.state->v, stream);
      moments.landed = stream.record();
    }
  }

  // Issues the updates, and the copies out behind each. The last of them.
  device::Event update() {
    device::Stream& compute = device().stream(StreamId::kCompute);
    device::Stream& out = device().stream(StreamId::kD2H);
    for (std::size_t i = 0; i < batch_->size(); ++i) {
      const Piece& piece = (*batch_)[i];
      const OnDevice& moments = moments_[i];
      compute.wait(moments.landed);
      update(piece, moments);
      out.wait(compute.record());
      copy_out(piece, moments.m, piece.state->m, out);
      copy_out(piece, moments.v, piece.state->v, out);
    }
    return out.record();
  }

 private:
  struct OnDevice {
    Tensor m;
    Tensor v;
    device::Event landed;
  };

  static device::Device& device() { return device::Device::current(); }

  static device::Cost link_cost(std::int64_t bytes, device::WorkKind work) {
    return {.read_bytes = bytes, .written_bytes = bytes, .unit = device::Unit::kHostLink, .pinned = true, .work = work};
  }

  static std::function<void()> copy(const Tensor& from, std::int64_t from_elem, const Tensor& to, std::int64_t to_elem,
                                    std::int64_t bytes) {
    if (device().dry_run()) return nullptr;
    return [source = bytes_at(from, from_elem), target = bytes_at(to, to_elem), bytes,
            source_owner = from.storage()->keep_alive(), target_owner = to.storage()->keep_alive()] {
      std::memcpy(target, source, static_cast<std::size_t>(bytes));
    };
  }

  static Tensor copied_in(const Piece& piece, const Tensor& home, device::Stream& stream) {
    const Tensor moment =
        Tensor::empty({piece.elems}, home.dtype(), device::MemCategory::kOptimizerState, "moments on the device");
    stream.submit({"h2d", piece.parameter->path, link_cost(piece.moment_bytes(), device::WorkKind::kH2D),
                   copy(home, piece.begin, moment, 0, piece.moment_bytes())});
    return moment;
  }

  static void copy_out(const Piece& piece, const Tensor& moment, const Tensor& home, device::Stream& stream) {
    stream.submit({"d2h", piece.parameter->path, link_cost(piece.moment_bytes(), device::WorkKind::kD2H),
                   copy(moment, 0, home, piece.begin, piece.moment_bytes())});
  }

  void update(const Piece& piece, const OnDevice& moments) const {
    const Tensor& parameter = piece.parameter->value;
    const kernels::AdamW op =
        adamw_update(parameter, piece.grad, *piece.group, *options_, piece.elems, piece.state->step);
    device().launch("adamw", adamw_cost(op), [&] {
      kernels::adamw(op, bytes_at(parameter, piece.begin), bytes_at(piece.grad, piece.begin), moments.m.raw(),
                     moments.v.raw());
    });
    parameter.storage()->bump_version();
  }

  const Batch* batch_;
  const AdamWOptions* options_;
  std::vector<OnDevice> moments_;
};

SwappedAdamW::SwappedAdamW(ParameterGroups groups, const AdamWOptions& options, const MomentSwap& swap)
    : Optimizer(std::move(groups)), options_(options), swap_(swap) {
  for (ParameterGroup& group : this->groups()) {
    if (!group.lr) group.lr = options.lr * group.lr_mult;
    if (!group.weight_decay) group.weight_decay = options.weight_decay;
    for (const OptimizedParameter& parameter : group.parameters) {
      if (parameter.value.storage()->place() != Place::kHost) continue;
      config_error(
          "AdamW with swapped moments: parameter {} is in host memory (offload_to_cpu), and its moments are there "
          "already; set offload_to_cpu: false, or use --optimizer adam without --swap-optimizer",
          name_of(parameter));
    }
  }
}

SwappedAdamW::State& SwappedAdamW::state_for(const OptimizedParameter& parameter) {
  State& state = states_[parameter.value.id()];
  if (state.m.defined()) return state;
  state.m = moment_on_host(parameter.value);
  state.v = moment_on_host(parameter.value);
  state.m.fill(0);
  state.v.fill(0);
  return state;
}

// The previous step's copies to the host; the last one follows all others.
void SwappedAdamW::wait_for_moments() {
  if (!last_home_.defined()) return;
  last_home_.storage()->wait_ready();
  set_ready({});
}

void SwappedAdamW::set_ready(const device::Event& home) {
  for (auto& [id, state] : states_) {
    state.m.storage()->set_ready(home);
    state.v.storage()->set_ready(home);
  }
}

std::vector<SwappedAdamW::Piece> SwappedAdamW::whole_parameters() {
  std::vector<Piece> pieces;
  for (const ParameterGroup& group : groups()) {
    for (const OptimizedParameter& parameter : group.parameters) {
      const Tensor grad = parameter.value.grad();
      if (!grad.defined()) continue;
      pieces.push_back({&group, &parameter, grad, nullptr, 0, parameter.value.numel()});
    }
  }
  return pieces;
}

std::vector<SwappedAdamW::Batch> SwappedAdamW::batches_in(const std::vector<Piece>& parameters, double fraction) {
  const device::DeviceMemory& memory = device::Device::current().memory();
  const std::int64_t unused_bytes = memory.capacity_bytes() - memory.stats().allocator.allocated_bytes;
  const auto budget_bytes = static_cast<std::int64_t>(fraction * static_cast<double>(unused_bytes));
  std::vector<Batch> batches;
  std::int64_t free_bytes = 0;
  for (const Piece& piece : parameters) {
    const std::int64_t bytes = 2 * round_up(piece.moment_bytes(), kBlockBytes);
    if (bytes > budget_bytes) {
      config_error(
          "adamw_swap: the two moments of parameter {} take {} bytes, and mem_fraction_static {} of the {} bytes that "
          "the device has unused is {}; raise --mem-fraction-static, or leave more of the device's memory unused",
          name_of(*piece.parameter), bytes, fraction, unused_bytes, budget_bytes);
    }
    if (batches.empty() || bytes > free_bytes) {
      batches.emplace_back();
      free_bytes = budget_bytes;
    }
    batches.back().push_back(piece);
    free_bytes -= bytes;
  }
  return batches;
}

std::vector<SwappedAdamW::Batch> SwappedAdamW::slices_of(const std::vector<Piece>& parameters, int times) {
  std::int64_t total = 0;
  for (const Piece& piece : parameters) total += piece.elems;
  const std::int64_t slice_elems = ceil_div(total, std::int64_t{times});
  std::vector<Batch> slices;
  std::int64_t free_elems = 0;
  for (Piece piece : parameters) {
    const std::int64_t end = piece.elems;
    for (piece.begin = 0; piece.begin < end; piece.begin += piece.elems) {
      if (free_elems == 0) {
        slices.emplace_back();
        free_elems = slice_elems;
      }
      piece.elems = std::min(free_elems, end - piece.begin);
      slices.back().push_back(piece);
      free_elems -= piece.elems;
    }
  }
  return slices;
}

std::vector<SwappedAdamW::Batch> SwappedAdamW::batches() {
  const std::vector<Piece> parameters = whole_parameters();
  const auto* by_memory = std::get_if<BatchesByMemory>(&swap_);
  std::vector<Batch> batches = by_memory != nullptr ? batches_in(parameters, by_memory->mem_fraction_static)
                                                    : slices_of(parameters, std::get<SlicesByCount>(swap_).times);
  wait_for_moments();
  for (const Piece& piece : parameters) ++state_for(*piece.parameter).step;
  for (Batch& batch : batches) {
    for (Piece& piece : batch) piece.state = &state_for(*piece.parameter);
  }
  return batches;
}

void SwappedAdamW::step() {
  const std::vector<Batch> batches = this->batches();
  const std::size_t ahead = std::holds_alternative<SlicesByCount>(swap_) ? 1 : 0;
  std::vector<device::Event> left;
  std::deque<Passage> passages;
  for (std::size_t next = 0, now = 0; now < batches.size(); ++now) {
    for (; next < batches.size() && next <= now + ahead; ++next) {
      passages.emplace_back(batches[next], options_, next > ahead ? left[next - ahead - 1] : device::Event{});
    }
    left.push_back(passages.front().update());
    passages.pop_front();
  }
  if (left.empty()) return;
  last_home_ = batches.back().back().state->v;
  set_ready(left.back());
}

ParameterState SwappedAdamW::state_of(const OptimizedParameter& parameter) const {
  const auto found = states_.find(parameter.value.id());
  return found == states_.end() ? ParameterState{} : found->second.named(parameter.shard);
}

ParameterState SwappedAdamW::make_state(const ParameterGroup&, const OptimizedParameter& parameter,
                                        const ParameterState& numbers) {
  state_for(parameter).step = static_cast<std::int64_t>(std::get<double>(numbers.at("step")));
  return state_of(parameter);
}

}  // namespace loom::nn
