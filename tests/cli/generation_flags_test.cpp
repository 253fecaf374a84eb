// Promise: the flags of generate and chat mean what they mean for Hugging Face's generate(), what is left out is filled
//          in, and what does not fit is refused in one line.
// World:   a machine of 8 cores; no file is opened.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/talk/options.h"
#include "tests/cli/parsed.h"

namespace loom::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

talk::GenerateArguments generate(const Words& more) {
  Words words = {"generate"};
  words.insert(words.end(), more.begin(), more.end());
  return std::any_cast<talk::GenerateArguments>(std::get<OptionalArguments>(parsed(words)).values);
}

TEST(GenerateArguments, WhatIsLeftOutIsGreedy) {
  const talk::GenerateArguments a = generate({"out", "--prompt", "Hello"});
  EXPECT_EQ(a.model_dir, "out");
  EXPECT_EQ(a.prompt, "Hello");
  EXPECT_EQ(a.max_new_tokens, std::nullopt);
  EXPECT_EQ(a.max_length, std::nullopt);
  EXPECT_EQ(a.temperature, std::nullopt);
  EXPECT_EQ(a.top_k, 0);
  EXPECT_EQ(a.top_p, 1);
  EXPECT_EQ(a.repetition_penalty, 1);
  EXPECT_EQ(a.num_beams, 1);
  EXPECT_EQ(a.seed, 1234u);
}

TEST(GenerateArguments, EveryFlagIsRead) {
  const talk::GenerateArguments a = generate(
      {"--prompt", "Hello", "--max-new-tokens", "5", "--temperature", "0.7", "--top-k", "40", "--seed", "3", "out"});
  EXPECT_EQ(a.model_dir, "out");
  EXPECT_EQ(a.max_new_tokens, 5);
  EXPECT_EQ(a.temperature, 0.7);
  EXPECT_EQ(a.top_k, 40);
  EXPECT_EQ(a.seed, 3u);
  const talk::GenerateArguments more = generate({"out",
                                                 "--prompt-file",
                                                 "p.txt",
                                                 "--max-length",
                                                 "99",
                                                 "--temperature",
                                                 "1",
                                                 "--top-p",
                                                 "0.9",
                                                 "--min-p",
                                                 "0.1",
                                                 "--repetition-penalty",
                                                 "1.2",
                                                 "--compute-threads",
                                                 "2",
                                                 "--add-eos-token",
                                                 "<|a|>",
                                                 "<|b|>",
                                                 "--stop-words",
                                                 "User:",
                                                 "--bytes-as-tokens"});
  EXPECT_EQ(more.prompt_file, "p.txt");
  EXPECT_EQ(more.max_length, 99);
  EXPECT_EQ(more.top_p, 0.9);
  EXPECT_EQ(more.min_p, 0.1);
  EXPECT_EQ(more.repetition_penalty, 1.2);
  EXPECT_EQ(more.compute_threads, 2);
  EXPECT_EQ(more.add_eos_token, (std::vector<std::string>{"<|a|>", "<|b|>"}));
  EXPECT_EQ(more.stop_words, (std::vector<std::string>{"User:"}));
  EXPECT_TRUE(more.bytes_as_tokens);
  const talk::GenerateArguments beams =
      generate({"out", "--prompt", "a", "--num-beams", "4", "--length-penalty", "-0.5"});
  EXPECT_EQ(beams.num_beams, 4);
  EXPECT_EQ(beams.length_penalty, -0.5);
}

TEST(GenerateArguments, ATemperatureOfZeroIsGreedyWhateverIsBesideIt) {
  EXPECT_EQ(generate({"out", "--prompt", "a", "--temperature", "0", "--top-k", "50", "--top-p", "0.95"}).temperature,
            0);
}

TEST(GenerateArguments, APromptIsTakenAsItIsWritten) {
  for (const char* prompt : {"[a, b]", "{*}", " two  blanks ", "a=b", "\"quoted\"", "line\nline", "{}", "%%"}) {
    EXPECT_EQ(generate({"out", "--prompt", prompt}).prompt, prompt);
  }
  EXPECT_EQ(generate({"out", "--prompt=--not-a-flag"}).prompt, "--not-a-flag");
}

TEST(GenerateArguments, RanksShareTheCoresAndMpiCountsThem) {
  const auto on = [](const Words& more, const launch::Start& context) {
    return std::any_cast<talk::GenerateArguments>(
        std::get<OptionalArguments>(parsed(Words{"generate", "out", "--prompt", "a"} + more, context)).values);
  };
  EXPECT_EQ(on({}, kEightCores).ranks, 1);
  EXPECT_EQ(on({}, kEightCores).compute_threads, 8);
  EXPECT_EQ(on({"--nproc-per-node", "2"}, kEightCores).compute_threads, 4);
  EXPECT_EQ(on({"--nproc-per-node", "2", "--compute-threads", "3"}, kEightCores).compute_threads, 3);
  const launch::Start mpi{.cores = 8, .processes = 4, .local_processes = 2};
  EXPECT_EQ(on({}, mpi).ranks, 4);
  EXPECT_EQ(on({}, mpi).compute_threads, 4);
}

TEST(ChatArguments, EveryFlagIsRead) {
  const auto chat = [](const Words& more) {
    return std::any_cast<talk::ChatArguments>(std::get<OptionalArguments>(parsed(Words{"chat", "out"} + more)).values);
  };
  const talk::ChatArguments none = chat({});
  EXPECT_EQ(none.model_dir, "out");
  EXPECT_EQ(none.temperature, std::nullopt);
  EXPECT_EQ(none.max_new_tokens, std::nullopt);
  EXPECT_EQ(none.history_turns, std::nullopt);
  EXPECT_EQ(none.enable_thinking, data::EnableThinking::kNone);
  const talk::ChatArguments a = chat({"--system",           "Be short.", "--prompt-type",     "qwen",
                                      "--prompt-type-path", "t.json",    "--enable-thinking", "false",
                                      "--history-turns",    "3",         "--lora-load",       "tuned",
                                      "--temperature",      "0.7",       "--max-new-tokens",  "99",
                                      "--stop-words",       "User:",     "--nproc-per-node",  "2"});
  EXPECT_EQ(a.system, "Be short.");
  EXPECT_EQ(a.prompt_type, "qwen");
  EXPECT_EQ(a.prompt_type_path, "t.json");
  EXPECT_EQ(a.enable_thinking, data::EnableThinking::kFalse);
  EXPECT_EQ(a.history_turns, 3);
  EXPECT_EQ(a.lora_load, "tuned");
  EXPECT_EQ(a.temperature, 0.7);
  EXPECT_EQ(a.max_new_tokens, 99);
  EXPECT_EQ(a.stop_words, std::vector<std::string>{"User:"});
  EXPECT_EQ(a.ranks, 2);
  EXPECT_EQ(chat({"--chat-template", "t.jinja"}).chat_template, "t.jinja");
}

TEST(ChatArguments, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_EQ(refusal({"chat"}), "no model is given; use shardloom chat MODEL_DIR");
  EXPECT_EQ(refusal({"chat", "out", "--chat-template", "a", "--prompt-type", "qwen"}),
            "--chat-template and --prompt-type are both given, and each names a template; remove one of them");
  EXPECT_EQ(refusal({"chat", "out", "--prompt-type-path", "t.json"}),
            "--prompt-type-path is t.json, but --prompt-type is not given, so no template is taken from it; add it");
  EXPECT_EQ(refusal({"chat", "out", "--prompt-type", "qwen", "--bytes-as-tokens"}),
            "--prompt-type is qwen, whose template is made of a tokenizer's tokens, and --bytes-as-tokens reads none; "
            "remove one of them");
  EXPECT_EQ(refusal({"chat", "out", "--history-turns", "-1"}),
            "--history-turns is -1; use a whole number of at least 0");
  EXPECT_EQ(
      refusal({"chat", "out", "--top-p", "0.5"}),
      "--top-p is 0.5, but --temperature is 0, which always takes the likeliest token; give --temperature above 0");
  EXPECT_EQ(refusal({"chat", "out", "--nproc-per-node", "2000"}),
            "--nproc-per-node is 2000; use at most 1024, as each is a thread; more ranks are processes (mpirun)");
  EXPECT_EQ(refusal({"generate", "out", "--prompt", "a", "--nproc-per-node", "2"}, {.cores = 8, .processes = 4}),
            "--nproc-per-node is 2, but the launcher started 4 ranks, one a process; leave it out");
}

TEST(Help, OfChatHasGroupsAndAnExample) {
  const EarlyExit help = std::get<EarlyExit>(parsed({"chat", "--help"}));
  EXPECT_EQ(help.code, 0);
  for (const char* part :
       {"Model and conversation:", "--system TEXT", "--chat-template FILE=of the model's folder", "--prompt-type NAME",
        "--history-turns N", "--lora-load DIR", "--compute-threads N=cores / ranks",
        "In the chat: /clear, /image FILE, /save FILE, /help, /exit\n"}) {
    EXPECT_THAT(help.text, HasSubstr(part));
  }
}

TEST(Help, OfGenerateHasAnExample) {
  const EarlyExit help = std::get<EarlyExit>(parsed({"generate", "--help"}));
  for (const char* part :
       {"MODEL_DIR", "Model and prompt:", "Sampling:", "--max-new-tokens N", "--top-k N=0", "Beam search:"}) {
    EXPECT_THAT(help.text, HasSubstr(part));
  }
  EXPECT_THAT(help.text, HasSubstr("Example:\n  shardloom generate "));
}

TEST(GenerateArguments, MistakesAreSaidTogether) {
  EXPECT_EQ(refusal({"generate", "out", "--prompt", "a", "--top-k", "x", "--seed", "y", "--tpo-p", "1"}),
            "3 flags are not taken:\n"
            "  unknown flag --tpo-p; did you mean --top-p?\n"
            "  --top-k is x; use a whole number of at least 0\n"
            "  --seed is y; use a whole number of at least 0");
}

struct Bad {
  Words words;
  std::string message;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << ::testing::PrintToString(bad.words); }

class BadGeneration : public ::testing::TestWithParam<Bad> {};

TEST_P(BadGeneration, IsRefusedWithFlagValueAndWhatToWrite) {
  EXPECT_EQ(refusal(GetParam().words), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Flags, BadGeneration,
    ::testing::Values(
        Bad{{"generate", "out"}, "no prompt is given; use --prompt TEXT"},
        Bad{{"generate", "--prompt", "a"}, "no model is given; use shardloom generate MODEL_DIR --prompt TEXT"},
        Bad{{"generate", "out", "more", "--prompt", "a"}, "'more' belongs to no flag; see shardloom generate --help"},
        Bad{{"generate", "out", "--prompt", "a", "--temprature", "1"},
            "unknown flag --temprature; did you mean --temperature?"},
        Bad{{"generate", "out", "--prompt", "a", "--temperature", "-1"},
            "--temperature is -1; use a number of at least 0"},
        Bad{{"generate", "out", "--prompt", "a", "--max-new-tokens", "0"},
            "--max-new-tokens is 0; use a whole number of at least 1"},
        Bad{{"generate", "out", "--prompt", "a", "--prompt-file", "b"},
            "--prompt and --prompt-file are both given; put the prompt into the file, or remove one of them"},
        Bad{{"generate", "out", "--prompt", "a", "--temperature", "1", "--top-p", "0"},
            "--top-p is 0; use a number above 0 and at most 1"},
        Bad{{"generate", "out", "--prompt", "a", "--top-p", "0.5"},
            "--top-p is 0.5, but --temperature is 0, which always takes the likeliest token; give --temperature above "
            "0"},
        Bad{{"generate", "out", "--prompt", "a", "--repetition-penalty", "0"},
            "--repetition-penalty is 0; use a number above 0"},
        Bad{{"generate", "out", "--prompt", "a", "--num-beams", "2", "--temperature", "0.5"},
            "--num-beams is 2, which searches the likeliest text, but --temperature is 0.5, which draws one; remove "
            "one "
            "of them"},
        Bad{{"generate", "out", "--prompt", "a", "--num-beams", "300"}, "--num-beams is 300; use at most 256"},
        Bad{{"generate", "out", "--prompt", "a", "--length-penalty", "2"},
            "--length-penalty is 2, but --num-beams is 1, which compares no texts; give --num-beams above 1"},
        Bad{{"generate", "out", "--prompt", "a", "--top-k", "5"},
            "--top-k is 5, but --temperature is 0, which always takes the likeliest token; give --temperature above "
            "0"}));

}  // namespace
}  // namespace loom::cli
