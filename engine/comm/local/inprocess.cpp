#include "engine/comm/local/inprocess.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/comm/local/copy.h"
#include "engine/comm/local/rendezvous.h"
#include "engine/comm/local/segment.h"
#include "engine/comm/peer_reduction.h"
#include "engine/comm/slices.h"
#include "engine/core/error.h"

namespace loom::comm {
namespace {

using inprocess::Job;
using inprocess::Members;
using inprocess::Offer;
using inprocess::Rendezvous;

const std::byte* at(const void* base, std::size_t offset) { return static_cast<const std::byte*>(base) + offset; }
std::byte* at(void* base, std::size_t offset) { return static_cast<std::byte*>(base) + offset; }

class InProcessGroup final : public ProcessGroup, public PeerReduction {
 public:
  InProcessGroup(std::shared_ptr<Job> job, Members& members, int rank)
      : ProcessGroup(rank, members.ranks(), members.name()), job_(std::move(job)), members_(members) {}

  void all_gather(Lane lane, std::span<const GatherPart> parts, std::string_view tag) override {
    collective(lane, {.call = Call::all_gather(parts, tag), .parts = parts}, [&](Rendezvous& meeting) {
      for (int turn = 0; turn < size(); ++turn) {
        const int peer = (rank() + turn) % size();  // all start at different memory
        const std::span<const GatherPart> theirs = meeting.offer(rank(), peer).parts;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          copy_between_ranks(parts[i].place_of(peer), theirs[i].shard, parts[i].bytes);
        }
      }
    });
  }

  void reduce_scatter(Lane lane, const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op,
                      std::string_view tag) override {
    const Call call = Call::reduction(CallKind::kReduceScatter, elems, dtype, op, tag);
    collective(lane, {.call = call, .input = input}, [&](Rendezvous& meeting) {
      const auto input = [&](int peer) { return meeting.offer(rank(), peer).input; };
      reduce_chunk(input, dtype, dtype, op, {rank() * elems, elems}, output);
    });
  }

  void reduce_scatter_parts(Lane lane, std::span<const ReducePart> parts, DType input_dtype, void* output, DType dtype,
                            ReduceOp op, std::string_view tag) override {
    require(casts(input_dtype, dtype), "reduce_scatter '{}' of {} gives the same or fp32, not {}", tag,
            loom::name(input_dtype), loom::name(dtype));
    const Call call = Call::reduction(parts, input_dtype, dtype, op, tag);
    const std::int64_t width = element_bytes(dtype);
    collective(lane, {.call = call, .reduced = parts}, [&](Rendezvous& meeting) {
      auto* to = static_cast<std::byte*>(output);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::int64_t begin = std::min(parts[i].elems, rank() * parts[i].row_elems);
        const std::int64_t elems = std::min(parts[i].elems - begin, parts[i].row_elems);
        const auto input = [&](int peer) { return meeting.offer(rank(), peer).reduced[i].input; };
        reduce_chunk(input, input_dtype, dtype, op, {begin, elems}, to);
        std::memset(to + elems * width, 0, static_cast<std::size_t>((parts[i].row_elems - elems) * width));
        to += parts[i].row_elems * width;
      }
    });
  }

  void all_reduce(Lane lane, void* data, std::int64_t elems, DType dtype, ReduceOp op, std::string_view tag) override {
    const Call call = Call::reduction(CallKind::kAllReduce, elems, dtype, op, tag);
    const std::int64_t width = element_bytes(dtype);
    const auto offset = [&](const Slice& chunk) { return static_cast<std::size_t>(chunk.begin) * width; };
    collective(lane, {.call = call, .input = data}, [&](Rendezvous& meeting) {
      const Slice own = slice_of(elems, size(), rank());
      const auto input = [&](int peer) { return meeting.offer(rank(), peer).input; };
      in_step(meeting, [&] { reduce_chunk(input, dtype, dtype, op, own, at(data, offset(own))); });
      for (int turn = 1; turn < size(); ++turn) {
        const int peer = (rank() + turn) % size();
        const Slice theirs = slice_of(elems, size(), peer);
        copy_between_ranks(at(data, offset(theirs)), at(meeting.offer(rank(), peer).input, offset(theirs)),
                           static_cast<std::size_t>(theirs.elems) * width);
      }
    });
  }

  void all_to_all(Lane lane, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                  std::string_view tag) override {
    check_parts(sends, receives, rank(), size(), tag);
    collective(lane, {.call = Call::all_to_all(tag), .sends = sends, .receives = receives}, [&](Rendezvous& meeting) {
      for (int turn = 0; turn < size(); ++turn) {
        const int peer = (rank() + turn) % size();
        const Outgoing& theirs = meeting.offer(rank(), peer).sends[static_cast<std::size_t>(rank())];
        copy_between_ranks(receives[static_cast<std::size_t>(peer)].data, theirs.data, theirs.bytes);
      }
    });
  }

  void send_recv(Lane lane, int to, Outgoing sent, int from, Incoming received, std::string_view tag) override {
    check_peers(to, sent, from, received, rank(), size(), tag);
    if (to == rank()) return copy_between_ranks(received.data, sent.data, sent.bytes);
    const auto world_rank = [&](int peer) {
      return peer == kNobody ? kNobody : ranks()[static_cast<std::size_t>(peer)];
    };
    const Call call = Call::send_recv(world_rank(to), sent.bytes, world_rank(from), received.bytes, tag);
    members_.on(lane).passages().pass(rank(), {call, to, from, sent.data, received.data});
  }

  void broadcast(Lane lane, void* data, std::size_t bytes, int root, std::string_view tag) override {
    require(root >= 0 && root < size(), "broadcast '{}': root is {}, the group has {} members", tag, root, size());
    collective(lane, {.call = Call::broadcast(bytes, root, tag), .input = data},
               [&](Rendezvous& meeting) { copy_between_ranks(data, meeting.offer(rank(), root).input, bytes); });
  }

  void barrier(Lane lane, std::string_view tag) override {
    members_.on(lane).enter(rank(), {.call = Call::barrier(tag)});
  }

  std::shared_ptr<SharedSegment> share(Lane lane, std::size_t bytes, std::string_view tag) override {
    Offer offer{.call = Call::share(bytes, tag)};
    if (rank() == 0) offer.segment = make_anonymous_segment(bytes);
    std::shared_ptr<SharedSegment> segment = offer.segment;
    collective(lane, std::move(offer), [&](Rendezvous& meeting) { segment = meeting.offer(rank(), 0).segment; });
    members_.on(lane).withdraw(rank());
    return segment;
  }

 private:
  template <class Work>
  void collective(Lane lane, Offer offer, const Work& work) {
    Rendezvous& meeting = members_.on(lane);
    meeting.enter(rank(), std::move(offer));
    in_step(meeting, [&] { work(meeting); });
  }

  // Works, then waits for the peers even where the work threw: they may still be reading this rank's memory.
  template <class Work>
  void in_step(Rendezvous& meeting, const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      job_->fail(ranks()[static_cast<std::size_t>(rank())], error.what());
      meeting.meet(rank());
      throw;
    }
    meeting.meet(rank());
  }

  // Of every member's input(member), elements `chunk`.
  template <class Input>
  void reduce_chunk(const Input& input, DType input_dtype, DType dtype, ReduceOp op, const Slice& chunk, void* out) {
    if (chunk.elems == 0) return;
    std::vector<const void*> inputs;
    for (int peer = 0; peer < size(); ++peer) {
      inputs.push_back(at(input(peer), static_cast<std::size_t>(chunk.begin * element_bytes(input_dtype))));
    }
    if (input_dtype == dtype) {
      reduce_in_order(op, dtype, inputs, chunk.elems, out);
    } else {
      reduce_in_order_as_fp32(op, input_dtype, inputs, chunk.elems, static_cast<float*>(out));
    }
  }

  const std::shared_ptr<Job> job_;
  Members& members_;
};

class InProcessView final : public World {
 public:
  InProcessView(std::shared_ptr<Job> job, int rank) : job_(std::move(job)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return job_->ranks(); }

  std::shared_ptr<ProcessGroup> split(int color, int key, std::string name, std::span<const int> expected) override {
    const Call call = Call::split(name);
    Rendezvous& meeting = job_->making_of_groups();
    meeting.enter(rank_, {.call = call, .choice = {color, key}});
    std::vector<SplitChoice> choices;
    for (int rank = 0; rank < size(); ++rank) choices.push_back(meeting.offer(rank_, rank).choice);
    std::vector<int> ranks = members_of_split(choices, rank_);
    if (const auto differs = unexpected_members(rank_, expected, ranks)) {
      const std::string text = where(rank_, call, job_->label_of_everyone()) + *differs;
      job_->fail(rank_, text);
      throw CommError(text);
    }
    const std::size_t number = splits_made_++;
    if (ranks.empty()) return nullptr;
    const auto own = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    Members& members = job_->members(number, color, std::move(ranks), name);
    return std::make_shared<InProcessGroup>(job_, members, static_cast<int>(own));
  }

  void fail(const std::string& reason) noexcept override { job_->fail(rank_, reason); }

 private:
  const std::shared_ptr<Job> job_;
  const int rank_;
  std::size_t splits_made_ = 0;
};

}  // namespace

InProcessWorld::InProcessWorld(int ranks, const CommOptions& options) {
  require(ranks > 0, "a world has {} ranks, expected 1 or more", ranks);
  job_ = std::make_shared<Job>(ranks, options);
}

InProcessWorld::~InProcessWorld() = default;

std::unique_ptr<World> InProcessWorld::view(int rank) {
  require(rank >= 0 && rank < job_->ranks(), "rank is {}, the world has {} ranks", rank, job_->ranks());
  return std::make_unique<InProcessView>(job_, rank);
}

void InProcessWorld::leave(int rank) noexcept { job_->leave(rank); }
int InProcessWorld::first_failed() const { return job_->first_failed(); }

}  // namespace loom::comm
