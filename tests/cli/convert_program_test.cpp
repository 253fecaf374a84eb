// Promise: convert and inspect say in one line what they did or why they did not, with an exit status that scripts can
//          go by, and convert without holding a file or a tensor in memory.
// World:   the built program; the tiny reference models.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/support/peak_memory.h"

namespace loom::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const std::string kReference = LOOM_SOURCE_DIR "/tests/reference/";
const std::string kQwen2 = kReference + "logits/qwen2";

Words import(const std::string& to) { return {"convert", "hf-to-dcp", "--hf-dir", kQwen2, "--dcp-dir", to}; }
Words export_to(const std::string& to) {
  return {"convert", "dcp-to-hf", "--load-dir", "dcp", "--save-dir", to, "--model-assets-dir", kQwen2};
}

TEST(ConvertProgram, SaysWhatItWrote) {
  const ProgramFolder folder;
  const Outcome there = folder.run(import("dcp"));
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_EQ(there.err, "");
  EXPECT_THAT(there.out,
              MatchesRegex("wrote dcp/release: 51 tensors, 860416 bytes in 1 file, [0-9.]+ s \\([0-9.]+ .B/s\\)\n"));
  const Outcome back = folder.run(export_to("hf") + Words{"--trust-remote-code", "true"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_THAT(back.out, EndsWith("; 1 other items stay out\n"));
  EXPECT_THAT(back.err, HasSubstr("without effect here: --trust-remote-code\n"));
  EXPECT_EQ(folder.read("hf/model.safetensors"), read_file(kQwen2 + "/model.safetensors"));
}

TEST(ConvertProgram, WarnsOfValuesThatBecameInf) {
  const ProgramFolder folder;
  const float large[] = {1.0F, 1e30F};
  folder.write("hf/config.json", "{}");
  folder.write("hf/model.safetensors", safetensors_header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})")
                                           .append(reinterpret_cast<const char*>(large), sizeof large));
  const Outcome outcome = folder.run({"convert", "hf-to-dcp", "--hf-dir", "hf", "--dcp-dir", "dcp", "--dtype", "fp16"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("--dtype fp16: 1 values are too large for it and became inf: 'w' (1); bf16 and fp32 "
                        "hold larger values\n"));
}

TEST(ConvertProgram, EndsWithTwoForWhatTheUserGave) {
  const ProgramFolder folder;
  folder.run(import("dcp"));
  const Outcome wrong = folder.run(export_to("hf") + Words{"--dcp-prefix", "ema."});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("shardloom: dcp/release: its names do not match "));
  EXPECT_THAT(wrong.err, HasSubstr("\n  missing 'lm_head.weight', which would be 'model.ema.lm_head.weight'"));
  EXPECT_THAT(wrong.err, HasSubstr("\n  and 45 more missing\n"));
  EXPECT_FALSE(fs::exists(folder.path("hf")));
  const Outcome again = folder.run(import("dcp"));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_EQ(again.err, "shardloom: --dcp-dir: dcp/release is there already; give a folder without checkpoints\n");
}

TEST(ConvertProgram, LeavesNothingBehindOnAFullDisk) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run_shell("ulimit -f 300; exec \"$0\" \"$@\"", import("dcp"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write: File too large"));
  EXPECT_TRUE(fs::is_empty(folder.path("dcp")));
}

TEST(ConvertProgram, StopsBetweenTwoPiecesAndLeavesNothing) {
  const ProgramFolder folder;
  constexpr std::int64_t kBytes = std::int64_t{8} << 30;
  const std::string header = safetensors_header(
      fmt::format(R"({{"w":{{"dtype":"F32","shape":[32768,65536],"data_offsets":[0,{}]}}}})", kBytes));
  folder.write("hf/model.safetensors", header);
  fs::resize_file(folder.path("hf/model.safetensors"), header.size() + kBytes);  // zeros that take no room
  StartedProgram program = folder.start({"convert", "hf-to-dcp", "--hf-dir", "hf", "--dcp-dir", "dcp"});
  const auto begun = [&] {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder.path("dcp"), error)) {
      if (entry.path().filename().string().starts_with(".release.tmp-")) return true;
    }
    return false;
  };
  ASSERT_TRUE(StartedProgram::wait_until(begun));
  program.send(SIGINT);
  const Outcome outcome = program.end();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, EndsWith("shardloom: stopped by SIGINT; nothing was written\n"));
  EXPECT_TRUE(fs::is_empty(folder.path("dcp")));
}

constexpr std::int64_t kLargeBytes = 64 << 20;

// Two files with a tensor each. In small pieces: a child is charged with what this process has had.
void write_large_folder(const ProgramFolder& folder) {
  folder.write("large/config.json", "{\"tie_word_embeddings\": false}");
  std::string map;
  for (const char* name : {"a", "b"}) {
    const std::string file = fmt::format("model-{}.safetensors", name);
    std::ofstream out(folder.path("large/" + file), std::ios::binary);
    out << safetensors_header(
        fmt::format(R"({{"{}":{{"dtype":"F32","shape":[4096,4096],"data_offsets":[0,{}]}}}})", name, kLargeBytes));
    const std::string row(4096, *name);
    for (std::int64_t bytes = 0; bytes < kLargeBytes; bytes += 4096) out << row;
    map += fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", name, file);
  }
  folder.write("large/model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
}

TEST(ConvertMemory, IsLessThanATensor) {
  const ProgramFolder folder;
  write_large_folder(folder);
  const std::int64_t plain = peak_of(folder, {"--version"});
  EXPECT_LT(plain, kLargeBytes);
  for (const Words& words :
       {Words{"convert", "hf-to-dcp", "--hf-dir", "large", "--dcp-dir", "dcp"},
        Words{"convert", "dcp-to-dcp", "--load-dir", "dcp", "--save-dir", "three", "--world-size", "3"},
        Words{"convert", "dcp-to-hf", "--load-dir", "three", "--save-dir", "hf", "--model-assets-dir", "large",
              "--dtype", "bf16"},
        Words{"inspect", "--diff", "dcp", "large"}, Words{"inspect", "three"}}) {
    const std::int64_t peak = peak_of(folder, words);
    EXPECT_LT(peak - plain, kLargeBytes * 3 / 4) << words[1];
  }
}

TEST(ConvertProgram, MakesACheckpointThatARunGoesOnFromAsFromTheOriginal) {
  const ProgramFolder folder;
  const Words run = kFourSteps + Words{"--nproc-per-node", "2", "--save-interval", "2"};
  ASSERT_EQ(folder.run(run + Words{"--save", "out"}).exit_code, 0);
  const Outcome cut =
      folder.run({"convert", "dcp-to-dcp", "--load-dir", "out", "--save-dir", "three", "--world-size", "3"});
  EXPECT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_THAT(cut.out, HasSubstr("wrote three/iter_0000004: "));
  const Words more = with_value(run, "--train-iters", "6") + Words{"--override-opt_param-scheduler"};
  for (const char* from : {"out", "three"}) {
    const Outcome outcome = folder.run(more + Words{"--load", from, "--save", std::string("from_") + from});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  const Outcome difference = folder.run({"inspect", "--diff", "from_out", "from_three"});
  EXPECT_EQ(difference.exit_code, 0) << difference.out << difference.err;
  EXPECT_EQ(folder.run({"inspect", "--diff", "out", "from_out"}).exit_code, 1);
}

// --- Megatron-core's layout

Words to_mcore(const std::string& from, const std::string& to) {
  return {"convert", "hf-to-mcore", "--load-dir", from, "--save-dir", to, "--target-tensor-parallel-size", "2"};
}

TEST(ConvertProgram, GoesToMegatronsRanksAndBack) {
  const ProgramFolder folder;
  const Outcome there = folder.run(to_mcore(kQwen2, "mg") + Words{"--target-pipeline-parallel-size", "2",
                                                                  "--num-layer-list", "1,3", "--use-mcore-models"});
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_THAT(there.err, HasSubstr("without effect here: --use-mcore-models\n"));
  EXPECT_THAT(
      there.out,
      MatchesRegex("wrote mg/iter_0000001: 62 tensors, 862720 bytes in 4 files, [0-9.]+ s \\([0-9.]+ .B/s\\)\n"));
  EXPECT_EQ(folder.read("mg/latest_checkpointed_iteration.txt"), "1");
  const Outcome back = folder.run({"convert_ckpt_v2", "--load-model-type", "mg", "--save-model-type", "hf",
                                   "--load-dir", "mg", "--save-dir", "hf", "--hf-cfg-dir", kQwen2});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.err, "");
  EXPECT_THAT(back.out, MatchesRegex("wrote hf: 51 tensors, 860416 bytes in 1 file, .*\n"));
  EXPECT_EQ(folder.read("hf/model.safetensors"), read_file(kQwen2 + "/model.safetensors"));
}

TEST(ConvertProgram, EndsWithTwoForSizesThatDoNotDivide) {
  const ProgramFolder folder;
  const Outcome wrong = folder.run(with_value(to_mcore(kQwen2, "mg"), "--target-tensor-parallel-size", "4"));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(wrong.err,
            "shardloom: --target-tensor-parallel-size is 4, but " + kQwen2 +
                "/config.json has 2 key-value heads (num_key_value_heads), which it does not divide; write a "
                "divisor of 2\n");
  EXPECT_FALSE(fs::exists(folder.path("mg")));
}

TEST(ConvertProgram, LeavesNothingOfRanksOnAFullDisk) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run_shell("ulimit -f 300; exec \"$0\" \"$@\"", to_mcore(kQwen2, "mg"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write: File too large"));
  EXPECT_TRUE(fs::is_empty(folder.path("mg")));
  ASSERT_EQ(folder.run(to_mcore(kQwen2, "mg")).exit_code, 0);
  const Outcome back = folder.run_shell(
      "ulimit -f 300; exec \"$0\" \"$@\"",
      {"convert", "mcore-to-hf", "--load-dir", "mg", "--save-dir", "below/hf", "--hf-cfg-dir", kQwen2});
  EXPECT_EQ(back.exit_code, 1);
  EXPECT_THAT(back.err, HasSubstr("cannot write: File too large"));
  EXPECT_TRUE(fs::is_empty(folder.path("below/hf")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path("below")), {}), 1);
}

// A Llama of two wide layers, zeros that take no room.
void write_wide_model(const ProgramFolder& folder) {
  constexpr std::int64_t kWidth = 2048;
  folder.write("wide/config.json",
               R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 2048, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 2048,
                   "max_position_embeddings": 2048})");
  const std::string layer = "model.layers.0.";
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors{
      {"model.embed_tokens.weight", {2048, kWidth}},
      {layer + "input_layernorm.weight", {kWidth}},
      {layer + "self_attn.q_proj.weight", {kWidth, kWidth}},
      {layer + "self_attn.k_proj.weight", {1024, kWidth}},
      {layer + "self_attn.v_proj.weight", {1024, kWidth}},
      {layer + "self_attn.o_proj.weight", {kWidth, kWidth}},
      {layer + "post_attention_layernorm.weight", {kWidth}},
      {layer + "mlp.gate_proj.weight", {8192, kWidth}},
      {layer + "mlp.up_proj.weight", {8192, kWidth}},
      {layer + "mlp.down_proj.weight", {kWidth, 8192}},
      {"model.norm.weight", {kWidth}},
      {"lm_head.weight", {2048, kWidth}}};
  std::int64_t at = 0;
  std::string header;
  for (const auto& [name, shape] : tensors) {
    std::int64_t bytes = 4;
    for (const std::int64_t size : shape) bytes *= size;
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", at == 0 ? "{" : ",", name,
                          fmt::join(shape, ","), at, at + bytes);
    at += bytes;
  }
  const std::string text = safetensors_header(header + "}");
  folder.write("wide/model.safetensors", text);
  fs::resize_file(folder.path("wide/model.safetensors"), text.size() + static_cast<std::uint64_t>(at));
}

TEST(ConvertMemory, OfRanksIsLessThanATensor) {
  const ProgramFolder folder;
  write_wide_model(folder);
  const std::int64_t plain = peak_of(folder, {"--version"});
  for (const Words& words : {to_mcore("wide", "mg"), Words{"convert", "mcore-to-hf", "--load-dir", "mg", "--save-dir",
                                                           "hf", "--hf-cfg-dir", "wide"}}) {
    const std::int64_t peak = peak_of(folder, words);
    EXPECT_LT(peak - plain, kLargeBytes * 3 / 4) << words[1];  // a product of an MLP has kLargeBytes
  }
}

// --- inspect

TEST(InspectProgram, ShowsACheckpointAndEndsWithNothing) {
  const ProgramFolder folder;
  folder.run(import("dcp"));
  const Outcome outcome = folder.run({"inspect", "dcp", "--filter", "lm_head", "--json", "out.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("model.lm_head.weight  fp32   [256, 64]  65536  __0_0.distcp\n"));
  EXPECT_EQ(nlohmann::json::parse(folder.read("out.json"))["tensors"].size(), 1u);
  const Outcome json = folder.run({"inspect", "dcp", "--json", "-"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["tensors"].size(), 51u);
}

TEST(InspectProgram, EndsWithOneForDamage) {
  const ProgramFolder folder;
  folder.run(import("dcp"));
  std::string bytes = folder.read("dcp/release/__0_0.distcp");
  bytes[bytes.size() / 2] ^= 1;
  folder.write("dcp/release/__0_0.distcp", bytes);
  const Outcome outcome = folder.run({"inspect", "dcp"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("DAMAGED: __0_0.distcp has the checksum "));
  const Outcome difference = folder.run({"inspect", "--diff", "dcp", kQwen2});
  EXPECT_EQ(difference.exit_code, 1);
  EXPECT_THAT(difference.err, ContainsRegex("shardloom: dcp/release: __0_0.distcp has the checksum [0-9a-f]{8}, but "));
}

TEST(InspectProgram, TellsEqualFromDifferentAndFromMistakes) {
  const ProgramFolder folder;
  folder.run(import("dcp"));
  const Outcome equal = folder.run({"inspect", "--diff", "dcp", kQwen2});
  EXPECT_EQ(equal.exit_code, 0) << equal.err;
  EXPECT_EQ(equal.out, "51 tensors are equal, 0 differ, 0 are only in A, 0 only in B; 0 values differ\n");
  const Outcome different = folder.run({"inspect", "--diff", "dcp", kReference + "logits/llama"});
  EXPECT_EQ(different.exit_code, 1);
  EXPECT_THAT(different.out, HasSubstr("only in A: 'model.layers.0.self_attn.k_proj.bias'\n"));
  EXPECT_THAT(different.out,
              ContainsRegex("'lm_head.weight': 163[0-9]+ of 16384 elements differ, by at most 0[.][0-9]+; "
                            "the first at \\(0, 0\\): "));
  const Outcome none = folder.run({"inspect", "nothing"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(none.err, "shardloom: PATH: nothing is not there; give the folder of a checkpoint\n");
}

}  // namespace
}  // namespace loom::test
