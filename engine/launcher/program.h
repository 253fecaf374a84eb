// The program that workers run, found and checked before anything starts.
//
// Errors   ConfigError: the file does not exist, is not executable, or no Python is installed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loom::launcher {

// How the first word is meant.
enum class Entry : std::uint8_t {
  kGuess,    // a command of this program, a Python script, or an executable file
  kModule,   // -m: a Python module
  kProgram,  // --no-python: an executable file
  kRunPath,  // --run-path: a Python script, run by runpy
};

struct ProgramWords {
  Entry entry = Entry::kGuess;
  std::vector<std::string> words{};     // behind the launcher's flags
  std::vector<std::string> commands{};  // of this program
  std::string tool = "torchrun";        // for messages
};

// The words that a worker is started with; the first is the path of an executable file.
//
// Command  kGuess, a command of this program: this program with these words.
// Python   kGuess, a file that ends with .py: python3 -u, or the interpreter that PYTHON_EXEC names.
// Else     the executable file itself; a word without a slash is looked up here, then in PATH.
std::vector<std::string> find_program(const ProgramWords& request);

}  // namespace loom::launcher
