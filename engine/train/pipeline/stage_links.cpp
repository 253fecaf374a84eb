#include "engine/train/pipeline/stage_links.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"

namespace loom::train {
namespace {

// In front of a tensor: its dtype, the draws, the number of its dims, and these.
using Header = std::array<std::int64_t, 11>;
constexpr std::size_t kFirstDim = 3;

Header header_of(const StageMessage& message) {
  const std::vector<std::int64_t>& sizes = message.tensor.shape().sizes();
  Header header{static_cast<std::int64_t>(message.tensor.dtype()), static_cast<std::int64_t>(message.draws),
                static_cast<std::int64_t>(sizes.size())};
  require(sizes.size() + kFirstDim <= header.size(), "a message {} has too many dims",
          to_string(message.tensor.shape()));
  std::ranges::copy(sizes, header.begin() + kFirstDim);
  return header;
}

Shape shape_of(const Header& header) {
  const auto begin = header.begin() + kFirstDim;
  return Shape(std::vector<std::int64_t>(begin, begin + header[2]));
}

// Lanes of a group of two: what the first sends, and what the second sends.
comm::Lane lane_from(int member) { return comm::Lane(member == 0 ? 8 : 9); }

}  // namespace

struct StageLinks::Receipt {
  Header header{};
  std::vector<std::byte> bytes;
  device::Event done;
};

struct StageLinks::Link {
  explicit Link(std::shared_ptr<comm::ProcessGroup> pair)
      : group(std::move(pair)),
        sends({7, "send"}, device::ExecutorKind::kThreaded, &RankContext::current(), &device::Device::current().log()),
        receives({7, "receive"}, device::ExecutorKind::kThreaded, &RankContext::current(),
                 &device::Device::current().log()) {}

  int peer() const { return 1 - group->rank(); }

  std::shared_ptr<comm::ProcessGroup> group;
  // Tensors are let go of by the host thread alone.
  std::deque<std::pair<device::Event, Tensor>> sent;
  device::Stream sends;
  device::Stream receives;
};

// Neighbours r and r + 1 are a pair; so are the last and the first, unless they are one already. Pairs that share no
// rank are made by one split.
StageLinks::StageLinks(comm::World& world, int ranks) : rank_(world.rank() / (world.size() / ranks)), ranks_(ranks) {
  const int width = world.size() / ranks, cell = world.rank() % width;
  const auto join = [&](int first, bool joins) {
    const int second = (first + 1) % ranks_;
    const std::vector<int> members{first * width + cell, second * width + cell};
    std::shared_ptr<comm::ProcessGroup> pair =
        joins ? world.split(first * width + cell, rank_ == first ? 0 : 1, "pp", members)
              : world.split(comm::World::kNoColor, 0, "pp", {});
    if (joins) links_.emplace(rank_ == first ? second : first, std::make_unique<Link>(std::move(pair)));
  };
  for (const int parity : {0, 1}) {
    const int first = rank_ % 2 == parity ? rank_ : rank_ - 1;
    join(first, first >= 0 && first + 1 < ranks_);
  }
  if (ranks_ > 2) join(ranks_ - 1, rank_ == 0 || rank_ == ranks_ - 1);
}

StageLinks::~StageLinks() = default;

StageLinks::Link& StageLinks::link(int peer) {
  const auto found = links_.find(peer);
  require(found != links_.end(), "stages of ranks {} and {} of a pipeline of {} are no neighbours", rank_, peer,
          ranks_);
  return *found->second;
}

void StageLinks::send(int to, const StageMessage& message, const std::string& tag) {
  const Tensor& tensor = message.tensor;
  Link& link = this->link(to);
  link.sends.wait(device::Device::current().stream(device::StreamId::kCompute).record());
  const comm::Outgoing payload{tensor.raw(), static_cast<std::size_t>(tensor.nbytes())};
  link.sends.submit({.name = {},
                     .subject = {},
                     .cost = {},
                     .run = [group = link.group, peer = link.peer(), header = header_of(message), payload, tag] {
                       const comm::Lane lane = lane_from(group->rank());
                       group->send(lane, peer, {header.data(), sizeof header}, tag);
                       group->send(lane, peer, payload, tag);
                     }});
  while (!link.sent.empty() && link.sent.front().first.done()) link.sent.pop_front();
  link.sent.emplace_back(link.sends.record(), tensor);
}

void StageLinks::post_receive(int from, const std::string& tag) {
  Link& link = this->link(from);
  const auto message = std::make_shared<Receipt>();
  require(posted_.emplace(tag, message).second, "message {} is received twice", tag);
  link.receives.submit(
      {.name = {}, .subject = {}, .cost = {}, .run = [group = link.group, peer = link.peer(), message, tag] {
         const comm::Lane lane = lane_from(peer);
         group->recv(lane, peer, {message->header.data(), sizeof message->header}, tag);
         const std::int64_t bytes =
             Tensor::meta(shape_of(message->header), static_cast<DType>(message->header[0])).nbytes();
         message->bytes.resize(static_cast<std::size_t>(bytes));
         group->recv(lane, peer, {message->bytes.data(), message->bytes.size()}, tag);
       }});
  message->done = link.receives.record();
}

StageMessage StageLinks::take(const std::string& tag) {
  const auto found = posted_.find(tag);
  require(found != posted_.end(), "message {} is taken before it is received", tag);
  const std::shared_ptr<Receipt> message = found->second;
  posted_.erase(found);
  message->done.wait();
  const Tensor tensor = Tensor::empty(shape_of(message->header), static_cast<DType>(message->header[0]),
                                      device::MemCategory::kActivation, "message");
  device::Device::current().launch("receive", {0, tensor.nbytes(), tensor.nbytes()}, [&] {
    if (!message->bytes.empty()) std::memcpy(tensor.raw(), message->bytes.data(), message->bytes.size());
  });
  tensor.storage()->bump_version();
  return {tensor, static_cast<std::uint64_t>(message->header[1])};
}

void StageLinks::synchronize() {
  for (auto& [peer, link] : links_) {
    link->sends.synchronize();
    link->sent.clear();
  }
}

}  // namespace loom::train
