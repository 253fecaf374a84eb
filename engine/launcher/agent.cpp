#include "engine/launcher/agent.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <fmt/format.h>
#include <optional>
#include <thread>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/local_time.h"
#include "engine/core/shown_text.h"
#include "engine/device/host_topology.h"
#include "engine/launch/affinity.h"
#include "engine/launch/stop_signals.h"
#include "engine/launcher/channel.h"
#include "engine/launcher/coordinator.h"
#include "engine/launcher/meeting.h"
#include "engine/launcher/worker_environment.h"
#include "engine/launcher/worker_group.h"

namespace loom::launcher {
namespace {

using comm::tcp::Socket;
using Clock = std::chrono::steady_clock;

constexpr Milliseconds kConnect{1'000};  // one try
constexpr Milliseconds kKillAgain{10'000};
constexpr Milliseconds kFarewell{5'000};  // of an agent that leaves
constexpr int kGreetings = 5;
constexpr Milliseconds kGreetAgain{500};

void put(int descriptor, const std::string& text) {
  [[maybe_unused]] const ssize_t written = ::write(descriptor, text.data(), text.size());
}

class Agent {
 public:
  explicit Agent(const Options& options)
      : options_(options), meeting_(options.meeting), logs_(options), cores_(cores_of_workers()) {}

  void run(const std::function<void()>& ready) {
    open_coordinator();
    if (ready) ready();
    if (sets_openmp_threads(options_)) {
      say(fmt::format("OMP_NUM_THREADS is 1 in each of the {} workers; export it for another number",
                      options_.workers));
    }
    join();
    while (!over_) step();
    group_.reset();
    output_.drain();
    if (const std::string problem = output_.problem(); !problem.empty()) say(problem);
    channel_.reset();
    coordinator_.reset();  // until the others have gone
    conclude();
  }

 private:
  // --- Before the job

  std::vector<std::vector<int>> cores_of_workers() const {
    std::vector<std::vector<int>> cores;
    const launch::AffinityRequest request = launch::parse_bind_core(options_.bind_core);
    if (request.mode == launch::AffinityMode::kOff) return cores;
    const auto placement = launch::place_ranks(request, device::HostTopology::detect(), options_.workers);
    for (const launch::RankCores& rank : placement.ranks) cores.push_back(rank.range);
    for (const std::string& note : placement.notes) say(note);
    return cores;
  }

  void open_coordinator() {
    if (options_.coordinator == Host::kOther) return;
    const bool alone = options_.nodes.most == 1 || comm::tcp::is_loopback(meeting_.host);
    own_address_.host = meeting_.host == "::1" ? "::1" : "127.0.0.1";
    Socket listening = comm::tcp::listen_on(meeting_.port, alone ? own_address_.host : "");
    if (!listening && options_.coordinator == Host::kFirst) return;  // of an agent that was here before
    if (!listening) {
      config_error("{} {} is in use on this host; give another one{}", options_.port_flag, meeting_.port,
                   options_.tool == Tool::kTorchrun && options_.nodes.most == 1
                       ? ", or --standalone, which takes a free one"
                       : ", the same on all nodes");
    }
    if (options_.tool == Tool::kMsrun) {
      journal_ = open_log(options_.log_dir.value_or(".") / "scheduler.log", /*append=*/false);
    }
    meeting_.port = own_address_.port = comm::tcp::port_of(listening);
    coordinator_ = std::make_unique<Coordinator>(
        options_, std::move(listening), [this](const std::string& text, bool routine) { note(text, routine); });
  }

  Join own_join() const {
    return {.tool = name_of(options_.tool),
            .version = options_.version,
            .run_id = options_.run_id,
            .host = host_name(options_),
            .role = options_.role,
            .least = options_.nodes.least,
            .most = options_.nodes.most,
            .workers = options_.workers,
            .node_rank = options_.node_rank,
            .has_coordinator = coordinator_ != nullptr};
  }

  void join() {
    const auto deadline = Clock::now() + options_.times.join;
    for (int greetings = 0; !channel_;) {
      check_signal();
      const comm::tcp::Address address = coordinator_ ? own_address_ : meeting_;
      Socket socket = connect(address, deadline);
      if (!socket) {
        if (options_.coordinator == Host::kFirst && !coordinator_) open_coordinator();  // the port may be free now
        continue;
      }
      try {
        introduce(socket, own_join(), Clock::now() + options_.times.greeting);
        comm::tcp::set_options(socket);
        channel_.emplace(std::move(socket));
      } catch (const CommError& error) {
        if (++greetings < kGreetings && Clock::now() < deadline) {
          std::this_thread::sleep_for(kGreetAgain);  // it may be busy with many agents
          continue;
        }
        raise<Error>(
            "{} is not the coordinator of a job of shardloom {}: {}; give another {}, or the same "
            "SHARDLOOM_SECRET on all nodes",
            comm::tcp::to_text(address), name_of(options_.tool), error.what(), options_.port_flag);
      }
    }
  }

  // Null: tried in vain for a while.
  Socket connect(const comm::tcp::Address& address, Clock::time_point deadline) const {
    try {
      return comm::tcp::connect_to(address, std::min(deadline, Clock::now() + kConnect));
    } catch (const CommError& error) {
      if (Clock::now() < deadline) return nullptr;
      raise<Error>(
          "no coordinator at {} within {:g} s: {}; start the node that has it, or check the address and the "
          "network",
          comm::tcp::to_text(address), static_cast<double>(options_.times.join.count()) / 1000, error.what());
    }
  }

  static void check_signal() {
    const int signal = launch::StopSignals::received();
    if (signal == 0) return;
    throw launch::Interrupted(signal, fmt::format("{} before all nodes had joined", launch::signal_name(signal)));
  }

  // --- The job

  void step() {
    pollfd polled{channel_->descriptor(), static_cast<short>(channel_->wants_to_write() ? POLLIN | POLLOUT : POLLIN),
                  0};
    if (lost_.empty()) {
      ::poll(&polled, 1, static_cast<int>(options_.times.monitor.count()));
      hear();
    } else {
      std::this_thread::sleep_for(options_.times.monitor);
    }
    if (over_) return;
    watch_workers();
    watch_signals();
    watch_time();
  }

  void hear() {
    channel_->pump();
    while (auto message = channel_->next()) {
      if (over_) return;
      take(*message);
    }
    const bool silent = Clock::now() > channel_->heard() + options_.times.read;
    if (over_ || (channel_->problem().empty() && !silent)) return;
    lost_ = fmt::format("the coordinator at {} is lost: {}; look at that host", comm::tcp::to_text(meeting_),
                        silent ? "no sign of life" : channel_->problem());
    stop_workers(SIGTERM);
  }

  void take(const Message& message) {
    if (const auto* assigned = std::get_if<Assigned>(&message)) start(*assigned);
    if (const auto* stop = std::get_if<Stop>(&message)) {
      if (!coordinator_) say(fmt::format("the workers are stopped: {}", stop->reason));
      if (!stopping_) stop_workers(stop->signal == 0 ? SIGTERM : stop->signal);
    }
    if (const auto* refused = std::get_if<Refused>(&message)) {
      refused_ = refused->reason;
      over_ = true;
    }
    if (const auto* end = std::get_if<End>(&message)) {
      end_ = *end;
      over_ = true;
    }
  }

  void start(const Assigned& assigned) {
    try {
      succeeded_ = false;
      group_.emplace(GroupContext{options_, meeting_, logs_, output_, cores_}, assigned);
      attempt_ = assigned.attempt;
    } catch (const Error& error) {
      group_.reset();
      channel_->send(Leaving{0, error.what()});
      channel_->send(Stopped{});
    }
  }

  void stop_workers(int signal) {
    stopping_ = true;
    kill_at_ = Clock::now() + options_.times.stop;
    if (group_) group_->send(signal);
  }

  void watch_workers() {
    if (group_) {
      const std::vector<Failure> failures = group_->look();
      for (const Failure& failure : failures) {
        if (!stopping_) channel_->send(failure);
      }
    }
    if (stopping_ && !(group_ && group_->running())) return stopped();
    if (!group_ || group_->running() || !group_->succeeded() || succeeded_) return;
    succeeded_ = true;
    output_.drain();
    channel_->send(Succeeded{attempt_});
  }

  void stopped() {
    group_.reset();
    output_.drain();
    stopping_ = false;
    channel_->send(Stopped{});
    if (!lost_.empty()) over_ = true;
    if (signal_ != 0) leave_at_ = Clock::now() + kFarewell;
  }

  void watch_signals() {
    const int signal = launch::StopSignals::received();
    if (signal == 0 || signal_ != 0) return;
    signal_ = signal;
    channel_->send(Leaving{signal, {}});
    if (!stopping_) stop_workers(signal);
  }

  void watch_time() {
    const auto now = Clock::now();
    if (stopping_ && now >= kill_at_ && group_) {
      group_->send(SIGKILL);
      kill_at_ = now + kKillAgain;
    }
    if (leave_at_ && now >= *leave_at_) over_ = true;
    if (now < beat_at_) return;
    channel_->send(Heartbeat{});
    beat_at_ = now + options_.times.heartbeat;
  }

  void conclude() const {
    if (signal_ != 0) {
      throw launch::Interrupted(
          signal_, fmt::format("stopped by {}; no worker of this host runs any more", launch::signal_name(signal_)));
    }
    if (!refused_.empty()) config_error("{} refuses this node: {}", comm::tcp::to_text(meeting_), refused_);
    if (!lost_.empty()) throw Error(lost_);
    if (end_.status == 0) return;
    if (end_.signal != 0) throw launch::Interrupted(end_.signal, end_.report);
    throw Error(end_.report);
  }

  // --- What the user sees

  void say(const std::string& text) const {
    put(STDERR_FILENO, fmt::format("{}: {}\n", name_of(options_.tool), shown_message(text)));
  }

  // On the coordinator's thread.
  void note(const std::string& text, bool routine) const {
    if (journal_)
      put(journal_->get(), fmt::format("[{}] {}\n", local_time_text(std::time(nullptr)), shown_message(text)));
    if (!routine) say(text);
  }

  const Options options_;
  comm::tcp::Address meeting_;      // with the port that was taken
  comm::tcp::Address own_address_;  // of the coordinator, for its own agent
  LogFiles logs_;
  const std::vector<std::vector<int>> cores_;
  std::shared_ptr<Descriptor> journal_;
  std::unique_ptr<Coordinator> coordinator_;
  Output output_;
  std::optional<Channel> channel_;
  std::optional<WorkerGroup> group_;
  int attempt_ = -1;
  bool succeeded_ = false, stopping_ = false, over_ = false;
  int signal_ = 0;
  End end_;
  std::string refused_, lost_;
  Clock::time_point kill_at_, beat_at_;
  std::optional<Clock::time_point> leave_at_;
};

}  // namespace

void run_agent(const Options& options, const std::function<void()>& ready) {
  const launch::StopSignals signals;
  Agent(options).run(ready);
}

}  // namespace loom::launcher
