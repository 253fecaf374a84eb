#include "engine/comm/messages/message_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/comm/local/segment.h"
#include "engine/core/error.h"
#include "engine/core/rounding.h"

namespace loom::comm::messages {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{1} << 20;  // pieces under way from all peers stay near the core
constexpr std::size_t kSmallestPiece = std::size_t{64} << 10;
constexpr std::size_t kSmallReduction = std::size_t{16} << 10;
constexpr std::size_t kPage = 4096;

std::byte* at(void* base, std::size_t offset) { return static_cast<std::byte*>(base) + offset; }

Message send_to(int peer, const void* data, std::size_t bytes) {
  return {Direction::kSend, peer, const_cast<void*>(data), bytes};
}
Message receive_from(int peer, void* data, std::size_t bytes) { return {Direction::kReceive, peer, data, bytes}; }

// Rows travel in pieces so that a piece is summed while the next arrives, out of a scratch that stays in the cache.
std::int64_t piece_elems(int size, std::size_t width) {
  const std::size_t bytes = kScratchBytes / 2 / static_cast<std::size_t>(std::max(1, size - 1));
  return static_cast<std::int64_t>(std::max(bytes, kSmallestPiece) / width);
}

Slice piece_of(const Slice& row, std::int64_t begin, std::int64_t longest) {
  return {row.begin + begin, std::min(longest, row.elems - begin)};
}

// Faults in this member's share of the pages, so that all members together touch each once.
void touch_own_pages(SharedSegment& segment, int rank, int size) {
  const std::size_t pages = ceil_div(segment.bytes(), kPage);
  const std::size_t begin = pages * static_cast<std::size_t>(rank) / static_cast<std::size_t>(size);
  const std::size_t end = pages * static_cast<std::size_t>(rank + 1) / static_cast<std::size_t>(size);
  for (std::size_t page = begin; page < end; ++page) {
    *reinterpret_cast<volatile std::byte*>(segment.data() + page * kPage) = std::byte{0};
  }
}

Note to_note(const MemoryFileAddress& address) {
  return {(std::int64_t{address.pid} << 32) | static_cast<std::uint32_t>(address.descriptor), address.inode};
}
MemoryFileAddress from_note(const Note& note) {
  return {static_cast<std::int32_t>(note[0] >> 32), static_cast<std::int32_t>(note[0] & 0xffffffff), note[1]};
}

}  // namespace

void SeenCalls::note(int rank, const Call& call) {
  const std::lock_guard lock(mutex_);
  last_[rank] = describe(call);
}

std::string SeenCalls::last(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = last_.find(rank);
  return found == last_.end() ? std::string{} : found->second;
}

class MessageGroup::Exchange {
 public:
  // Shows `call` to all members.
  Exchange(MessageGroup& group, Lane lane, Call call, const Note& note = {})
      : Exchange(group, group.peers(), lane, std::move(call)) {
    WireCall mine = to_wire(call_);
    mine.note = note;
    theirs_[static_cast<std::size_t>(group.rank())] = mine;
    show({mine});
  }
  // Shows each member the bytes sent to it and expected from it.
  Exchange(MessageGroup& group, Lane lane, const Call& call, std::span<const Outgoing> sends,
           std::span<const Incoming> receives)
      : Exchange(group, group.peers(), lane, call) {
    std::vector<WireCall> mine(sends.size(), to_wire(call));
    for (std::size_t member = 0; member < mine.size(); ++member) {
      mine[member].sent = sends[member].bytes;
      mine[member].expected = receives[member].bytes;
    }
    show(std::move(mine));
  }
  // Shows `call` to members `to` and `from` alone.
  Exchange(MessageGroup& group, Lane lane, const Call& call, int to, int from)
      : Exchange(group, std::vector<int>{}, lane, call) {
    for (const int peer : {to, from}) {
      if (peer != kNobody && (peers_.empty() || peers_.front() != peer)) peers_.push_back(peer);
    }
    show({to_wire(call)});
  }

  // Whatever is under way still uses this call's memory.
  ~Exchange() {
    for (const std::shared_ptr<Batch>& batch : started_) group_.transport_.wait(*batch);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Waits until all members have shown the same call.
  void agree() {
    wait(*calls_);
    for (const int peer : peers_) group_.seen_->note(group_.world_rank(peer), theirs(peer));
    std::sort(peers_.begin(), peers_.end());
    for (const int peer : peers_) {
      const std::optional<std::string> differs =
          difference(group_.world_rank(group_.rank()), from_wire(mine(peer)), group_.world_rank(peer), theirs(peer));
      if (differs) fail(*differs);
    }
  }

  // After agree().
  const Note& note(int member) const { return theirs_[static_cast<std::size_t>(member)].note; }

  std::shared_ptr<Batch> start(std::vector<Message> messages) { return start(kData, std::move(messages)); }

  void wait(Batch& batch) {
    const Outcome outcome = group_.transport_.wait(batch);
    if (outcome.done) return;
    if (outcome.missing.empty()) fail(group_.transport_.failure());
    std::vector<Missing> missing;
    for (const int rank : outcome.missing) missing.push_back({rank, group_.seen_->last(rank)});
    fail(did_not_come(missing, group_.transport_.timeout()));
  }

  Lane lane() const { return lane_; }

 private:
  Exchange(MessageGroup& group, std::vector<int> peers, Lane lane, Call call)
      : group_(group),
        lane_(lane),
        call_(std::move(call)),
        peers_(std::move(peers)),
        theirs_(static_cast<std::size_t>(group.size())) {}

  // `calls`: one for all peers, or one a member.
  void show(std::vector<WireCall> calls) {
    mine_ = std::move(calls);
    std::vector<Message> messages;
    for (const int peer : peers_) {
      messages.push_back(send_to(group_.world_rank(peer), &mine(peer), sizeof(WireCall)));
      messages.push_back(
          receive_from(group_.world_rank(peer), &theirs_[static_cast<std::size_t>(peer)], sizeof(WireCall)));
    }
    calls_ = start(kCalls, std::move(messages));
  }

  const WireCall& mine(int peer) const { return mine_[mine_.size() == 1 ? 0 : static_cast<std::size_t>(peer)]; }

  std::shared_ptr<Batch> start(Purpose purpose, std::vector<Message> messages) {
    const int tag = (group_.index_ * Lane::kCount + lane_.id()) * kPurposes + purpose;
    started_.push_back(group_.transport_.start(tag, std::move(messages)));
    return started_.back();
  }

  // As members compare it, which matters for a tag too long for the wire.
  Call theirs(int member) const { return from_wire(theirs_[static_cast<std::size_t>(member)]); }

  [[noreturn]] void fail(const std::string& verdict) {
    const std::string text = where(group_.world_rank(group_.rank()), call_, group_.label_) + verdict;
    group_.transport_.fail(text);
    throw CommError(text);
  }

  MessageGroup& group_;
  const Lane lane_;
  const Call call_;
  std::vector<int> peers_;
  std::vector<WireCall> mine_;
  std::vector<WireCall> theirs_;  // by member
  std::vector<std::shared_ptr<Batch>> started_;
  std::shared_ptr<Batch> calls_;
};

MessageGroup::MessageGroup(Transport& transport, std::shared_ptr<SeenCalls> seen, int index, int rank,
                           std::vector<int> ranks, std::string name)
    : ProcessGroup(rank, std::move(ranks), std::move(name)),
      transport_(transport),
      seen_(std::move(seen)),
      index_(index),
      label_(group_label(this->name(), this->ranks())) {
  const int room = transport_.largest_tag() / (Lane::kCount * kPurposes);
  require(index < room, "group '{}' is of split {} of the job; the transport has tags for {}", this->name(), index,
          room);
}

std::vector<Note> MessageGroup::exchange_notes(Lane lane, const Call& call, const Note& own) {
  Exchange exchange(*this, lane, call, own);
  exchange.agree();
  std::vector<Note> notes;
  for (int member = 0; member < size(); ++member) notes.push_back(exchange.note(member));
  return notes;
}

void MessageGroup::barrier(Lane lane, std::string_view tag) { Exchange(*this, lane, Call::barrier(tag)).agree(); }

void MessageGroup::all_gather(Lane lane, std::span<const GatherPart> parts, std::string_view tag) {
  Exchange exchange(*this, lane, Call::all_gather(parts, tag));
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (int turn = 1; turn < size(); ++turn) {
    const int to = peer_at(turn);
    const int from = peer_at(size() - turn);
    for (const GatherPart& part : parts) {
      sends.push_back(send_to(world_rank(to), part.shard, part.bytes));
      receives.push_back(receive_from(world_rank(from), part.place_of(from), part.bytes));
    }
  }
  const auto sent = exchange.start(std::move(sends));
  exchange.agree();
  const auto received = exchange.start(std::move(receives));
  for (const GatherPart& part : parts) {
    std::byte* own = part.place_of(rank());
    if (own != part.shard && part.bytes > 0) std::memcpy(own, part.shard, part.bytes);
  }
  exchange.wait(*received);
  exchange.wait(*sent);
}

void MessageGroup::reduce_scatter(Lane lane, const void* input, void* output, std::int64_t elems, DType dtype,
                                  ReduceOp op, std::string_view tag) {
  Exchange exchange(*this, lane, Call::reduction(CallKind::kReduceScatter, elems, dtype, op, tag));
  std::vector<Slice> rows;
  for (int member = 0; member < size(); ++member) rows.push_back({member * elems, elems});
  const auto sent = send_rows(exchange, input, rows, dtype);
  exchange.agree();
  reduce_own_row(exchange, input, rows[static_cast<std::size_t>(rank())], dtype, op, output);
  exchange.wait(*sent);
}

void MessageGroup::all_reduce(Lane lane, void* data, std::int64_t elems, DType dtype, ReduceOp op,
                              std::string_view tag) {
  const Call call = Call::reduction(CallKind::kAllReduce, elems, dtype, op, tag);
  if (call.bytes <= kSmallReduction) return all_reduce_small(lane, call, data, elems);
  Exchange exchange(*this, lane, call);
  const std::int64_t width = element_bytes(dtype);
  std::vector<Slice> rows;
  for (int member = 0; member < size(); ++member) rows.push_back(slice_of(elems, size(), member));
  const Slice& own = rows[static_cast<std::size_t>(rank())];
  std::byte* const own_data = at(data, static_cast<std::size_t>(own.begin) * width);
  const auto scattered = send_rows(exchange, data, rows, dtype);
  exchange.agree();
  reduce_own_row(exchange, data, own, dtype, op, own_data);
  exchange.wait(*scattered);  // the peers have this member's terms; their sums may take the place

  std::vector<Message> messages;
  for (int turn = 1; turn < size(); ++turn) {
    const int to = peer_at(turn);
    const int from = peer_at(size() - turn);
    const Slice& theirs = rows[static_cast<std::size_t>(from)];
    messages.push_back(send_to(world_rank(to), own_data, static_cast<std::size_t>(own.elems) * width));
    messages.push_back(receive_from(world_rank(from), at(data, static_cast<std::size_t>(theirs.begin) * width),
                                    static_cast<std::size_t>(theirs.elems) * width));
  }
  exchange.wait(*exchange.start(std::move(messages)));
}

// Everyone sums everything: one exchange instead of two.
void MessageGroup::all_reduce_small(Lane lane, const Call& call, void* data, std::int64_t elems) {
  Exchange exchange(*this, lane, call);
  std::byte* const theirs = scratch(lane, call.bytes * static_cast<std::size_t>(size()));
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<const void*> inputs(static_cast<std::size_t>(size()), data);
  for (int turn = 1; turn < size(); ++turn) {
    const int peer = peer_at(turn);
    std::byte* const slot = theirs + static_cast<std::size_t>(peer) * call.bytes;
    sends.push_back(send_to(world_rank(peer), data, call.bytes));
    receives.push_back(receive_from(world_rank(peer), slot, call.bytes));
    inputs[static_cast<std::size_t>(peer)] = slot;
  }
  const auto sent = exchange.start(std::move(sends));
  exchange.agree();
  exchange.wait(*exchange.start(std::move(receives)));
  exchange.wait(*sent);
  if (elems > 0) reduce_in_order(call.op, call.dtype, inputs, elems, data);
}

std::shared_ptr<Batch> MessageGroup::send_rows(Exchange& exchange, const void* base, std::span<const Slice> rows,
                                               DType dtype) {
  const std::int64_t width = element_bytes(dtype);
  const std::int64_t longest = piece_elems(size(), width);
  std::vector<Message> sends;
  for (int turn = 1; turn < size(); ++turn) {
    const int peer = peer_at(turn);
    const Slice& row = rows[static_cast<std::size_t>(peer)];
    for (std::int64_t begin = 0; begin < row.elems; begin += longest) {
      const Slice piece = piece_of(row, begin, longest);
      sends.push_back(send_to(world_rank(peer),
                              static_cast<const std::byte*>(base) + static_cast<std::size_t>(piece.begin) * width,
                              static_cast<std::size_t>(piece.elems) * width));
    }
  }
  return exchange.start(std::move(sends));
}

void MessageGroup::reduce_own_row(Exchange& exchange, const void* base, const Slice& row, DType dtype, ReduceOp op,
                                  void* out) {
  const std::int64_t width = element_bytes(dtype);
  const std::int64_t longest = piece_elems(size(), width);
  const std::size_t slot_bytes = static_cast<std::size_t>(longest) * width;
  const std::size_t half_bytes = slot_bytes * static_cast<std::size_t>(size());
  std::byte* const halves[] = {scratch(exchange.lane(), 2 * half_bytes),
                               scratch(exchange.lane(), 2 * half_bytes) + half_bytes};
  const auto slot = [&](std::int64_t begin, int peer) {
    return halves[begin / longest % 2] + static_cast<std::size_t>(peer) * slot_bytes;
  };
  const auto receive = [&](std::int64_t begin) {
    std::vector<Message> receives;
    for (int turn = 1; turn < size(); ++turn) {
      const int peer = peer_at(size() - turn);
      receives.push_back(receive_from(world_rank(peer), slot(begin, peer),
                                      static_cast<std::size_t>(piece_of(row, begin, longest).elems) * width));
    }
    return exchange.start(std::move(receives));
  };

  auto arriving = row.elems > 0 ? receive(0) : nullptr;
  for (std::int64_t begin = 0; begin < row.elems; begin += longest) {
    exchange.wait(*arriving);
    if (begin + longest < row.elems) arriving = receive(begin + longest);
    const Slice piece = piece_of(row, begin, longest);
    std::vector<const void*> inputs;
    for (int peer = 0; peer < size(); ++peer) inputs.push_back(slot(begin, peer));
    inputs[static_cast<std::size_t>(rank())] =
        static_cast<const std::byte*>(base) + static_cast<std::size_t>(piece.begin) * width;
    reduce_in_order(op, dtype, inputs, piece.elems, at(out, static_cast<std::size_t>(begin) * width));
  }
}

void MessageGroup::all_to_all(Lane lane, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                              std::string_view tag) {
  check_parts(sends, receives, rank(), size(), tag);
  Exchange exchange(*this, lane, Call::all_to_all(tag), sends, receives);
  std::vector<Message> outgoing;
  std::vector<Message> incoming;
  for (int turn = 1; turn < size(); ++turn) {
    const int to = peer_at(turn);
    const int from = peer_at(size() - turn);
    const Outgoing& sent = sends[static_cast<std::size_t>(to)];
    const Incoming& received = receives[static_cast<std::size_t>(from)];
    outgoing.push_back(send_to(world_rank(to), sent.data, sent.bytes));
    incoming.push_back(receive_from(world_rank(from), received.data, received.bytes));
  }
  const auto sent = exchange.start(std::move(outgoing));
  exchange.agree();
  const auto received = exchange.start(std::move(incoming));
  const auto own = static_cast<std::size_t>(rank());
  if (sends[own].bytes > 0) std::memmove(receives[own].data, sends[own].data, sends[own].bytes);
  exchange.wait(*received);
  exchange.wait(*sent);
}

void MessageGroup::send_recv(Lane lane, int to, Outgoing sent, int from, Incoming received, std::string_view tag) {
  check_peers(to, sent, from, received, rank(), size(), tag);
  if (to == rank()) {
    if (sent.bytes > 0) std::memmove(received.data, sent.data, sent.bytes);
    return;
  }
  const auto world_rank_of = [&](int peer) { return peer == kNobody ? kNobody : world_rank(peer); };
  Exchange exchange(*this, lane,
                    Call::send_recv(world_rank_of(to), sent.bytes, world_rank_of(from), received.bytes, tag), to, from);
  std::vector<Message> messages;
  if (to != kNobody) messages.push_back(send_to(world_rank(to), sent.data, sent.bytes));
  if (from != kNobody) messages.push_back(receive_from(world_rank(from), received.data, received.bytes));
  exchange.agree();
  exchange.wait(*exchange.start(std::move(messages)));
}

void MessageGroup::broadcast(Lane lane, void* data, std::size_t bytes, int root, std::string_view tag) {
  require(root >= 0 && root < size(), "broadcast '{}': root is {}, the group has {} members", tag, root, size());
  Exchange exchange(*this, lane, Call::broadcast(bytes, root, tag));
  exchange.agree();
  std::vector<Message> messages;
  if (rank() != root) {
    messages.push_back(receive_from(world_rank(root), data, bytes));
  } else {
    for (int turn = 1; turn < size(); ++turn) messages.push_back(send_to(world_rank(peer_at(turn)), data, bytes));
  }
  exchange.wait(*exchange.start(std::move(messages)));
}

std::shared_ptr<SharedSegment> MessageGroup::share(Lane lane, std::size_t bytes, std::string_view tag) {
  const bool reachable = on_one_machine();
  std::optional<MemoryFile> file;
  if (reachable && rank() == 0) file.emplace(bytes);
  Exchange offered(*this, lane, Call::share(bytes, tag), file ? to_note(file->address()) : Note{});
  offered.agree();
  if (!reachable) return nullptr;
  std::shared_ptr<SharedSegment> segment = map_memory_file(from_note(offered.note(0)), bytes);
  if (segment != nullptr) touch_own_pages(*segment, rank(), size());
  Exchange mapped(*this, lane, Call::share(bytes, tag), {segment != nullptr ? 1 : 0, 0});
  mapped.agree();
  for (int member = 0; member < size(); ++member) {
    if (mapped.note(member)[0] == 0) return nullptr;
  }
  return segment;
}

bool MessageGroup::on_one_machine() const {
  const std::vector<int>& nodes = transport_.nodes();
  return std::all_of(ranks().begin(), ranks().end(), [&](int rank) {
    return nodes[static_cast<std::size_t>(rank)] == nodes[static_cast<std::size_t>(ranks().front())];
  });
}

std::byte* MessageGroup::scratch(Lane lane, std::size_t bytes) {
  std::shared_ptr<SharedSegment>& held = scratch_[static_cast<std::size_t>(lane.id())];
  if (held == nullptr || held->bytes() < bytes) held = make_anonymous_segment(bytes);
  return held->data();
}

}  // namespace loom::comm::messages
