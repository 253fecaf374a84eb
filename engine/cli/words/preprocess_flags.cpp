#include "engine/cli/words/preprocess_flags.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/cli/words/flags.h"
#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/config/share_folder.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/preprocess/preprocess_rules.h"

namespace loom::cli {
namespace {

constexpr const char* kDefaultHandler = "GeneralPretrainHandler";

struct OtherFlag {
  const char* name;
  int values;  // 0 or 1
  const char* advice = "";
};

// What they steer is not there: caches and loaders of a Python library, random choices, a second kind of tokenizer.
constexpr std::array kWithoutEffect{
    OtherFlag{"--cache-dir", 1},
    OtherFlag{"--overwrite-cache", 0},
    OtherFlag{"--streaming", 0},
    OtherFlag{"--seed", 1},
    OtherFlag{"--pad-vocab-size-to", 1},
    OtherFlag{"--make-vocab-size-divisible-by", 1},
    OtherFlag{"--tokenizer-not-use-fast", 0},
};

constexpr const char* kOnlyHuggingFace =
    "is of a tokenizer without tokenizer.json, which is not read; write --tokenizer-name-or-path DIR, a Hugging Face "
    "folder";
constexpr std::array kRefused{
    OtherFlag{"--split-sentences", 0, "is not built: a document is one sequence; remove it"},
    OtherFlag{"--keep-newlines", 0, "goes with --split-sentences, which is not built; remove it"},
    OtherFlag{"--tokenizer-model", 1, kOnlyHuggingFace},
    OtherFlag{"--vocab-file", 1, kOnlyHuggingFace},
    OtherFlag{"--merge-file", 1, kOnlyHuggingFace},
    OtherFlag{"--interleave-probs", 1,
              "is not built: it draws from a Python library's random numbers; remove it, and the data sets take turns"},
    OtherFlag{"--reasoning-effort", 1, "is of the template deepseek4, which is not built; remove it"},
    OtherFlag{"--drop-thinking", 1, "is of the template deepseek4, which is not built; remove it"},
    OtherFlag{"--hf-datasets-params", 1,
              "holds arguments of a Python library; remove it, and give the files themselves with --input"},
    OtherFlag{"--script-data-dir", 1,
              "is of a Python script that makes records; remove it, and give the files themselves with --input"},
};

std::string with_underscores(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string with_dashes(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

nlohmann::ordered_json json_of(const config::Value& value) {
  if (value.is_null()) return "";
  if (value.is_scalar()) return value.scalar();
  nlohmann::ordered_json json = value.is_mapping() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
  for (const config::Value& item : value.items()) {
    if (value.is_mapping()) {
      json[item.key()] = json_of(item);
    } else {
      json.push_back(json_of(item));
    }
  }
  return json;
}

// Python's True is the command line's true.
std::string word_of(const config::Value& value) {
  if (!value.is_scalar()) value.refuse("a single value, or a list of them");
  const auto boolean = value.boolean();
  return boolean ? (*boolean ? "true" : "false") : value.scalar();
}

// A value of the file as the words behind its flag; those of a flag without values stand for true.
void add_words(const SeenFlag& known, const config::Value& value, std::vector<std::string>& words) {
  const std::string flag = "--" + with_dashes(value.key());
  if (value.is_null()) return;
  if (known.most == 0) {
    const auto given = value.is_scalar() ? value.boolean() : std::nullopt;
    if (!given) value.refuse("true or false");
    if (*given) words.push_back(flag);
    return;
  }
  words.push_back(flag);
  if (value.is_mapping()) {
    words.push_back(json_of(value).dump());
  } else if (value.is_list()) {
    for (const config::Value& item : value.items()) words.push_back(word_of(item));
  } else {
    words.push_back(word_of(value));
  }
}

std::vector<std::string> words_of_file(const Command& app, const std::string& given) {
  const std::string path = config::find_preset(given, "datasets", "preprocess: its file of flags");
  const config::Value document =
      config::parse_yaml(config::read_text(path, "a YAML file of flags of preprocess"), path);
  const std::vector<SeenFlag> flags = app.flags();
  std::vector<std::string> known;
  for (const SeenFlag& flag : flags) {
    for (const std::string& name : flag.long_names) {
      if (name != "help") known.push_back(with_underscores(name));
    }
  }
  const std::vector<std::string_view> names(known.begin(), known.end());
  std::vector<std::string> words;
  for (const config::Value& member : document.items()) {
    if (std::ranges::find(known, with_underscores(member.key())) == known.end()) config::refuse_key(member, names);
    const std::string name = with_dashes(member.key());
    const auto flag = std::ranges::find_if(
        flags, [&](const SeenFlag& f) { return std::ranges::find(f.long_names, name) != f.long_names.end(); });
    add_words(*flag, member, words);
  }
  return words;
}

}  // namespace

PreprocessFlags::PreprocessFlags(Command& app) : app_(app) {
  add_files();
  add_tokenizer();
  add_conversion();
  add_lines();
  add_work();
  add_without_effect();
  add_refused();
}

void PreprocessFlags::add_files() {
  data::PreprocessOptions& o = values_.options;
  Flags flags(app_, &refused_);
  flags.group("Files");
  flags.text("--input", "PATH", o.input,
             "json, jsonl, csv, txt or parquet; of a folder the files of its commonest kind. With --dataset-dir names, "
             "separated by commas");
  flags.text("--output-prefix", "PREFIX", o.output_prefix,
             "Outputs are PREFIX_KEY_document.bin and .idx, or PREFIX_packed_KEY_document; its folder must be there");
  flags.text("--dataset-dir", "DIR", o.dataset_dir,
             "Folder of a dataset_info.json, for LlamaFactoryInstructionHandler");
  flags.choice<data::MixStrategy>("--mix-strategy", o.mix_strategy,
                                  {{"concat", data::MixStrategy::kConcat},
                                   {"interleave_under", data::MixStrategy::kInterleaveUnder},
                                   {"interleave_over", data::MixStrategy::kInterleaveOver}},
                                  "Data sets of --input one behind the other, or in turn until the smallest (under) or "
                                  "the largest (over) is used up");
  flags.texts("--merge-group-keys", "KEY", o.merge_group_keys,
              "Merge the pairs in the folder --input whose names have KEY in them, instead of converting");
}

void PreprocessFlags::add_tokenizer() {
  data::PreprocessOptions& o = values_.options;
  Flags flags(app_, &refused_);
  flags.group("Tokenizer");
  flags.text("--tokenizer-name-or-path", "DIR", o.tokenizer_name_or_path, "Hugging Face folder with tokenizer.json");
  flags.choice<bool>("--tokenizer-type", hugging_face_, {{"PretrainedFromHF", true}, {"HuggingFaceTokenizer", true}},
                     "Both are the folder of --tokenizer-name-or-path");
  flags.toggle("--append-eod", o.append_eod, "The eos id behind each document");
}

void PreprocessFlags::add_conversion() {
  data::PreprocessOptions& o = values_.options;
  Flags flags(app_, &refused_);
  flags.group("Conversion");
  flags.text("--handler-name", "NAME", o.handler_name, "What a record becomes; docs/preprocess.md lists them",
             kDefaultHandler);
  flags.texts("--json-keys", "KEY", o.json_keys, "Columns with text, for the pretrain handlers; text unless given");
  flags.text("--map-keys", "JSON", o.map_keys, R"(Names of columns: {"prompt": "instruction", "query": "input"})");
  flags.texts("--dataset-additional-keys", "KEY", o.dataset_additional_keys, "Further columns, for the R1 handlers");
  flags.text("--prompt-type", "NAME", o.prompt_type, "A template: qwen, llama3, ...");
  flags.text("--prompt-type-path", "FILE", o.prompt_type_path, "File of templates", "configs/finetune/templates.json");
  flags.choice<data::EnableThinking>("--enable-thinking", o.enable_thinking,
                                     {{"none", data::EnableThinking::kNone},
                                      {"true", data::EnableThinking::kTrue},
                                      {"false", data::EnableThinking::kFalse}},
                                     "Thoughts of answers, with templates that reason");
  flags.text("--placeholder-token", "TEXT", o.placeholder_token,
             "Stands behind each step, for AlpacaStyleProcessRewardHandler", o.placeholder_token);
  flags.texts("--reward-tokens", "TOKEN", o.reward_tokens, "Values of steps, for AlpacaStyleProcessRewardHandler");
}

void PreprocessFlags::add_lines() {
  data::PreprocessOptions& o = values_.options;
  Flags flags(app_, &refused_);
  flags.group("Lengths");
  flags.optional_whole("--seq-length", o.seq_length, 2,
                       "Cut answers and prompts to it; samples that have as many ids or more are dropped");
  flags.toggle("--pack", o.pack, "Several samples in each line of exactly --seq-length ids");
  flags.toggle("--neat-pack", o.neat_pack, "With --pack: attention_mask numbers the samples, and long ones are cut");
  flags.whole("--pad-to-multiple-of", o.pad_to_multiple_of, 1, "Pad documents to it, with the pretrain handlers");
}

void PreprocessFlags::add_work() {
  data::PreprocessOptions& o = values_.options;
  Flags flags(app_, &refused_);
  flags.group("Work");
  flags.whole("--workers", o.workers, 1, "Threads that convert; the outputs are the same for any number");
  flags.whole("--n-subs", o.n_subs, 1, "Taken and checked alone: the outputs are those of 1");
  flags.optional_whole("--max-samples", o.max_samples, 1, "Only the first N records of each data set");
  flags.whole("--log-interval", o.log_interval, 1, "Records between two lines of progress, at most one a second");
}

void PreprocessFlags::add_without_effect() {
  Flags flags(app_, &refused_);
  for (const OtherFlag& flag : kWithoutEffect) {
    const std::string name = flag.name;
    flags.noted(name, flag.values, [this, name](const std::string&) { values_.without_effect.push_back(name); });
  }
  flags.noted("--dataset-impl", 1, [](const std::string& value) {
    if (value != "mmap") config_error("--dataset-impl is {}; use mmap, the only kind of files", shown_text(value));
  });
}

void PreprocessFlags::add_refused() {
  Flags flags(app_, &refused_);
  for (const OtherFlag& flag : kRefused) {
    flags.noted(flag.name, flag.values,
                [this, flag](const std::string&) { refused_.push_back(fmt::format("{} {}", flag.name, flag.advice)); });
  }
}

std::vector<std::string> PreprocessFlags::written_out(std::vector<std::string> words) const {
  if (words.empty() || (words.front() != "preprocess" && words.front() != "preprocess_data")) return words;
  words.front() = "preprocess";
  if (words.size() < 2 || words[1].starts_with('-')) return words;
  std::vector<std::string> given{words.front()};
  for (std::string& word : words_of_file(app_, words[1])) given.push_back(std::move(word));
  given.insert(given.end(), words.begin() + 2, words.end());
  return given;
}

PreprocessArguments PreprocessFlags::settled() const {
  PreprocessArguments settled = values_;
  if (settled.options.handler_name.empty()) settled.options.handler_name = kDefaultHandler;
  data::check_options(settled.options);
  return settled;
}

}  // namespace loom::cli
