#include "engine/comm/tcp/join.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <thread>

#include "engine/comm/call.h"
#include "engine/comm/tcp/greeting.h"
#include "engine/core/error.h"
#include "engine/core/host_name.h"
#include "engine/core/shown_text.h"

namespace loom::comm::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr auto kGreetingTime = std::chrono::seconds(10);
constexpr auto kLook = std::chrono::milliseconds(50);
constexpr int kMostGreetings = 32;  // at once
constexpr std::size_t kProofBytes = 32;
constexpr std::size_t kTokenBytes = 32;

// Where a peer finds these bytes, it reads this process's memory.
const std::array<char, kTokenBytes>& token() {
  static const std::array<char, kTokenBytes> bytes = [] {
    std::array<char, kTokenBytes> random{};
    if (::getrandom(random.data(), random.size(), 0) < 0) random.fill(0);
    return random;
  }();
  return bytes;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// Processes with the same text may read each other's memory and share files of it.
std::string machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat processes {};
  ::stat("/proc/self/ns/pid", &processes);
  return fmt::format("{} {} {}", host_name(), boot, processes.st_ino);
}

// What a rank says of itself.
struct Card {
  int rank = 0;
  int size = 0;
  std::string version{};
  std::string host{};
  int port = 0;
  std::string machine{};
  pid_t pid = 0;
  std::uint64_t token_at = 0;
  std::string token{};  // as hexadecimal
};

std::string text_of(const Card& card) {
  return json{{"rank", card.rank}, {"size", card.size},         {"version", card.version},
              {"host", card.host}, {"port", card.port},         {"machine", card.machine},
              {"pid", card.pid},   {"token_at", card.token_at}, {"token", card.token}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

// `from` names the sender in errors.
Card card_of(const std::string& text, const std::string& from) {
  try {
    const json said = json::parse(text);
    return {.rank = said.at("rank"),
            .size = said.at("size"),
            .version = said.at("version"),
            .host = said.at("host"),
            .port = said.at("port"),
            .machine = said.at("machine"),
            .pid = said.at("pid"),
            .token_at = said.at("token_at"),
            .token = said.at("token")};
  } catch (const json::exception& error) {
    raise<CommError>("{} does not say who it is: {}", from, shown_text(error.what()));
  }
}

std::string key_of(const TcpJob& job, std::string_view kind, int rank) {
  return fmt::format("shardloom/{}/{}/{}", job.id, kind, rank);
}

// How another rank's card cannot belong to this job, or nothing.
void check_card(const TcpJob& job, const Card& card, int rank) {
  const std::string who = fmt::format("rank {} ({})", rank, shown_text(card.host));
  if (card.version != job.version) {
    raise<CommError>("[rank {}] {} runs Shardloom {}, this rank {}; install the same version on all hosts", job.rank,
                     who, shown_text(card.version), job.version);
  }
  if (card.rank != rank || card.size != job.size) {
    raise<CommError>(
        "[rank {}] {} says that it is rank {} of {}, this rank is one of {}; start all ranks with one "
        "WORLD_SIZE",
        job.rank, who, card.rank, card.size, job.size);
  }
}

bool reads_memory_of(const Card& card) {
  std::array<char, kTokenBytes> found{};
  iovec own{found.data(), found.size()};
  iovec theirs{reinterpret_cast<void*>(card.token_at), found.size()};  // NOLINT: an address of another process
  const ssize_t read = ::process_vm_readv(card.pid, &own, 1, &theirs, 1, 0);
  return read == static_cast<ssize_t>(found.size()) && hex({found.data(), found.size()}) == card.token;
}

// Brings one rank into the job.
class Joining {
 public:
  Joining(const TcpJob& job, Deadline deadline) : job_(job), deadline_(deadline) {}

  Joined join() {
    joined_.peers.resize(static_cast<std::size_t>(job_.size));
    own_.rank = job_.rank;
    own_.size = job_.size;
    own_.version = job_.version;
    own_.machine = machine();
    own_.pid = ::getpid();
    own_.token_at = reinterpret_cast<std::uint64_t>(token().data());
    own_.token = hex({token().data(), token().size()});
    open_store();
    listening_ = listen_on(0);
    try {
      show_card();
      read_cards();
    } catch (const CommError& error) {
      const std::string_view text = error.what();
      if (text.starts_with("[rank ")) throw;
      raise<CommError>("[rank {}] the store at {} is gone: {}; look at the output of rank 0, or of the launcher",
                       job_.rank, to_text(job_.store), text);
    }
    find_nodes();
    connect_all();
    return std::move(joined_);
  }

 private:
  void open_store() {
    if (job_.hosts_store) {
      Socket socket = listen_on(job_.store.port);
      if (socket == nullptr) {
        config_error("[rank {}] MASTER_PORT {} is in use on this machine; export another one on all hosts", job_.rank,
                     job_.store.port);
      }
      joined_.server = std::make_unique<StoreServer>(std::move(socket));
    }
    try {
      joined_.store = std::make_unique<StoreClient>(job_.store, deadline_);
    } catch (const CommError& error) {
      raise<CommError>("[rank {}] MASTER_ADDR and MASTER_PORT: {}; check them, and that rank 0 runs", job_.rank,
                       error.what());
    }
  }

  void show_card() {
    own_.host = job_.interfaces.empty() ? joined_.store->local_host()
                                        : host_of_interface(job_.interfaces, "GLOO_SOCKET_IFNAME");
    own_.port = port_of(listening_);
    if (joined_.store->add(key_of(job_, "claim", job_.rank), 1) != 1) {
      raise<CommError>(
          "[rank {}] another process is rank {} of this run already; start each rank once, and every run "
          "with a MASTER_PORT of its own",
          job_.rank, job_.rank);
    }
    const std::string key = key_of(job_, "rank", job_.rank), text = text_of(own_);
    joined_.store->set(key, proof_of(job_.secret, key + text) + text);
  }

  void read_cards() {
    std::vector<std::string> keys;
    for (int rank = 0; rank < job_.size; ++rank) keys.push_back(key_of(job_, "rank", rank));
    if (!joined_.store->wait(keys, deadline_)) {
      std::vector<int> missing;
      for (int rank = 0; rank < job_.size; ++rank) {
        if (!joined_.store->check(keys[static_cast<std::size_t>(rank)])) missing.push_back(rank);
      }
      raise<CommError>("[rank {}] {} of {} ranks have come to {}; missing: {}; look at their output", job_.rank,
                       job_.size - static_cast<int>(missing.size()), job_.size, to_text(job_.store),
                       list_ranks(missing));
    }
    for (int rank = 0; rank < job_.size; ++rank)
      cards_.push_back(read_card(keys[static_cast<std::size_t>(rank)], rank));
  }

  Card read_card(const std::string& key, int rank) {
    const std::string value = joined_.store->get(key);
    const std::string text = value.substr(std::min(value.size(), kProofBytes));
    if (!same_proof(value.substr(0, kProofBytes), proof_of(job_.secret, key + text))) {
      raise<CommError>(
          "[rank {}] rank {} does not know this job's secret; give all processes the same SHARDLOOM_SECRET", job_.rank,
          rank);
    }
    const Card card = card_of(text, fmt::format("[rank {}] rank {}", job_.rank, rank));
    check_card(job_, card, rank);
    return card;
  }

  void find_nodes() {
    std::map<std::string, int> lowest;
    for (const Card& card : cards_) joined_.nodes.push_back(lowest.try_emplace(card.machine, card.rank).first->second);
  }

  // Connects to the lower ranks while the higher ones connect here.
  void connect_all() {
    std::thread accepting([this] { accept_all(); });
    std::exception_ptr failed;
    try {
      for (int rank = 0; rank < job_.rank; ++rank) connect(rank);
    } catch (...) {
      failed = std::current_exception();
      stopping_ = true;
    }
    accepting.join();
    if (failed) std::rethrow_exception(failed);
    std::vector<int> missing;
    for (int rank = 0; rank < job_.size; ++rank) {
      if (rank != job_.rank && peer(rank).socket == nullptr) missing.push_back(rank);
    }
    if (missing.empty()) return;
    const std::string refused = last_refused_.empty() ? "" : fmt::format(" (last refused: {})", last_refused_);
    raise<CommError>(
        "[rank {}] no connection with rank{} {} within the deadline{}; check that the hosts reach each "
        "other, and GLOO_SOCKET_IFNAME",
        job_.rank, missing.size() == 1 ? "" : "s", list_ranks(missing), refused);
  }

  void connect(int rank) {
    const Card& card = cards_[static_cast<std::size_t>(rank)];
    const Address address{card.host, static_cast<std::uint16_t>(card.port)};
    try {
      Socket socket = connect_to(address, deadline_);
      const Deadline end = std::min(deadline_, Clock::now() + kGreetingTime);
      const Card said = card_of(greet(socket, Side::kConnects, job_.secret, text_of(own_), end), to_text(address));
      check_card(job_, said, rank);
      keep(std::move(socket), said, end);
    } catch (const CommError& error) {
      const std::string_view text = error.what();
      if (text.starts_with("[rank ")) throw;
      raise<CommError>("[rank {}] rank {}: {}; check that the hosts reach each other, and GLOO_SOCKET_IFNAME",
                       job_.rank, rank, text);
    }
  }

  void accept_all() {
    std::vector<std::jthread> greetings;
    while (!stopping_ && Clock::now() < deadline_ && still_to_come() > 0) {
      Socket socket = accept_from(listening_, kLook);
      if (socket == nullptr) continue;
      if (open_greetings_ >= kMostGreetings) continue;  // closed
      ++open_greetings_;
      greetings.emplace_back([this, given = std::move(socket)]() mutable {
        accept(std::move(given));
        --open_greetings_;
      });
    }
  }

  // A stranger is no reason to fail.
  void accept(Socket socket) try {
    const std::string from = peer_of(socket);
    const Deadline end = std::min(deadline_, Clock::now() + kGreetingTime);
    const Card said = card_of(greet(socket, Side::kListens, job_.secret, text_of(own_), end), from);
    if (said.rank <= job_.rank || said.rank >= job_.size) {
      raise<CommError>("{} says that it is rank {}", from, said.rank);
    }
    check_card(job_, said, said.rank);
    keep(std::move(socket), said, end);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    last_refused_ = error.what();
  }

  void keep(Socket socket, const Card& said, Deadline end) {
    const char reads = job_.reads_memory && said.machine == own_.machine && reads_memory_of(said) ? 1 : 0;
    send_all(socket, &reads, 1, end);
    char reads_us = 0;
    receive_all(socket, &reads_us, 1, end);
    const std::lock_guard lock(mutex_);
    Joined::Peer& kept = peer(said.rank);
    if (kept.socket != nullptr) raise<CommError>("rank {} has greeted already", said.rank);
    kept.address = peer_of(socket);
    kept.readable_process = reads == 1 ? said.pid : 0;
    kept.reads_us = reads_us == 1;
    kept.socket = std::move(socket);
  }

  int still_to_come() {
    const std::lock_guard lock(mutex_);
    int count = 0;
    for (int rank = job_.rank + 1; rank < job_.size; ++rank) count += peer(rank).socket == nullptr ? 1 : 0;
    return count;
  }

  Joined::Peer& peer(int rank) { return joined_.peers[static_cast<std::size_t>(rank)]; }

  const TcpJob& job_;
  const Deadline deadline_;
  Card own_{};
  Socket listening_{};
  std::vector<Card> cards_{};
  std::atomic<bool> stopping_{false};
  std::atomic<int> open_greetings_{0};
  std::mutex mutex_{};
  Joined joined_{};             // its peers are guarded by mutex_ while ranks connect
  std::string last_refused_{};  // guarded by mutex_
};

}  // namespace

Joined join(const TcpJob& job, Deadline deadline) { return Joining(job, deadline).join(); }

}  // namespace loom::comm::tcp
