#include "engine/train/pipeline/stage_links.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/train/pipeline/streams.h"

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

HiddenStates described_by(const Header& header) {
  const auto begin = header.begin() + kFirstDim;
  return {Shape(std::vector<std::int64_t>(begin, begin + header[2])), static_cast<DType>(header[0])};
}

std::int64_t bytes_of(const HiddenStates& hidden) { return Tensor::meta(hidden.shape, hidden.dtype).nbytes(); }

// Lanes of a group of two: what the first sends, and what the second sends.
comm::Lane lane_from(int member) { return comm::Lane(member == 0 ? 8 : 9); }

}  // namespace

struct StageLinks::Receipt {
  Header header{};
  std::vector<std::byte> bytes;
  device::Event done;
  HiddenStates expected;
};

struct StageLinks::Link {
  Link(std::shared_ptr<comm::ProcessGroup> pair, device::StreamId sending, device::StreamId receiving)
      : group(std::move(pair)),
        there{own(), other()},
        back{other(), own()},
        sends(stream(sending)),
        receives(stream(receiving)) {}

  int peer() const { return 1 - group->rank(); }
  int own() const { return group->ranks().at(static_cast<std::size_t>(group->rank())); }
  int other() const { return group->ranks().at(static_cast<std::size_t>(peer())); }
  static device::Stream stream(device::StreamId id) {
    device::Device& device = device::Device::current();
    return {id, device.dry_run() ? device::ExecutorKind::kInline : device::ExecutorKind::kThreaded,
            &RankContext::current(), &device.log()};
  }
  device::StreamItem item(std::string_view name, const std::string& tag, const std::vector<int>& ranks,
                          std::int64_t bytes, std::function<void()> run) const {
    return {.name = name,
            .subject = tag,
            .cost = {.link_bytes = &ranks == &back ? bytes : 0, .unit = device::Unit::kLink},
            .run = device::Device::current().dry_run() ? nullptr : std::move(run),
            .collective = device::Collective{
                .kind = device::CollectiveKind::kMessage, .bytes = bytes, .ranks = &ranks, .axis = group->name()}};
  }

  std::shared_ptr<comm::ProcessGroup> group;
  const std::vector<int> there, back;  // of messages to the peer, and from it
  Tensor sent;                         // the last
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
    const int peer = rank_ == first ? second : first;
    if (joins) links_.emplace(peer, make_link(std::move(pair), peer));
  };
  for (const int parity : {0, 1}) {
    const int first = rank_ % 2 == parity ? rank_ : rank_ - 1;
    join(first, first >= 0 && first + 1 < ranks_);
  }
  if (ranks_ > 2) join(ranks_ - 1, rank_ == 0 || rank_ == ranks_ - 1);
}

StageLinks::~StageLinks() = default;

std::unique_ptr<StageLinks::Link> StageLinks::make_link(std::shared_ptr<comm::ProcessGroup> pair, int peer) const {
  const bool is_next = peer == rank_ + 1 || (peer == 0 && rank_ + 1 == ranks_ && ranks_ > 2);
  return std::make_unique<Link>(std::move(pair), is_next ? kSendNextStream : kSendPreviousStream,
                                is_next ? kReceiveNextStream : kReceivePreviousStream);
}

StageLinks::Link& StageLinks::link(int peer) {
  const auto found = links_.find(peer);
  require(found != links_.end(), "stages of ranks {} and {} of a pipeline of {} are no neighbours", rank_, peer,
          ranks_);
  return *found->second;
}

void StageLinks::send(int to, const StageMessage& message, const std::string& tag) {
  const Tensor& tensor = message.tensor;
  Link& link = this->link(to);
  std::vector<std::byte> bytes;
  if (!device::Device::current().dry_run()) {
    const auto* first = static_cast<const std::byte*>(tensor.raw());
    bytes.assign(first, first + tensor.nbytes());
  }
  link.sends.wait(device::Device::current().stream(device::StreamId::kCompute).record());
  link.sends.submit(
      link.item("send", tag, link.there, tensor.nbytes(),
                [group = link.group, peer = link.peer(), header = header_of(message), bytes = std::move(bytes), tag] {
                  const comm::Lane lane = lane_from(group->rank());
                  group->send(lane, peer, {header.data(), sizeof header}, tag);
                  group->send(lane, peer, {bytes.data(), bytes.size()}, tag);
                }));
  link.sent = tensor;
}

void StageLinks::post_receive(int from, const std::string& tag, const HiddenStates& expected) {
  Link& link = this->link(from);
  const auto message = std::make_shared<Receipt>();
  message->expected = expected;
  require(posted_.emplace(tag, message).second, "message {} is received twice", tag);
  link.receives.submit(
      link.item("recv", tag, link.back, bytes_of(expected), [group = link.group, peer = link.peer(), message, tag] {
        const comm::Lane lane = lane_from(peer);
        group->recv(lane, peer, {message->header.data(), sizeof message->header}, tag);
        message->bytes.resize(static_cast<std::size_t>(bytes_of(described_by(message->header))));
        group->recv(lane, peer, {message->bytes.data(), message->bytes.size()}, tag);
      }));
  message->done = link.receives.record();
}

StageMessage StageLinks::take(const std::string& tag) {
  const auto found = posted_.find(tag);
  require(found != posted_.end(), "message {} is taken before it is received", tag);
  const std::shared_ptr<Receipt> message = found->second;
  posted_.erase(found);
  device::Device& device = device::Device::current();
  device.stream(device::StreamId::kCompute).wait(message->done);
  const HiddenStates came = device.dry_run() ? message->expected : described_by(message->header);
  device.log().set_bytes_of_message(message->done.entry(), bytes_of(came));
  const Tensor tensor = Tensor::empty(came.shape, came.dtype, device::MemCategory::kActivation, "message");
  if (!message->bytes.empty()) std::memcpy(tensor.raw(), message->bytes.data(), message->bytes.size());
  return {tensor, static_cast<std::uint64_t>(message->header[1])};
}

void StageLinks::synchronize() {
  for (auto& [peer, link] : links_) {
    link->sends.synchronize();
    link->sent = {};
  }
}

}  // namespace loom::train
