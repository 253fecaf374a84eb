// Chat: a conversation with a model, and how the ranks answer a turn together. Private to engine/talk.
//
// Turns     a refused line leaves no trace; of a stopped answer, the generated part is kept.
// Cache     the whole conversation is rendered for each turn, and the session reads the new part; with pictures it
//           reads the whole one.
// Pictures  go with the next line, before its text, and stay with their turn.
// Ranks     rank 0 has the conversation, and sends each prompt and its pictures to the others; it decides when an
//           answer stops.
// Threads   the rank's host thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/talk/chat_prompt.h"
#include "engine/talk/options.h"
#include "engine/talk/picture_model.h"
#include "models/generation/session.h"

namespace loom::talk {

// Answers a prompt on all ranks at once. Collective.
class Turns {
 public:
  // All outlive it.
  Turns(models::GenerationSession& session, comm::World& world, const models::DecodingOptions& options)
      : session_(session), options_(options), everyone_(world.size() > 1 ? world.everyone("chat") : nullptr) {}

  // A prompt, and what the model is called with beside it.
  struct Asked {
    Tokens prompt;
    nn::ValueDict inputs;
  };

  // Rank 0. `stops` is called after each token.
  models::Generation answer(const Asked& asked, const std::function<void(std::int32_t)>& on_token,
                            const std::function<bool()>& stops);
  // Rank 0: follow() returns on the others.
  void end();
  // The other ranks.
  void follow();

 private:
  std::optional<Asked> shared(std::optional<Asked> asked);
  models::Generation made(const Asked& asked, const std::function<void(std::int32_t)>& on_token,
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

  // One turn. `show` gets the answer's text as it grows; `stopped` ends it. Returns a note on its end, if any.
  // ConfigError: a text that is not UTF-8, that the template or the tokenizer refuses, or that exceeds the
  // context.
  std::optional<std::string> say(const std::string& text, const std::function<void(std::string_view)>& show,
                                 const std::function<bool()>& stopped);
  // Adds a picture to the next turn; returns the number of its tokens. ConfigError: a model of text alone, a picture
  // that cannot be read.
  std::int64_t show_picture(const std::filesystem::path& file);
  // Forgets all turns, and the pictures for the next one.
  void clear();
  // {"messages": [{"role", "content"}, ...]}, the format of preprocess; with pictures MLLM demo format: <image> in the
  // contents, and the files in "images".
  std::string json() const;
  // Of all turns and of the next one.
  std::vector<std::filesystem::path> picture_files() const;
  std::size_t turns() const { return said_.size() / 2; }

 private:
  // A picture of a turn.
  struct Shown {
    std::filesystem::path file;
    std::shared_ptr<const Picture> picture;
  };
  using AllShown = std::vector<Shown>;

  // The first of the kept turns.
  std::size_t first_kept() const;
  nlohmann::ordered_json user_message(const std::string& text, const AllShown& shown) const;
  nlohmann::ordered_json messages(const std::string& text) const;
  Turns::Asked asked(const std::string& text) const;
  void check_room(const Tokens& prompt) const;

  const ChatArguments& arguments_;
  const models::DecoderConfig& config_;
  const Words& words_;
  const ChatPrompt& prompt_;
  Turns& turns_;
  std::unique_ptr<PictureModel> picture_model_;  // from the first picture on
  std::vector<std::string> said_;                // user, assistant, ...
  std::vector<AllShown> shown_;                  // of each turn
  AllShown next_;                                // of the next turn
};

}  // namespace loom::talk
