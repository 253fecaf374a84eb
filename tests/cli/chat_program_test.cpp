// Promise: a chat answers each line as generate continues the rendered conversation, says what it refuses and goes on,
//          and is the same on any number of ranks; what is thrown at it neither ends it nor makes it grow.
// World:   the built program; models of two layers, of bytes and of a tokenizer of 2000 tokens; pipes.
//          chat_terminal_test has terminals.
#include <gmock/gmock.h>
#include <random>

#include "tests/support/peak_memory.h"
#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

class ChatProgram : public ::testing::Test {
 protected:
  ChatProgram() { make_model("256"); }

  // A trained model in `out`, with a template.
  void make_model(const std::string& vocabulary) {
    folder.write("long.yaml",
                 "model_type: qwen2\nvocab_size: " + vocabulary +
                     "\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\nnum_attention_heads: 2\n"
                     "num_key_value_heads: 1\nmax_position_embeddings: 256\nrms_norm_eps: 1.0e-6\n"
                     "tie_word_embeddings: false\n");
    const Words train = with_value(with_value(kFourSteps, "--model-config", "long.yaml"), "--train-iters", "60");
    const Outcome made = folder.run(train + Words{"--save", "out", "--eval-iters", "0"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    folder.write("out/chat_template.jinja", kTemplate);
  }
  // The tokenizer of the references, with Qwen's names for its tokens.
  void make_tokenized() {
    make_model("2048");
    std::filesystem::copy_file(LOOM_SOURCE_DIR "/tests/reference/tokenizers/tokenizer_qwen2/tokenizer.json",
                               folder.path("out/tokenizer.json"));
    folder.write("out/tokenizer_config.json", R"({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})");
  }

  Outcome chat(const std::string& input, const Words& more = {}, const std::string& model = "out") const {
    folder.write("input", input);
    return folder.run_shell(R"(exec "$0" "$@" < input)", Words{"chat", model, "--max-new-tokens", "6"} + more);
  }
  // What generate makes of a prompt.
  std::string continued(const std::string& prompt, const Words& more = {}) const {
    const Outcome outcome = folder.run(Words{"generate", "out", "--prompt", prompt, "--max-new-tokens", "6"} + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, StartsWith(prompt));
    return outcome.out.substr(std::min(prompt.size(), outcome.out.size()));
  }

  const ProgramFolder folder;
};

std::string without_end(const std::string& text) { return text.substr(0, text.size() - 1); }

TEST_F(ChatProgram, AnswersEachLineAsGenerateContinuesTheConversation) {
  const std::string first = continued("<system>Be short.\n<user>3 times\n<assistant>");
  const std::string second =
      continued("<system>Be short.\n<user>3 times\n<assistant>" + without_end(first) + "\n<user>4 times\n<assistant>");
  const Outcome outcome = chat("3 times\n\n4 times", {"--system", "Be short."});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_EQ(outcome.out, first + second);
  // Windows' ends of lines are no part of a text, and "//" begins one with a slash.
  EXPECT_EQ(chat("//x\r\n").out, continued("<user>/x\n<assistant>"));
}

TEST_F(ChatProgram, ForgetsAtClearAndKeepsNoMoreTurnsThanAsked) {
  const std::string four = continued("<user>4 times\n<assistant>");
  const std::string three = continued("<user>3 times\n<assistant>");
  EXPECT_EQ(chat("3 times\n/clear\n4 times\n").out, three + four);
  EXPECT_EQ(chat("3 times\n4 times\n", {"--history-turns", "0"}).out, three + four);
}

TEST_F(ChatProgram, SavesTheConversationAsJson) {
  const Outcome outcome = chat("3 times\n/save talk.json\n/exit\n4 times\n", {"--system", "Be \"short\"."});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "shardloom: line 2: 1 turn written to talk.json\n");
  const auto saved = nlohmann::json::parse(folder.read("talk.json"));
  ASSERT_EQ(saved.at("messages").size(), 3u);
  EXPECT_EQ(saved.at("messages")[0], (nlohmann::json{{"role", "system"}, {"content", "Be \"short\"."}}));
  EXPECT_EQ(saved.at("messages")[1], (nlohmann::json{{"role", "user"}, {"content", "3 times"}}));
  EXPECT_EQ(saved.at("messages")[2].at("content").get<std::string>() + "\n", outcome.out);
}

TEST_F(ChatProgram, SavesOverNothingThatItReads) {
  const std::string config = folder.read("out/config.json");
  folder.write("own.jinja", kTemplate);
  std::filesystem::create_symlink("out/config.json", folder.path("link.json"));
  std::filesystem::create_hard_link(folder.path("out/model.safetensors"), folder.path("hard.json"));
  const std::string weights = folder.read("hard.json");
  const Outcome outcome = chat(
      "/save out/config.json\n/save link.json\n/save out/../hard.json\n/save own.jinja\n/save out\n/save talk.json\n",
      {"--chat-template", "own.jinja"});
  EXPECT_EQ(outcome.exit_code, 1);
  for (const char* said :
       {"shardloom: line 1: /save: out/config.json is also read by MODEL_DIR and would be lost; give another path\n",
        "shardloom: line 2: /save: link.json is also read by MODEL_DIR and would be lost; give another path\n",
        "shardloom: line 3: /save: out/../hard.json is also read by MODEL_DIR and would be lost; give another path\n",
        "shardloom: line 4: /save: own.jinja is also read by --chat-template and would be lost; give another path\n",
        "shardloom: line 6: 0 turns written to talk.json\n"}) {
    EXPECT_THAT(outcome.err, HasSubstr(said));
  }
  EXPECT_THAT(outcome.err, HasSubstr("shardloom: 5 lines of 6 were refused"));
  EXPECT_EQ(folder.read("out/config.json"), config);
  EXPECT_EQ(folder.read("hard.json"), weights);
  EXPECT_EQ(folder.read("own.jinja"), kTemplate);
  EXPECT_EQ(chat("3 times\n").exit_code, 0);
}

TEST_F(ChatProgram, SaysWhatACommandCannotAndGoesOn) {
  const Outcome outcome = chat("/sav x\n/wat\n/clear all\n/save\n/save none/x.json\n/help\n/image\n3 times\n");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, continued("<user>3 times\n<assistant>"));
  for (const char* said :
       {"shardloom: line 1: /sav is no command; did you mean /save?\n",
        "shardloom: line 2: /wat is no command; use /clear, /image FILE, /save FILE, /help or /exit, or // for a text "
        "that begins with a slash\n",
        "shardloom: line 3: /clear takes nothing behind it, and all follows; write it alone\n",
        "shardloom: line 4: /save needs a file; write /save FILE\n", "shardloom: line 5: none/x.json: cannot create",
        "/image FILE add a picture to the next line\n", "/save FILE  write the conversation as JSON\n",
        "shardloom: line 7: /image needs a file; write /image FILE\n",
        "shardloom: 6 lines of 8 were refused; the messages above say why\n"}) {
    EXPECT_THAT(outcome.err, HasSubstr(said));
  }
}

TEST_F(ChatProgram, ThatIsFullSaysSoAndBeginsAgainAtClear) {
  const std::string line(200, 'x'), longer(300, 'y');
  const Outcome outcome = chat(line + "\n" + line + "\n/clear\n3 times\n" + longer + "\n");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, continued("<user>" + line + "\n<assistant>") + continued("<user>3 times\n<assistant>"));
  EXPECT_EQ(
      outcome.err,
      "shardloom: line 2: the conversation would have 443 tokens, but the model's max_position_embeddings is 256; "
      "write /clear to begin again, or a shorter line\n"
      "shardloom: line 5: the conversation would have 350 tokens, but the model's max_position_embeddings is 256; "
      "write /clear to begin again, or a shorter line\n"
      "shardloom: 2 lines of 5 were refused; the messages above say why\n");
  const Outcome cut = chat(line + "\n", {"--max-new-tokens", "500"});
  EXPECT_EQ(cut.exit_code, 0);
  EXPECT_EQ(cut.err,
            "shardloom: line 1: stopped after 38 of 500 tokens: max_position_embeddings is 256; write /clear to begin "
            "again\n");
}

TEST_F(ChatProgram, UsesTheTemplateThatIsNamed) {
  folder.write("mine.jinja", "{{ messages[-1].content }}={% if enable_thinking %}hm{% endif %}");
  EXPECT_EQ(chat("3 times\n", {"--chat-template", "mine.jinja"}).out, continued("3 times="));
  EXPECT_EQ(chat("3\n", {"--chat-template", "mine.jinja", "--enable-thinking", "true"}).out, continued("3=hm"));
  folder.write("refuses.jinja", "{{ raise_exception('no system') if messages[0].role == 'system' }}{{ messages }}");
  const Outcome refused = chat("3\n", {"--chat-template", "refuses.jinja", "--system", "x"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, StartsWith("shardloom: line 1: refuses.jinja:1: the template refuses this conversation: no "
                                      "system\n"));
  folder.write("broken.jinja", "{% if %}");
  const Outcome broken = chat("3\n", {"--chat-template", "broken.jinja"});
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_THAT(broken.err, StartsWith("shardloom: broken.jinja:1: "));
  std::filesystem::remove(folder.path("out/chat_template.jinja"));
  const Outcome none = chat("3\n");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(none.err,
            "shardloom: out: there is no chat template, neither as chat_template.jinja nor as chat_template of "
            "tokenizer_config.json; add --chat-template FILE or --prompt-type NAME, those that the model was trained "
            "with\n");
  const Outcome bytes = chat("3\n", {"--prompt-type", "qwen"});
  EXPECT_EQ(bytes.exit_code, 2);
  EXPECT_THAT(bytes.err, HasSubstr("and out has no tokenizer.json; give --chat-template FILE\n"));
}

TEST_F(ChatProgram, TalksByPreprocessTemplatesAndByTokenizers) {
  make_tokenized();
  const std::string prompt =
      "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n3 times<|im_end|>\n"
      "<|im_start|>assistant\n";
  const Outcome generated = folder.run({"generate", "out", "--prompt", prompt, "--max-new-tokens", "6"});
  ASSERT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_EQ(prompt + chat("3 times\n", {"--prompt-type", "qwen"}).out, generated.out);
  folder.write("out/chat_template.jinja",
               "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
               "<|im_start|>assistant\n\n");  // the last end of line is the file's
  EXPECT_EQ(prompt + chat("3 times\n", {"--system", "You are a helpful assistant."}).out, generated.out);
  const Outcome unknown = chat("3\n", {"--prompt-type", "qwem"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("qwem"));
}

TEST_F(ChatProgram, GivesOneTextOnAnyNumberOfRanks) {
  const Words drawn{"--temperature", "0.9", "--top-k", "40", "--seed", "11", "--stop-words", "\n"};
  const std::string prompt = "<user>3 times\n<assistant>", input = "3 times\n4 times\n";
  const std::string text = continued(prompt, drawn), talk = chat(input, drawn).out;
  const Outcome beams =
      folder.run({"generate", "out", "--prompt", prompt, "--num-beams", "3", "--max-new-tokens", "6"});
  for (const std::string ranks : {"2", "4"}) {
    const Words sharded{"--nproc-per-node", ranks};
    EXPECT_EQ(continued(prompt, drawn + sharded), text) << ranks;
    EXPECT_EQ(chat(input, drawn + sharded).out, talk) << ranks;
    EXPECT_EQ(
        folder.run(Words{"generate", "out", "--prompt", prompt, "--num-beams", "3", "--max-new-tokens", "6"} + sharded)
            .out,
        beams.out)
        << ranks;
  }
  // The draws are draws: another seed, another text.
  EXPECT_NE(chat(input, with_value(drawn, "--seed", "12")).out, talk);
}

TEST_F(ChatProgram, TakesAdaptersAsTheMergedModelHasThem) {
  const Words tune{"train",  "--init-from-hf-path", "out",      "--data-path", "data",   "--seq-length",
                   "16",     "--train-iters",       "8",        "--lr",        "0.05",   "--lora-target-modules",
                   "q_proj", "down_proj",           "--lora-r", "4",           "--save", "tuned"};
  ASSERT_EQ(folder.run(tune).exit_code, 0);
  ASSERT_EQ(folder.run({"merge", "--base", "out", "--adapter", "tuned", "--save", "merged"}).exit_code, 0);
  folder.write("merged/chat_template.jinja", kTemplate);
  const Words many{"--max-new-tokens", "30"};
  const std::string merged = chat("3 times\n", many, "merged").out;
  EXPECT_NE(merged, chat("3 times\n", many).out);
  EXPECT_EQ(chat("3 times\n", many + Words{"--lora-load", "tuned"}).out, merged);
  EXPECT_EQ(chat("3 times\n", many + Words{"--lora-load", "tuned", "--nproc-per-node", "2"}).out, merged);
  const Outcome absent = chat("3 times\n", {"--lora-load", "none"});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_THAT(absent.err, HasSubstr("none"));
}

// --- what is thrown at it

// A thousand lines of random bytes, broken UTF-8, escape sequences, template syntax, commands, long lines; `times`
// over, so that what is kept of a line, and nothing else, would make the program grow; and a question.
std::string garbage(int times) {
  std::mt19937 random(20261122);  // NOLINT: the same garbage in every run
  const auto below = [&](int most) { return std::uniform_int_distribution(0, most - 1)(random); };
  std::string text;
  for (int line = 0; line < 1000; ++line) {
    switch (below(8)) {
      case 0:
        text += "/clear";
        break;
      case 1:
        text += "\x1b[2J\x1b]0;title\x07";
        break;
      case 2:
        text += "{{ messages }}{% for %}" + std::string(static_cast<std::size_t>(below(40)), '{');
        break;
      case 3:
        text += "/sav" + std::string(static_cast<std::size_t>(below(5)), 'e');
        break;
      case 4:
        text.append(static_cast<std::size_t>(below(3000)), 'a');
        break;
      default:
        for (int i = below(60); i > 0; --i) {
          const char byte = static_cast<char>(below(256));
          text += byte == '\n' ? ' ' : byte;
        }
    }
    text += '\n';
  }
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all + std::string(std::size_t{2} << 20U, 'z') + "\n/clear\n3 times\n";
}

TEST_F(ChatProgram, GoesOnAfterTenThousandLinesOfGarbageAndDoesNotGrow) {
  const std::string answer = continued("<user>3 times\n<assistant>");
  const auto peak = [&](int times) {
    folder.write("input", garbage(times));
    return peak_of(folder, [&] {
      return folder.run_shell(R"("$0" "$@" < input > answers 2> errors; test $? -eq 1)",
                              {"chat", "out", "--max-new-tokens", "6"});
    });
  };
  const std::int64_t once = peak(1), ten_times = peak(10);
  EXPECT_LT(ten_times, once + (std::int64_t{4} << 20U));
  EXPECT_THAT(folder.read("answers"), ::testing::EndsWith("\n" + answer));
  const std::string errors = folder.read("errors");
  EXPECT_THAT(errors, HasSubstr("of the line is no UTF-8; write it in UTF-8\n"));
  EXPECT_THAT(errors, HasSubstr("line 10001: it is longer than 1048576 bytes; write a shorter one\n"));
  EXPECT_THAT(errors, HasSubstr(" lines of 10003 were refused; the messages above say why\n"));
  for (const char byte : errors) ASSERT_TRUE(byte == '\n' || static_cast<unsigned char>(byte) >= ' ');
}

TEST_F(ChatProgram, RefusesBrokenModelsBeforeItsFirstTurn) {
  std::string weights = folder.read("out/model.safetensors");
  folder.write("out/model.safetensors", weights.substr(0, weights.size() / 2));
  const Outcome half = chat("3 times\n");
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.out, IsEmpty());
  EXPECT_THAT(half.err, StartsWith("shardloom: out/model.safetensors: "));
  weights.replace(weights.size() - 40'000, 40'000, 40'000, '\xff');
  folder.write("out/model.safetensors", weights);
  for (const Words& ranks : {Words{}, Words{"--nproc-per-node", "2"}}) {
    const Outcome diverged = chat("3 times\n4 times\n", ranks);
    EXPECT_EQ(diverged.exit_code, 1);
    EXPECT_THAT(diverged.err, HasSubstr("the model has diverged; train with a smaller learning rate\n"));
  }
  folder.write("out/config.json", "{");
  EXPECT_EQ(chat("3 times\n").exit_code, 2);
  EXPECT_EQ(chat("3 times\n", {}, "none").exit_code, 2);
}

TEST_F(ChatProgram, WhoseReaderIsGoneEndsWithAWord) {
  folder.write("input", "3 times\n4 times\n");
  const Outcome gone =
      folder.run_shell(R"("$0" "$@" < input | true; exit ${PIPESTATUS[0]})", {"chat", "out", "--max-new-tokens", "6"});
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_EQ(gone.err, "shardloom: standard output: cannot write: Broken pipe; a part of what was printed is lost\n");
}

}  // namespace
}  // namespace loom::test
