#include "sharding/fsdp/gather.h"

#include <cstring>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/core/shown_path.h"
#include "engine/kernels/fused.h"
#include "sharding/lanes.h"
#include "sharding/memory.h"
#include "sharding/streams.h"

namespace loom::sharding {
namespace {

using device::MemCategory;
using device::StreamId;

constexpr std::int64_t kSegmentAlign = 64;

std::int64_t aligned(std::int64_t bytes) { return round_up(bytes, kSegmentAlign); }

void run_all(const std::vector<std::function<void()>>& work) {
  for (const auto& run : work) run();
}

class BufferedGather final : public Gather {
 public:
  BufferedGather(GatherFrom from, std::vector<Param*> params, std::shared_ptr<comm::ProcessGroup> group,
                 device::Device& device, std::string path, std::shared_ptr<AllGather> comm)
      : Gather(from, std::move(params), std::move(group), device, std::move(path)), comm_(std::move(comm)) {}

  void issue() override {
    const device::PoolScope pool(device_.memory(), kGatherCopyInStream);
    const std::vector<Tensor> inputs = inputs_on_device();
    buffer_ = comm_buffer(comm_.get(), CommBufferUse::kGatherOutput, group_->size() * input_bytes_, DType::kU8,
                          kGatherBuffer, "gather of '" + shown_path(path_) + "'");
    auto* base = static_cast<std::byte*>(buffer_.raw());
    std::vector<std::function<void()>> work;
    if (base != nullptr) {
      std::byte* to = base + group_->rank() * input_bytes_;
      for (std::size_t i = 0; i < params_.size(); ++i) {
        work.push_back(copy_in(*params_[i], inputs[i], to, buffer_.storage()->keep_alive()));
        to += input_bytes(*params_[i]);
      }
    }
    submit_copy_in(std::move(work), input_bytes_);
    stream(kGatherStream).wait(stream(kGatherCopyInStream).record());
    stream(kGatherStream).submit({"all_gather", path_, gather_cost(), communicate(base), collective()});
    gathered_ = stream(kGatherStream).record();
  }

  HeldGather finish() override {
    stream(StreamId::kCompute).wait(gathered_);
    for (Param* param : params_) param->unsharded().storage()->allocate();
    const std::int64_t bytes = group_->size() * input_bytes_;
    device_.launch("gather_copy_out",
                   {.read_bytes = bytes, .written_bytes = bytes, .unit = device::Unit::kCopy, .work = kGatherCopyOut},
                   [&] { copy_out(); });
    HeldGather held{std::move(buffer_), stream(StreamId::kCompute).record()};
    buffer_ = {};
    return held;
  }

  void drop() override {
    stream(StreamId::kCompute).wait(gathered_);
    buffer_ = {};
  }

 private:
  // The gather inputs in the compute dtype: inputs on the host as separate copies, inputs that need a cast in one flat
  // copy.
  std::vector<Tensor> inputs_on_device() {
    Tensor flat = flat_casts();
    std::int64_t flat_offset = 0;
    std::vector<Tensor> inputs;
    for (const Param* param : params_) {
      inputs.push_back(input(*param));
      if (casts_on_device(*param)) {
        inputs.back() = {flat.storage(), flat_offset, input(*param).shape(), param->compute_dtype()};
        flat_offset += input(*param).numel();
      }
      if (!input_on_host(*param)) continue;
      const Tensor copy = Tensor::empty(inputs.back().shape(), param->compute_dtype(), kGatherBuffer,
                                        "gather input of '" + param->path() + "'");
      copy_from_host(*param, static_cast<std::byte*>(copy.raw()), copy.storage()->keep_alive());
      inputs.back() = copy;
    }
    return inputs;
  }

  bool casts_on_device(const Param& param) const {
    return !input_on_host(param) && input(param).dtype() != param.compute_dtype();
  }

  // The shards that need a cast, cast, one after another; undefined when there are none.
  Tensor flat_casts() {
    std::int64_t elems = 0;
    std::int64_t read_bytes = 0;
    std::optional<DType> dtype;
    for (const Param* param : params_) {
      if (!casts_on_device(*param)) continue;
      elems += input(*param).numel();
      read_bytes += input(*param).nbytes();
      dtype = param->compute_dtype();
    }
    if (!dtype) return {};
    Tensor flat = Tensor::empty({elems}, *dtype, kGatherBuffer, "gather inputs of '" + shown_path(path_) + "'");
    std::vector<std::function<void()>> work;
    auto* to = static_cast<std::byte*>(flat.raw());
    for (const Param* param : params_) {
      if (to == nullptr || !casts_on_device(*param)) continue;
      work.push_back(copy_in(*param, input(*param), to, flat.storage()->keep_alive()));
      to += input_bytes(*param);
    }
    stream(kGatherCopyInStream)
        .submit({"cast",
                 path_,
                 {.read_bytes = read_bytes, .written_bytes = flat.nbytes(), .unit = device::Unit::kCopy},
                 [work = std::move(work)] { run_all(work); }});
    return flat;
  }

  std::function<void()> communicate(std::byte* base) {
    if (base == nullptr) return nullptr;
    return [group = group_, path = path_, comm = comm_, base, bytes = input_bytes_,
            owner = buffer_.storage()->keep_alive()] {
      const comm::GatherPart part{base + group->rank() * bytes, base, static_cast<std::size_t>(bytes)};
      if (comm != nullptr) {
        (*comm)(part.full, part.shard, part.bytes, *group, path);
      } else {
        group->all_gather(kGatherLane, {&part, 1}, path);
      }
    };
  }

  void copy_out() {
    const auto* from = static_cast<const std::byte*>(buffer_.raw());
    for (int rank = 0; rank < group_->size(); ++rank) {
      for (const Param* param : params_) {
        const std::int64_t bytes = input_bytes(*param);
        std::byte* whole = param->unsharded().storage()->data();
        if (from_ == GatherFrom::kShards) {
          param->put_together(from, rank, group_->size(), whole);
        } else {  // equal parts of the parameter's bytes, whatever its cut
          std::memcpy(whole + rank * bytes, from, static_cast<std::size_t>(bytes));
        }
        from += bytes;
      }
    }
  }

  const std::shared_ptr<AllGather> comm_;  // null: the process group's
  Tensor buffer_;
};

class InPlaceGather final : public Gather {
 public:
  InPlaceGather(GatherFrom from, std::vector<Param*> params, std::shared_ptr<comm::ProcessGroup> group,
                device::Device& device, std::string path)
      : Gather(from, std::move(params), std::move(group), device, std::move(path)) {}

  void issue() override {
    wait_for_compute();
    std::vector<std::function<void()>> work;
    std::vector<comm::GatherPart> parts;
    std::vector<std::shared_ptr<void>> owners;
    std::int64_t copied_bytes = 0;
    for (Param* param : params_) {
      const auto& storage = param->unsharded().storage();
      storage->allocate();
      const std::int64_t bytes = input_bytes(*param);
      if (!input_on_host(*param)) copied_bytes += bytes;
      std::byte* own = storage->data() == nullptr ? nullptr : storage->data() + group_->rank() * bytes;
      bring_in(*param, own, storage->keep_alive(), work);
      if (own == nullptr) continue;
      owners.push_back(storage->keep_alive());
      parts.push_back({own, storage->data(), static_cast<std::size_t>(bytes)});
    }
    submit_copy_in(std::move(work), copied_bytes);
    stream(kGatherStream).wait(stream(kGatherCopyInStream).record());
    std::function<void()> communicate;
    if (group_->size() > 1 && !parts.empty()) {
      communicate = [group = group_, path = path_, parts, owners] { group->all_gather(kGatherLane, parts, path); };
    }
    stream(kGatherStream).submit({"all_gather", path_, gather_cost(), communicate, collective()});
    gathered_ = stream(kGatherStream).record();
  }

  HeldGather finish() override {
    stream(StreamId::kCompute).wait(gathered_);
    return {};
  }

  void drop() override {
    stream(StreamId::kCompute).wait(gathered_);
    release();
  }
};

class SharedGather final : public Gather {
 public:
  SharedGather(std::vector<Param*> params, std::shared_ptr<comm::ProcessGroup> group, device::Device& device,
               std::string path, std::shared_ptr<comm::SharedSegment> segment)
      : Gather(GatherFrom::kShards, std::move(params), std::move(group), device, std::move(path)),
        segment_(std::move(segment)) {
    std::int64_t at = 0;
    for (Param* param : params_) {
      const bool holds_shard = param->compute_dtype() == param->original_dtype() && !input_on_host(*param);
      places_.push_back({segment_->data() + at, holds_shard, kNeverWritten});
      at += aligned(group_->size() * input_bytes(*param));
      if (places_.back().holds_shard) move_shard(*param, places_.back());
    }
  }

  static std::int64_t segment_bytes(const std::vector<Param*>& params) {
    std::int64_t bytes = 0;
    for (const Param* param : params) bytes += aligned(param->gather_output_bytes());
    return bytes;
  }

  void issue() override {
    wait_for_compute();
    std::vector<std::function<void()>> work;
    std::int64_t copied_bytes = 0;
    for (std::size_t i = 0; i < params_.size(); ++i) {
      Param& param = *params_[i];
      Place& place = places_[i];
      std::shared_ptr<std::byte> memory(segment_, place.full);
      param.unsharded().storage()->adopt(device_.memory().adopt(memory, group_->size() * input_bytes(param),
                                                                MemCategory::kParameter,
                                                                "gather of '" + shown_path(path_) + "'"));
      // Issued in every gather, as the in-place layout issues it: that memory is shared is an affair of this machine,
      // and the emulated device copies. Only the work is left out where the rows are there already.
      if (!input_on_host(param)) copied_bytes += input_bytes(param);
      const std::uint64_t version = param.padded_shard().storage()->version();
      const bool there = place.holds_shard || place.written_version == version;
      place.written_version = version;
      bring_in(param, there ? nullptr : own_rows(param, place), segment_, work);
    }
    submit_copy_in(std::move(work), copied_bytes);
    stream(kGatherStream).wait(stream(kGatherCopyInStream).record());
    stream(kGatherStream)
        .submit({"all_gather", path_, gather_cost(),
                 [group = group_, path = path_] { group->barrier(kGatherLane, path); }, collective()});
    gathered_ = stream(kGatherStream).record();
  }

  HeldGather finish() override {
    stream(StreamId::kCompute).wait(gathered_);
    return {};
  }

  void drop() override {
    stream(StreamId::kCompute).wait(gathered_);
    release();
  }

 private:
  static constexpr std::uint64_t kNeverWritten = ~std::uint64_t{0};

  struct Place {
    std::byte* full;                // the gather output in the segment
    bool holds_shard;               // the shard itself lives in its rows
    std::uint64_t written_version;  // of the shard, when its rows were last written
  };

  std::byte* own_rows(const Param& param, const Place& place) const {
    return place.full + group_->rank() * input_bytes(param);
  }

  void move_shard(Param& param, const Place& place) {
    std::shared_ptr<std::byte> memory(segment_, own_rows(param, place));
    param.rehome_shard(device_.memory(), memory);
  }

  const std::shared_ptr<comm::SharedSegment> segment_;
  std::vector<Place> places_;
};

}  // namespace

Gather::Gather(GatherFrom from, std::vector<Param*> params, std::shared_ptr<comm::ProcessGroup> group,
               device::Device& device, std::string path)
    : from_(from), params_(std::move(params)), group_(std::move(group)), device_(device), path_(std::move(path)) {
  for (const Param* param : params_) input_bytes_ += input_bytes(*param);
}

const Tensor& Gather::input(const Param& param) const {
  return from_ == GatherFrom::kShards ? param.gather_source() : param.post_forward_shard();
}

std::function<void()> Gather::copy_in(const Param& param, const Tensor& from, std::byte* to,
                                      std::shared_ptr<void> to_owner) {
  return [elems = from.numel(), from_dtype = from.dtype(), to_dtype = param.compute_dtype(), from = from.raw(), to,
          from_owner = from.storage()->keep_alive(),
          to_owner = std::move(to_owner)] { kernels::cast(elems, from_dtype, from, to_dtype, to); };
}

void Gather::bring_in(const Param& param, std::byte* to, const std::shared_ptr<void>& to_owner,
                      std::vector<std::function<void()>>& work) {
  if (input_on_host(param)) {
    copy_from_host(param, to, to_owner);
  } else if (to != nullptr) {
    work.push_back(copy_in(param, input(param), to, to_owner));
  }
}

void Gather::copy_from_host(const Param& param, std::byte* to, const std::shared_ptr<void>& to_owner) {
  const Tensor& from = input(param);
  const bool casts = from.dtype() != param.compute_dtype();
  Tensor copy;  // in the shard's dtype; the work keeps its memory
  if (casts) copy = Tensor::empty(from.shape(), from.dtype(), kGatherBuffer, "shard of '" + param.path() + "'");
  auto* device_bytes = casts ? static_cast<std::byte*>(copy.raw()) : to;
  std::function<void()> run;
  if (to != nullptr && device_bytes != nullptr) {
    run = [host_bytes = from.raw(), device_bytes, bytes = static_cast<std::size_t>(from.nbytes()),
           from_owner = from.storage()->keep_alive(),
           owner = casts ? copy.storage()->keep_alive() : to_owner] { std::memcpy(device_bytes, host_bytes, bytes); };
  }
  const device::Cost cost{.read_bytes = from.nbytes(),
                          .written_bytes = from.nbytes(),
                          .unit = device::Unit::kHostLink,
                          .pinned = from.storage()->pinned(),
                          .work = device::WorkKind::kH2D};
  stream(kGatherCopyInStream).submit({"h2d", param.path(), cost, std::move(run)});
  if (!casts) return;
  stream(kGatherCopyInStream)
      .submit({"cast",
               param.path(),
               {.read_bytes = from.nbytes(), .written_bytes = input_bytes(param), .unit = device::Unit::kCopy},
               to == nullptr ? nullptr : copy_in(param, copy, to, to_owner)});
}

void Gather::wait_for_compute() { stream(kGatherCopyInStream).wait(stream(StreamId::kCompute).record()); }

void Gather::submit_copy_in(std::vector<std::function<void()>> work, std::int64_t bytes) {
  const device::Cost cost{
      .read_bytes = bytes, .written_bytes = bytes, .unit = device::Unit::kCopy, .work = kGatherCopyIn};
  stream(kGatherCopyInStream).submit({"gather_copy_in", path_, cost, [work = std::move(work)] { run_all(work); }});
}

device::Cost Gather::gather_cost() const {
  return {.link_bytes = (group_->size() - 1) * input_bytes_, .unit = device::Unit::kLink};
}

device::Collective Gather::collective() const {
  return {device::CollectiveKind::kAllGather, group_->size() * input_bytes_, &group_->ranks(), group_->name()};
}

void Gather::release() {
  for (Param* param : params_) param->free_unsharded();
}

std::unique_ptr<Gather> Gather::create(GatherLayout layout, GatherFrom from, std::vector<Param*> params,
                                       std::shared_ptr<comm::ProcessGroup> group, device::Device& device,
                                       const std::string& path, std::shared_ptr<AllGather> comm) {
  // Gathered in place, the shards would lie one after another, which is the parameter only where dim 0 is cut.
  const bool is_cut_elsewhere = from == GatherFrom::kShards &&
                                std::ranges::any_of(params, [](const Param* param) { return param->shard_dim() > 0; });
  if (group->size() > 1 && (layout == GatherLayout::kBuffered || comm != nullptr || is_cut_elsewhere)) {
    return std::make_unique<BufferedGather>(from, std::move(params), std::move(group), device, path, std::move(comm));
  }
  if (group->size() > 1 && from == GatherFrom::kShards && !device.dry_run()) {
    const auto bytes = static_cast<std::size_t>(SharedGather::segment_bytes(params));
    if (auto segment = group->share(comm::kHostLane, bytes, path)) {
      return std::make_unique<SharedGather>(std::move(params), std::move(group), device, path, std::move(segment));
    }
  }
  return std::make_unique<InPlaceGather>(from, std::move(params), std::move(group), device, path);
}

}  // namespace loom::sharding
