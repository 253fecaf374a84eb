// PreprocessOptions: inputs and outputs of `shardloom preprocess`. Names and defaults are from MindSpeed-LLM's
// preprocess_data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace loom::data {

enum class MixStrategy : std::uint8_t { kConcat, kInterleaveUnder, kInterleaveOver };
enum class EnableThinking : std::uint8_t { kNone, kTrue, kFalse };

// How a record becomes token ids.
struct HandlerOptions {
  std::string handler_name = {};
  std::vector<std::string> json_keys = {"text"};  // columns, for the pretrain handlers
  std::optional<std::string> map_keys = {};       // a JSON object
  std::string map_keys_place = "--map-keys";      // its origin, for messages
  std::vector<std::string> dataset_additional_keys = {};
  std::optional<std::string> prompt_type = {};  // the name of a template
  std::filesystem::path prompt_type_path = {};  // a file of templates; empty: the shipped one
  EnableThinking enable_thinking = EnableThinking::kNone;
  std::string placeholder_token = "ки";
  std::vector<std::string> reward_tokens = {};
  bool append_eod = false;
  std::optional<std::int64_t> seq_length = {};
  std::int64_t pad_to_multiple_of = 1;  // for the pretrain handlers
  bool neat_pack = false;               // each turn is cut to seq_length - 1 ids
};

struct PreprocessOptions : HandlerOptions {
  std::string input = {};  // a file, a folder; for LlamaFactoryInstructionHandler names, separated by commas
  std::filesystem::path output_prefix = {};
  std::filesystem::path tokenizer_name_or_path = {};  // a folder with tokenizer.json
  bool pack = false;
  int workers = 1;
  std::int64_t n_subs = 1;
  std::int64_t log_interval = 100;
  std::optional<std::int64_t> max_samples = {};
  std::filesystem::path dataset_dir = {};  // of dataset_info.json
  MixStrategy mix_strategy = MixStrategy::kConcat;
  std::vector<std::string> merge_group_keys = {};  // not empty: merges pairs instead
};

}  // namespace loom::data
