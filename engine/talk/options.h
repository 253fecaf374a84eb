// Options of generation and chat.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/preprocess/options.h"

namespace loom::talk {

// Common options of `shardloom generate` and `chat`: a model, the ranks it is sharded over, sampling.
struct DecodingArguments {
  std::filesystem::path model_dir;
  std::optional<std::filesystem::path> lora_load;  // peft's folder of adapters for the model
  std::optional<std::int64_t> max_new_tokens;      // none: the command's default
  std::optional<double> temperature;               // none or 0 = greedy
  std::int64_t top_k = 0;                          // tokens drawn from; 0 = all
  double top_p = 1.0;                              // 1 = all
  double min_p = 0.0;                              // 0 = all
  double repetition_penalty = 1.0;                 // 1 = none
  std::uint64_t seed = 1234;
  std::vector<std::string> add_eos_token, stop_words;
  int ranks = 1;                 // --nproc-per-node, or the ranks of the MPI launcher
  int compute_threads = 0;       // of one rank; filled in: the machine's cores / ranks of this node
  bool bytes_as_tokens = false;  // text is read as bytes although the model has a tokenizer
};

struct GenerateArguments : DecodingArguments {  // max_new_tokens none: 128, or the rest of max_length
  std::string prompt;
  std::optional<std::filesystem::path> prompt_file;  // several prompts, one per line
  std::vector<std::filesystem::path> images;         // that the prompt is a question about; then it is one turn
  std::optional<std::int64_t> max_length;            // prompt included; max_new_tokens takes precedence
  std::int64_t num_beams = 1;                        // above 1: beam search
  std::optional<double> length_penalty;              // for beams; none: 1
  bool stream = false;                               // accepted without effect: one prompt is shown as it grows anyway
};

// `shardloom chat`. The template is the one in the model's folder, or one of the two below.
struct ChatArguments : DecodingArguments {  // max_new_tokens none: 512
  std::string system;
  std::optional<std::filesystem::path> chat_template;  // a Jinja file
  std::optional<std::string> prompt_type;              // a template of prompt_type_path, as in preprocess
  std::filesystem::path prompt_type_path;              // empty: the shipped file
  data::EnableThinking enable_thinking = data::EnableThinking::kNone;
  std::optional<std::int64_t> history_turns;  // earlier turns in the prompt; none: all
};

}  // namespace loom::talk
