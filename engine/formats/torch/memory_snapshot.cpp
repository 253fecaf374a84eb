#include "engine/formats/torch/memory_snapshot.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <unordered_map>
#include <unordered_set>

#include "engine/core/shown_text.h"
#include "engine/formats/torch/pickle_reader.h"
#include "engine/io/byte_source.h"
#include "engine/io/mapped_file.h"

namespace loom::io {
namespace {

using Kind = PickleNode::Kind;

constexpr std::array<std::string_view, 9> kActions{"alloc",        "free_requested", "free_completed", "segment_alloc",
                                                   "segment_free", "segment_map",    "segment_unmap",  "oom",
                                                   "snapshot"};
constexpr std::int64_t kMostBytes = std::int64_t{1} << 53;  // of a number that the viewer reads

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file) : pickle_(Pickle::of_plain_values(bytes, file)) {}

  MemorySnapshot read() {
    const PickleNode& root = pickle_.root();
    if (root.is(Kind::kList)) {
      add_segments(root);
      return std::move(made_);
    }
    if (!root.is(Kind::kDict)) pickle_.fail(root, "a snapshot is a dict with 'segments', or a list of segments");
    add_segments(member(root, "segments", Kind::kList, "a list"));
    if (const PickleNode* traces = root.find("device_traces")) add_traces(of_kind(*traces, Kind::kList, "a list"));
    if (const PickleNode* settings = root.find("allocator_settings")) read_settings(*settings);
    return std::move(made_);
  }

 private:
  // --- values

  const PickleNode& of_kind(const PickleNode& node, Kind kind, std::string_view what) const {
    if (!node.is(kind)) pickle_.fail(node, fmt::format("a value that is not {}, which a snapshot has here", what));
    return node;
  }
  const PickleNode& member(const PickleNode& dict, std::string_view key, Kind kind, std::string_view what) const {
    const PickleNode* found = dict.find(key);
    if (found == nullptr) pickle_.fail(dict, fmt::format("no '{}' in a dict of a snapshot that has one", key));
    if (!found->is(kind)) pickle_.fail(*found, fmt::format("'{}' is not {}", key, what));
    return *found;
  }
  std::int64_t whole(const PickleNode& dict, std::string_view key) const {
    return member(dict, key, Kind::kWhole, "a whole number").whole;
  }
  std::int64_t whole_or(const PickleNode& dict, std::string_view key, std::int64_t otherwise) const {
    return dict.find(key) == nullptr ? otherwise : whole(dict, key);
  }
  std::int64_t bytes(const PickleNode& dict, std::string_view key) const {
    const PickleNode& found = member(dict, key, Kind::kWhole, "a whole number");
    if (found.whole >= 0 && found.whole < kMostBytes) return found.whole;
    pickle_.fail(found, fmt::format("'{}' is {}; from 0 to below 2^53 is read", key, found.whole));
  }
  std::string_view text(const PickleNode& dict, std::string_view key) const {
    return member(dict, key, Kind::kText, "a text").text;
  }
  bool flag(const PickleNode& dict, std::string_view key) const {
    const PickleNode* found = dict.find(key);
    return found != nullptr && of_kind(*found, Kind::kBool, "a boolean").whole != 0;
  }

  // A value in several places would take memory in each: what becomes a record may occur once.
  const PickleNode& record(const PickleNode& node) {
    of_kind(node, Kind::kDict, "a dict");
    if (records_.insert(&node).second) return node;
    pickle_.fail(node, "a dict that occurs twice, which a snapshot does not have");
  }

  // --- stacks

  std::int32_t add_stack(const PickleNode* frames) {
    if (frames == nullptr || frames->is(Kind::kNone)) return 0;
    of_kind(*frames, Kind::kList, "a list of frames");
    if (frames->items.empty()) return 0;
    const auto [known, is_new] = stacks_.try_emplace(frames, static_cast<std::int32_t>(made_.stacks.size()));
    if (!is_new) return known->second;
    std::vector<std::int32_t> stack;
    for (const PickleNode* frame : frames->items) stack.push_back(add_frame(*frame));
    made_.stacks.push_back(std::move(stack));
    return known->second;
  }
  std::int32_t add_frame(const PickleNode& frame) {
    of_kind(frame, Kind::kDict, "a dict");
    const auto [known, is_new] = frames_.try_emplace(&frame, static_cast<std::int32_t>(made_.frames.size()));
    if (!is_new) return known->second;
    const std::int32_t filename = add_text(text(frame, "filename")), name = add_text(text(frame, "name"));
    made_.frames.push_back({filename, whole_or(frame, "line", 0), name});
    return known->second;
  }

  // Once for each place of the file.
  std::int32_t add_text(std::string_view text) {
    if (text.empty()) return 0;
    const auto [known, is_new] = texts_.try_emplace(text.data(), static_cast<std::int32_t>(made_.texts.size()));
    if (is_new) made_.texts.emplace_back(text);
    return known->second;
  }

  // --- segments

  void add_segments(const PickleNode& list) {
    for (const PickleNode* node : list.items) add_segment(record(*node));
  }

  void add_segment(const PickleNode& node) {
    SnapshotSegment segment{.device = whole_or(node, "device", 0),
                            .address = bytes(node, "address"),
                            .total_size = bytes(node, "total_size"),
                            .stream = whole_or(node, "stream", 0),
                            .small = is_small(node),
                            .is_expandable = flag(node, "is_expandable"),
                            .pool_id = pool_of(node),
                            .stack = add_stack(node.find("frames"))};
    std::int64_t end = segment.address;
    for (const PickleNode* block : member(node, "blocks", Kind::kList, "a list").items) {
      SnapshotBlock& added = segment.blocks.emplace_back(read_block(record(*block)));
      if (block->find("address") == nullptr) added.address = end;  // of older files
      if (added.address != end) {
        pickle_.fail(*block, fmt::format("a block at address {}, but the one before ends at {}", added.address, end));
      }
      end += added.size;
      if (end > segment.address + segment.total_size) break;
    }
    if (end != segment.address + segment.total_size) {
      pickle_.fail(node,
                   fmt::format("the blocks of a segment of {} bytes do not fill it to its end", segment.total_size));
    }
    made_.segments.push_back(std::move(segment));
  }

  bool is_small(const PickleNode& node) const {
    if (node.find("segment_type") == nullptr) return false;
    const std::string_view type = text(node, "segment_type");
    if (type != "small" && type != "large") {
      pickle_.fail(node, fmt::format("segment_type is '{}'; small and large are read", shown_text(type)));
    }
    return type == "small";
  }

  std::pair<std::int64_t, std::int64_t> pool_of(const PickleNode& node) const {
    const PickleNode* id = node.find("segment_pool_id");
    if (id == nullptr) return {};
    if (!id->is(Kind::kTuple) || id->items.size() != 2) pickle_.fail(*id, "segment_pool_id is not a pair");
    const auto part = [&](std::size_t i) { return of_kind(*id->items[i], Kind::kWhole, "a whole number").whole; };
    return {part(0), part(1)};
  }

  SnapshotBlock read_block(const PickleNode& node) {
    SnapshotBlock block{.address = node.find("address") == nullptr ? 0 : bytes(node, "address"),
                        .size = bytes(node, "size"),
                        .requested_size = 0,
                        .state = state_of(node),
                        .stack = add_stack(node.find("frames"))};
    if (node.find("requested_size") != nullptr) block.requested_size = bytes(node, "requested_size");
    if (const PickleNode* history = node.find("history")) read_history(*history, block);
    return block;
  }

  // Of older files: the newest allocation comes first.
  void read_history(const PickleNode& list, SnapshotBlock& block) {
    of_kind(list, Kind::kList, "a list");
    if (list.items.empty()) return;
    const PickleNode& newest = of_kind(*list.items.front(), Kind::kDict, "a dict");
    if (block.requested_size == 0 && newest.find("real_size") != nullptr) {
      block.requested_size = bytes(newest, "real_size");
    }
    if (block.stack == 0) block.stack = add_stack(newest.find("frames"));
  }

  SnapshotState state_of(const PickleNode& node) const {
    const std::string_view state = text(node, "state");
    if (state == "active_allocated") return SnapshotState::kActive;
    if (state == "inactive") return SnapshotState::kInactive;
    if (state == "active_pending_free" || state == "active_awaiting_free") return SnapshotState::kPendingFree;
    pickle_.fail(node,
                 fmt::format("a block's state is '{}'; active_allocated, active_pending_free and inactive are read",
                             shown_text(state)));
  }

  // --- events

  void add_traces(const PickleNode& list) {
    for (const PickleNode* trace : list.items) {
      std::vector<SnapshotEvent>& events = made_.device_traces.emplace_back();
      for (const PickleNode* event : of_kind(*trace, Kind::kList, "a list of events").items) {
        events.push_back(read_event(record(*event)));
      }
    }
  }

  SnapshotEvent read_event(const PickleNode& node) {
    const std::string_view action = text(node, "action");
    const auto known = std::ranges::find(kActions, action);
    if (known == kActions.end()) {
      pickle_.fail(
          node, fmt::format("an event's action is '{}'; {} are read", shown_text(action), fmt::join(kActions, ", ")));
    }
    SnapshotEvent event{.action = static_cast<SnapshotAction>(known - kActions.begin())};
    event.address = bytes(node, event.action == SnapshotAction::kOom ? "device_free" : "addr");
    event.size = bytes(node, "size");
    if (node.find("requested_size") != nullptr) event.requested_size = bytes(node, "requested_size");
    event.stream = whole_or(node, "stream", 0);
    event.time_us = whole_or(node, "time_us", 0);
    event.stack = add_stack(node.find("frames"));
    if (node.find("user_metadata") != nullptr) event.user_metadata = add_text(text(node, "user_metadata"));
    return event;
  }

  // --- settings

  void read_settings(const PickleNode& node) {
    of_kind(node, Kind::kDict, "a dict");
    SnapshotSettings& settings = made_.settings;
    if (node.find("PYTORCH_CUDA_ALLOC_CONF") != nullptr) settings.conf = text(node, "PYTORCH_CUDA_ALLOC_CONF");
    settings.max_split_size = whole_or(node, "max_split_size", -1);
    if (const PickleNode* threshold = node.find("garbage_collection_threshold")) {
      const bool is_whole = threshold->is(Kind::kWhole);
      settings.garbage_collection_threshold =
          is_whole ? static_cast<double>(threshold->whole) : of_kind(*threshold, Kind::kReal, "a number").real;
    }
    settings.expandable_segments = flag(node, "expandable_segments");
    const PickleNode* divisions = node.find("roundup_power2_divisions");
    if (divisions == nullptr) return;
    of_kind(*divisions, Kind::kDict, "a dict");
    for (std::size_t i = 1; i < divisions->items.size() && i < 32; i += 2) {
      settings.power2_divisions.push_back(of_kind(*divisions->items[i], Kind::kWhole, "a whole number").whole);
    }
  }

  const Pickle pickle_;
  MemorySnapshot made_;
  std::unordered_map<const PickleNode*, std::int32_t> stacks_, frames_;
  std::unordered_map<const char*, std::int32_t> texts_;
  std::unordered_set<const PickleNode*> records_;
};

}  // namespace

std::string_view name(SnapshotAction action) { return kActions[static_cast<std::size_t>(action)]; }

std::int64_t SnapshotSegment::bytes_of(SnapshotState state) const {
  std::int64_t bytes = 0;
  for (const SnapshotBlock& block : blocks) bytes += block.state == state ? block.size : 0;
  return bytes;
}

MemorySnapshot read_memory_snapshot(std::span<const std::byte> bytes, const std::string& file) {
  return Reader(bytes, file).read();
}

MemorySnapshot read_memory_snapshot(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return read_memory_snapshot(mapped.bytes(), file.string());
}

}  // namespace loom::io
