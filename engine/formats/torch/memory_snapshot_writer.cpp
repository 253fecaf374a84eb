#include <optional>

#include "engine/formats/torch/memory_snapshot.h"
#include "engine/formats/torch/pickle_writer.h"

namespace loom::io {
namespace {

constexpr std::size_t kBatch = 1000;
constexpr std::int64_t kIntervals = 16;

class Writer {
 public:
  explicit Writer(const MemorySnapshot& snapshot)
      : snapshot_(snapshot), frames_(snapshot.frames.size()), stacks_(snapshot.stacks.size()) {}

  std::string write() {
    out_.begin_dict();
    key("segments");
    list(snapshot_.segments, [this](const SnapshotSegment& segment) { put(segment); });
    key("device_traces");
    list(snapshot_.device_traces, [this](const std::vector<SnapshotEvent>& trace) {
      list(trace, [this](const SnapshotEvent& event) { put(event); });
    });
    key("allocator_settings");
    put(snapshot_.settings);
    key("external_annotations");
    list(snapshot_.annotations, [this](const SnapshotAnnotation& annotation) { put(annotation); });
    out_.end_dict();
    return out_.finish();
  }

 private:
  void key(std::string_view name) { out_.shared_text(name); }
  void whole(std::string_view name, std::int64_t value) {
    key(name);
    out_.whole(value);
  }
  void text(std::string_view name, std::string_view value) {
    key(name);
    out_.shared_text(value);
  }
  const std::string& text_at(std::int32_t number) const { return snapshot_.texts.at(static_cast<std::size_t>(number)); }
  void boolean(std::string_view name, bool value) {
    key(name);
    out_.boolean(value);
  }

  template <class Items, class Put>
  void list(const Items& items, Put put_item) {
    out_.begin_list();
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0 && i % kBatch == 0) {
        out_.end_list();
        out_.begin_more();
      }
      put_item(items[i]);
    }
    out_.end_list();
  }

  // Written where it occurs first, named where it occurs again.
  template <class Put>
  void once(std::optional<std::uint64_t>& place, Put put_value) {
    if (place) return out_.use(*place);
    put_value();
    place = out_.keep();
  }

  void put_stack(std::int32_t number) {
    key("frames");
    const auto at = static_cast<std::size_t>(number);
    once(stacks_.at(at), [&] { list(snapshot_.stacks[at], [this](std::int32_t frame) { put_frame(frame); }); });
  }

  void put_frame(std::int32_t number) {
    const auto at = static_cast<std::size_t>(number);
    once(frames_.at(at), [&] {
      const SnapshotFrame& frame = snapshot_.frames[at];
      out_.begin_dict();
      text("name", text_at(frame.name));
      text("filename", text_at(frame.filename));
      whole("line", frame.line);
      out_.end_dict();
    });
  }

  void put(const SnapshotSegment& segment) {
    const std::int64_t allocated = segment.bytes_of(SnapshotState::kActive);
    std::int64_t requested = 0;
    for (const SnapshotBlock& block : segment.blocks) {
      if (block.state == SnapshotState::kActive) requested += block.requested_size;
    }
    out_.begin_dict();
    whole("device", segment.device);
    whole("address", segment.address);
    whole("total_size", segment.total_size);
    whole("allocated_size", allocated);
    whole("active_size", allocated + segment.bytes_of(SnapshotState::kPendingFree));
    whole("requested_size", requested);
    whole("stream", segment.stream);
    text("segment_type", segment.small ? "small" : "large");
    key("segment_pool_id");
    out_.wholes(std::vector{segment.pool_id.first, segment.pool_id.second});
    boolean("is_expandable", segment.is_expandable);
    put_stack(segment.stack);
    key("blocks");
    list(segment.blocks, [this](const SnapshotBlock& block) { put(block); });
    out_.end_dict();
  }

  void put(const SnapshotBlock& block) {
    constexpr std::string_view kStates[] = {"active_allocated", "active_pending_free", "inactive"};
    out_.begin_dict();
    whole("address", block.address);
    whole("size", block.size);
    whole("requested_size", block.requested_size);
    text("state", kStates[static_cast<std::size_t>(block.state)]);
    put_stack(block.stack);
    out_.end_dict();
  }

  void put(const SnapshotEvent& event) {
    out_.begin_dict();
    text("action", name(event.action));
    whole(event.action == SnapshotAction::kOom ? "device_free" : "addr", event.address);
    whole("size", event.size);
    if (event.requested_size > 0) whole("requested_size", event.requested_size);
    whole("stream", event.stream);
    whole("time_us", event.time_us);
    text("compile_context", "N/A");
    text("user_metadata", text_at(event.user_metadata));
    put_stack(event.stack);
    out_.end_dict();
  }

  void put(const SnapshotAnnotation& annotation) {
    out_.begin_dict();
    text("stage", annotation.is_end ? "END" : "START");
    text("name", annotation.name);
    whole("device", annotation.device);
    whole("time_us", annotation.time_us);
    out_.end_dict();
  }

  void put(const SnapshotSettings& settings) {
    out_.begin_dict();
    text("PYTORCH_CUDA_ALLOC_CONF", settings.conf);
    whole("max_split_size", settings.max_split_size);
    key("garbage_collection_threshold");
    out_.real(settings.garbage_collection_threshold);
    boolean("expandable_segments", settings.expandable_segments);
    whole("pinned_num_register_threads", 1);
    boolean("release_lock_on_cudamalloc", false);
    boolean("pinned_use_cuda_host_register", false);
    key("roundup_power2_divisions");
    out_.begin_dict();
    for (std::int64_t i = 0; i < kIntervals; ++i) {
      const auto at = static_cast<std::size_t>(i);
      whole(std::to_string(std::int64_t{1} << i),
            at < settings.power2_divisions.size() ? settings.power2_divisions[at] : 0);
    }
    out_.end_dict();
    out_.end_dict();
  }

  const MemorySnapshot& snapshot_;
  PickleWriter out_{4};
  std::vector<std::optional<std::uint64_t>> frames_, stacks_;  // their places in the memo
};

}  // namespace

std::string write_memory_snapshot(const MemorySnapshot& snapshot) { return Writer(snapshot).write(); }

}  // namespace loom::io
