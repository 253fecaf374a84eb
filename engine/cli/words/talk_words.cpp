#include "engine/cli/words/flags.h"
#include "engine/cli/words/generation_flags.h"
#include "engine/cli/words/optional_words.h"

namespace loom::cli {
namespace {

constexpr const char* kGenerateExample =
    "Example:\n  shardloom generate out --prompt \"Once upon a time\" --max-new-tokens 40\n";
constexpr const char* kChatExample =
    "Example:\n  shardloom chat tuned --system \"You answer in one sentence.\"\n"
    "  shardloom chat tuned < questions.txt > answers.txt\n"
    "In the chat: /clear, /image FILE, /save FILE, /help, /exit\n";

class TalkWords final : public OptionalWords {
 public:
  explicit TalkWords(Command& app)
      : generate_(app.add_command("generate", "Continue a text with a trained model.")),
        chat_(app.add_command("chat", "Talk with a model: each line is a turn that it answers.")) {
    generate_.set_footer(kGenerateExample);
    chat_.set_footer(kChatExample);
    Flags generate(generate_, &refused_);
    add_generate(generate, generate_values_);
    Flags chat(chat_, &refused_);
    add_chat(chat, chat_values_);
  }

  Apps apps() const override { return {&generate_, &chat_}; }

  std::optional<OptionalArguments> settled(const Command& chosen, const launch::Start& start) override {
    if (&chosen != &generate_ && &chosen != &chat_) return std::nullopt;
    refuse_extras(chosen, refused_);
    if (&chosen == &chat_) {
      settle(chat_, start, chat_values_);
      return OptionalArguments{chat_values_, std::nullopt};
    }
    settle(generate_, start, generate_values_);
    return OptionalArguments{generate_values_, std::nullopt};
  }

 private:
  Command& generate_;
  Command& chat_;
  std::vector<std::string> refused_;
  talk::GenerateArguments generate_values_;
  talk::ChatArguments chat_values_;
};

}  // namespace

std::unique_ptr<OptionalWords> talk_words(Command& app) { return std::make_unique<TalkWords>(app); }

}  // namespace loom::cli
