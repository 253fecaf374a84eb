// Handler: what one record becomes, as MindSpeed-LLM's handler of the same name writes it.
//
// Keys      the sequences of a sample, one pair .bin/.idx each. The pretrain handlers write PREFIX_KEY_document, all
//           others PREFIX_packed_KEY_document.
// Labels    unshifted; -100 where nothing is learnt.
// Threads   a Handler does not change and may be used by all; each thread brings its own encoder.
// Errors    ConfigError with the record's place: a column that is missing or of another type, a value that a rule
//           forbids. When it is made: an unknown handler, template, slot or column.
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

// Why a record gives no sample. Counted by reason, and the first ones shown with their places.
enum class DropReason : std::uint8_t {
  kTurnOrder,    // roles do not alternate, or the number of messages is odd
  kNoPrompt,     // nothing is asked
  kNoResponse,   // nothing is answered, or several answers are given
  kEmptyColumn,  // a column that has the text is empty or missing in this record
  kTooLong,      // seq_length ids or more
};
std::string_view words_of(DropReason reason);

// One list for each key, in their order. Those of instructions are of one length. An empty list is a sequence of no
// ids, except with a pretrain handler: there the key's file gets neither sequence nor document.
using SampleIds = std::vector<std::vector<TokenId>>;

struct Converted {
  std::optional<SampleIds> sample;
  std::optional<DropReason> dropped;  // exactly where there is no sample
};

class Handler {
 public:
  virtual ~Handler() = default;
  virtual const std::vector<std::string>& keys() const = 0;
  // The files of its keys have no "packed" in their names, and --pack does not fit.
  virtual bool is_pretrain() const = 0;
  // Of the tokenizer, as the template changes them: eos may be replaced; pad is eos where the tokenizer has none.
  virtual const SpecialIds& special_ids() const = 0;
  // `records` are the first ones of a data set, some hundred: each column that is asked for must be in one of them.
  // Where a later record does not have it, it is null.
  virtual void check_columns(std::span<const Record> records) const = 0;
  // Without regard to the length: what is too long is the writer's affair.
  Converted convert(const Record& record, TokenEncoder& encoder) const;

 protected:
  // Messages need no place where they come from the encoder.
  virtual Converted sample_of(const Record& record, TokenEncoder& encoder) const = 0;
};

// LlamaFactoryInstructionHandler is made for each data set of its list, with the options that options_of()
// (dataset_info.h) gives.
std::unique_ptr<Handler> make_handler(const HandlerOptions& options, const Tokenizer& tokenizer, const SpecialIds& ids);

// Every handler there is, as --handler-name spells it.
const std::vector<std::string>& handler_names();

}  // namespace loom::data
