#include "engine/launcher/coordinator.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/comm/tcp/store.h"
#include "engine/core/wake_event.h"
#include "engine/launcher/channel.h"
#include "engine/launcher/first_bytes.h"
#include "engine/launcher/meeting.h"
#include "engine/launcher/rendezvous.h"

namespace loom::launcher {
namespace {

using comm::tcp::Socket;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostUnknown = 1024;
constexpr std::size_t kMostGreetings = 64;
constexpr int kMostRefusedNoted = 100;
constexpr Milliseconds kTick{50};
constexpr Milliseconds kFarewell{10'000};

// Agents that are being greeted, each on a thread of its own, so that a slow one holds up nobody.
class Greetings {
 public:
  struct Greeted {
    Socket socket{};
    Join join{};
    std::string problem{};
  };

  explicit Greetings(Milliseconds time) : time_(time) {}
  ~Greetings() {
    for (Greeting& greeting : running_) greeting.thread.join();
  }
  Greetings(const Greetings&) = delete;
  Greetings& operator=(const Greetings&) = delete;

  int event() const { return event_.get(); }

  // Whether another one may begin.
  bool has_room() {
    std::erase_if(running_, [](Greeting& greeting) {
      if (!greeting.over) return false;
      greeting.thread.join();
      return true;
    });
    return running_.size() < kMostGreetings;
  }

  void begin(Socket socket) {
    Greeting& greeting = running_.emplace_back();
    const auto shared = std::make_shared<Socket>(std::move(socket));
    greeting.thread = std::thread([this, &greeting, shared] {
      greet(std::move(*shared));
      greeting.over = true;
    });
  }

  std::vector<Greeted> take() {
    event_.clear();
    const std::scoped_lock lock(mutex_);
    return std::exchange(greeted_, {});
  }

 private:
  struct Greeting {
    std::thread thread;
    std::atomic<bool> over = false;
  };

  void greet(Socket socket) {
    Greeted greeted;
    try {
      greeted.join = meet(socket, Clock::now() + time_);
    } catch (const std::exception& error) {
      greeted.problem = error.what();
    }
    greeted.socket = std::move(socket);
    const std::scoped_lock lock(mutex_);
    greeted_.push_back(std::move(greeted));
    event_.wake();
  }

  const Milliseconds time_;
  const WakeEvent event_;
  std::list<Greeting> running_;
  std::mutex mutex_;
  std::vector<Greeted> greeted_;
};

}  // namespace

class Coordinator::Loop {
 public:
  Loop(const Options& options, Socket listening, TakeNote note)
      : times_(options.times),
        listening_(std::move(listening)),
        note_(std::move(note)),
        port_(comm::tcp::port_of(listening_)),
        most_agents_(2 * static_cast<std::size_t>(options.nodes.most) + 64),
        greetings_(options.times.greeting),
        rendezvous_(options, Clock::now()),
        thread_([this] { run(); }) {}

  ~Loop() {
    finish_ = true;
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  struct Unknown {
    Socket socket;
    Clock::time_point since;
  };

  void run() {
    std::optional<Clock::time_point> finish_by;
    while (true) {
      wait();
      step();
      if (!finish_) continue;
      if (!finish_by) finish_by = Clock::now() + times_.stop + kFarewell;
      if (agents_.empty() || !rendezvous_.ending() || Clock::now() >= *finish_by) return;
    }
  }

  void wait() {
    std::vector<pollfd> polled{{listening_->get(), POLLIN, 0}, {greetings_.event(), POLLIN, 0}};
    for (const auto& [id, channel] : agents_) {
      polled.push_back(
          {channel.descriptor(), static_cast<short>(channel.wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0});
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(kTick.count()));
  }

  void step() {
    try {
      accept_all();
      sort_unknown();
      for (Greetings::Greeted& greeted : greetings_.take()) admit(std::move(greeted));
      hear();
      rendezvous_.tick(Clock::now());
      speak();
    } catch (const std::exception& error) {
      if (problem_ != error.what()) note_(fmt::format("coordinator: {}", error.what()), false);
      problem_ = error.what();
    }
  }

  void accept_all() {
    while (Socket socket = comm::tcp::accept_from(listening_, Milliseconds(0))) {
      if (unknown_.size() >= kMostUnknown) unknown_.pop_front();  // the oldest
      unknown_.push_back({std::move(socket), Clock::now()});
    }
  }

  void sort_unknown() {
    for (auto it = unknown_.begin(); it != unknown_.end();) {
      const Caller caller = caller_of(it->socket);
      const bool waits = caller == Caller::kUnknown || (caller == Caller::kAgent && !greetings_.has_room());
      if (waits && Clock::now() < it->since + times_.greeting) {
        ++it;
        continue;
      }
      if (caller == Caller::kAgent && !waits) greetings_.begin(std::move(it->socket));
      if (caller == Caller::kStoreClient && store_) store_->adopt(std::move(it->socket));
      it = unknown_.erase(it);
    }
  }

  void admit(Greetings::Greeted greeted) {
    if (!greeted.problem.empty()) {
      if (refused_++ < kMostRefusedNoted) note_("a connection was refused: " + greeted.problem, true);
      return;
    }
    if (agents_.size() >= most_agents_) return;  // closes the connection
    const Rendezvous::Id id = next_id_++;
    comm::tcp::set_options(greeted.socket);
    agents_.emplace(id, Channel(std::move(greeted.socket)));
    rendezvous_.joined(id, greeted.join, Clock::now());
  }

  void hear() {
    for (auto& [id, channel] : agents_) {
      channel.pump();
      while (const auto message = channel.next()) rendezvous_.received(id, *message, Clock::now());
    }
    for (auto it = agents_.begin(); it != agents_.end();) {
      const bool silent = Clock::now() > it->second.heard() + times_.read;
      if (it->second.problem().empty() && !silent) {
        ++it;
        continue;
      }
      rendezvous_.lost(it->first, silent ? "no sign of life" : it->second.problem(), Clock::now());
      it = agents_.erase(it);
    }
  }

  void speak() {
    if (rendezvous_.attempts() != attempts_) {
      store_ = nullptr;  // its clients have stopped
      store_ = std::make_unique<comm::tcp::StoreServer>(nullptr);
      attempts_ = rendezvous_.attempts();
    }
    for (const auto& [id, message] : rendezvous_.take_messages()) {
      if (const auto agent = agents_.find(id); agent != agents_.end()) agent->second.send(message);
    }
    for (const Rendezvous::Note& note : rendezvous_.take_notes()) note_(note.text, note.routine);
  }

  const Times times_;
  const Socket listening_;
  const TakeNote note_;
  const std::uint16_t port_;
  const std::size_t most_agents_;  // with those that are refused and have not gone yet
  std::list<Unknown> unknown_;
  Greetings greetings_;
  Rendezvous rendezvous_;
  std::map<Rendezvous::Id, Channel> agents_;
  Rendezvous::Id next_id_ = 0;
  std::unique_ptr<comm::tcp::StoreServer> store_;
  int attempts_ = 0;
  int refused_ = 0;      // connections
  std::string problem_;  // the last, which is said once
  std::atomic<bool> finish_ = false;
  std::thread thread_;  // last: it uses the rest
};

Coordinator::Coordinator(const Options& options, Socket listening, TakeNote note)
    : loop_(std::make_unique<Loop>(options, std::move(listening), std::move(note))) {}
Coordinator::~Coordinator() = default;
std::uint16_t Coordinator::port() const { return loop_->port(); }

}  // namespace loom::launcher
