#include "engine/cli/words/generation_flags.h"

#include "engine/cli/words/argument_rules.h"
#include "engine/cli/words/schedule_rules.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kMostRanks = 1024;  // each a thread
constexpr std::int64_t kMostThreads = 1024;
constexpr std::int64_t kMostBeams = 256;

bool positive(double x) { return x > 0; }
bool not_negative(double x) { return x >= 0; }
bool share(double x) { return x > 0 && x <= 1; }
bool any_number(double) { return true; }
bool below_one(double x) { return x >= 0 && x < 1; }

void add_model(Flags& flags, talk::DecodingArguments& a) {
  flags.text("MODEL_DIR", "DIR", a.model_dir, "Folder with config.json and safetensors");
  flags.text("--lora-load", "DIR", a.lora_load, "peft's folder of adapters, added to the model");
}

void add_ends(Flags& flags, talk::DecodingArguments& a) {
  flags.texts("--add-eos-token", "TEXT", a.add_eos_token, "Tokens that end a text too, as the vocabulary spells them");
  flags.texts("--stop-words", "TEXT", a.stop_words, "Texts that end a text; they are not shown");
}

void add_sampling(Flags& flags, talk::DecodingArguments& a) {
  flags.group("Sampling");
  flags.optional_real("--temperature", a.temperature, not_negative, "a number of at least 0",
                      "0 = always the likeliest token, which it is unless given");
  flags.whole("--top-k", a.top_k, 0, "Draw from the k likeliest tokens; 0 = from all; needs --temperature");
  flags.real("--top-p", a.top_p, share, "a number above 0 and at most 1",
             "Draw from the likeliest tokens until their probabilities exceed p; 1 = from all; needs --temperature");
  flags.real("--min-p", a.min_p, below_one, "a number of at least 0 and below 1",
             "Draw from tokens of at least this share of the likeliest one's probability; needs --temperature");
  flags.real("--repetition-penalty", a.repetition_penalty, positive, "a number above 0",
             "Divide (where negative: multiply) the logits of tokens that the text has; 1 = leave them");
  flags.whole("--seed", a.seed, 0, "Seed of the draws");
}

void add_running(Flags& flags, talk::DecodingArguments& a) {
  flags.whole("--nproc-per-node", a.ranks, 1,
              "Ranks, each a thread, over which the model is sharded; the text does not depend on them");
  flags.whole("--compute-threads", a.compute_threads, 1, "Threads of a rank", "cores / ranks");
}

[[noreturn]] void refuse_greedy(const char* flag, double value) {
  config_error("{} is {}, but --temperature is 0, which always takes the likeliest token; give --temperature above 0",
               flag, value);
}

void check_sampling(const talk::DecodingArguments& a) {
  if (a.temperature) return;
  if (a.top_k > 0) refuse_greedy("--top-k", static_cast<double>(a.top_k));
  if (a.top_p < 1) refuse_greedy("--top-p", a.top_p);
  if (a.min_p > 0) refuse_greedy("--min-p", a.min_p);
}

void check_beams(const talk::GenerateArguments& a) {
  if (a.num_beams > 1 && a.temperature.value_or(0) > 0) {
    config_error(
        "--num-beams is {}, which searches the likeliest text, but --temperature is {}, which draws one; remove "
        "one of them",
        a.num_beams, *a.temperature);
  }
  if (a.num_beams > kMostBeams) config_error("--num-beams is {}; use at most {}", a.num_beams, kMostBeams);
  if (a.length_penalty && a.num_beams == 1) {
    config_error("--length-penalty is {}, but --num-beams is 1, which compares no texts; give --num-beams above 1",
                 *a.length_penalty);
  }
}

void check_images(const talk::GenerateArguments& a) {
  if (a.images.empty()) return;
  const char* const flag = a.prompt_file       ? "--prompt-file"
                           : a.bytes_as_tokens ? "--bytes-as-tokens"
                           : a.num_beams > 1   ? "--num-beams"
                                               : nullptr;
  if (flag != nullptr)
    config_error("--image and {} are both given; with pictures give one --prompt and no beams", flag);
}

void settle_ranks(const Command& app, const launch::Start& start, talk::DecodingArguments& a) {
  int local_ranks = a.ranks;
  check_limit("--nproc-per-node", a.ranks, kMostRanks, ", as each is a thread; more ranks are processes (mpirun)");
  check_limit("--compute-threads", a.compute_threads, kMostThreads, ", best the cores of this machine");
  if (start.ranks_are_processes()) local_ranks = take_processes(app, start, a.ranks);
  if (a.compute_threads == 0) a.compute_threads = std::max(1, start.cores / local_ranks);
}

void check_template(const talk::ChatArguments& a) {
  if (a.chat_template && a.prompt_type) {
    config_error("--chat-template and --prompt-type are both given, and each names a template; remove one of them");
  }
  if (!a.prompt_type_path.empty() && !a.prompt_type) {
    config_error("--prompt-type-path is {}, but --prompt-type is not given, so no template is taken from it; add it",
                 shown_text(a.prompt_type_path.string()));
  }
  if (a.prompt_type && a.bytes_as_tokens) {
    config_error(
        "--prompt-type is {}, whose template is made of a tokenizer's tokens, and --bytes-as-tokens reads none; remove "
        "one of them",
        shown_text(*a.prompt_type));
  }
}

}  // namespace

void add_generate(Flags& flags, talk::GenerateArguments& a) {
  flags.group("Model and prompt");
  add_model(flags, a);
  flags.text("--prompt", "TEXT", a.prompt, "The text to continue");
  flags.text("--prompt-file", "FILE", a.prompt_file, "Several texts to continue together, one a line");
  flags.texts("--image", "FILE", a.images,
              "Pictures that the prompt is a question about, one turn of a chat (Qwen-VL, InternVL)");
  flags.toggle("--bytes-as-tokens", a.bytes_as_tokens,
               "Read the prompt as bytes although the folder has a tokenizer.json");
  flags.group("Length");
  flags.optional_whole("--max-new-tokens", a.max_new_tokens, 1,
                       "Tokens to generate for each prompt (128 unless --max-length is given)");
  flags.optional_whole("--max-length", a.max_length, 1,
                       "Tokens of a text, prompt included; --max-new-tokens goes before it");
  add_ends(flags, a);
  add_sampling(flags, a);
  flags.group("Beam search");
  flags.whole("--num-beams", a.num_beams, 1, "Search the likeliest text with so many open ones; 1 = do not");
  flags.optional_real("--length-penalty", a.length_penalty, any_number, "a number",
                      "Divide a text's log-probability by its length to this power (1)");
  flags.group("Running");
  flags.toggle("--stream", a.stream, "Show the text as it grows: so it is for one prompt; refused for several");
  add_running(flags, a);
}

void add_chat(Flags& flags, talk::ChatArguments& a) {
  flags.group("Model and conversation");
  add_model(flags, a);
  flags.text("--system", "TEXT", a.system, "What the model is told before the first turn");
  flags.text("--chat-template", "FILE", a.chat_template, "Jinja template", "of the model's folder");
  flags.text("--prompt-type", "NAME", a.prompt_type, "A template of preprocess instead: qwen, llama3, ...");
  flags.text("--prompt-type-path", "FILE", a.prompt_type_path, "File of templates", "configs/finetune/templates.json");
  flags.choice<data::EnableThinking>("--enable-thinking", a.enable_thinking,
                                     {{"none", data::EnableThinking::kNone},
                                      {"true", data::EnableThinking::kTrue},
                                      {"false", data::EnableThinking::kFalse}},
                                     "Thoughts of answers, with templates that reason");
  flags.optional_whole("--history-turns", a.history_turns, 0,
                       "Earlier turns that the model is given; all unless given");
  flags.toggle("--bytes-as-tokens", a.bytes_as_tokens, "Read text as bytes although the folder has a tokenizer.json");
  flags.group("Length");
  flags.optional_whole("--max-new-tokens", a.max_new_tokens, 1, "Tokens of an answer (512)");
  add_ends(flags, a);
  add_sampling(flags, a);
  flags.group("Running");
  add_running(flags, a);
}

void settle(const Command& app, const launch::Start& start, talk::GenerateArguments& a) {
  if (a.model_dir.empty()) config_error("no model is given; use shardloom generate MODEL_DIR --prompt TEXT");
  if (a.prompt.empty() && !a.prompt_file) config_error("no prompt is given; use --prompt TEXT");
  if (!a.prompt.empty() && a.prompt_file) {
    config_error("--prompt and --prompt-file are both given; put the prompt into the file, or remove one of them");
  }
  check_images(a);
  check_sampling(a);
  check_beams(a);
  settle_ranks(app, start, a);
}

void settle(const Command& app, const launch::Start& start, talk::ChatArguments& a) {
  if (a.model_dir.empty()) config_error("no model is given; use shardloom chat MODEL_DIR");
  check_template(a);
  check_sampling(a);
  settle_ranks(app, start, a);
}

}  // namespace loom::cli
