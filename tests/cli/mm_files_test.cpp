// Promise: --mm-model and --mm-tool are MindSpeed-MM's files: model.json makes the model, freezes towers and
//          recomputes; tools.json switches the profile on; what contradicts a flag is refused with both, and a wrong
//          key by its path.
// World:   command lines of plan and train; a tiny model.json of Qwen2-VL.
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/cli/words/mm_tool.h"
#include "engine/cli/words/model_flags.h"
#include "engine/job/key.h"
#include "tests/cli/parsed.h"

namespace loom::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

class MmFiles : public ::testing::Test {
 protected:
  static Json model() {
    return Json::parse(R"({
      "model_id": "qwen2vl", "img_context_token_id": 5, "video_token_id": 6, "vision_start_token_id": 3,
      "vision_end_token_id": 4,
      "image_encoder": {
        "vision_encoder": {"model_id": "qwen2vit", "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 128,
          "num_attention_heads": 2, "patch_size": 14, "freeze": true},
        "vision_projector": {"model_id": "lnmlp"}},
      "text_decoder": {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4,
        "vocab_size": 40, "max_position_embeddings": 128, "layernorm_epsilon": 1e-6, "rope_theta": 1e6,
        "mrope_section": [2, 3, 3]}})");
  }
  static Json tools() {
    return Json::parse(R"({
      "profile": {"enable": true, "profile_type": "static", "ranks": [0, 1],
        "static_param": {"level": "level1", "with_stack": false, "with_memory": true, "record_shapes": false,
          "with_cpu": true, "save_path": "traces", "start_step": 3, "end_step": 5, "data_simplification": false,
          "aic_metrics_type": "PipeUtilization"},
        "dynamic_param": {"config_path": "none"}},
      "memory_profile": {"enable": false, "start_step": 0, "dump_ranks": [0], "max_entries": null},
      "sorafeature": {"save_path": "features"}})");
  }

  std::string write(const char* name, Json json, const std::string& patch = "{}") const {
    json.merge_patch(Json::parse(patch));
    return test::write_file(folder_ / name, json.dump()).string();
  }
  Words with_model(const Words& more = {}, const std::string& patch = "{}") const {
    return Words{"--mm-model", write("model.json", model(), patch)} + more;
  }
  Words with_tools(const Words& more = {}, const std::string& patch = "{}") const {
    return with_model({"--mm-data", "data.json", "--mm-tool", write("tools.json", tools(), patch)}) + more;
  }

  static job::Job planned(const Words& words) { return std::get<PlanArguments>(parsed(Words{"plan"} + words)).train; }
  static job::Job trained(const Words& words) { return std::get<job::Job>(parsed(Words{"train"} + words)); }
  std::string refused(const Words& words) const {
    std::string text = refusal(Words{"train", "--mm-data", "data.json"} + words);
    const std::string name = folder_.string() + "/";
    for (std::size_t at = text.find(name); at != text.npos; at = text.find(name)) text.erase(at, name.size());
    return text;
  }

  const std::filesystem::path folder_ = test::fresh_folder();
};

// --- model.json

TEST_F(MmFiles, MakeTheModelOfFreshWeights) {
  const job::Job job = planned(with_model());
  const Json config = Json::parse(job.model.made_config.value());
  EXPECT_EQ(config["model_type"], "qwen2_vl");
  EXPECT_EQ(config["text_config"]["num_hidden_layers"], 2);
  EXPECT_THAT(job.model.frozen_towers, ElementsAre("vision_tower"));
  EXPECT_FALSE(job.parallel.use_torch_fsdp2);
  const job::Job replicas = planned(with_model({"--bf16", "--world-size", "2"}));
  EXPECT_TRUE(replicas.parallel.use_torch_fsdp2);
  EXPECT_THAT(replicas.written.told, Contains(HasSubstr("every rank has all parameters, as with Megatron's DDP")));
}

TEST_F(MmFiles, DescribeTheModelOnce) {
  EXPECT_THAT(refused(with_model({"--model-config", "quickstart"})),
              HasSubstr("--model-config is quickstart, and --mm-model model.json: both describe the model"));
  EXPECT_THAT(refused(with_model({"--num-layers", "2", "--iters", "1"})), HasSubstr("--iters"));
  EXPECT_THAT(refused({"--mm-model", "absent.json"}), HasSubstr("absent.json"));
}

TEST_F(MmFiles, RecomputeTheText) {
  constexpr const char* kFull =
      R"({"text_decoder": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}})";
  const job::Job job = planned(with_model({}, kFull));
  EXPECT_EQ(job.parallel.recompute_layers.granularity, models::RecomputeGranularity::kFull);
  EXPECT_EQ(job.parallel.recompute_layers.method, models::RecomputeMethod::kUniform);
  EXPECT_EQ(job.parallel.recompute_layers.num_layers, 1);
  EXPECT_THAT(job.parallel.megatron_recompute_flags,
              Contains(HasSubstr("text_decoder.recompute_granularity of " + (folder_ / "model.json").string())));
  EXPECT_THAT(
      refused(with_model({"--recompute-granularity", "selective"}, kFull)),
      HasSubstr("model.json: text_decoder.recompute_granularity is full, and --recompute-granularity is selective "
                "on the command line; give both one value, or remove one of them"));
  EXPECT_THAT(refused(with_model({}, R"({"text_decoder": {"recompute_granularity": "full"}})")),
              HasSubstr("recompute_method or recompute_num_layers is not given"));
  EXPECT_THAT(refused(with_model({}, R"({"text_decoder": {"recompute_granularity": "some"}})")),
              HasSubstr("model.json: text_decoder.recompute_granularity is some; use "));
}

TEST_F(MmFiles, AgreeWithFlags) {
  const std::string sequence = R"({"text_decoder": {"seq_length": 64, "bf16": true, "fp16": false,
                                                    "untie_embeddings_and_output_weights": false}})";
  EXPECT_NO_THROW(planned(with_model({"--seq-length", "64", "--bf16"}, sequence)));
  EXPECT_THAT(
      refused(with_model({"--seq-length", "32"}, sequence)),
      HasSubstr("model.json: text_decoder.seq_length is 64, and --seq-length is 32 on the command line; give both "
                "one value, or remove one of them"));
  EXPECT_THAT(refused(with_model({"--fp16"}, sequence)),
              HasSubstr("model.json: text_decoder.fp16 is false, and --fp16 is given on the command line"));
  EXPECT_THAT(refused(with_model({"--untie-embeddings-and-output-weights"}, sequence)),
              HasSubstr("model.json: text_decoder.untie_embeddings_and_output_weights is false, and "
                        "--untie-embeddings-and-output-weights is given on the command line"));
}

TEST_F(MmFiles, AgreeWithTheShapeInFlags) {
  const job::Job same = planned(with_model({"--vocab-size", "40", "--make-vocab-size-divisible-by", "1",
                                            "--normalization", "RMSNorm", "--swiglu", "--num-layers", "2"}));
  EXPECT_THAT(check_model_flags(same.model), IsEmpty());
  const job::Job other = planned(with_model({"--num-layers", "4", "--vocab-size", "50", "--rotary-base", "10000"}));
  const std::string file = (folder_ / "model.json").string();
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { check_model_flags(other.model); }),
      AllOf(HasSubstr("--num-layers is 4 on the command line, and text_decoder.num_layers is 2 in " + file),
            HasSubstr("--vocab-size is 50 on the command line, and text_decoder.vocab_size is 40 in " + file),
            HasSubstr("--rotary-base is 10000 on the command line, and text_decoder.rope_theta is 1000000 in ")));
}

TEST_F(MmFiles, GoWithWeights) {
  const job::Job fresh = planned(with_model());
  test::write_file(folder_ / "weights/config.json", fresh.model.made_config.value());
  const std::string weights = (folder_ / "weights").string();
  const job::Job by_flag = planned(with_model({"--init-from-hf-path", weights}));
  EXPECT_EQ(by_flag.model.init_from_hf_path, weights);
  EXPECT_FALSE(by_flag.model.made_config);
  EXPECT_THAT(by_flag.model.frozen_towers, ElementsAre("vision_tower"));
  const std::string by_key = Json{{"init_from_hf_path", weights}}.dump();
  EXPECT_EQ(planned(with_model({}, by_key)).model.init_from_hf_path, weights);
  EXPECT_THAT(
      refused(with_model({"--init-from-hf-path", "other"}, by_key)),
      HasSubstr("model.json: init_from_hf_path is weights, and --init-from-hf-path is other on the command line"));
  EXPECT_THAT(refused(with_model({"--init-from-hf-path", weights}, R"({"text_decoder": {"vocab_size": 48}})")),
              HasSubstr("model.json: text_decoder.vocab_size makes text_config.vocab_size 48, and it is 40 in "
                        "weights/config.json"));
}

TEST_F(MmFiles, LeaveATowerToTrain) {
  constexpr const char* kAll = R"({"image_encoder": {"vision_projector": {"freeze": true}},
                                   "text_decoder": {"freeze": true}})";
  EXPECT_THAT(refused(with_model({}, kAll)), HasSubstr("model.json: no tower is trained; write freeze: false for one"));
  EXPECT_NO_THROW(planned(with_model({"--lora-target-modules", "all-linear"}, kAll)));
}

// --- tools.json

TEST_F(MmFiles, SwitchTheProfileOn) {
  const observe::ProfileOptions profile = trained(with_tools({"--nproc-per-node", "2"})).profile;
  EXPECT_TRUE(profile.enabled && profile.with_cpu && profile.with_memory);
  EXPECT_FALSE(profile.with_stack || profile.record_shapes);
  EXPECT_EQ(profile.level, observe::ProfileLevel::kLevel1);
  EXPECT_EQ(profile.save_path, "traces");
  EXPECT_EQ(profile.step_start, 3);
  EXPECT_EQ(profile.step_end, 5);
  EXPECT_THAT(profile.ranks, ElementsAre(0, 1));
  const job::Job all = trained(with_tools({"--nproc-per-node", "3"}, R"({"profile": {"ranks": [-1]}})"));
  EXPECT_THAT(all.profile.ranks, ElementsAre(0, 1, 2));
  const std::string file = (folder_ / "tools.json").string();
  EXPECT_THAT(all.written.told,
              Contains(file + ": without effect here: profile.static_param.data_simplification, "
                              "profile.static_param.aic_metrics_type, profile.dynamic_param.config_path, "
                              "memory_profile.start_step, memory_profile.dump_ranks, sorafeature.save_path"));
}

TEST_F(MmFiles, LeaveTheProfileToTheFlagsWhereItIsOff) {
  constexpr const char* kOff = R"({"profile": {"enable": false}})";
  EXPECT_FALSE(trained(with_tools({}, kOff)).profile.enabled);
  const observe::ProfileOptions profile = trained(with_tools({"--profile", "--profile-step-start", "1"}, kOff)).profile;
  EXPECT_TRUE(profile.enabled);
  EXPECT_EQ(profile.step_start, 1);
  EXPECT_EQ(profile.save_path, "./profile_dir");
}

TEST_F(MmFiles, AreReadByPlansToo) {
  EXPECT_FALSE(planned(with_model({"--mm-tool", write("tools.json", tools())})).profile.enabled);
  const std::string broken = write("tools.json", tools(), R"({"profile": {"enabel": true}})");
  EXPECT_THAT(refusal(Words{"plan"} + with_model({"--mm-tool", broken})),
              HasSubstr("tools.json: unknown key 'profile.enabel'; did you mean enable?"));
}

TEST_F(MmFiles, RefuseToolsByTheirPath) {
  const auto tool = [&](const std::string& patch, const Words& more = {}) {
    return refused(Words{"--mm-model", write("model.json", model()), "--mm-tool", write("tools.json", tools(), patch)} +
                   more);
  };
  EXPECT_THAT(
      tool(R"({"profile": {"profile_type": "dynamic"}})"),
      HasSubstr("tools.json: profile.profile_type is \"dynamic\": a profile that is started from outside is not "
                "built; write static"));
  EXPECT_THAT(tool(R"({"memory_profile": {"enable": true}})"),
              HasSubstr("tools.json: memory_profile.enable is true: is not built; write false, and profile.enable with "
                        "static_param.with_memory"));
  EXPECT_THAT(tool(R"({"profile": {"static_param": {"level": "level9"}}})"),
              HasSubstr("tools.json: profile.static_param.level is level9; use "));
  EXPECT_THAT(tool(R"({"profile": {"static_param": {"with_cpu": "maybe"}}})"),
              HasSubstr("tools.json: profile.static_param.with_cpu is \"maybe\"; use true or false"));
  EXPECT_THAT(tool(R"({"profile": {"ranks": []}})"),
              HasSubstr("tools.json: profile.ranks is a list; use at least one value"));
  EXPECT_THAT(tool(R"({"profile": 1})"), HasSubstr("tools.json: profile is 1; use a mapping of keys"));
  EXPECT_THAT(tool(R"({"tracing": {}})"),
              HasSubstr("tools.json: unknown key 'tracing'; the keys are profile, memory_profile, sorafeature"));
  EXPECT_THAT(
      tool("{}", {"--nproc-per-node", "2", "--profile-step-start", "1"}),
      HasSubstr("tools.json: profile.static_param.start_step is 3, and --profile-step-start is 1 on the command "
                "line; give both one value, or remove one of them"));
  EXPECT_THAT(tool(R"({"profile": {"ranks": [-1]}})", {"--nproc-per-node", "2", "--profile-ranks", "1"}),
              HasSubstr("tools.json: profile.ranks is [-1], all ranks, and --profile-ranks is 1 on the command line"));
}

// --- The table

TEST(MmToolTable, HasEachKeyOnceAndFlagsThatAre) {
  std::set<std::string_view> seen;
  for (const MmToolKey& key : mm_tool_keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    EXPECT_NE(key.target.empty(), key.about.empty()) << key.path;
    EXPECT_TRUE(key.target.empty() || job::find_key(key.target) != nullptr) << key.target;
  }
}

constexpr std::string_view kMark =
    "<!-- The table below is made from mm_tool_keys(); tests/cli/mm_files_test.cpp compares them. -->\n";

std::string table_text() {
  std::string text = "\n| key of tools.json | here |\n| --- | --- |\n";
  for (const MmToolKey& key : mm_tool_keys()) {
    const std::string here = !key.target.empty()    ? fmt::format("`{}`", key.target)
                             : key.accepted.empty() ? fmt::format("without effect: {}", key.about)
                                                    : fmt::format("another value is refused: {}", key.about);
    text += fmt::format("| `{}` | {} |\n", key.path, here);
  }
  return text;
}

// With LOOM_WRITE_DOCS in the environment the table is written; an empty line ends it.
TEST(MmToolTable, IsTheTableOfTheDocument) {
  const std::filesystem::path path = std::filesystem::path(LOOM_SOURCE_DIR) / "docs/multimodal.md";
  const std::string page = test::read_file(path);
  const std::size_t mark = page.find(kMark);
  ASSERT_NE(mark, page.npos);
  const std::size_t begin = mark + kMark.size(), end = page.find("\n\n", begin + 1);
  ASSERT_NE(end, page.npos);
  const std::string expected = page.substr(0, begin) + table_text() + page.substr(end + 1);
  if (std::getenv("LOOM_WRITE_DOCS") != nullptr) std::ofstream(path) << expected;
  EXPECT_EQ(test::read_file(path), expected) << "LOOM_WRITE_DOCS=1 arguments_test writes it";
}

}  // namespace
}  // namespace loom::cli
