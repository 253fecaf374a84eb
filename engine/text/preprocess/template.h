// Template: encodes a chat as token ids, each turn a pair of prompt and answer. Private to engine/text.
//
// Message   the text before it (prefix and system text before the first, the separator before every later prompt),
//           then the format of its role. Every text slot is encoded separately, without the tokenizer's special tokens.
// Turns     messages 0 and 1, 2 and 3, ...: from a prompt of odd length and one answer.
// Classes   Llama2Template puts the system text into the first message of the user. LFDefaultTemplate has no
//           separators. It and ReasoningTemplate cut by rule B (cut.h), with one id less, the others by rule A.
// Thoughts  of ReasoningTemplate: "<think>\n", a text, "\n</think>\n\n". An answer without them gets empty ones: in
//           front of it if thinking is enabled, else behind its prompt. If it is disabled they are removed
//           first.
// Threads   a Template does not change and may be shared.
// Errors    ConfigError: at construction, for template and tokenizer; later, with the place of the chat.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/preprocess/chat.h"
#include "engine/text/preprocess/options.h"
#include "engine/text/preprocess/template_file.h"
#include "engine/text/tokenizer/special_ids.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace loom::data {

struct Turn {
  std::vector<TokenId> prompt;
  std::vector<TokenId> answer;
};

// The slots of a format, split at the places of the values.
class FilledFormat {
 public:
  using Names = std::array<std::string_view, 2>;
  using Values = std::array<std::string_view, 2>;

  struct Piece {
    std::vector<std::string> texts = {};  // for a text slot: the text before, between and behind the values
    std::vector<std::size_t> values = {};
    std::optional<TokenId> id = {};  // for a token
  };

  FilledFormat() = default;
  explicit FilledFormat(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  // Adds the ids of the slots, each encoded separately.
  void encode(const Values& values, TokenEncoder& encoder, std::vector<TokenId>& ids) const;
  // All its text.
  std::string text(const Values& values) const;

 private:
  std::vector<Piece> pieces_;
};

class Template {
 public:
  Template(TemplateText text, EnableThinking thinking, const Tokenizer& tokenizer, const SpecialIds& ids);

  // Cut to `cutoff` ids in total; turns behind it are left out. `answer` is one of chat.answers.
  std::vector<Turn> turns(const Chat& chat, const Message& answer, std::int64_t cutoff, TokenEncoder& encoder) const;
  // The whole chat as one turn, uncut: the last answer, and everything before it.
  Turn one_turn(const Chat& chat, const Message& answer, TokenEncoder& encoder) const;

  const TemplateText& text() const { return text_; }
  // With replace_eos, eos is the first stop word; pad is eos if the tokenizer has none.
  const SpecialIds& special_ids() const { return ids_; }

 private:
  bool is_reasoning() const { return text_.template_class == TemplateClass::kReasoning; }
  std::string system_text(const Chat& chat) const;
  void encode_function(const Message& message, const std::string& where, TokenEncoder& encoder,
                       std::vector<TokenId>& ids) const;
  void encode_message(const Message& message, std::size_t number, const std::string& before, const std::string& where,
                      TokenEncoder& encoder, std::vector<TokenId>& ids) const;
  std::vector<TokenId> encode_with_opening(const Chat& chat, const Message& message, std::size_t number,
                                           TokenEncoder& encoder) const;
  std::vector<Turn> uncut_turns(const Chat& chat, std::span<const Message> messages, TokenEncoder& encoder) const;
  void add_empty_thought(const Message& answer, Turn& turn) const;
  std::vector<Turn> cut(std::vector<Turn> turns, std::int64_t cutoff) const;

  TemplateText text_;
  EnableThinking thinking_;
  SpecialIds ids_;
  FilledFormat user_, assistant_, system_, observation_, separator_, prefix_;
  std::optional<FilledFormat> function_;  // unset if it needs an eos that the tokenizer lacks
  bool function_has_call_ = false;
  std::vector<TokenId> empty_thought_;
};

}  // namespace loom::data
