// Runs of the built shardloom program, in a folder with a tiny model, a sharding file and text to train on.
//
// SHARDLOOM_PROGRAM, its path, is set by the test's CMakeLists.txt.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include "tests/support/files.h"

namespace loom::test {

using Words = std::vector<std::string>;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A program that runs beside the test, its output in two files of its folder.
class StartedProgram {
 public:
  StartedProgram(const std::filesystem::path& folder, const Words& words) : folder_(folder) {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::signal(SIGINT, SIG_DFL);  // a shell's background job ignores it
    const bool here = ::chdir(folder.c_str()) == 0 && std::freopen("started.out", "w", stdout) != nullptr &&
                      std::freopen("started.err", "w", stderr) != nullptr;
    if (here) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~StartedProgram() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  StartedProgram(const StartedProgram&) = delete;
  StartedProgram& operator=(const StartedProgram&) = delete;

  pid_t pid() const { return pid_; }
  // Whether `holds` within half a minute.
  static bool wait_until(const std::function<bool()>& holds) {
    for (int tenths = 0; tenths < 300; ++tenths) {
      if (holds()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
  // Until it has written that many lines of metrics.
  bool wait_for_steps(const std::string& metrics, int lines) const {
    return wait_until([&] {
      const std::string text = read_file(folder_ / metrics);
      return std::count(text.begin(), text.end(), '\n') >= lines;
    });
  }
  void send(int signal) const { ::kill(pid_, signal); }
  // A signal that ended it counts as 128 + signal, as in a shell. 124: it did not end within half a minute.
  Outcome end() {
    int status = 0;
    const bool ended = wait_until([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
    if (ended) pid_ = 0;
    const int code = !ended ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, read_file(folder_ / "started.out"), read_file(folder_ / "started.err")};
  }

 private:
  const std::filesystem::path folder_;
  pid_t pid_ = 0;
};

class ProgramFolder {
 public:
  ProgramFolder() : folder_(fresh_folder()) {
    write("model.yaml",
          "model_type: qwen2\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
          "num_attention_heads: 2\nnum_key_value_heads: 1\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
          "tie_word_embeddings: false\n");
    write("fsdp2.yaml",
          "sharding_size: auto\nsub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n");
    for (int file = 1; file <= 6; ++file) {
      std::string text;
      for (int line = 0; line < 40 * file; ++line) text += fmt::format("{} times {} is {}.\n", line, file, line * file);
      write(fmt::format("data/{}.txt", file), text);
    }
  }

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, std::string_view text) const { write_file(folder_ / name, text); }
  std::string read(const std::string& name) const { return read_file(folder_ / name); }

  // Runs the program here, so that its messages show the names as they are given. 124: it did not end within a minute.
  Outcome run(const Words& arguments, const Words& launcher = {}) const {
    return run_command(launcher + Words{SHARDLOOM_PROGRAM} + arguments);
  }
  // The same for any command.
  Outcome run_command(const Words& words) const {
    std::string line = "cd " + quoted(folder_.string()) + " && timeout 60";
    for (const std::string& word : words) line.append(" ").append(quoted(word));
    const int status = std::system((line + " > stdout.txt 2> stderr.txt").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("stdout.txt"), read("stderr.txt")};
  }

  // Starts the program here and goes on.
  StartedProgram start(const Words& arguments, const Words& launcher = {}) const {
    return {folder_, launcher + Words{SHARDLOOM_PROGRAM} + arguments};
  }
  // The same for a line of bash, in which "$0" is the program.
  Outcome run_shell(const std::string& line, const Words& arguments = {}) const {
    return run_command(Words{"bash", "-c", line, SHARDLOOM_PROGRAM} + arguments);
  }

  // The lines of a metrics.jsonl.
  std::vector<nlohmann::ordered_json> metrics(const std::string& name) const {
    std::vector<nlohmann::ordered_json> lines;
    std::istringstream text(read(name));
    for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::ordered_json::parse(line));
    return lines;
  }

 private:
  static std::string quoted(const std::string& word) {
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
  }

  const std::filesystem::path folder_;
};

// Two sequences of 16 bytes a rank and micro-batch, four a step; evaluation at the end.
inline const Words kTrain{"train", "--data-path", "data", "--seq-length", "16", "--eval-iters", "2", "--seed", "5"};
inline const Words kSharded{"--use-torch-fsdp2", "--fsdp2-config-path", "fsdp2.yaml"};
inline const Words kFourSteps = kTrain + Words{"--model-config", "model.yaml", "--train-iters", "4", "--lr", "0.01"} +
                                kSharded + Words{"--micro-batch-size", "2", "--global-batch-size", "4"};

// A plan of that model on four devices, as JSON on standard output.
inline const Words kPlanOfFour{"plan",
                               "--model-config",
                               "model.yaml",
                               "--use-torch-fsdp2",
                               "--fsdp2-config-path",
                               "fsdp2.yaml",
                               "--world-size",
                               "4",
                               "--seq-length",
                               "16",
                               "--json",
                               "-"};

inline nlohmann::json plan_of_four(const ProgramFolder& folder, const Words& more) {
  const Outcome outcome = folder.run(kPlanOfFour + more);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

// The same words with another value behind a flag.
inline Words with_value(Words words, const std::string& flag, const std::string& value) {
  *std::next(std::find(words.begin(), words.end(), flag)) = value;
  return words;
}

}  // namespace loom::test
