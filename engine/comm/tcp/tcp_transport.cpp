#include "engine/comm/tcp/tcp_transport.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/comm/tcp/join.h"
#include "engine/comm/tcp/peer_link.h"
#include "engine/core/error.h"

namespace loom::comm::tcp {

using messages::Direction;
using messages::Message;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kGrace = std::chrono::seconds(3);           // for the peers to learn of a failure
constexpr auto kBusyElsewhere = std::chrono::seconds(10);  // of a rank that does not look at its failed job
constexpr auto kFarewell = std::chrono::seconds(10);       // for the peers to end, too
constexpr auto kLongestSleep = std::chrono::milliseconds(500);

}  // namespace

class TcpBatch final : public messages::Batch {
 public:
  TcpBatch(int tag, std::vector<Message> messages, Clock::time_point deadline)
      : tag(static_cast<std::uint32_t>(tag)), messages(std::move(messages)), deadline(deadline) {
    std::erase_if(this->messages, [](const Message& message) { return message.bytes == 0; });
    open = this->messages.size();
  }

  void ended(const void* memory, int peer) {
    --open;
    const auto found = std::ranges::find(waited_for, std::pair(memory, peer));
    if (found != waited_for.end()) waited_for.erase(found);
  }

  bool waits_for(int peer) const {
    return std::ranges::any_of(waited_for,
                               [peer](const auto& memory_and_peer) { return memory_and_peer.second == peer; });
  }

  const std::uint32_t tag;
  std::vector<Message> messages;
  const Clock::time_point deadline;
  // The communication thread's.
  std::size_t open = 0;
  std::vector<std::pair<const void*, int>> waited_for{};  // memory and peer of what has not ended
};

TcpTransport::TcpTransport(const TcpJob& job, std::chrono::milliseconds timeout)
    : Transport(timeout),
      rank_(job.rank),
      joined_(std::make_unique<Joined>(join(job, Clock::now() + timeout))),
      nodes_(joined_->nodes),
      ended_(joined_->peers.size()),
      moves_(joined_->peers.size(), true) {
  for (Joined::Peer& peer : joined_->peers) {
    const int number = static_cast<int>(links_.size());
    const auto done = [number](const Operation& operation) { operation.batch->ended(operation.data, number); };
    links_.push_back(peer.socket == nullptr ? nullptr : std::make_unique<PeerLink>(std::move(peer), done));
  }
  thread_ = std::thread([this] { serve(); });
}

TcpTransport::~TcpTransport() {
  {
    const std::lock_guard lock(mutex_);
    end_ = End::kOrdered;
    wake();
  }
  thread_.join();
}

int TcpTransport::largest_tag() const { return std::numeric_limits<int>::max(); }

std::shared_ptr<messages::Batch> TcpTransport::start(int tag, std::vector<Message> messages) {
  auto batch = std::make_shared<TcpBatch>(tag, std::move(messages), Clock::now() + timeout());
  const std::lock_guard lock(mutex_);
  fresh_.push_back(batch);
  wake();
  return batch;
}

void TcpTransport::abort_job() {
  {
    const std::lock_guard lock(mutex_);
    end_ = End::kAborted;
    wake();
  }
  thread_.join();
}

void TcpTransport::serve() {
  pthread_setname_np(pthread_self(), "tcp");
  while (!ends()) {
    take_fresh();
    move_bytes();
    end_batches();
    spread_failure();
    end_if_busy_elsewhere();
    wait_for_events();
  }
}

// What an MPI launcher does with the ranks of a failed job.
void TcpTransport::end_if_busy_elsewhere() {
  if (!failure_spread_ || Clock::now() - failed_at_ < kBusyElsewhere || end_wanted() != End::kNone) return;
  std::fputs(fmt::format("[rank {}] {}\n", rank_, failure()).c_str(), stderr);
  std::fflush(nullptr);
  std::_Exit(1);
}

void TcpTransport::wait_for_events() {
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
  std::vector<std::size_t> peers;  // of polled, from the second on
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    const auto& link = links_[peer];
    if (link == nullptr || (link->peer_has_ended() && !link->wants_to_write())) continue;
    polled.push_back({link->socket(), static_cast<short>(link->wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0});
    peers.push_back(peer);
  }
  auto sleep = kLongestSleep;
  for (const auto& batch : active_) {
    sleep = std::min(sleep, std::chrono::ceil<std::chrono::milliseconds>(batch->deadline - Clock::now()));
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(std::max<std::int64_t>(sleep.count(), 0)));
  for (std::size_t i = 0; i < peers.size(); ++i) moves_[peers[i]] = polled[i + 1].revents != 0;
  wake_.clear();
}

void TcpTransport::take_fresh() {
  Batches fresh;
  {
    const std::lock_guard lock(mutex_);
    fresh.swap(fresh_);
  }
  for (const auto& batch : fresh) post(batch);
}

void TcpTransport::post(const std::shared_ptr<TcpBatch>& batch) {
  if (failure_spread_) return end(*batch, {});
  active_.push_back(batch);
  for (const Message& message : batch->messages) batch->waited_for.emplace_back(message.data, message.peer);
  for (const Message& message : batch->messages) {
    const auto& link = links_[static_cast<std::size_t>(message.peer)];
    if (link == nullptr) {
      lose(message.peer, "it has ended its run while others wait for it");
      return;
    }
    try {
      Operation operation{static_cast<std::byte*>(message.data), message.bytes, batch};
      if (message.direction == Direction::kSend) {
        link->post_send(batch->tag, std::move(operation));
      } else {
        link->post_receive(batch->tag, std::move(operation));
      }
    } catch (const Lost& lost) {
      lose(message.peer, lost.what());
    }
  }
}

void TcpTransport::move_bytes() {
  for (int peer = 0; peer < size(); ++peer) {
    const auto& link = links_[static_cast<std::size_t>(peer)];
    if (link != nullptr && (moves_[static_cast<std::size_t>(peer)] || link->wants_to_write())) move_bytes(peer);
  }
}

void TcpTransport::move_bytes(int peer) {
  auto& link = links_[static_cast<std::size_t>(peer)];
  std::string lost;
  try {
    link->read();
    if (link->wants_to_write()) link->write();
  } catch (const Lost& error) {
    lost = error.what();
  }
  if (!lost.empty()) try {
      link->read();  // a peer that fails says why before it ends
    } catch (const Lost&) {
    }
  if (const auto notice = link->take_notice()) note_failure({notice->rank, notice->reason});
  if (!lost.empty()) return lose(peer, lost);
  if (!link->peer_has_ended()) return;
  ended_[static_cast<std::size_t>(peer)] = true;
  if (says_farewell_ && !link->wants_to_write()) link = nullptr;
}

void TcpTransport::lose(int peer, const std::string& reason) {
  auto& link = links_[static_cast<std::size_t>(peer)];
  const bool is_waited_for = std::ranges::any_of(active_, [&](const auto& batch) { return batch->waits_for(peer); });
  const bool in_order = ended_[static_cast<std::size_t>(peer)] && !is_waited_for;
  if (link != nullptr) link->abandon_all();
  link = nullptr;
  ended_[static_cast<std::size_t>(peer)] = true;
  if (!in_order) note_failure({peer, "its process has ended, or its host cannot be reached: " + reason});
}

void TcpTransport::end_batches() {
  const auto now = Clock::now();
  Batches open;
  for (const auto& batch : active_) {
    if (batch->open == 0) {
      end(*batch, {.done = true});
    } else if (now < batch->deadline) {
      open.push_back(batch);
    } else {
      std::vector<int> missing;
      for (const auto& [memory, peer] : batch->waited_for) missing.push_back(peer);
      std::ranges::sort(missing);
      missing.erase(std::ranges::unique(missing).begin(), missing.end());
      // The group that waited fails the job with it; nothing that is under way may touch its memory.
      for (const auto& link : links_) {
        if (link != nullptr) link->abandon_all();
      }
      end(*batch, {.done = false, .missing = std::move(missing)});
    }
  }
  active_.swap(open);
}

void TcpTransport::spread_failure() {
  const std::optional<Failure> failure = known_failure();
  if (!failure || failure_spread_) return;
  failure_spread_ = true;
  failed_at_ = Clock::now();
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    link->abandon_all();
    link->send_notice(failure->rank, failure->reason);
  }
  for (const auto& batch : active_) end(*batch, {});
  active_.clear();
}

TcpTransport::End TcpTransport::end_wanted() const {
  const std::lock_guard lock(mutex_);
  return fresh_.empty() ? end_ : End::kNone;
}

bool TcpTransport::all_have_ended() const {
  return std::ranges::all_of(links_, [](const auto& link) { return link == nullptr; });
}

// Says farewell once the end is wanted; true when all peers have, or take too long.
bool TcpTransport::ends() {
  const End wanted = end_wanted();
  if (wanted == End::kNone || !active_.empty()) return false;
  if (!says_farewell_) {
    says_farewell_ = true;
    latest_end_ = Clock::now() + (wanted == End::kAborted ? kGrace : kFarewell);
    if (wanted == End::kAborted) spread_failure();
    for (const auto& link : links_) {
      if (link != nullptr) link->send_farewell();
    }
  }
  return all_have_ended() || Clock::now() >= latest_end_;
}

}  // namespace loom::comm::tcp
