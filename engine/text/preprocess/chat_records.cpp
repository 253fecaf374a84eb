#include "engine/text/preprocess/chat_records.h"

#include <mutex>
#include <optional>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/text/preprocess/tool_text.h"

namespace loom::data {
namespace {

using Read = std::variant<Chat, DropReason>;

// What the readers of all formats have.
class ColumnReader : public ChatReader {
 public:
  ColumnReader(RecordFormat format, const HandlerOptions& options, bool pairs)
      : columns_(columns_of(options, format, pairs)),
        wanted_(wanted_columns(columns_, format, pairs)),
        place_(options.map_keys_place),
        pairs_(pairs) {}

  void check_columns(std::span<const Record> records) const override { check_wanted(wanted_, records, place_); }

 protected:
  const Columns columns_;
  const std::vector<WantedColumn> wanted_;
  const std::string place_;
  const bool pairs_;
};

class AlpacaReader : public ColumnReader {
 public:
  using ColumnReader::ColumnReader;

  Read read(const Record& record) const override {
    Chat chat;
    chat.where = record.where;
    chat.system = text_of(record, columns_.system);
    add_history(record, chat);
    const std::string prompt = text_of(record, columns_.prompt);
    const std::string query = text_of(record, columns_.query);
    const bool both = !prompt.empty() && !query.empty();
    chat.prompt.push_back({Role::kUser, both ? prompt + "\n" + query : prompt + query});
    if (pairs_) {
      for (const std::string& column : {columns_.chosen, columns_.rejected}) add_first_answer(record, column, chat);
    } else {
      add_answers(record, chat);
    }
    if (chat.answers.size() != (pairs_ ? 2U : 1U)) return DropReason::kNoResponse;
    return chat;
  }

 private:
  void add_history(const Record& record, Chat& chat) const {
    const RecordJson* history = value_of(record, columns_.history);
    if (history == nullptr) return;
    const std::string place = "column '" + shown_text(columns_.history) + "'";
    const auto is_pair = [](const RecordJson& turn) {
      return turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
    };
    if (!history->is_array()) refuse_value(record, place, *history, "use a list of [prompt, answer]");
    for (std::size_t i = 0; i < history->size(); ++i) {
      const RecordJson& turn = (*history)[i];
      if (!is_pair(turn)) {
        refuse_value(record, fmt::format("{}[{}]", place, i), turn, "use a list of two texts, a prompt and its answer");
      }
      chat.prompt.push_back({Role::kUser, turn[0].get<std::string>()});
      chat.prompt.push_back({Role::kAssistant, turn[1].get<std::string>()});
    }
  }

  static std::string listed_text(const Record& record, const std::string& column, std::size_t index,
                                 const RecordJson& value) {
    if (value.is_string()) return value.get<std::string>();
    refuse_value(record, fmt::format("column '{}'[{}]", shown_text(column), index), value, "use a text");
  }

  // A text, or texts of several answers.
  void add_answers(const Record& record, Chat& chat) const {
    const RecordJson* value = value_of(record, columns_.response);
    if (value == nullptr) return;
    if (!value->is_array()) {
      chat.answers.push_back({Role::kAssistant, text_of(record, columns_.response)});
      return;
    }
    for (std::size_t i = 0; i < value->size(); ++i) {
      chat.answers.push_back({Role::kAssistant, listed_text(record, columns_.response, i, (*value)[i])});
    }
  }

  static void add_first_answer(const Record& record, const std::string& column, Chat& chat) {
    const RecordJson* value = value_of(record, column);
    if (value == nullptr || (value->is_array() && value->empty())) return;
    chat.answers.push_back({Role::kAssistant, value->is_array() ? listed_text(record, column, 0, value->front())
                                                                : text_of(record, column)});
  }
};

// The messages of a record, with their tags.
class MessageReader : public ColumnReader {
 public:
  using ColumnReader::ColumnReader;

 protected:
  const RecordJson* messages_of(const Record& record) const {
    const RecordJson* messages = value_of(record, columns_.messages);
    if (messages != nullptr && !messages->is_array()) {
      refuse_value(record, "column '" + shown_text(columns_.messages) + "'", *messages, "use a list of messages");
    }
    return messages;
  }

  std::string place_of(std::size_t number) const {
    return fmt::format("column '{}'[{}]", shown_text(columns_.messages), number);
  }

  // Null counts as a tag that is not there.
  static const RecordJson* tagged(const Record& record, const RecordJson& message, const std::string& tag,
                                  const std::string& place) {
    if (!message.is_object()) refuse_value(record, place, message, "use an object");
    const auto found = message.find(tag);
    if (found == message.end() || found->is_null()) return nullptr;
    if (!found->is_string()) refuse_value(record, place + "." + shown_text(tag), *found, "use a text");
    return &*found;
  }

  std::string role_text(const Record& record, const RecordJson& message, const std::string& place) const {
    const RecordJson* role = tagged(record, message, columns_.tags.role, place);
    if (role != nullptr) return role->get<std::string>();
    config_error("{}: {} has no '{}', which says whose message it is; write it, or name its tag in {}: role_tag",
                 record.where, place, shown_text(columns_.tags.role), place_);
  }

  std::optional<std::string> content(const Record& record, const RecordJson& message, const std::string& place) const {
    const RecordJson* content = tagged(record, message, columns_.tags.content, place);
    if (content == nullptr) return std::nullopt;
    return content->get<std::string>();
  }

  // A tag that is switched off matches no role.
  std::optional<Role> role_of(const std::string& text) const {
    const Tags& tags = columns_.tags;
    if (text.empty()) return std::nullopt;
    if (text == tags.user) return Role::kUser;
    if (text == tags.assistant) return Role::kAssistant;
    if (text == tags.observation) return Role::kObservation;
    if (text == tags.function) return Role::kFunction;
    if (text == tags.system) return Role::kSystem;
    return std::nullopt;
  }

  // The number of the first message behind the system text.
  std::size_t read_system(const Record& record, const RecordJson& messages, Chat& chat) const {
    if (role_of(role_text(record, messages[0], place_of(0))) == Role::kSystem) {
      chat.system = content(record, messages[0], place_of(0)).value_or("");
      return 1;
    }
    chat.system = text_of(record, columns_.system);
    return 0;
  }

  struct Turn {
    const RecordJson* message = nullptr;
    std::size_t number = 0;  // among the record's messages
  };
  // Reads system and tools into `chat`; the messages behind them.
  std::vector<Turn> begin(const Record& record, Chat& chat) const {
    chat.where = record.where;
    std::vector<Turn> turns;
    const RecordJson* messages = messages_of(record);
    if (messages == nullptr || messages->empty()) return turns;
    const std::size_t first = read_system(record, *messages, chat);
    read_tools(record, chat);
    for (std::size_t i = first; i < messages->size(); ++i) turns.push_back({&(*messages)[i], i});
    return turns;
  }

  // A JSON text, or JSON itself.
  void read_tools(const Record& record, Chat& chat) const {
    const RecordJson* tools = value_of(record, columns_.tools);
    if (tools == nullptr) return;
    if (tools->is_string()) {
      chat.tools = tools->get<std::string>();
    } else if (tools->is_array()) {
      if (!tools->empty()) chat.tools = python_json(*tools);
    } else {
      refuse_value(record, "column '" + shown_text(columns_.tools) + "'", *tools, "use a list of tools");
    }
  }
};

class SharegptReader : public MessageReader {
 public:
  using MessageReader::MessageReader;

  Read read(const Record& record) const override {
    Chat chat;
    const auto turns = begin(record, chat);
    if (turns.empty()) return DropReason::kNoPrompt;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const RecordJson& message = *turns[i].message;
      const std::string place = place_of(turns[i].number);
      const auto role = role_of(role_text(record, message, place));
      if (!role || !fits(*role, i)) return DropReason::kTurnOrder;
      auto text = content(record, message, place);
      if (!text) return DropReason::kEmptyColumn;
      chat.prompt.push_back({*role, std::move(*text)});
    }
    if (turns.size() % 2 != (pairs_ ? 1 : 0)) return DropReason::kTurnOrder;
    if (pairs_) return with_pair(record, std::move(chat));
    chat.answers.push_back(std::move(chat.prompt.back()));
    chat.prompt.pop_back();
    return chat;
  }

 private:
  static bool answers(Role role) { return role == Role::kAssistant || role == Role::kFunction; }
  static bool asks(Role role) { return role == Role::kUser || role == Role::kObservation; }
  static bool fits(Role role, std::size_t number) { return number % 2 == 0 ? asks(role) : answers(role); }

  Read with_pair(const Record& record, Chat chat) const {
    for (const std::string& column : {columns_.chosen, columns_.rejected}) {
      const RecordJson* message = value_of(record, column);
      if (message == nullptr) return DropReason::kNoResponse;
      const std::string place = "column '" + shown_text(column) + "'";
      const auto role = role_of(role_text(record, *message, place));
      if (!role || !answers(*role)) return DropReason::kTurnOrder;
      auto text = content(record, *message, place);
      if (!text) return DropReason::kNoResponse;
      chat.answers.push_back({*role, std::move(*text)});
    }
    return chat;
  }
};

class OpenAIReader : public MessageReader {
 public:
  using MessageReader::MessageReader;

  Read read(const Record& record) const override {
    Chat chat;
    const auto turns = begin(record, chat);
    if (turns.empty()) return DropReason::kNoPrompt;
    for (const auto& [message, number] : turns) {
      const std::string place = place_of(number);
      const auto role = role_of(role_text(record, *message, place));
      if (!role || *role == Role::kSystem) return DropReason::kTurnOrder;
      warn_of_tool_calls(record, *message, place);
      chat.prompt.push_back({*role, content(record, *message, place).value_or("")});
    }
    if (chat.prompt.front().role != Role::kUser || chat.prompt.back().role != Role::kAssistant) {
      return DropReason::kTurnOrder;
    }
    chat.answers.push_back(std::move(chat.prompt.back()));
    chat.prompt.pop_back();
    if (chat.prompt.size() % 2 == 0) return DropReason::kTurnOrder;
    return chat;
  }

 private:
  void warn_of_tool_calls(const Record& record, const RecordJson& message, const std::string& place) const {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || calls->empty()) return;
    std::call_once(warned_, [&] {
      log_warning("{}: {} has tool_calls; no template here shows them: such messages have their content only",
                  record.where, place);
    });
  }

  mutable std::once_flag warned_;
};

}  // namespace

std::unique_ptr<ChatReader> make_chat_reader(RecordFormat format, const HandlerOptions& options, bool pairs) {
  if (format == RecordFormat::kAlpaca) return std::make_unique<AlpacaReader>(format, options, pairs);
  if (format == RecordFormat::kSharegpt) return std::make_unique<SharegptReader>(format, options, pairs);
  return std::make_unique<OpenAIReader>(format, options, pairs);
}

}  // namespace loom::data
