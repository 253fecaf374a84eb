// Promise: a conversation reads each token once and answers as if it had read them all again; what a terminal gets is
//          harmless, however the bytes are cut; lines come whole, however they arrive.
// World:   a Qwen2 of two layers and bytes, in this process; a pipe.
#include "engine/talk/chat.h"

#include <unistd.h>

#include <gmock/gmock.h>

#include "engine/core/shown_text.h"
#include "engine/nn/init.h"
#include "engine/talk/chat_lines.h"
#include "engine/talk/terminal_text.h"
#include "models/decoder/decoder.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace loom::talk {
namespace {

models::DecoderConfig tiny() {
  models::DecoderConfig config;
  config.vocab_size = 256;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.max_position_embeddings = 256;
  config.initializer_range = 0.4;
  config.qkv_bias = true;
  return config;
}

struct Talk {
  std::vector<std::string> answers;
  std::vector<std::int64_t> read;  // tokens that the model was given, by turn
};

// A conversation of these lines, on rank 0.
Talk talk_of(const std::vector<std::string>& lines, bool use_cache, const std::function<bool()>& stopped,
             comm::World& world) {
  const models::DecoderConfig config = tiny();
  const std::filesystem::path folder = test::fresh_folder();
  ChatArguments arguments;
  arguments.model_dir = folder;
  test::write_file(folder / "chat_template.jinja",
                   "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>");
  const Words words(arguments, config, "the conversation");
  const ChatPrompt prompt(arguments, words);
  const auto model = models::build_decoder(config);
  nn::materialize(*model);
  nn::init_weights(*model, 3);
  std::int64_t read = 0;
  model->register_pre_hook([&](nn::Module&, nn::Args& args) { read += args.tensor(0).numel(); });
  models::GenerationSession session(*model, config);
  const models::DecodingOptions options{
      .sampling = {.temperature = 1.0, .top_k = 30}, .seed = 5, .max_new_tokens = 8, .use_cache = use_cache};
  Turns turns(session, world, options);
  Chat chat(arguments, config, words, prompt, turns);
  Talk talk;
  for (const std::string& line : lines) {
    read = 0;
    std::string shown;
    if (line == "/clear") {
      chat.clear();
    } else {
      chat.say(
          line, [&](std::string_view more) { shown += more; }, stopped);
    }
    talk.answers.push_back(shown);
    talk.read.push_back(read);
  }
  return talk;
}

Talk talk_of(
    const std::vector<std::string>& lines, bool use_cache,
    const std::function<bool()>& stopped = [] { return false; }) {
  return test::of_each_rank(1,
                            [&](RankContext&, comm::World& world) { return talk_of(lines, use_cache, stopped, world); })
      .front();
}

TEST(ChatCache, IsKeptBetweenTurnsAndChangesNoText) {
  const std::vector<std::string> lines{"Who are you?", "And then?", "Why?", "/clear", "Who are you?"};
  const Talk with = talk_of(lines, true), without = talk_of(lines, false);
  EXPECT_EQ(with.answers, without.answers);
  EXPECT_EQ(with.answers.front(), with.answers.back()) << "forgotten at /clear";
  EXPECT_NE(with.answers[0], with.answers[1]);
  // 30 tokens of the first prompt and 7 of the answer's 8; without a cache all of them for each.
  EXPECT_EQ(with.read[0], 30 + 7);
  EXPECT_EQ(without.read[0], 30 * 8 + 7 * 8 / 2);
  // What is new of the second prompt is less than its line, its marks and an answer (of which U+FFFD has three bytes).
  EXPECT_LT(with.read[1], 80);
  EXPECT_LT(with.read[2], 80);
  EXPECT_GT(without.read[2], 8 * 80);
}

TEST(ChatCache, GoesOnBehindAnAnswerThatWasStopped) {
  int asked = 0;
  const Talk whole = talk_of({"Who are you?"}, true);
  const Talk cut = talk_of({"Who are you?", "And then?"}, true, [&] { return ++asked == 3; });
  EXPECT_EQ(cut.answers.front(), whole.answers.front().substr(0, 3));
  EXPECT_EQ(cut.read.front(), 30 + 2);
  EXPECT_EQ(cut.answers.back().size(), 8u);
  EXPECT_LT(cut.read.back(), 60);
}

// --- TerminalText

std::string in_pieces(std::string_view text, std::size_t size) {
  TerminalText terminal;
  std::string shown;
  for (std::size_t at = 0; at < text.size(); at += size) shown += terminal.push(text.substr(at, size));
  return shown + terminal.finish();
}

TEST(TerminalText, EscapesAllButEndsOfLinesAndTabsHoweverItIsCut) {
  const std::string text =
      "a\tb\n\x1b[31mred\r\x07 caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80 \xff\xc3 \u202e\u009b";
  const std::string shown = "a\tb\n\\x1b[31mred\\r\\x07 café 你好 😀 \\xff\\xc3 \\u202e\\u009b";
  for (std::size_t size = 1; size <= text.size(); ++size) EXPECT_EQ(in_pieces(text, size), shown) << size;
  EXPECT_EQ(in_pieces("cut \xf0\x9f\x98", 1), "cut \\xf0\\x9f\\x98");
}

TEST(TerminalText, ShowsACharacterAsSoonAsItIsWhole) {
  TerminalText terminal;
  EXPECT_EQ(terminal.push("a\xc3"), "a");
  EXPECT_EQ(terminal.push("\xa9"), "é");
  EXPECT_EQ(terminal.finish(), "");
}

// --- ChatLines

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    ::close(ends_[0]);
    close();
  }
  void write(std::string_view text) { EXPECT_EQ(::write(ends_[1], text.data(), text.size()), std::ssize(text)); }
  void close() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  int reader() const { return ends_[0]; }

 private:
  int ends_[2] = {-1, -1};
};

TEST(ChatLines, ComeWholeWithTheirBytes) {
  using Got = ChatLines::Got;
  Pipe pipe;
  ChatLines lines(pipe.reader(), 8);
  std::string line;
  const auto never = [] { return false; };
  pipe.write(std::string_view("one\r\n\n\0\xff\n12345678\n123456789\nthree", 33));
  const std::pair<Got, std::string> expected[] = {{Got::kLine, "one"},
                                                  {Got::kLine, ""},
                                                  {Got::kLine, std::string("\0\xff", 2)},
                                                  {Got::kLine, "12345678"},
                                                  {Got::kTooLong, ""}};
  for (const auto& [got, text] : expected) {
    EXPECT_EQ(lines.next(line, never), got);
    EXPECT_EQ(line, text);
  }
  int asked = 0;
  EXPECT_EQ(lines.next(line, [&] { return ++asked == 2; }), Got::kInterrupted);
  pipe.write("ty");
  pipe.close();
  EXPECT_EQ(lines.next(line, never), Got::kLine);
  EXPECT_EQ(line, "threety");
  EXPECT_EQ(lines.next(line, never), Got::kEnd);
  EXPECT_EQ(lines.next(line, never), Got::kEnd);
}

}  // namespace
}  // namespace loom::talk
