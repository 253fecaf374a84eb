// Chat: a conversation with a model, and how the ranks answer a turn together. Private to engine/talk.
//
// Turns    what is not answered (a refused line) leaves no trace; of an answer that was stopped, what was made stays.
// Cache    the whole conversation is rendered for each turn, and the session reads what is new.
// Ranks    rank 0 has the conversation, and hands each prompt to the others; whether an answer is stopped is its word.
// Threads  the rank's host thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "engine/comm/process_group.h"
#include "engine/talk/chat_prompt.h"
#include "engine/talk/options.h"
#include "models/generation/session.h"

namespace loom::talk {

// A prompt's answer, on all ranks at once. Collective.
class Turns {
 public:
  // All outlive it.
  Turns(models::GenerationSession& session, comm::World& world, const models::DecodingOptions& options)
      : session_(session), options_(options), everyone_(world.size() > 1 ? world.everyone("chat") : nullptr) {}

  // Rank 0. `stops` is asked after each token.
  models::Generation answer(const Tokens& prompt, const std::function<void(std::int32_t)>& on_token,
                            const std::function<bool()>& stops);
  // Rank 0: follow() returns on the others.
  void end();
  // The other ranks.
  void follow();

 private:
  std::optional<Tokens> shared(std::optional<Tokens> prompt);
  models::Generation made(const Tokens& prompt, const std::function<void(std::int32_t)>& on_token,
                          const std::function<bool()>& stops);

  models::GenerationSession& session_;
  const models::DecodingOptions& options_;
  const std::shared_ptr<comm::ProcessGroup> everyone_;  // null: one rank
};

// The conversation.
class Chat {
 public:
  // All outlive it.
  Chat(const ChatArguments& arguments, const models::DecoderConfig& config, const Words& words,
       const ChatPrompt& prompt, Turns& turns);

  // One turn. `show` gets the answer's text as it grows; `stopped` ends it. What there is to say of its end, if any.
  // ConfigError: a text that is no UTF-8, that the template or the tokenizer refuses, or that the context has no room
  // for.
  std::optional<std::string> say(const std::string& text, const std::function<void(std::string_view)>& show,
                                 const std::function<bool()>& stopped);
  // Forgets all turns.
  void clear();
  // {"messages": [{"role", "content"}, ...]}, as preprocess reads them.
  std::string json() const;
  std::size_t turns() const { return said_.size() / 2; }

 private:
  nlohmann::ordered_json messages(const std::string& text) const;
  void check_room(const Tokens& prompt) const;

  const ChatArguments& arguments_;
  const models::DecoderConfig& config_;
  const Words& words_;
  const ChatPrompt& prompt_;
  Turns& turns_;
  std::vector<std::string> said_;  // user, assistant, ...
};

}  // namespace loom::talk
