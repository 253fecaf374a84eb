#include "engine/talk/chat.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/talk/growing_text.h"
#include "engine/talk/shared_inputs.h"

namespace loom::talk {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kEnd = -1;

// A text of bytes as UTF-8: what is broken becomes U+FFFD, as tokenizers decode it.
std::string as_utf8(std::string_view text) {
  std::string valid;
  for (auto broken = invalid_utf8(text); broken; broken = invalid_utf8(text)) {
    valid.append(text.substr(0, *broken)).append("\uFFFD");
    text.remove_prefix(*broken + 1);
  }
  return valid.append(text);
}

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

}  // namespace

std::optional<Turns::Asked> Turns::shared(std::optional<Asked> asked) {
  if (!everyone_) return asked;
  std::int64_t count = asked ? std::ssize(asked->prompt) : kEnd;
  everyone_->broadcast(comm::kHostLane, &count, sizeof(count), 0, "length of the prompt");
  if (count == kEnd) return std::nullopt;
  Asked all = std::move(asked).value_or(Asked{Tokens(static_cast<std::size_t>(count)), {}});
  everyone_->broadcast(comm::kHostLane, all.prompt.data(), all.prompt.size() * sizeof(all.prompt[0]), 0, "prompt");
  all.inputs = shared_inputs(all.inputs, *everyone_);
  return all;
}

models::Generation Turns::made(const Asked& asked, const std::function<void(std::int32_t)>& on_token,
                               const std::function<bool()>& stops) {
  models::GenerationEvents events;
  events.on_token = [&](std::size_t, std::int32_t token) { on_token(token); };
  events.stops = [&](std::size_t, std::span<const std::int32_t>) {
    std::int8_t stop = stops() ? 1 : 0;
    if (everyone_) everyone_->broadcast(comm::kHostLane, &stop, sizeof(stop), 0, "end of the answer");
    return stop != 0;
  };
  models::DecodingOptions options = options_;
  options.inputs = asked.inputs;
  return session_.generate({asked.prompt}, options, events).front();
}

models::Generation Turns::answer(const Asked& asked, const std::function<void(std::int32_t)>& on_token,
                                 const std::function<bool()>& stops) {
  shared(asked);
  return made(asked, on_token, stops);
}

void Turns::end() { shared(std::nullopt); }

void Turns::follow() {
  while (const auto asked = shared(std::nullopt)) {
    made(
        *asked, [](std::int32_t) {}, [] { return false; });
  }
}

Chat::Chat(const ChatArguments& arguments, const models::DecoderConfig& config, const Words& words,
           const ChatPrompt& prompt, Turns& turns)
    : arguments_(arguments), config_(config), words_(words), prompt_(prompt), turns_(turns) {}

std::size_t Chat::first_kept() const {
  const auto kept = static_cast<std::size_t>(arguments_.history_turns.value_or(std::ssize(said_)));
  return turns() - std::min(turns(), kept);
}

Json Chat::user_message(const std::string& text, const AllShown& shown) const {
  if (shown.empty()) return message("user", text);
  return {{"role", "user"}, {"content", picture_model_->content(shown.size(), text)}};
}

Json Chat::messages(const std::string& text) const {
  Json messages = Json::array();
  if (!arguments_.system.empty()) messages.push_back(message("system", arguments_.system));
  for (std::size_t i = first_kept(); i < turns(); ++i) {
    messages.push_back(user_message(said_[2 * i], shown_[i]));
    messages.push_back(message("assistant", said_[2 * i + 1]));
  }
  messages.push_back(user_message(text, next_));
  return messages;
}

Turns::Asked Chat::asked(const std::string& text) const {
  std::vector<Picture> pictures;
  const auto add = [&](const AllShown& shown) {
    for (const Shown& one : shown) pictures.push_back(*one.picture);
  };
  for (std::size_t i = first_kept(); i < turns(); ++i) add(shown_[i]);
  add(next_);
  if (pictures.empty()) return {prompt_.ids(messages(text)), {}};
  return {picture_model_->ids(prompt_.text(messages(text)), pictures), picture_model_->inputs(pictures)};
}

void Chat::check_room(const Tokens& prompt) const {
  if (std::ssize(prompt) >= models::longest_sequence(config_)) {
    config_error("the conversation would have {} tokens, but the model's {}; {}", prompt.size(),
                 models::longest_sequence_text(config_),
                 said_.empty() ? "write a shorter line" : "write /clear to begin again, or a shorter line");
  }
  models::check_prompt(prompt, config_, std::nullopt, "the conversation");
}

std::optional<std::string> Chat::say(const std::string& text, const std::function<void(std::string_view)>& show,
                                     const std::function<bool()>& stopped) {
  if (const auto at = invalid_utf8(text)) {
    config_error("byte {} of the line is no UTF-8; write it in UTF-8", *at + 1);
  }
  const Turns::Asked question = asked(text);
  check_room(question.prompt);
  GrowingText growing(words_, question.prompt, arguments_.stop_words);
  std::string answer;
  const auto add = [&](const std::string& more) {
    answer += more;
    show(more);
  };
  const models::Generation made = turns_.answer(
      question, [&](std::int32_t token) { add(growing.push(token)); }, [&] { return growing.stopped() || stopped(); });
  add(growing.finish());
  said_.push_back(text);
  said_.push_back(as_utf8(answer));
  shown_.push_back(std::exchange(next_, {}));
  if (made.reason != models::StopReason::kPositionsFull) return std::nullopt;
  return made.message + "; write /clear to begin again";
}

std::int64_t Chat::show_picture(const std::filesystem::path& file) {
  if (!picture_model_) picture_model_ = picture_model(arguments_.model_dir, words_);
  next_.push_back({file, std::make_shared<const Picture>(picture_model_->read(file))});
  return next_.back().picture->tokens;
}

void Chat::clear() {
  said_.clear();
  shown_.clear();
  next_.clear();
}

std::vector<std::filesystem::path> Chat::picture_files() const {
  std::vector<std::filesystem::path> files;
  const auto add = [&](const AllShown& shown) {
    for (const Shown& one : shown) files.push_back(one.file);
  };
  for (const AllShown& shown : shown_) add(shown);
  add(next_);
  return files;
}

std::string Chat::json() const {
  Json messages = Json::array(), images = Json::array();
  if (!arguments_.system.empty()) messages.push_back(message("system", as_utf8(arguments_.system)));
  for (std::size_t i = 0; i < turns(); ++i) {
    std::string places;
    for (const Shown& one : shown_[i]) {
      places += "<image>";
      images.push_back(as_utf8(one.file.string()));
    }
    messages.push_back(message("user", places + said_[2 * i]));
    messages.push_back(message("assistant", said_[2 * i + 1]));
  }
  Json json{{"messages", messages}};
  if (!images.empty()) json["images"] = images;
  return json.dump(2) + "\n";
}

}  // namespace loom::talk
