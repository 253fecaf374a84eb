#include "engine/cli/words/optional_words.h"
#include "engine/cli/words/preprocess_flags.h"

namespace loom::cli {
namespace {

constexpr const char* kPreprocessExample =
    "Example:\n  shardloom preprocess --input corpus.jsonl --tokenizer-name-or-path qwen2 --append-eod \\\n"
    "    --output-prefix data/corpus --workers 4\n  shardloom preprocess alpaca_sft --input alpaca.jsonl\n"
    "Flags may stand in a YAML file, their names with underscores. The first word is then its path,\n"
    "or the name of a file in configs/datasets.\n"
    "preprocess_data is the same command\n";

class TextWords final : public OptionalWords {
 public:
  explicit TextWords(Command& app)
      : preprocess_(app.add_command("preprocess", "Make token ids of files of texts or conversations.")) {
    preprocess_.set_footer(kPreprocessExample);
  }

  std::vector<std::string> written_out(std::vector<std::string> words) const override {
    return flags_.written_out(std::move(words));
  }
  Apps apps() const override { return {&preprocess_}; }

  std::optional<OptionalArguments> settled(const Command& chosen, const launch::Start&) override {
    if (&chosen != &preprocess_) return std::nullopt;
    refuse_extras(preprocess_, flags_.refused());
    return OptionalArguments{flags_.settled(), "use fewer --workers, or split the input into smaller files"};
  }

 private:
  Command& preprocess_;
  PreprocessFlags flags_{preprocess_};
};

}  // namespace

std::unique_ptr<OptionalWords> text_words(Command& app) { return std::make_unique<TextWords>(app); }

}  // namespace loom::cli
