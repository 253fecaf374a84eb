// DataOptions: which samples a job trains on, and in which order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/data_split.h"

namespace loom::data {

// Options of samples of token ids. Names and meanings are Megatron's.
struct TokenDataOptions {
  // --train-data-path, --valid-data-path, --test-data-path: as data_path, one for each part; then without data_path.
  PerSplit<std::vector<std::string>> part_data_path{};
  std::optional<std::string> split{};  // none: 969,30,1
  std::filesystem::path data_cache_path{};
  std::optional<std::filesystem::path> tokenizer_name_or_path{};  // folder; none: the model's, if it has one
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
};

// Options of samples for supervised fine-tuning. Names and meanings are MindSpeed-LLM's.
struct InstructionDataOptions {
  bool is_instruction_dataset = false;                // filled in: with a stage too
  bool is_pairwise_dataset = false;                   // filled in: with dpo, simpo and orm too; then the former as well
  std::optional<std::string> placeholder_token = {};  // of prm: labels elsewhere do not count; none: all count
  std::vector<std::string> reward_tokens = {};        // of prm: the labels there are; empty: any token
  bool numbered_samples = false;                      // filled in: pairs have numbers of their own (NumberedSamples)
  bool neat_pack = false;                             // lines hold several samples, numbered in their mask
  bool no_shuffle = false;
  bool padded_samples = false;  // epochs of a multiple of the global batch
  bool no_cut_token = false;    // samples longer than seq_length are not cut
  bool cut_max_seqlen = false;  // they are cut at their end
  bool no_pad_to_seq_lengths = false;
  bool variable_seq_lengths = false;    // filled in: rows are as long as the longest of their micro-batch
  std::int64_t pad_to_multiple_of = 8;  // of such rows
};

struct DataOptions : TokenDataOptions, InstructionDataOptions {
  // Files and folders of bytes, or prefixes of .bin/.idx pairs, each behind its weight where weights are given.
  std::vector<std::filesystem::path> data_path{};  // `shardloom train`: at least one
  // MindSpeed-MM's data.json: conversations with pictures (engine/multimodal). Then without data_path.
  std::optional<std::filesystem::path> mm_data{};
  // Of a plan without data: the pictures of each sequence, one number or width and height, in pixels. Empty: text.
  std::vector<std::int64_t> image_size{};
  std::int64_t images_per_sample = 1;
  int seq_length = 128;             // tokens of a sequence
  double held_out_fraction = 0.05;  // of bytes: share of the data kept for evaluation, [0, 1); 0 = no evaluation
  bool bytes_as_tokens = false;     // text is read as bytes although the model has a tokenizer
  std::uint64_t seed = 1234;        // of the order of samples, and of every other draw of the job
};

// The kind of a data set, by the names of its files; these are not read.
enum class DataKind : std::uint8_t {
  kBytes,         // files and folders
  kTokens,        // .bin/.idx pairs
  kInstructions,  // the pairs of samples for fine-tuning, or of preferences
  kConversations  // with pictures, as mm_data describes them
};
// ConfigError for words that are partly pairs and partly files, and for samples for fine-tuning without --stage.
DataKind data_kind(const DataOptions& options);

// The weights among the words of pairs, of all parts in turn.
std::vector<std::string> data_weights(const DataOptions& options);

// The files of .bin/.idx pairs that the options name, or data_path as it is for bytes.
std::vector<std::filesystem::path> data_inputs(const DataOptions& options);

}  // namespace loom::data
