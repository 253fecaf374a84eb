#include "engine/cli/generate_command.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "engine/cli/stop_words.h"
#include "engine/cli/text_data.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/parallel.h"
#include "engine/core/shown_text.h"
#include "engine/data/tokenizer/special_ids.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/device/device.h"
#include "engine/nn/init.h"
#include "models/decoder/decoder.h"
#include "models/generation/session.h"
#include "models/hf/folder_files.h"
#include "models/hf/hf_folder.h"

namespace loom::cli {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::int32_t>;

// What stands between text and ids: a tokenizer, or bytes.
class Words {
 public:
  Words(const GenerateArguments& arguments, const models::DecoderConfig& config) {
    const fs::path& folder = arguments.model_dir;
    if (!arguments.bytes_as_tokens && has_tokenizer(folder)) {
      tokenizer_ = std::make_shared<data::Tokenizer>(data::Tokenizer::from_file(folder));
      ends_ = data::read_special_ids(folder, *tokenizer_).stop;
      if (ends_.empty()) ends_.assign(config.eos_token_ids.begin(), config.eos_token_ids.end());
    } else {
      models::refuse_unread_tokenizer(folder, arguments.bytes_as_tokens, "the prompt");
    }
    for (const std::string& token : arguments.add_eos_token) ends_.push_back(id_of(token, folder));
  }

  Tokens ids(const std::string& text) const {
    if (tokenizer_) return tokenizer_->encode(text);
    Tokens ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  const data::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const Tokens& ends() const { return ends_; }

 private:
  std::int32_t id_of(const std::string& token, const fs::path& folder) const {
    if (!tokenizer_) {
      config_error(
          "--add-eos-token is {}, but the prompt is read as bytes, which have no tokens of that kind; leave it "
          "out, or use --stop-words",
          shown_text(token));
    }
    const auto id = tokenizer_->find(token);
    if (!id) {
      config_error(
          "--add-eos-token is {}, but the tokenizer in {} has no such token; use a token of its vocabulary, or "
          "--stop-words for other texts",
          shown_text(token), escaped(folder.string()));
    }
    return *id;
  }

  std::shared_ptr<const data::Tokenizer> tokenizer_;  // null: bytes
  Tokens ends_;
};

// The text of one row behind its prompt, as it grows.
class GrowingText {
 public:
  GrowingText(const Words& words, const Tokens& prompt, const std::vector<std::string>& stop_words)
      : stop_words_(stop_words) {
    if (words.tokenizer() == nullptr) return;
    stream_.emplace(*words.tokenizer(), true);
    for (const std::int32_t token : prompt) stream_->push(token);
  }

  // What can be shown now.
  std::string push(std::int32_t token) {
    return stop_words_.push(stream_ ? stream_->push(token) : std::string(1, static_cast<char>(token)));
  }
  std::string finish() {
    std::string rest = stream_ ? stop_words_.push(stream_->finish()) : std::string();
    return rest + stop_words_.finish();
  }
  bool stopped() const { return stop_words_.found(); }

 private:
  StopWords stop_words_;
  std::optional<data::TokenStream> stream_;  // none: bytes
};

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

// A rank of one, its model, and what is asked of it.
class Job {
 public:
  Job(const GenerateArguments& arguments, std::ostream& out)
      : arguments_(arguments),
        out_(out),
        config_(models::load_decoder_config(arguments.model_dir)),
        words_(arguments, config_),
        prompts_(prompts_of(arguments)),
        scope_(context_) {
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      ids_.push_back(words_.ids(prompts_[i]));
      models::check_prompt(ids_.back(), config_, max_length(), name_of(i));
    }
    check_search();
    load();
  }

  void run() {
    models::GenerationSession session(*model_, config_);
    if (arguments_.num_beams > 1) return search(session);
    std::vector<GrowingText> texts;
    std::vector<std::string> whole(prompts_.size());
    for (const Tokens& ids : ids_) texts.emplace_back(words_, ids, arguments_.stop_words);
    const bool streams = prompts_.size() == 1;
    if (streams) out_ << prompts_.front() << std::flush;
    const auto show = [&](std::size_t row, const std::string& text) {
      if (streams) {
        out_ << text << std::flush;
      } else {
        whole[row] += text;
      }
    };
    models::GenerationEvents events;
    events.on_token = [&](std::size_t row, std::int32_t token) { show(row, texts[row].push(token)); };
    events.stops = [&](std::size_t row, std::span<const std::int32_t>) { return texts[row].stopped(); };
    const std::vector<models::Generation> made = session.generate(ids_, decoding(), events);
    for (std::size_t row = 0; row < texts.size(); ++row) show(row, texts[row].finish());
    if (streams) out_ << "\n";
    for (std::size_t row = 0; row < made.size(); ++row) {
      if (!streams) out_ << fmt::format("--- {} ---\n", name_of(row)) << prompts_[row] << whole[row] << "\n";
      warn(made[row], row);
    }
  }

 private:
  // "the prompt", or "prompt 2 of 3".
  std::string name_of(std::size_t i) const {
    return prompts_.size() == 1 ? "the prompt" : fmt::format("prompt {} of {}", i + 1, prompts_.size());
  }
  std::optional<std::int64_t> max_length() const {
    return arguments_.max_new_tokens ? std::nullopt : arguments_.max_length;
  }
  std::int64_t max_new_tokens() const {
    constexpr std::int64_t kDefault = 128;
    if (arguments_.max_new_tokens) return *arguments_.max_new_tokens;
    return arguments_.max_length ? *arguments_.max_length : kDefault;
  }

  models::DecodingOptions decoding() const {
    return {.sampling = {.temperature = arguments_.temperature.value_or(0),
                         .top_k = arguments_.top_k,
                         .top_p = arguments_.top_p,
                         .min_p = arguments_.min_p,
                         .repetition_penalty = arguments_.repetition_penalty},
            .seed = arguments_.seed,
            .max_new_tokens = max_new_tokens(),
            .max_length = max_length(),
            .end_token_ids = words_.ends()};
  }

  void check_search() const {
    if (prompts_.size() == 1) return;
    const char* flag = arguments_.num_beams > 1 ? "--num-beams" : arguments_.stream ? "--stream" : nullptr;
    if (flag == nullptr) return;
    config_error("{} is given with {} prompts, and takes one; leave it out, or give one prompt", flag, prompts_.size());
  }

  void load() {
    const io::HfWeights weights(arguments_.model_dir);
    model_ = models::build_decoder(config_);
    models::check_weights(*model_, weights);
    device::Device::install(context_, {});
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    context_.slot<ComputePool>().resize(arguments_.compute_threads > 0 ? arguments_.compute_threads : cores);
    nn::materialize(*model_);
    models::load_weights(*model_, weights);
  }

  void search(models::GenerationSession& session) {
    const models::BeamResult best =
        session.beam_search(ids_.front(), {.beams = arguments_.num_beams,
                                           .length_penalty = arguments_.length_penalty.value_or(1.0),
                                           .repetition_penalty = arguments_.repetition_penalty,
                                           .max_new_tokens = max_new_tokens(),
                                           .max_length = max_length(),
                                           .end_token_ids = words_.ends()});
    GrowingText text(words_, ids_.front(), arguments_.stop_words);
    out_ << prompts_.front();
    for (std::size_t i = ids_.front().size(); i < best.generation.tokens.size(); ++i) {
      out_ << text.push(best.generation.tokens[i]);
    }
    out_ << text.finish() << "\n";
    if (best.generation.reason == models::StopReason::kPositionsFull) {
      logger().warn("stopped: max_position_embeddings is {}", config_.max_position_embeddings);
    }
  }

  // All that was asked for, or the model's own end: a normal end.
  void warn(const models::Generation& made, std::size_t row) const {
    if (made.reason != models::StopReason::kPositionsFull) return;
    logger().warn("{}{}", prompts_.size() == 1 ? "" : name_of(row) + ": ", made.message);
  }

  const GenerateArguments& arguments_;
  std::ostream& out_;
  const models::DecoderConfig config_;
  const Words words_;
  const std::vector<std::string> prompts_;
  std::vector<Tokens> ids_;
  RankContext context_{0, 1};
  const RankScope scope_;
  std::shared_ptr<nn::Module> model_;
};

}  // namespace

void run_generate(const GenerateArguments& arguments, std::ostream& out) { Job(arguments, out).run(); }

}  // namespace loom::cli
