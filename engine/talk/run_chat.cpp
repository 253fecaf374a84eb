#include "engine/talk/run_chat.h"

#include <unistd.h>

#include <array>
#include <iostream>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/io/atomic_file.h"
#include "engine/io/output_plan.h"
#include "engine/log/progress.h"
#include "engine/talk/chat.h"
#include "engine/talk/chat_lines.h"
#include "engine/talk/decoder_ranks.h"
#include "engine/talk/interrupts.h"
#include "engine/talk/terminal_text.h"
#include "models/hub/text_config.h"

namespace loom::talk {
namespace {

constexpr std::int64_t kMostNewTokens = 512;
constexpr std::size_t kMostLineBytes = std::size_t{1} << 20U;
// The other ranks wait while the user thinks.
constexpr std::chrono::hours kPatience{24 * 365};
constexpr const char* kHelp =
    "/clear      forget the conversation; the system text stays\n"
    "/image FILE add a picture to the next line\n"
    "/save FILE  write the conversation as JSON\n"
    "/help       this\n"
    "/exit       end, as the end of input does\n"
    "//...       a line that begins with a slash\n"
    "Ctrl-C      stop the answer; a second one ends the program\n";

// Refuses a file that the chat reads, whatever its name here.
void check_saved(const ChatArguments& arguments, const std::vector<std::filesystem::path>& pictures,
                 const std::string& file) {
  io::OutputPlan plan;
  plan.reads("MODEL_DIR", arguments.model_dir);
  if (arguments.lora_load) plan.reads("--lora-load", *arguments.lora_load);
  if (arguments.chat_template) plan.reads("--chat-template", *arguments.chat_template);
  if (!arguments.prompt_type_path.empty()) plan.reads("--prompt-type-path", arguments.prompt_type_path);
  for (const std::filesystem::path& picture : pictures) plan.reads("/image", picture);
  plan.writes_file("/save", file);
  plan.check();
}

// The text behind the blanks at `at`, without blanks at its end.
std::string behind_blanks(const std::string& line, std::size_t at) {
  const std::size_t begin = line.find_first_not_of(' ', at);
  return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
}

// Rank 0: lines in, answers out.
class Talk {
 public:
  Talk(Chat& chat, const ChatArguments& arguments, const std::string& about, bool terminal, std::ostream& out)
      : chat_(chat), arguments_(arguments), terminal_(terminal), out_(out) {
    if (terminal_) out_ << about << "; /help lists the commands\n";
  }

  void run() {
    std::string line;
    bool warned = false;  // that Ctrl-C ends the chat now
    while (out_.good()) {
      if (Interrupts::noted() && !warned) {
        out_ << "Ctrl-C once more ends the chat\n";
        warned = true;
      }
      if (terminal_) out_ << "> " << std::flush;
      const ChatLines::Got got = lines_.next(line, [&] { return Interrupts::noted() && !warned; });
      if (got == ChatLines::Got::kEnd) break;
      if (got == ChatLines::Got::kInterrupted) {
        out_ << "\n";
        continue;
      }
      Interrupts::forget();
      warned = false;
      ++number_;
      if (got == ChatLines::Got::kTooLong) {
        refuse(fmt::format("it is longer than {} bytes; write a shorter one", kMostLineBytes));
      } else if (!take(line)) {
        return;
      }
    }
    if (terminal_) out_ << "\n";
  }

  // "3 lines of 5 were refused; ...", or empty.
  std::string problem() const {
    if (terminal_ || refused_ == 0) return {};
    return fmt::format("{} line{} of {} {} refused; the messages above say why", refused_, refused_ == 1 ? "" : "s",
                       number_, refused_ == 1 ? "was" : "were");
  }

 private:
  // False: the chat ends.
  bool take(const std::string& line) {
    if (line.empty()) return true;
    try {
      if (line.starts_with('/') && !line.starts_with("//")) return command(line);
      answer(line.starts_with("//") ? line.substr(1) : line);
    } catch (const ConfigError& error) {
      refuse(error.what());
    }
    return true;
  }

  void answer(const std::string& text) {
    TerminalText shown;
    const auto show = [&](std::string_view more) {
      out_ << (escapes_ ? shown.push(more) : std::string(more)) << std::flush;
    };
    const auto note = chat_.say(text, show, [&] { return Interrupts::noted() || !out_.good(); });
    out_ << shown.finish() << "\n" << std::flush;
    if (note) tell(*note);
  }

  bool command(const std::string& line) {
    const std::string word = line.substr(0, line.find(' '));
    const std::string rest = behind_blanks(line, word.size());
    if (word == "/save") {
      save(rest);
      return true;
    }
    if (word == "/image") {
      show_picture(rest);
      return true;
    }
    if (word != "/clear" && word != "/help" && word != "/exit") refuse_command(word);
    if (!rest.empty())
      config_error("{} takes nothing behind it, and {} follows; write it alone", word, shown_text(rest));
    if (word == "/clear") chat_.clear();
    if (word == "/help") std::cerr << kHelp;
    return word != "/exit";
  }

  [[noreturn]] static void refuse_command(const std::string& word) {
    const std::array<std::string, 5> commands{"/clear", "/image", "/save", "/help", "/exit"};
    const auto nearest = nearest_spelling(word, {commands.begin(), commands.end()});
    config_error(
        "{} is no command; {}", shown_text(word),
        nearest ? fmt::format("did you mean {}?", *nearest)
                : "use /clear, /image FILE, /save FILE, /help or /exit, or // for a text that begins with a slash");
  }

  void show_picture(const std::string& file) {
    if (file.empty()) config_error("/image needs a file; write /image FILE");
    const std::int64_t tokens = chat_.show_picture(file);
    tell(fmt::format("{} goes with the next line; it has {} token{}", escaped(file), tokens, tokens == 1 ? "" : "s"));
  }

  void save(const std::string& file) {
    if (file.empty()) config_error("/save needs a file; write /save FILE");
    try {
      check_saved(arguments_, chat_.picture_files(), file);
      io::write_text(file, chat_.json());
    } catch (const Error& error) {
      return refuse(error.what());
    }
    tell(fmt::format("{} turn{} written to {}", chat_.turns(), chat_.turns() == 1 ? "" : "s", escaped(file)));
  }

  void refuse(std::string_view why) {
    ++refused_;
    tell(why);
  }
  void tell(std::string_view text) const {
    const std::string where = terminal_ ? "" : fmt::format("line {}: ", number_);
    std::cerr << fmt::format("shardloom: {}{}\n", where, shown_message(text));
  }

  Chat& chat_;
  const ChatArguments& arguments_;
  const bool terminal_;  // there is somebody at it
  const bool escapes_ = log::is_terminal(STDOUT_FILENO);
  std::ostream& out_;
  ChatLines lines_{STDIN_FILENO, kMostLineBytes};
  std::int64_t number_ = 0, refused_ = 0;
};

}  // namespace

void run_chat(const ChatArguments& arguments, std::ostream& out) {
  const models::DecoderConfig config = models::load_text_config(arguments.model_dir);
  const Words words(arguments, config, "the conversation");
  const ChatPrompt prompt(arguments, words);
  const DecoderRanks ranks(arguments, config);
  const models::DecodingOptions options{.sampling = sampling_of(arguments),
                                        .seed = arguments.seed,
                                        .max_new_tokens = arguments.max_new_tokens.value_or(kMostNewTokens),
                                        .end_token_ids = prompt.ends()};
  const bool terminal = log::is_terminal(STDIN_FILENO) && log::is_terminal(STDOUT_FILENO);
  const Interrupts interrupts(terminal);
  std::string problem;
  ranks.run({}, kPatience, [&](models::GenerationSession& session, comm::World& world) {
    Turns turns(session, world, options);
    if (world.rank() != 0) return turns.follow();
    Chat chat(arguments, config, words, prompt, turns);
    Talk talk(chat, arguments, ranks.about(), terminal, out);
    talk.run();
    turns.end();
    problem = talk.problem();
  });
  if (!problem.empty()) raise<Error>("{}", problem);
}

}  // namespace loom::talk
