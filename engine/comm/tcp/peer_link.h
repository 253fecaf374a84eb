// PeerLink: one rank's connection with another: frames on a socket, and the messages that they belong to.
// Private to engine/comm.
//
// Small     messages of up to kSmall bytes leave at once, and wait here if they arrive before their receive.
// Large     The receiver says that its memory is ready; then the bytes go from memory to memory, in pieces that let
//           small messages of other tags pass between them.
// Memory    Between ranks of one machine the sender says where a large message lies, and the receiver reads it there
//           (process_vm_readv): one copy, no socket.
// Order     The n-th small receive of a tag gets the n-th small message of the tag, and so for large ones.
// Errors    Lost: the connection has ended, or the peer says what this protocol does not have.
// Threads   the communication thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/types.h>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/comm/tcp/join.h"

namespace loom::comm::tcp {

class TcpBatch;

class Lost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A message of a batch: memory of its owner.
struct Operation {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<TcpBatch> batch{};
  std::size_t moved = 0;
};

class PeerLink {
 public:
  static constexpr std::size_t kSmall = std::size_t{16} << 10;

  // `done` is called for every operation that has ended.
  PeerLink(Joined::Peer peer, std::function<void(const Operation&)> done);
  ~PeerLink();

  int socket() const { return peer_.socket->get(); }
  const std::string& address() const { return peer_.address; }
  bool wants_to_write() const { return chunk_left_ > 0 || !head_.empty() || !control_.empty() || !bulk_.empty(); }

  void post_send(std::uint32_t tag, Operation operation);
  void post_receive(std::uint32_t tag, Operation operation);
  // Move what moves without waiting.
  void read();
  void write();

  // Drops every operation; from now on nothing is written to anybody's memory or read from it.
  void abandon_all();
  // Tells the peer of the job's failure, and that this end is over.
  void send_notice(int failed_rank, const std::string& reason);
  void send_farewell();

  struct Notice {
    int rank = 0;
    std::string reason{};
  };
  // What the peer has told of a failure, once.
  std::optional<Notice> take_notice() { return std::exchange(notice_, std::nullopt); }
  bool peer_has_ended() const { return farewell_; }

 private:
  enum class Kind : std::uint32_t { kSmall = 1, kReady, kPiece, kOffer, kDone, kNotice, kFarewell };
  struct Header {
    Kind kind{};
    std::uint32_t tag = 0;
    std::uint64_t bytes = 0;    // that follow, or of the whole message
    std::uint64_t address = 0;  // kOffer; kNotice: the failed rank
  };
  // The messages of one tag that have not ended.
  struct Channel {
    std::deque<Operation> small_receives{}, large_receives{}, large_sends{};
    std::deque<std::string> early{};     // small messages before their receive
    std::deque<std::uint64_t> offers{};  // large ones in the peer's memory
    std::size_t ready = 0;               // memory that is ready at the peer before its send
  };

  void say(const Header& header, const void* payload = nullptr, std::size_t bytes = 0);
  void begin(const Header& header);
  // Bytes of the frame under way.
  void take(const std::byte* data, std::size_t bytes);
  void end_payload();
  void parse(const std::byte* data, std::size_t bytes);
  void read_offers(Channel& channel, std::uint32_t tag);
  void copy_from_peer(std::uint64_t address, Operation& operation);
  void match_ready(Channel& channel, std::uint32_t tag);
  void prepare_write();
  [[noreturn]] void protest(const char* what) const;

  Joined::Peer peer_;
  const std::function<void(const Operation&)> done_;
  std::unordered_map<std::uint32_t, Channel> channels_;
  std::size_t early_bytes_ = 0;
  bool abandoned_ = false;

  // Arriving.
  std::vector<std::byte> arrived_;
  std::string header_bytes_{};  // of a header that has not arrived as a whole
  Header frame_{};
  std::size_t payload_left_ = 0;
  std::byte* target_ = nullptr;  // of the payload; null: kept_ or nowhere
  bool keeps_ = false;
  std::string kept_{};
  std::optional<Notice> notice_{};
  bool farewell_ = false;

  // Leaving: head_, then chunk_; control_ is the next head.
  struct Bulk {
    std::uint32_t tag = 0;
    Operation operation{};
  };
  std::string head_{}, control_{};
  std::size_t head_sent_ = 0;
  const std::byte* chunk_ = nullptr;
  std::size_t chunk_left_ = 0;
  std::deque<Bulk> bulk_{};
  std::string rescued_{};  // the rest of a piece whose owner has left
};

}  // namespace loom::comm::tcp
