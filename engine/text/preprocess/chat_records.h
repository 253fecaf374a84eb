// ChatReader: converts records of instructions to chats. Private to engine/text.
//
// alpaca     history, then prompt and query with a newline between them; the answer, or chosen and rejected.
// sharegpt   messages, which alternate: user or observation, assistant or function. The first may be the system text.
// openai     messages in any order; user first, assistant last.
// Threads    a reader does not change.
// Errors     ConfigError with the record's place: a value of another type, a message without a role.
// Source     MindSpeed-LLM utils.py, convert_..._to_intermediate.
#pragma once

#include <memory>
#include <span>
#include <variant>

#include "engine/text/preprocess/chat.h"
#include "engine/text/preprocess/columns.h"
#include "engine/text/preprocess/handler.h"

namespace loom::data {

class ChatReader {
 public:
  virtual ~ChatReader() = default;
  // A chat has a prompt of odd length and one answer, or two for pairs.
  virtual std::variant<Chat, DropReason> read(const Record& record) const = 0;
  virtual void check_columns(std::span<const Record> records) const = 0;
};

std::unique_ptr<ChatReader> make_chat_reader(RecordFormat format, const HandlerOptions& options, bool pairs);

}  // namespace loom::data
