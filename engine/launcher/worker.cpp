#include "engine/launcher/worker.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "engine/core/descriptor.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/thread_cores.h"

namespace loom::launcher {
namespace {

// All that the new process needs: between fork and exec it may only make system calls.
struct Prepared {
  std::vector<char*> program, environment;
  cpu_set_t cores;
  bool binds = false;
  int in = -1, out = -1, err = -1, report = -1;
  pid_t parent = 0;
};

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

void restore_signals() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    const bool ignored_before = ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN &&
                                number != SIGPIPE && number != SIGXFSZ;
    if (!ignored_before) ::signal(number, SIG_DFL);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void give_up(int report) {
  const int error = errno;
  [[maybe_unused]] const ssize_t put = ::write(report, &error, sizeof(error));
  ::_exit(127);
}

[[noreturn]] void become(const Prepared& prepared) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != prepared.parent) ::_exit(127);  // it has ended before
  ::dup2(prepared.in, STDIN_FILENO);
  if (prepared.out >= 0) ::dup2(prepared.out, STDOUT_FILENO);
  if (prepared.err >= 0) ::dup2(prepared.err, STDERR_FILENO);
  restore_signals();
  if (prepared.binds && ::sched_setaffinity(0, sizeof(prepared.cores), &prepared.cores) != 0) give_up(prepared.report);
  ::execve(prepared.program[0], prepared.program.data(), prepared.environment.data());
  give_up(prepared.report);
}

std::int64_t unix_ms_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

Prepared prepare(const WorkerStart& start) {
  Prepared prepared{.program = pointers_to(start.program),
                    .environment = pointers_to(start.environment),
                    .cores = {},
                    .binds = !start.cores.empty(),
                    .out = start.out,
                    .err = start.err,
                    .parent = ::getpid()};
  CPU_ZERO(&prepared.cores);
  for (const int core : start.cores) {
    if (core >= CPU_SETSIZE) config_error("core {} is above {}, the last one that can be bound", core, CPU_SETSIZE - 1);
    CPU_SET(static_cast<unsigned>(core), &prepared.cores);
  }
  return prepared;
}

}  // namespace

Worker::Worker(const WorkerStart& start) {
  Prepared prepared = prepare(start);
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::array<int, 2> report{-1, -1};
  if (nothing.get() < 0 || ::pipe2(report.data(), O_CLOEXEC) != 0) {
    raise<Error>("{} cannot be started: {}", shown_text(start.program[0]), std::strerror(errno));
  }
  const Descriptor reading(report[0]);
  auto writing = std::make_optional<Descriptor>(report[1]);
  prepared.in = nothing.get();
  prepared.report = report[1];
  pid_ = ::fork();
  if (pid_ == 0) become(prepared);
  int error = pid_ < 0 ? errno : 0;
  writing.reset();
  // The pipe closes when the program begins.
  while (error == 0 && ::read(reading.get(), &error, sizeof(error)) < 0 && errno == EINTR) continue;
  if (error == 0) return;
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
  const std::string cores = start.cores.empty() ? "" : " on cores " + core_ranges(start.cores);
  raise<Error>("{} cannot be started{}: {}", shown_text(start.program[0]), cores, std::strerror(error));
}

Worker::~Worker() {
  if (!running()) return;
  send(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

const std::optional<WorkerEnd>& Worker::look() {
  siginfo_t info{};
  if (end_ || ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    return end_;
  }
  WorkerEnd end{.unix_ms = unix_ms_now()};
  (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
  // Its number is its own until it is waited for, and so is that of its group.
  if (!end.well()) ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  end_ = end;
  return end_;
}

void Worker::send(int signal) const {
  if (!running()) return;
  if (::kill(-pid_, signal) != 0) ::kill(pid_, signal);
}

}  // namespace loom::launcher
