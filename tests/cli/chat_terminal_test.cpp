// Promise: on a terminal a chat has a prompt, shows no control character of an answer raw, and Ctrl-C stops an answer
//          before it ends the program.
// World:   the built program on a pseudo-terminal; a model of bytes with room for very long answers.
#include <poll.h>
#include <pty.h>

#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

// A program on a terminal of its own.
class OnTerminal {
 public:
  OnTerminal(const std::filesystem::path& folder, const Words& words) {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_ = ::forkpty(&master_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    ::signal(SIGINT, SIG_DFL);
    if (::chdir(folder.c_str()) == 0) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~OnTerminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(master_);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  void type(const std::string& keys) {
    seen_ = shown_.size();
    ASSERT_EQ(::write(master_, keys.data(), keys.size()), std::ssize(keys));
  }
  // Whether it is shown within half a minute, behind what was there when the last keys were typed.
  bool shows(const std::string& text) {
    return until([&] { return shown_.find(text, seen_) != std::string::npos; });
  }
  bool shows_bytes(std::size_t count) {
    return until([&] { return shown_.size() >= seen_ + count; });
  }
  // As a shell has it; 124 where it does not end.
  int end() {
    until([&] { return ended_; });
    if (!ended_) return 124;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& shown() const { return shown_; }

 private:
  bool until(const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!holds()) {
      if (ended_ || std::chrono::steady_clock::now() > deadline) return holds();
      pollfd waits{master_, POLLIN, 0};
      if (::poll(&waits, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t count = ::read(master_, bytes, sizeof(bytes));
      if (count > 0) shown_.append(bytes, static_cast<std::size_t>(count));
      ended_ = count <= 0;
    }
    return true;
  }

  int master_ = -1;
  pid_t pid_ = 0;
  std::string shown_;
  std::size_t seen_ = 0;
  bool ended_ = false;
};

class ChatTerminal : public ::testing::Test {
 protected:
  ChatTerminal() {
    folder.write("long.yaml",
                 "model_type: qwen2\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
                 "num_attention_heads: 2\nnum_key_value_heads: 1\nmax_position_embeddings: 400000\nrms_norm_eps: "
                 "1.0e-6\ntie_word_embeddings: false\n");
    const Words train = with_value(with_value(kFourSteps, "--model-config", "long.yaml"), "--train-iters", "1");
    EXPECT_EQ(folder.run(train + Words{"--save", "out"}).exit_code, 0);
    folder.write("out/chat_template.jinja", "{% for m in messages %}{{ m.content }}\n{% endfor %}");
  }
  Words words(const Words& more) const { return Words{SHARDLOOM_PROGRAM, "chat", "out"} + more; }

  const ProgramFolder folder;
};

const Words kAnyByte{"--temperature", "1000", "--max-new-tokens", "200"};

void expect_harmless(const std::string& shown) {
  for (const char byte : shown) {
    const auto code = static_cast<unsigned char>(byte);
    ASSERT_TRUE(code >= ' ' || byte == '\n' || byte == '\r' || byte == '\t') << int{code};
    ASSERT_NE(code, 0x7f);
  }
  EXPECT_NO_THROW(nlohmann::json(shown).dump()) << "no UTF-8";
}

TEST_F(ChatTerminal, EscapesWhatWouldSteerIt) {
  OnTerminal chat(folder.path(""), words(kAnyByte));
  ASSERT_TRUE(chat.shows("Qwen2ForCausalLM of 12176 parameters; /help lists the commands\r\n> ")) << chat.shown();
  chat.type("3 times\n");
  ASSERT_TRUE(chat.shows("\n> ")) << chat.shown();
  EXPECT_THAT(chat.shown(), HasSubstr("\\x1b"));
  chat.type("/wat\n");
  ASSERT_TRUE(chat.shows("shardloom: /wat is no command; ")) << chat.shown();
  chat.type("\x04");
  EXPECT_EQ(chat.end(), 0);
  expect_harmless(chat.shown());
  // Lines from a pipe change nothing of that.
  folder.write("input", "3 times\n");
  OnTerminal piped(folder.path(""),
                   Words{"/bin/bash", "-c", R"(exec "$0" "$@" < input)", SHARDLOOM_PROGRAM, "chat", "out"} + kAnyByte);
  EXPECT_EQ(piped.end(), 0);
  EXPECT_THAT(piped.shown(), HasSubstr("\\x"));
  EXPECT_THAT(piped.shown(), ::testing::Not(HasSubstr("/help lists")));
  expect_harmless(piped.shown());
  // generate's text too.
  OnTerminal generate(folder.path(""), Words{SHARDLOOM_PROGRAM, "generate", "out", "--prompt", "a\x1b[2Jb"} + kAnyByte);
  EXPECT_EQ(generate.end(), 0);
  EXPECT_THAT(generate.shown(), HasSubstr("a\\x1b[2Jb"));
  expect_harmless(generate.shown());
}

TEST_F(ChatTerminal, CtrlCStopsTheAnswerAndASecondOneTheProgram) {
  OnTerminal chat(folder.path(""), words({"--max-new-tokens", "390000"}));
  ASSERT_TRUE(chat.shows("> "));
  chat.type("3 times\n");
  ASSERT_TRUE(chat.shows_bytes(40)) << chat.shown();
  chat.type("\x03");
  ASSERT_TRUE(chat.shows("Ctrl-C once more ends the chat\r\n> ")) << chat.shown();
  chat.type("/save talk.json\n");
  ASSERT_TRUE(chat.shows("shardloom: 1 turn written to talk.json\r\n")) << chat.shown();
  const auto saved = nlohmann::json::parse(folder.read("talk.json"));
  EXPECT_GT(saved.at("messages").at(1).at("content").get<std::string>().size(), 20u) << "what was made stays";
  chat.type("half a line\x03");
  ASSERT_TRUE(chat.shows("Ctrl-C once more ends the chat\r\n> ")) << chat.shown();
  chat.type("\x03");
  EXPECT_EQ(chat.end(), 128 + SIGINT);
}

TEST_F(ChatTerminal, CtrlCTwiceEndsAnAnswerAtOnce) {
  OnTerminal chat(folder.path(""), words({"--max-new-tokens", "390000", "--nproc-per-node", "2"}));
  ASSERT_TRUE(chat.shows("on 2 ranks; /help lists the commands\r\n> ")) << chat.shown();
  chat.type("3 times\n");
  ASSERT_TRUE(chat.shows_bytes(40)) << chat.shown();
  chat.type("\x03");
  ASSERT_TRUE(chat.shows("Ctrl-C once more ends the chat\r\n> ")) << chat.shown();
  chat.type("4 times\n");
  ASSERT_TRUE(chat.shows_bytes(40)) << chat.shown();
  chat.type("\x03");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // two at once are one signal
  chat.type("\x03");
  EXPECT_EQ(chat.end(), 128 + SIGINT);
}

}  // namespace
}  // namespace loom::test
