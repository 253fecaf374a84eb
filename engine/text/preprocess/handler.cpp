#include "engine/text/preprocess/handler.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/text/preprocess/handlers.h"

namespace loom::data {
namespace {

std::unique_ptr<Handler> refuse_llama_factory(const HandlerParts&) {
  config_error(
      "LlamaFactoryInstructionHandler reads the data sets of a dataset_info.json, each by a handler of its own; "
      "give its folder by --dataset-dir");
}

struct Entry {
  std::string_view name;
  std::unique_ptr<Handler> (*make)(const HandlerParts&);
  bool has_template = true;
};

constexpr std::array<Entry, 13> kHandlers = {{{"GeneralPretrainHandler", make_general_pretrain, false},
                                              {"AlpacaPretrainHandler", make_alpaca_pretrain, false},
                                              {"SharegptPretrainHandler", make_sharegpt_pretrain, false},
                                              {"LlamaFactoryInstructionHandler", refuse_llama_factory},
                                              {"AlpacaStyleInstructionHandler", make_alpaca_instruction},
                                              {"SharegptStyleInstructionHandler", make_sharegpt_instruction},
                                              {"OpenAIInstructionHandler", make_openai_instruction},
                                              {"AlpacaStylePairwiseHandler", make_alpaca_pairs},
                                              {"SharegptStylePairwiseHandler", make_sharegpt_pairs},
                                              {"PPOAlpacaStyleInstructionHandler", make_alpaca_prompts},
                                              {"R1AlpacaStyleInstructionHandler", make_alpaca_r1},
                                              {"R1SharegptStyleInstructionHandler", make_sharegpt_r1},
                                              {"AlpacaStyleProcessRewardHandler", make_process_reward, false}}};

// Handlers of MindSpeed-LLM that are not built here.
constexpr std::array<std::string_view, 7> kOthers = {
    "GeneralInstructionHandler", "BelleMultiTurnInstructionHandler", "MOSSMultiTurnHandler",
    "MOSSInstructionHandler",    "LeetcodePythonInstructionHandler", "StackOverflowPythonPretrainHandler",
    "HunyuanInstructionHandler"};

[[noreturn]] void refuse_name(const std::string& name) {
  if (name.empty()) {
    config_error("--handler-name is missing; handlers are {}", fmt::join(handler_names(), ", "));
  }
  if (std::ranges::find(kOthers, name) != kOthers.end()) {
    config_error(
        "--handler-name is {}, a handler of MindSpeed-LLM for one model or data set, which Shardloom does not "
        "have; handlers are {}",
        name, fmt::join(handler_names(), ", "));
  }
  const auto nearest = nearest_spelling(name, handler_names());
  config_error("--handler-name is '{}', which is no handler; {}handlers are {}", shown_text(name),
               nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(handler_names(), ", "));
}

void check_template_flags(const HandlerOptions& options, const Entry& entry) {
  const bool named = options.prompt_type && !options.prompt_type->empty();
  if (entry.has_template && !named) {
    config_error("--handler-name is {}, which puts records into a template; name one by --prompt-type", entry.name);
  }
  if (entry.has_template) return;
  if (named) {
    config_error("--prompt-type is {}, and {} uses no template; take the flag out", shown_text(*options.prompt_type),
                 entry.name);
  }
  if (options.map_keys) {
    config_error("--map-keys is given, and {} has columns of fixed meaning; take the flag out", entry.name);
  }
}

void check_lists(const HandlerOptions& options, const Entry& entry) {
  const bool is_r1 = entry.make == make_alpaca_r1 || entry.make == make_sharegpt_r1;
  if (!is_r1 && !options.dataset_additional_keys.empty()) {
    config_error(
        "--dataset-additional-keys is given, and {} keeps no further columns; R1AlpacaStyleInstructionHandler "
        "and R1SharegptStyleInstructionHandler do",
        entry.name);
  }
  if (entry.make != make_process_reward && !options.reward_tokens.empty()) {
    config_error("--reward-tokens is given, and {} writes no rewards; AlpacaStyleProcessRewardHandler does",
                 entry.name);
  }
}

void check_numbers(const HandlerOptions& options) {
  if (options.seq_length && *options.seq_length < 2) {
    config_error("--seq-length is {}; use 2 or more", *options.seq_length);
  }
  if (options.pad_to_multiple_of < 1) {
    config_error("--pad-to-multiple-of is {}; use 1 or more", options.pad_to_multiple_of);
  }
}

}  // namespace

std::string_view words_of(DropReason reason) {
  switch (reason) {
    case DropReason::kTurnOrder:
      return "roles do not alternate, or their number does not fit";
    case DropReason::kNoPrompt:
      return "no prompt";
    case DropReason::kNoResponse:
      return "no response, or several";
    case DropReason::kEmptyColumn:
      return "a text is empty or missing";
    case DropReason::kTooLong:
      return "seq-length ids or more";
  }
  return "";
}

Converted Handler::convert(const Record& record, TokenEncoder& encoder) const {
  try {
    return sample_of(record, encoder);
  } catch (const ConfigError& error) {
    if (std::string_view(error.what()).starts_with(record.where)) throw;
    config_error("{}: {}", record.where, error.what());
  }
}

const std::vector<std::string>& handler_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Entry& entry : kHandlers) list.emplace_back(entry.name);
    return list;
  }();
  return names;
}

std::unique_ptr<Handler> make_handler(const HandlerOptions& options, const Tokenizer& tokenizer,
                                      const SpecialIds& ids) {
  const auto entry = std::ranges::find(kHandlers, options.handler_name, &Entry::name);
  if (entry == kHandlers.end()) refuse_name(options.handler_name);
  check_template_flags(options, *entry);
  check_lists(options, *entry);
  check_numbers(options);
  return entry->make({options, tokenizer, ids});
}

TokenId eod_of(const SpecialIds& ids) {
  if (ids.eos) return *ids.eos;
  config_error("--append-eod is given, and the tokenizer has no eos; write eos_token into tokenizer_config.json");
}

void warn_of_unused_eod(const HandlerOptions& options) {
  if (!options.append_eod) return;
  log_warning("--append-eod has no effect on {}: its samples end as its template says", options.handler_name);
}

}  // namespace loom::data
