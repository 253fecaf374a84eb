#include "engine/comm/tcp/peer_link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace loom::comm::tcp {
namespace {

constexpr std::size_t kPiece = std::size_t{512} << 10;
constexpr std::size_t kRoom = std::size_t{64} << 10;
constexpr std::size_t kAtOnce = std::size_t{8} << 20;  // before other peers have their turn
constexpr std::size_t kMostEarly = std::size_t{64} << 20;
constexpr std::size_t kLongestNotice = std::size_t{64} << 10;

std::byte* at(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT: an address of another process
}

}  // namespace

PeerLink::PeerLink(Joined::Peer peer, std::function<void(const Operation&)> done)
    : peer_(std::move(peer)), done_(std::move(done)), arrived_(kRoom) {}

PeerLink::~PeerLink() = default;

void PeerLink::protest(const char* what) const {
  throw Lost(fmt::format("{} {}, which this protocol does not have; it was disconnected", peer_.address, what));
}

void PeerLink::say(const Header& header, const void* payload, std::size_t bytes) {
  control_.append(reinterpret_cast<const char*>(&header), sizeof header);
  if (bytes > 0) control_.append(static_cast<const char*>(payload), bytes);
}

// --- what the owner of the messages asks for

void PeerLink::post_send(std::uint32_t tag, Operation operation) {
  if (abandoned_) return;
  if (operation.bytes <= kSmall) {
    say({Kind::kSmall, tag, operation.bytes, 0}, operation.data, operation.bytes);
    return done_(operation);
  }
  Channel& channel = channels_[tag];
  if (peer_.reads_us) {
    say({Kind::kOffer, tag, operation.bytes, reinterpret_cast<std::uint64_t>(operation.data)});
    channel.large_sends.push_back(std::move(operation));
    return;
  }
  channel.large_sends.push_back(std::move(operation));
  match_ready(channel, tag);
}

void PeerLink::match_ready(Channel& channel, std::uint32_t tag) {
  while (channel.ready > 0 && !channel.large_sends.empty()) {
    --channel.ready;
    bulk_.push_back({tag, std::move(channel.large_sends.front())});
    channel.large_sends.pop_front();
  }
}

void PeerLink::post_receive(std::uint32_t tag, Operation operation) {
  if (abandoned_) return;
  Channel& channel = channels_[tag];
  if (operation.bytes > kSmall) {
    if (peer_.readable_process == 0) say({Kind::kReady, tag, operation.bytes, 0});
    channel.large_receives.push_back(std::move(operation));
    return read_offers(channel, tag);
  }
  if (channel.early.empty()) {
    channel.small_receives.push_back(std::move(operation));
    return;
  }
  const std::string message = std::move(channel.early.front());
  channel.early.pop_front();
  early_bytes_ -= message.size();
  if (message.size() != operation.bytes) protest("sends a message of another length");
  std::memcpy(operation.data, message.data(), message.size());
  done_(operation);
}

void PeerLink::abandon_all() {
  abandoned_ = true;
  if (chunk_left_ > 0) {  // the frame has begun: its rest leaves out of memory that stays
    rescued_.assign(reinterpret_cast<const char*>(chunk_), chunk_left_);
    chunk_ = reinterpret_cast<const std::byte*>(rescued_.data());
  }
  bulk_.clear();
  channels_.clear();
  target_ = nullptr;
  if (frame_.kind != Kind::kNotice) keeps_ = false;
}

void PeerLink::send_notice(int failed_rank, const std::string& reason) {
  const std::size_t bytes = std::min(reason.size(), kLongestNotice);
  say({Kind::kNotice, 0, bytes, static_cast<std::uint64_t>(failed_rank)}, reason.data(), bytes);
}

void PeerLink::send_farewell() { say({Kind::kFarewell, 0, 0, 0}); }

// --- arriving

void PeerLink::read() {
  for (std::size_t total = 0; total < kAtOnce && !farewell_;) {
    iovec parts[2] = {{target_, target_ == nullptr ? 0 : payload_left_}, {arrived_.data(), arrived_.size()}};
    msghdr message{};
    message.msg_iov = target_ == nullptr ? parts + 1 : parts;
    message.msg_iovlen = target_ == nullptr ? 1 : 2;
    const ssize_t count = ::recvmsg(peer_.socket->get(), &message, 0);
    if (count == 0) throw Lost(fmt::format("its connection ({}) was closed", peer_.address));
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      throw Lost(fmt::format("its connection ({}) was lost: {}", peer_.address, std::strerror(errno)));
    }
    std::size_t bytes = static_cast<std::size_t>(count);
    total += bytes;
    if (target_ != nullptr) {
      const std::size_t direct = std::min(bytes, payload_left_);
      target_ += direct;
      payload_left_ -= direct;
      bytes -= direct;
      if (payload_left_ == 0) end_payload();
    }
    parse(arrived_.data(), bytes);
  }
}

void PeerLink::parse(const std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    if (payload_left_ > 0) {
      const std::size_t part = std::min(bytes, payload_left_);
      take(data, part);
      data += part;
      bytes -= part;
      continue;
    }
    const std::size_t part = std::min(bytes, sizeof(Header) - header_bytes_.size());
    header_bytes_.append(reinterpret_cast<const char*>(data), part);
    data += part;
    bytes -= part;
    if (header_bytes_.size() < sizeof(Header)) return;
    Header header;
    std::memcpy(&header, header_bytes_.data(), sizeof header);
    header_bytes_.clear();
    begin(header);
  }
}

void PeerLink::take(const std::byte* data, std::size_t bytes) {
  if (target_ != nullptr) {
    std::memcpy(target_, data, bytes);
    target_ += bytes;
  } else if (keeps_) {
    kept_.append(reinterpret_cast<const char*>(data), bytes);
  }
  payload_left_ -= bytes;
  if (payload_left_ == 0) end_payload();
}

// A header has arrived.
void PeerLink::begin(const Header& header) {
  frame_ = header;
  payload_left_ = 0;
  target_ = nullptr;
  keeps_ = false;
  kept_.clear();
  const bool is_ours = !abandoned_;
  switch (header.kind) {
    case Kind::kFarewell:
      farewell_ = true;
      return;
    case Kind::kNotice:
      if (header.bytes > kLongestNotice) protest("sends a notice that is too long");
      payload_left_ = static_cast<std::size_t>(header.bytes);
      keeps_ = true;
      if (payload_left_ == 0) end_payload();
      return;
    case Kind::kSmall:
      if (header.bytes > kSmall) protest("sends a small message that is large");
      payload_left_ = static_cast<std::size_t>(header.bytes);
      keeps_ = is_ours;
      return;
    case Kind::kPiece: {
      if (header.bytes == 0 || header.bytes > kPiece) protest("sends a piece that is too long");
      payload_left_ = static_cast<std::size_t>(header.bytes);
      if (!is_ours) return;
      std::deque<Operation>& receives = channels_[header.tag].large_receives;
      if (receives.empty() || receives.front().bytes - receives.front().moved < payload_left_) {
        protest("sends more than was asked for");
      }
      target_ = receives.front().data + receives.front().moved;
      return;
    }
    case Kind::kReady:
      if (!is_ours) return;
      ++channels_[header.tag].ready;
      return match_ready(channels_[header.tag], header.tag);
    case Kind::kOffer:
      if (!is_ours) return;
      if (peer_.readable_process == 0) protest("offers its memory");
      channels_[header.tag].offers.push_back(header.address);
      return read_offers(channels_[header.tag], header.tag);
    case Kind::kDone: {
      if (!is_ours) return;
      std::deque<Operation>& sends = channels_[header.tag].large_sends;
      if (sends.empty()) protest("has read what was not offered");
      const Operation sent = std::move(sends.front());
      sends.pop_front();
      return done_(sent);
    }
  }
  protest("sends a frame of an unknown kind");
}

// The payload of the frame has arrived.
void PeerLink::end_payload() {
  target_ = nullptr;
  if (frame_.kind == Kind::kNotice) {
    notice_ = Notice{static_cast<int>(frame_.address), std::move(kept_)};
    return;
  }
  if (abandoned_) return;
  Channel& channel = channels_[frame_.tag];
  if (frame_.kind == Kind::kPiece) {
    Operation& receive = channel.large_receives.front();
    receive.moved += static_cast<std::size_t>(frame_.bytes);
    if (receive.moved < receive.bytes) return;
    const Operation received = std::move(receive);
    channel.large_receives.pop_front();
    return done_(received);
  }
  if (channel.small_receives.empty()) {
    early_bytes_ += kept_.size();
    if (early_bytes_ > kMostEarly) protest("sends more than is waited for");
    channel.early.push_back(std::move(kept_));
    return;
  }
  const Operation receive = std::move(channel.small_receives.front());
  channel.small_receives.pop_front();
  if (receive.bytes != kept_.size()) protest("sends a message of another length");
  std::memcpy(receive.data, kept_.data(), kept_.size());
  done_(receive);
}

void PeerLink::read_offers(Channel& channel, std::uint32_t tag) {
  while (!channel.offers.empty() && !channel.large_receives.empty()) {
    Operation receive = std::move(channel.large_receives.front());
    channel.large_receives.pop_front();
    copy_from_peer(channel.offers.front(), receive);
    channel.offers.pop_front();
    say({Kind::kDone, tag, 0, 0});
    done_(receive);
  }
}

void PeerLink::copy_from_peer(std::uint64_t address, Operation& operation) {
  while (operation.moved < operation.bytes) {
    iovec own{operation.data + operation.moved, operation.bytes - operation.moved};
    iovec theirs{at(address + operation.moved), operation.bytes - operation.moved};
    const ssize_t count = ::process_vm_readv(peer_.readable_process, &own, 1, &theirs, 1, 0);
    if (count <= 0) {
      throw Lost(fmt::format("the memory of its process {} cannot be read any more: {}", peer_.readable_process,
                             std::strerror(errno)));
    }
    operation.moved += static_cast<std::size_t>(count);
  }
}

// --- leaving

// The next head, and the next piece with it.
void PeerLink::prepare_write() {
  head_ = std::exchange(control_, {});
  head_sent_ = 0;
  if (bulk_.empty()) return;
  Bulk& front = bulk_.front();
  Operation& send = front.operation;
  chunk_ = send.data + send.moved;
  chunk_left_ = std::min(kPiece, send.bytes - send.moved);
  const Header header{Kind::kPiece, front.tag, chunk_left_, 0};
  head_.append(reinterpret_cast<const char*>(&header), sizeof header);
}

void PeerLink::write() {
  for (std::size_t total = 0; total < kAtOnce;) {
    if (head_.empty() && chunk_left_ == 0) {
      if (control_.empty() && bulk_.empty()) return;
      prepare_write();
    }
    iovec parts[2] = {{head_.data() + head_sent_, head_.size() - head_sent_},
                      {const_cast<std::byte*>(chunk_), chunk_left_}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t count = ::sendmsg(peer_.socket->get(), &message, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      throw Lost(fmt::format("its connection ({}) was lost: {}", peer_.address, std::strerror(errno)));
    }
    total += static_cast<std::size_t>(count);
    const std::size_t of_head = std::min(static_cast<std::size_t>(count), head_.size() - head_sent_);
    head_sent_ += of_head;
    if (head_sent_ == head_.size()) {
      head_.clear();
      head_sent_ = 0;
    }
    const std::size_t of_chunk = static_cast<std::size_t>(count) - of_head;
    chunk_ += of_chunk;
    chunk_left_ -= of_chunk;
    if (bulk_.empty() || of_chunk == 0) continue;
    Operation& send = bulk_.front().operation;
    send.moved += of_chunk;
    if (send.moved < send.bytes) continue;
    const Operation sent = std::move(send);
    bulk_.pop_front();
    done_(sent);
  }
}

}  // namespace loom::comm::tcp
