#include <algorithm>
#include <set>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/turn_cut.h"
#include "engine/text/preprocess/chat_records.h"
#include "engine/text/preprocess/handlers.h"
#include "engine/text/preprocess/packing.h"
#include "engine/text/preprocess/template.h"

namespace loom::data {
namespace {

// The cut-off of turns without --seq-length.
constexpr std::int64_t kLongestSample = 100000;

void append_ids(std::vector<TokenId>& ids, const std::vector<TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// Records as chats, chats as samples.
class TemplateHandler : public Handler {
 public:
  TemplateHandler(const HandlerParts& parts, RecordFormat format, bool pairs)
      : reader_(make_chat_reader(format, parts.options, pairs)),
        template_(read_template(parts.options.prompt_type_path, *parts.options.prompt_type),
                  parts.options.enable_thinking, parts.tokenizer, parts.ids),
        cutoff_(parts.options.seq_length.value_or(kLongestSample)) {}

  const std::vector<std::string>& keys() const override { return keys_; }
  bool is_pretrain() const override { return false; }
  const SpecialIds& special_ids() const override { return template_.special_ids(); }
  void check_columns(std::span<const Record> records) const override { reader_->check_columns(records); }

  Converted sample_of(const Record& record, TokenEncoder& encoder) const override {
    auto read = reader_->read(record);
    if (const auto* reason = std::get_if<DropReason>(&read)) return {std::nullopt, *reason};
    return chat_sample(std::get<Chat>(read), record, encoder);
  }

 protected:
  virtual Converted chat_sample(const Chat& chat, const Record& record, TokenEncoder& encoder) const = 0;

  std::vector<Turn> turns(const Chat& chat, TokenEncoder& encoder) const {
    return template_.turns(chat, chat.answers.front(), cutoff_, encoder);
  }

  std::vector<std::string> keys_;
  const std::unique_ptr<ChatReader> reader_;
  const Template template_;
  const std::int64_t cutoff_;
};

class InstructionHandler : public TemplateHandler {
 public:
  InstructionHandler(const HandlerParts& parts, RecordFormat format) : TemplateHandler(parts, format, false) {
    keys_ = {"input_ids", "attention_mask", "labels"};
    if (parts.options.append_eod) eod_ = eod_of(special_ids());
    if (parts.options.neat_pack && parts.options.seq_length) most_of_turn_ = *parts.options.seq_length - 1;
  }

 protected:
  Converted chat_sample(const Chat& chat, const Record&, TokenEncoder& encoder) const override {
    std::vector<TokenId> ids;
    std::vector<TokenId> labels;
    for (Turn& turn : turns(chat, encoder)) add_turn(std::move(turn), ids, labels);
    if (template_.text().efficient_eos) add_learnt(*special_ids().eos, ids, labels);
    if (eod_) add_learnt(*eod_, ids, labels);
    std::vector<TokenId> mask(ids.size(), 1);
    return {SampleIds{std::move(ids), std::move(mask), std::move(labels)}, std::nullopt};
  }

 private:
  static void add_learnt(TokenId id, std::vector<TokenId>& ids, std::vector<TokenId>& labels) {
    ids.push_back(id);
    labels.push_back(id);
  }

  // With efficient_eos, a later prompt's first id is at the end of the answer before it.
  void add_turn(Turn turn, std::vector<TokenId>& ids, std::vector<TokenId>& labels) const {
    if (most_of_turn_) cut(turn, *most_of_turn_);
    const bool ends_answer = template_.text().efficient_eos && !ids.empty() && !turn.prompt.empty();
    labels.insert(labels.end(), turn.prompt.size(), kIgnoredLabel);
    if (ends_answer) labels[ids.size()] = *special_ids().eos;
    append_ids(ids, turn.prompt);
    append_ids(ids, turn.answer);
    append_ids(labels, turn.answer);
  }

  static void cut(Turn& turn, std::int64_t room) {
    const TurnLengths kept =
        cut_b({static_cast<std::int64_t>(turn.prompt.size()), static_cast<std::int64_t>(turn.answer.size())}, room);
    turn.prompt.resize(static_cast<std::size_t>(kept.prompt));
    turn.answer.resize(static_cast<std::size_t>(kept.answer));
  }

  std::optional<TokenId> eod_;
  std::optional<std::int64_t> most_of_turn_;
};

// The prompt is the prompt of the chosen answer.
class PairHandler : public TemplateHandler {
 public:
  PairHandler(const HandlerParts& parts, RecordFormat format) : TemplateHandler(parts, format, true) {
    keys_ = {"chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"};
    warn_of_unused_eod(parts.options);
  }

 protected:
  Converted chat_sample(const Chat& chat, const Record&, TokenEncoder& encoder) const override {
    const Turn chosen = template_.one_turn(chat, chat.answers.at(0), encoder);
    const Turn rejected = template_.one_turn(chat, chat.answers.at(1), encoder);
    SampleIds sample;
    add_answer(chosen.prompt, chosen.answer, sample);
    add_answer(chosen.prompt, rejected.answer, sample);
    return {std::move(sample), std::nullopt};
  }

 private:
  void add_answer(const std::vector<TokenId>& prompt, std::vector<TokenId> answer, SampleIds& sample) const {
    if (template_.text().efficient_eos) answer.push_back(*special_ids().eos);
    std::vector<TokenId> ids = prompt;
    append_ids(ids, answer);
    std::vector<TokenId> labels(prompt.size(), kIgnoredLabel);
    append_ids(labels, answer);
    sample.push_back(std::move(ids));
    sample.push_back(std::move(labels));
  }
};

// The prompts of all turns.
class PromptHandler : public TemplateHandler {
 public:
  PromptHandler(const HandlerParts& parts, RecordFormat format) : TemplateHandler(parts, format, false) {
    keys_ = {"input_ids", "attention_mask"};
    warn_of_unused_eod(parts.options);
  }

 protected:
  Converted chat_sample(const Chat& chat, const Record&, TokenEncoder& encoder) const override {
    std::vector<TokenId> ids;
    for (const Turn& turn : turns(chat, encoder)) append_ids(ids, turn.prompt);
    std::vector<TokenId> mask(ids.size(), 1);
    return {SampleIds{std::move(ids), std::move(mask)}, std::nullopt};
  }
};

// Earlier turns, the last prompt, and further columns.
class R1Handler : public TemplateHandler {
 public:
  R1Handler(const HandlerParts& parts, RecordFormat format)
      : TemplateHandler(parts, format, false), columns_(parts.options.dataset_additional_keys) {
    keys_ = {"input_ids", "attention_mask"};
    keys_.insert(keys_.end(), columns_.begin(), columns_.end());
    std::set<std::string> seen;
    for (const std::string& key : keys_) {
      if (key.empty()) config_error("--dataset-additional-keys has an empty name; name columns, or labels");
      if (!seen.insert(key).second) {
        config_error("--dataset-additional-keys names '{}', which is written already; take it out", shown_text(key));
      }
    }
    warn_of_unused_eod(parts.options);
  }

  void check_columns(std::span<const Record> records) const override {
    TemplateHandler::check_columns(records);
    std::vector<WantedColumn> wanted;
    for (const std::string& column : columns_) {
      if (column != "labels") wanted.push_back({column, "additional key"});
    }
    check_wanted(wanted, records, "--dataset-additional-keys");
  }

 protected:
  Converted chat_sample(const Chat& chat, const Record& record, TokenEncoder& encoder) const override {
    std::vector<TokenId> ids;
    const std::vector<Turn> all = turns(chat, encoder);
    for (const Turn& turn : all) {
      append_ids(ids, turn.prompt);
      if (&turn != &all.back()) append_ids(ids, turn.answer);
    }
    SampleIds sample = {ids, std::vector<TokenId>(ids.size(), 1)};
    for (const std::string& column : columns_) {
      const bool is_answer = column == "labels";
      if (!is_answer && value_of(record, column) == nullptr) return {std::nullopt, DropReason::kEmptyColumn};
      const std::string text = is_answer ? chat.answers.front().content : text_of(record, column);
      encoder.encode(text, sample.emplace_back(), {.add_special_tokens = false});
    }
    return {std::move(sample), std::nullopt};
  }

 private:
  const std::vector<std::string> columns_;
};

}  // namespace

std::unique_ptr<Handler> make_alpaca_instruction(const HandlerParts& parts) {
  return std::make_unique<InstructionHandler>(parts, RecordFormat::kAlpaca);
}
std::unique_ptr<Handler> make_sharegpt_instruction(const HandlerParts& parts) {
  return std::make_unique<InstructionHandler>(parts, RecordFormat::kSharegpt);
}
std::unique_ptr<Handler> make_openai_instruction(const HandlerParts& parts) {
  return std::make_unique<InstructionHandler>(parts, RecordFormat::kOpenAI);
}
std::unique_ptr<Handler> make_alpaca_pairs(const HandlerParts& parts) {
  return std::make_unique<PairHandler>(parts, RecordFormat::kAlpaca);
}
std::unique_ptr<Handler> make_sharegpt_pairs(const HandlerParts& parts) {
  return std::make_unique<PairHandler>(parts, RecordFormat::kSharegpt);
}
std::unique_ptr<Handler> make_alpaca_prompts(const HandlerParts& parts) {
  return std::make_unique<PromptHandler>(parts, RecordFormat::kAlpaca);
}
std::unique_ptr<Handler> make_alpaca_r1(const HandlerParts& parts) {
  return std::make_unique<R1Handler>(parts, RecordFormat::kAlpaca);
}
std::unique_ptr<Handler> make_sharegpt_r1(const HandlerParts& parts) {
  return std::make_unique<R1Handler>(parts, RecordFormat::kSharegpt);
}

}  // namespace loom::data
