#include "engine/talk/run_generate.h"

#include <unistd.h>

#include <fmt/format.h>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/data/content.h"
#include "engine/log/progress.h"
#include "engine/talk/decoder_ranks.h"
#include "engine/talk/growing_text.h"
#include "engine/talk/picture_prompt.h"
#include "engine/talk/terminal_text.h"
#include "models/hf/folder_files.h"
#include "models/hub/text_config.h"

namespace loom::talk {
namespace {

constexpr std::int64_t kMostNewTokens = 128;
constexpr std::chrono::minutes kPatience{10};

std::vector<std::string> prompts_of(const GenerateArguments& arguments) {
  if (!arguments.prompt_file) return {arguments.prompt};
  std::vector<std::string> prompts;
  std::istringstream lines(models::file_text(*arguments.prompt_file));
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) prompts.push_back(line);
  }
  if (prompts.empty()) {
    config_error("--prompt-file {} has no prompt; write one a line", escaped(arguments.prompt_file->string()));
  }
  return prompts;
}

// The request, read before the ranks start.
struct Decoding {
  explicit Decoding(const GenerateArguments& a)
      : arguments(a),
        config(models::load_text_config(a.model_dir)),
        words(a, config, "the prompt"),
        prompts(prompts_of(a)) {
    if (!a.images.empty()) {
      PicturePrompt prompt = picture_prompt(a.model_dir, a.images, a.prompt, words);
      ids.push_back(std::move(prompt.ids));
      inputs = std::move(prompt.inputs);
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      if (a.images.empty()) ids.push_back(words.ids(prompts[i]));
      models::check_prompt(ids.back(), config, max_length(), name_of(i));
    }
    check_search();
  }

  // "the prompt", or "prompt 2 of 3".
  std::string name_of(std::size_t i) const {
    return prompts.size() == 1 ? "the prompt" : fmt::format("prompt {} of {}", i + 1, prompts.size());
  }
  std::optional<std::int64_t> max_length() const {
    return arguments.max_new_tokens ? std::nullopt : arguments.max_length;
  }
  std::int64_t max_new_tokens() const {
    if (arguments.max_new_tokens) return *arguments.max_new_tokens;
    return arguments.max_length ? *arguments.max_length : kMostNewTokens;
  }

  models::DecodingOptions decoding() const {
    return {.sampling = sampling_of(arguments),
            .seed = arguments.seed,
            .max_new_tokens = max_new_tokens(),
            .max_length = max_length(),
            .end_token_ids = words.ends(),
            .inputs = inputs};
  }
  models::BeamOptions beams() const {
    return {.beams = arguments.num_beams,
            .length_penalty = arguments.length_penalty.value_or(1.0),
            .repetition_penalty = arguments.repetition_penalty,
            .max_new_tokens = max_new_tokens(),
            .max_length = max_length(),
            .end_token_ids = words.ends()};
  }

  // What processes have to be started with alike, beside the flags that `chat` has too.
  std::vector<comm::SaidEntry> entries() const {
    std::vector<comm::SaidEntry> entries{{"--num-beams", fmt::to_string(arguments.num_beams)},
                                         {"--length-penalty", fmt::to_string(beams().length_penalty)},
                                         {"--max-length", fmt::to_string(arguments.max_length.value_or(0))},
                                         {"prompts", fmt::to_string(prompts.size())}};
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      entries.push_back({name_of(i), fmt::format("{} as the tokens {}", escaped(prompts[i]), fmt::join(ids[i], " "))});
    }
    if (!arguments.images.empty()) {
      entries.push_back({"--image", fmt::to_string(data::content_of(arguments.images).digest)});
    }
    return entries;
  }

  const GenerateArguments& arguments;
  const models::DecoderConfig config;
  const Words words;
  const std::vector<std::string> prompts;
  std::vector<Tokens> ids;
  nn::ValueDict inputs;  // pictures

 private:
  void check_search() const {
    if (prompts.size() == 1) return;
    const char* flag = arguments.num_beams > 1 ? "--num-beams" : arguments.stream ? "--stream" : nullptr;
    if (flag == nullptr) return;
    config_error("{} is given with {} prompts, and takes one; leave it out, or give one prompt", flag, prompts.size());
  }
};

// One rank's texts. Every rank makes them, as a stop word ends them on all.
class RankTexts {
 public:
  RankTexts(const Decoding& job, models::GenerationSession& session, std::ostream& out, bool first)
      : job_(job), session_(session), out_(out), first_(first) {}

  void run() {
    if (job_.arguments.num_beams > 1) return search();
    for (const Tokens& ids : job_.ids) texts_.emplace_back(job_.words, ids, job_.arguments.stop_words);
    whole_.resize(texts_.size());
    const bool streams = texts_.size() == 1;
    if (streams) print(job_.prompts.front());
    models::GenerationEvents events;
    events.on_token = [&](std::size_t row, std::int32_t token) { add(row, texts_[row].push(token)); };
    events.stops = [&](std::size_t row, std::span<const std::int32_t>) { return texts_[row].stopped(); };
    const std::vector<models::Generation> made = session_.generate(job_.ids, job_.decoding(), events);
    for (std::size_t row = 0; row < texts_.size(); ++row) add(row, texts_[row].finish());
    if (streams) end();
    for (std::size_t row = 0; row < made.size(); ++row) {
      if (!streams) {
        print(fmt::format("--- {} ---\n", job_.name_of(row)) + job_.prompts[row] + whole_[row]);
        end();
      }
      warn(made[row], row);
    }
  }

 private:
  void add(std::size_t row, const std::string& text) {
    if (texts_.size() == 1) return print(text);
    whole_[row] += text;
  }
  void print(const std::string& text) { out_ << (terminal_ ? shown_.push(text) : text) << std::flush; }
  void end() { out_ << shown_.finish() << "\n"; }

  void search() {
    const models::Generation best = session_.beam_search(job_.ids.front(), job_.beams()).generation;
    GrowingText text(job_.words, job_.ids.front(), job_.arguments.stop_words);
    print(job_.prompts.front());
    for (std::size_t i = job_.ids.front().size(); i < best.tokens.size(); ++i) print(text.push(best.tokens[i]));
    print(text.finish());
    end();
    if (first_ && best.reason == models::StopReason::kPositionsFull) {
      log_warning("stopped: {}", models::longest_sequence_text(job_.config));
    }
  }

  // All requested tokens, or the model's own end: a normal end.
  void warn(const models::Generation& made, std::size_t row) const {
    if (!first_ || made.reason != models::StopReason::kPositionsFull) return;
    log_warning("{}{}", job_.prompts.size() == 1 ? "" : job_.name_of(row) + ": ", made.message);
  }

  const Decoding& job_;
  models::GenerationSession& session_;
  std::ostream& out_;
  const bool first_;
  const bool terminal_ = log::is_terminal(STDOUT_FILENO);
  TerminalText shown_;
  std::vector<GrowingText> texts_;
  std::vector<std::string> whole_;  // of several prompts
};

}  // namespace

void run_generate(const GenerateArguments& arguments, std::ostream& out) {
  const Decoding job(arguments);
  const DecoderRanks ranks(arguments, job.config);
  ranks.run(job.entries(), kPatience, [&](models::GenerationSession& session, comm::World& world) {
    std::ostream silent(nullptr);
    const bool first = world.rank() == 0;
    RankTexts(job, session, first ? out : silent, first).run();
  });
}

}  // namespace loom::talk
