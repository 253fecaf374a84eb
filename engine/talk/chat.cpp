#include "engine/talk/chat.h"

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/talk/growing_text.h"

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

std::optional<Tokens> Turns::shared(std::optional<Tokens> prompt) {
  if (!everyone_) return prompt;
  std::int64_t count = prompt ? std::ssize(*prompt) : kEnd;
  everyone_->broadcast(comm::kHostLane, &count, sizeof(count), 0, "length of the prompt");
  if (count == kEnd) return std::nullopt;
  Tokens ids = prompt.value_or(Tokens(static_cast<std::size_t>(count)));
  everyone_->broadcast(comm::kHostLane, ids.data(), ids.size() * sizeof(ids[0]), 0, "prompt");
  return ids;
}

models::Generation Turns::made(const Tokens& prompt, const std::function<void(std::int32_t)>& on_token,
                               const std::function<bool()>& stops) {
  models::GenerationEvents events;
  events.on_token = [&](std::size_t, std::int32_t token) { on_token(token); };
  events.stops = [&](std::size_t, std::span<const std::int32_t>) {
    std::int8_t stop = stops() ? 1 : 0;
    if (everyone_) everyone_->broadcast(comm::kHostLane, &stop, sizeof(stop), 0, "end of the answer");
    return stop != 0;
  };
  return session_.generate({prompt}, options_, events).front();
}

models::Generation Turns::answer(const Tokens& prompt, const std::function<void(std::int32_t)>& on_token,
                                 const std::function<bool()>& stops) {
  shared(prompt);
  return made(prompt, on_token, stops);
}

void Turns::end() { shared(std::nullopt); }

void Turns::follow() {
  while (const auto prompt = shared(std::nullopt)) {
    made(
        *prompt, [](std::int32_t) {}, [] { return false; });
  }
}

Chat::Chat(const ChatArguments& arguments, const models::DecoderConfig& config, const Words& words,
           const ChatPrompt& prompt, Turns& turns)
    : arguments_(arguments), config_(config), words_(words), prompt_(prompt), turns_(turns) {}

Json Chat::messages(const std::string& text) const {
  Json messages = Json::array();
  if (!arguments_.system.empty()) messages.push_back(message("system", arguments_.system));
  const auto kept = static_cast<std::size_t>(arguments_.history_turns.value_or(std::ssize(said_)));
  for (std::size_t i = turns() - std::min(turns(), kept); i < turns(); ++i) {
    messages.push_back(message("user", said_[2 * i]));
    messages.push_back(message("assistant", said_[2 * i + 1]));
  }
  messages.push_back(message("user", text));
  return messages;
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
  const Tokens prompt = prompt_.ids(messages(text));
  check_room(prompt);
  GrowingText growing(words_, prompt, arguments_.stop_words);
  std::string answer;
  const auto add = [&](const std::string& more) {
    answer += more;
    show(more);
  };
  const models::Generation made = turns_.answer(
      prompt, [&](std::int32_t token) { add(growing.push(token)); }, [&] { return growing.stopped() || stopped(); });
  add(growing.finish());
  said_.push_back(text);
  said_.push_back(as_utf8(answer));
  if (made.reason != models::StopReason::kPositionsFull) return std::nullopt;
  return made.message + "; write /clear to begin again";
}

void Chat::clear() { said_.clear(); }

std::string Chat::json() const {
  Json messages = Json::array();
  if (!arguments_.system.empty()) messages.push_back(message("system", as_utf8(arguments_.system)));
  for (std::size_t i = 0; i < said_.size(); ++i) {
    messages.push_back(message(i % 2 == 0 ? "user" : "assistant", said_[i]));
  }
  return Json{{"messages", messages}}.dump(2) + "\n";
}

}  // namespace loom::talk
