// Agents of a job as processes of this machine, each in the place of a host. Private to tests/launcher.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include "engine/core/error.h"
#include "engine/launch/stop_signals.h"
#include "engine/launcher/agent.h"
#include "tests/support/files.h"

namespace loom::launcher {

using Words = std::vector<std::string>;

inline std::uint16_t free_port() { return comm::tcp::port_of(comm::tcp::listen_on(0, "127.0.0.1")); }

// Whether `holds` within a minute.
inline bool wait_until(const std::function<bool()>& holds) {
  for (int i = 0; i < 1200; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

struct AgentEnd {
  int status = -1;  // 128 + signal where one ended the agent itself; 124: it did not end
  std::string out, err;
};

// run_agent() in a process of its own, with the status that the program gives.
class AgentProcess {
 public:
  AgentProcess(const Options& options, const std::filesystem::path& folder, const std::string& name)
      : out_(folder / (name + ".out")), err_(folder / (name + ".err")), pid_(::fork()) {
    if (pid_ != 0) return;
    for (const auto& [path, descriptor] : {std::pair(out_, STDOUT_FILENO), std::pair(err_, STDERR_FILENO)}) {
      ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644), descriptor);
    }
    ::signal(SIGPIPE, SIG_IGN);
    ::_exit(status_of(options));
  }
  ~AgentProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }
  std::string err() const { return test::read_file(err_); }
  AgentEnd end() {
    int status = 0;
    const bool ended = wait_until([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
    if (ended) pid_ = 0;
    const int code = !ended ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, test::read_file(out_), test::read_file(err_)};
  }

 private:
  static int status_of(const Options& options) {
    try {
      run_agent(options);
      return 0;
    } catch (const launch::Interrupted& stopped) {
      complain(stopped.what());
      return 128 + stopped.signal();
    } catch (const ConfigError& error) {
      complain(error.what());
      return 2;
    } catch (const std::exception& error) {
      complain(error.what());
      return 1;
    }
  }
  static void complain(const std::string& text) {
    [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, (text + "\n").c_str(), text.size() + 1);
  }

  const std::filesystem::path out_, err_;
  pid_t pid_;
};

// A job whose workers run a shell script in a folder of the test.
class Job {
 public:
  explicit Job(const std::string& script) : folder_(test::fresh_folder()) {
    options.version = "1.0";
    options.meeting = {.host = "127.0.0.1", .port = free_port()};
    options.node_rank = 0;
    options.times = {.join = Milliseconds(60'000),
                     .last_call = Milliseconds(500),
                     .read = Milliseconds(20'000),
                     .heartbeat = Milliseconds(200),
                     .stop = Milliseconds(20'000),
                     .greeting = Milliseconds(5'000),
                     .monitor = Milliseconds(20)};
    options.program = {"/bin/sh", "-c", "cd " + folder_.string() + "; " + script};
  }

  // The agent of node `node`.
  AgentProcess start(int node) const { return start_with(of_node(node), fmt::format("agent{}", node)); }
  AgentProcess start_with(const Options& changed, const std::string& name) const { return {changed, folder_, name}; }
  Options of_node(int node) const {
    Options one = options;
    one.node_rank = node;
    one.coordinator = node == 0 ? Host::kThis : Host::kOther;
    return one;
  }

  const std::filesystem::path& folder() const { return folder_; }
  std::string read(const std::string& name) const { return test::read_file(folder_ / name); }
  bool has(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

  Options options;

 private:
  const std::filesystem::path folder_;
};

}  // namespace loom::launcher
