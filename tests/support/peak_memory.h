// How much memory a run of the built program had at its peak.
#pragma once

#include <fmt/format.h>
#include <sys/resource.h>

#include "tests/support/program.h"

namespace loom::test {

// The most memory that what `run` starts had, in bytes: in a process of its own, whose children are that run alone.
inline std::int64_t peak_of(const ProgramFolder& folder, const std::function<Outcome()>& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Outcome outcome = run();
    rusage usage{};
    ::getrusage(RUSAGE_CHILDREN, &usage);
    folder.write("peak.txt", fmt::to_string(std::int64_t{usage.ru_maxrss} * 1024));
    ::_exit(outcome.exit_code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << folder.read("stderr.txt");
  return std::stoll(folder.read("peak.txt"));
}

// Of a run of the program.
inline std::int64_t peak_of(const ProgramFolder& folder, const Words& words) {
  return peak_of(folder, [&] { return folder.run(words); });
}

}  // namespace loom::test
