#include "engine/cli/commands/launcher_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <sys/wait.h>

#include "engine/cli/exit_status.h"
#include "engine/core/descriptor.h"
#include "engine/core/error.h"
#include "engine/launcher/agent.h"
#include "engine/launcher/log_files.h"

namespace loom::cli {
namespace {

namespace fs = std::filesystem;

fs::path messages_of(const launcher::Options& options) {
  const bool here = options.coordinator != launcher::Host::kOther;
  return options.log_dir.value_or(".") /
         (here ? "scheduler.log" : fmt::format("node_{}.log", launcher::host_name(options)));
}

// From here on the agent has no terminal.
void leave_terminal(const launcher::Options& options) {
  const auto messages = launcher::open_log(messages_of(options), /*append=*/true);
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDIN_FILENO);
  ::dup2(messages->get(), STDOUT_FILENO);
  ::dup2(messages->get(), STDERR_FILENO);
}

// In the process that stays: a byte says that it has begun.
void run_behind(const launcher::Options& options, int begun) {
  ::setsid();
  launcher::run_agent(options, [&] {
    leave_terminal(options);
    const char byte = 1;
    [[maybe_unused]] const ssize_t put = ::write(begun, &byte, 1);
    ::close(begun);
  });
}

int wait_for_begin(const launcher::Options& options, pid_t agent, int begun, std::ostream& out) {
  char byte = 0;
  ssize_t got = 0;
  do {
    got = ::read(begun, &byte, 1);
  } while (got < 0 && errno == EINTR);
  if (got == 1) {
    out << fmt::format("msrun: {} workers of this node in the background, by process {}; look at {}\n", options.workers,
                       agent, messages_of(options).string());
    return 0;
  }
  int status = 0;  // it has said why
  ::waitpid(agent, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int run_launcher(const LauncherArguments& arguments, std::ostream& out) {
  if (!arguments.background) return launcher::run_agent(arguments.options), 0;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) raise<Error>("msrun: no pipe: {}", std::strerror(errno));
  out.flush();
  const pid_t agent = ::fork();
  if (agent < 0) raise<Error>("msrun: no process for the background: {}", std::strerror(errno));
  const Descriptor reading(ends[0]);
  if (agent == 0) {
    std::exit(exit_status_of("shardloom", [&] { return run_behind(arguments.options, ends[1]), 0; }));
  }
  ::close(ends[1]);
  return wait_for_begin(arguments.options, agent, reading.get(), out);
}

}  // namespace loom::cli
