// Handler: converts one record, as MindSpeed-LLM's handler of the same name does.
//
// Keys      the sequences of a sample, one pair .bin/.idx each. The pretrain handlers write PREFIX_KEY_document, all
//           others PREFIX_packed_KEY_document.
// Labels    unshifted; -100 at positions without a loss.
// Threads   a Handler does not change and may be shared; each thread brings its own encoder.
// Errors    ConfigError with the record's place: a column that is missing or of another type, a value that a rule
//           forbids. At construction: an unknown handler, template, slot or column.
// Source    MindSpeed-LLM mindspeed_llm/tasks/preprocess/{data_handler,parser,templates}.py; departures in
//           docs/preprocess.md.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/preprocess/options.h"
#include "engine/text/records/record.h"
#include "engine/text/tokenizer/special_ids.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace loom::data {

// Why a record gives no sample. Counted by reason; the first ones are shown with their places.
enum class DropReason : std::uint8_t {
  kTurnOrder,    // roles do not alternate, or the number of messages is odd
  kNoPrompt,     //   no question
  kNoResponse,   // no answer, or several
  kEmptyColumn,  // a column that has the text is empty or missing in this record
  kTooLong,      // seq_length ids or more
};
std::string_view words_of(DropReason reason);

// One list for each key, in their order. Lists of instructions are of one length. An empty list is a sequence of no
// ids, except with a pretrain handler: there the key's file gets neither sequence nor document.
using SampleIds = std::vector<std::vector<TokenId>>;

struct Converted {
  std::optional<SampleIds> sample;
  std::optional<DropReason> dropped;  // set exactly if there is no sample
};

class Handler {
 public:
  virtual ~Handler() = default;
  virtual const std::vector<std::string>& keys() const = 0;
  // Its keys' files have no "packed" in their names, and --pack does not apply.
  virtual bool is_pretrain() const = 0;
  // The tokenizer's ids with the template's changes: eos may be replaced; pad is eos if the tokenizer has none.
  virtual const SpecialIds& special_ids() const = 0;
  // `records` are the first ones of a data set, some hundred: each required column must be in one of them.
  // In a later record without it, it is null.
  virtual void check_columns(std::span<const Record> records) const = 0;
  // Ignores the length: the writer handles samples that are too long.
  Converted convert(const Record& record, TokenEncoder& encoder) const;

 protected:
  // The encoder adds the place to its own messages.
  virtual Converted sample_of(const Record& record, TokenEncoder& encoder) const = 0;
};

// LlamaFactoryInstructionHandler is made for each data set of its list, with the options of options_of()
// (dataset_info.h).
std::unique_ptr<Handler> make_handler(const HandlerOptions& options, const Tokenizer& tokenizer, const SpecialIds& ids);

// All handlers, as --handler-name spells them.
const std::vector<std::string>& handler_names();

}  // namespace loom::data
