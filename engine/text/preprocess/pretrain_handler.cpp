#include <algorithm>
#include <set>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/preprocess/columns.h"
#include "engine/text/preprocess/handlers.h"

namespace loom::data {
namespace {

// Each key is a text of the record, encoded with what the tokenizer puts around a text.
class PretrainHandler : public Handler {
 public:
  explicit PretrainHandler(const HandlerParts& parts)
      : keys_(parts.options.json_keys), ids_(parts.ids), padding_(static_cast<TokenId>(parts.tokenizer.size())) {
    check_keys();
    if (parts.options.append_eod) eod_ = eod_of(parts.ids);
    multiple_ = static_cast<std::size_t>(parts.options.pad_to_multiple_of);
    if (!ids_.pad) ids_.pad = ids_.eos;
  }

  const std::vector<std::string>& keys() const override { return keys_; }
  bool is_pretrain() const override { return true; }
  const SpecialIds& special_ids() const override { return ids_; }

  void check_columns(std::span<const Record> records) const override {
    std::vector<WantedColumn> wanted;
    for (const std::string& key : keys_) wanted.push_back({key, "text"});
    check_wanted(wanted, records, "--json-keys");
  }

  Converted sample_of(const Record& record, TokenEncoder& encoder) const override {
    SampleIds sample;
    bool any = false;
    for (const std::string& key : keys_) {
      sample.push_back(document(text(record, key), encoder));
      any = any || !sample.back().empty();
    }
    if (!any) return {std::nullopt, DropReason::kEmptyColumn};
    return {std::move(sample), std::nullopt};
  }

 protected:
  virtual std::string text(const Record& record, const std::string& key) const { return text_of(record, key); }

 private:
  void check_keys() const {
    if (keys_.empty()) config_error("--json-keys is empty; name the columns of the texts");
    std::set<std::string> seen;
    for (const std::string& key : keys_) {
      if (key.empty()) config_error("--json-keys has an empty name; name the columns of the texts");
      if (key.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
        config_error("--json-keys has '{}', which would be a part of a file's name and has a '{}'; rename the column",
                     shown_text(key), key.find('/') == std::string::npos ? "\\0" : "/");
      }
      if (!seen.insert(key).second) config_error("--json-keys names '{}' twice; keep one", shown_text(key));
    }
  }

  // Nothing for no text. A document of a whole multiple gets another one, less eod, as MindSpeed-LLM pads it.
  std::vector<TokenId> document(const std::string& text, TokenEncoder& encoder) const {
    std::vector<TokenId> ids;
    if (text.empty()) return ids;
    encoder.encode(text, ids);
    const std::size_t length = (ids.size() / multiple_ + 1) * multiple_ - (eod_ ? 1 : 0);
    if (multiple_ > 1 && length > ids.size()) ids.resize(length, padding_);
    if (eod_) ids.push_back(*eod_);
    return ids;
  }

  std::vector<std::string> keys_;
  SpecialIds ids_;
  TokenId padding_;
  std::optional<TokenId> eod_;
  std::size_t multiple_ = 1;
};

// The frame of MindSpeed-LLM; what a record does not have is the word None.
class AlpacaPretrainHandler : public PretrainHandler {
 public:
  explicit AlpacaPretrainHandler(const HandlerParts& parts) : PretrainHandler(parts) {
    if (keys() == std::vector<std::string>{"text"}) return;
    config_error("--json-keys is given, and AlpacaPretrainHandler writes the one key text; take the flag out");
  }

  void check_columns(std::span<const Record> records) const override {
    check_wanted(std::vector<WantedColumn>{{"instruction", "instruction"}, {"output", "output"}}, records,
                 "AlpacaPretrainHandler");
  }

 protected:
  std::string text(const Record& record, const std::string&) const override {
    const std::string input = text_of(record, "input");
    return fmt::format(
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, "
        "and polite answers to the user's questions.USER: Below is an instruction that describes a task. Write a "
        "response "
        "that appropriately completes the request.\n\n### Instruction:\n{}\n\n###{}\n\n### Response: ASSISTANT: {}",
        shown(record, "instruction"), input.empty() ? "None" : " Input:\n" + input, shown(record, "output"));
  }

 private:
  static std::string shown(const Record& record, const std::string& column) {
    return value_of(record, column) == nullptr ? "None" : text_of(record, column);
  }
};

// The texts of all messages, one behind the other.
class SharegptPretrainHandler : public PretrainHandler {
 public:
  using PretrainHandler::PretrainHandler;

 protected:
  std::string text(const Record& record, const std::string& key) const override {
    const RecordJson* messages = value_of(record, key);
    if (messages == nullptr) return "";
    const std::string place = "column '" + shown_text(key) + "'";
    if (!messages->is_array()) refuse_value(record, place, *messages, "use a list of messages");
    std::string text;
    for (std::size_t i = 0; i < messages->size(); ++i) {
      const RecordJson& message = (*messages)[i];
      const std::string number = fmt::format("{}[{}]", place, i);
      if (!message.is_object()) refuse_value(record, number, message, "use an object with value");
      const auto value = message.find("value");
      if (value == message.end() || value->is_null()) continue;
      if (!value->is_string()) refuse_value(record, number + ".value", *value, "use a text");
      text += value->get_ref<const std::string&>();
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Handler> make_general_pretrain(const HandlerParts& parts) {
  return std::make_unique<PretrainHandler>(parts);
}
std::unique_ptr<Handler> make_alpaca_pretrain(const HandlerParts& parts) {
  return std::make_unique<AlpacaPretrainHandler>(parts);
}
std::unique_ptr<Handler> make_sharegpt_pretrain(const HandlerParts& parts) {
  return std::make_unique<SharegptPretrainHandler>(parts);
}

}  // namespace loom::data
