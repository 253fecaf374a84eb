// Promise: MindSpeed-MM's own file means here what it means there: its defaults, patterns, weights, batch and
//          outputs; keys that stand in the wrong place, and what is not built, are refused with what to write.
// World:   8 ranks.
#include "tests/dialects/models.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kTools = "tools: {}\n";

TEST(Native, DefaultsAreThoseOfItsTool) {
  const Translation file = read(kTools);
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(flag_in(file, "--lr"), "5e-5");
  EXPECT_EQ(flag_in(file, "--adam-beta2"), "0.999");
  EXPECT_EQ(flag_in(file, "--seq-length"), "1024");
  EXPECT_EQ(flag_in(file, "--train-iters"), "10000");
  EXPECT_EQ(flag_in(file, "--lr-decay-style"), "constant");
  EXPECT_EQ(key_in(file, "sharding_size"), "auto");
  EXPECT_EQ(key_in(file, "param_dtype"), "none");
  EXPECT_EQ(key_in(file, "num_to_forward_prefetch"), "0");
  EXPECT_EQ(origin_of(file, "--lr"), "default of MindSpeed-MM (six sections)");
}

TEST(Native, KeysInTheWrongSectionNameTheRightOne) {
  EXPECT_EQ(refusal("parallel:\n  recompute: true\n" + kTools),
            "f.yaml:2:14: parallel.recompute is true; switches nothing there; write features.recompute: true");
  EXPECT_EQ(
      refusal("parallel:\n  pregather: true\n" + kTools),
      "f.yaml:2:14: parallel.pregather is true; is a key of parallel.fsdp_plan, and is not read here; write false");
  EXPECT_EQ(refusal("model:\n  recompute: true\n" + kTools),
            "f.yaml:2:14: model.recompute is true; is a key of features, and is read nowhere else; write it there");
  EXPECT_THAT(read("parallel:\n  recompute: false\n  pregather: false\nmodel:\n  recompute: false\n" + kTools).refused,
              IsEmpty());
  EXPECT_EQ(refusal("training:\n  recompute_plan: {}\n" + kTools),
            "f.yaml:2:3: unknown key 'training.recompute_plan'; write features.recompute_plan");
}

TEST(Native, KeysThatItsToolDeclaresAndDoesNotReadAreRefused) {
  EXPECT_EQ(refusal("training:\n  max_steps: 5\n" + kTools),
            "f.yaml:2:14: training.max_steps is 5; is not read there; write training.train_iters");
}

TEST(Native, AllRefusedKeysAreNamedInOneRun) {
  const std::string message =
      refusal("parallel:\n  context_parallel_size: 2\ntraining:\n  lr: -1\n  save_steps: 5\n" + kTools);
  EXPECT_EQ(
      message,
      "f.yaml: 3 keys are refused:\n"
      "  f.yaml:2:26: parallel.context_parallel_size is 2; its tool does not read it; write 1, and ulysses_parallel_size or ring_attention_size\n"
      "  f.yaml:4:7: training.lr is -1; use a number above 0\n"
      "  f.yaml:5:15: training.save_steps is 5; is not read there; write training.save_interval");
}

std::string wrapped(const std::string& list, const Asked& asked = {}) {
  return key_in(read("parallel:\n  fsdp_plan:\n    apply_modules: " + list + "\n", asked), "sub_modules_to_wrap");
}

TEST(Native, PatternsSelectWhatTheySelectThere) {
  const Asked asked{.flags = {{"--model-config", (qwen3_folder() / "config.json").string()}}};
  EXPECT_EQ(wrapped("[\"model.layers.{0-3}\"]"), "[\"model.layers.{0-3}\"]");
  EXPECT_EQ(wrapped("[\"*lm_head\"]", asked), "[lm_head]");
  EXPECT_EQ(wrapped("[\"model.layers.?\"]", asked), "[\"model.layers.{*}\"]");
  EXPECT_EQ(wrapped("[\"*layers.{0-1}.mlp\"]", asked), "[model.layers.0.mlp, model.layers.1.mlp]");
  EXPECT_EQ(wrapped("[\"model.layers.{*}.self_attn.{*}\"]", asked), "none");  // two groups, no module of such a name
  EXPECT_THAT(refusal("parallel:\n  fsdp_plan:\n    apply_modules: [\"model.layers.{3-1}\"]\n"),
              HasSubstr("'model.layers.{3-1}' has {3-1}, whose end is below its begin; write {1-3}"));
  EXPECT_THAT(refusal("parallel:\n  fsdp_plan:\n    apply_modules: [\"model.layers.{1,2}\"]\n"),
              HasSubstr("'model.layers.{1,2}' has a comma in braces; write one pattern for each range"));
  EXPECT_EQ(
      key_in(read("sub_modules_to_wrap: [\"model.layers.{3-1}\", \"model.layers.{1,2}\"]\n"), "sub_modules_to_wrap"),
      "[\"model.layers.{3-1}\", \"model.layers.{1,2}\"]");
}

TEST(Native, HooksAboveGroupsAreHooksHereAndOthersHaveNoEffect) {
  const auto hooks = [](const std::string& list) {
    const Translation file = read(
        "parallel:\n  fsdp_plan:\n    apply_modules: [\"model.layers.{*}.mlp\"]\n    hook_modules: " + list + "\n");
    EXPECT_THAT(file.refused, IsEmpty());
    return key_in(file, "hook_modules");
  };
  EXPECT_EQ(hooks("[\"model.layers.{*}.mlp\"]"), "none");
  EXPECT_EQ(hooks("[\"model.layers.{*}\"]"), "[\"model.layers.{*}\"]");
}

TEST(Native, PrefetchFollowsTheListWhereItMayDifferFromRegistration) {
  const auto order = [](const std::string& list, int prefetch = 1) {
    return key_in(read(fmt::format("parallel:\n  fsdp_plan:\n    num_to_forward_prefetch: {}\n    apply_modules: {}\n",
                                   prefetch, list)),
                  "prefetch_order");
  };
  EXPECT_EQ(order("[lm_head, \"model.layers.{*}\"]"), "list");
  EXPECT_EQ(order("[lm_head, \"model.layers.{*}\"]", 0), "none");
  EXPECT_EQ(order("[\"model.layers.{*}\"]"), "none");
}

TEST(Native, PregatherIsAKeyOfThePlan) {
  EXPECT_EQ(
      key_in(read("parallel:\n  fsdp_plan: {pregather: true, apply_modules: [\"model.layers.{*}\"]}\n"), "pregather"),
      "true");
}

TEST(Native, TheTypeOfTheLossIsItsReduction) {
  const auto reduction = [](const std::string& type, const std::string& stage = "sft") {
    return flag_in(read("features:\n  loss_cfg: {loss_type: " + type +
                        "}\ndata:\n  dataset_param:\n    basic_parameters: {stage: " + stage + "}\n" + kTools),
                   "--loss-reduction");
  };
  EXPECT_EQ(flag_in(read(kTools), "--loss-reduction"), "micro_batch");
  EXPECT_EQ(reduction("default"), "micro_batch");
  EXPECT_EQ(reduction("per_sample_loss"), "per_sample");
  EXPECT_EQ(reduction("per_token_loss"), "per_token");
  EXPECT_EQ(reduction("raw", "rm"), "none");
  EXPECT_THAT(refusal("features:\n  loss_cfg: {loss_type: custom}\n" + kTools),
              HasSubstr("features.loss_cfg.loss_type is custom; use raw, default, per_sample_loss or per_token_loss"));
}

TEST(Native, DecayAndLearningRatesGoByName) {
  const Translation file = read(
      "training:\n  no_decay_modules: [Embedding]\n  no_decay_params: [gate, bias]\n"
      "  lr_scaling_plan: [{match: \"model\\\\.embed\", scale: 0.1}, {match: lm_head}]\n" +
      kTools);
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(flag_in(file, "--no-decay-modules"), "Embedding");
  EXPECT_EQ(flag_in(file, "--no-decay-params"), "gate bias");
  EXPECT_EQ(flag_in(file, "--lr-scaling-plan"), "model\\.embed=0.1 lm_head=1.0");
  EXPECT_EQ(flag_in(file, "--no-weight-decay-on-norms-and-biases"), "none");
  for (const char* plan : {"[lm_head]", "[{scale: 2}]", "[{match: a, factor: 2}]"}) {
    EXPECT_THAT(refusal(fmt::format("training:\n  lr_scaling_plan: {}\n{}", plan, kTools)),
                HasSubstr("write a list of {match: REGEX, scale: FACTOR}"));
  }
}

TEST(Native, RecomputeKeepsTheResultOfAttention) {
  const std::string folder = qwen3_folder("model.safetensors").string();
  const auto keep = [&](const char* recompute) {
    return key_in(read("model:\n  model_name_or_path: " + folder +
                       "\n  skip_flash_attn_recompute: true\nfeatures:\n  recompute: " + recompute +
                       "\n  recompute_plan: {apply_modules: [\"model.layers.{*}\"]}\n" + kTools),
                  "recompute_keep");
  };
  EXPECT_EQ(keep("true"), "attention");
  EXPECT_EQ(keep("false"), "none");
}

std::string weights(const std::string& training, const std::string& folder) {
  const Translation file = read("model:\n  model_name_or_path: " + folder + "\ntraining:\n" + training + kTools);
  return fmt::format("init {} config {} load {}", flag_in(file, "--init-from-hf-path"), flag_in(file, "--model-config"),
                     flag_in(file, "--load"));
}

TEST(Native, WeightsComeFromOneOfThreePlaces) {
  const std::string folder = qwen3_folder("model.safetensors").string();
  EXPECT_EQ(weights("  init_model_with_meta_device: false\n", folder), "init " + folder + " config none load none");
  EXPECT_EQ(weights("  init_model_with_meta_device: true\n", folder),
            "init none config " + folder + "/config.json load none");
  EXPECT_EQ(weights("  init_model_with_meta_device: true\n  load: " + folder + "\n", "x"),
            "init " + folder + " config none load none");
  EXPECT_EQ(weights("  init_model_with_meta_device: true\n  load: dcp\n", "x"),
            "init none config x/config.json load dcp");
  EXPECT_THAT(read("model:\n  model_name_or_path: x\ntraining:\n  init_model_with_meta_device: true\n" + kTools).notes,
              Contains(HasSubstr("weights: fresh ones")));
}

TEST(Native, ABatchIsMicroBatchTimesRanksTimesSteps) {
  const std::string text = "training:\n  micro_batch_size: 2\n  gradient_accumulation_steps: 3\n" + kTools;
  EXPECT_EQ(flag_in(read(text, {.world = 4}), "--global-batch-size"), "24");
  EXPECT_EQ(flag_in(read(text, {.world = 4, .flags = {{"--micro-batch-size", "1"}}}), "--global-batch-size"), "12");
  EXPECT_THAT(refusal("parallel:\n  data_parallel_size: 4\n" + kTools), HasSubstr("all 8 ranks read data; write 8"));
}

TEST(Native, EpochsAreStepsOfTheSamplesThatThereAre) {
  const auto folder = test::fresh_folder();
  std::string index("MMIDIDX\0\0", 9);
  index += std::string("\1\0\0\0\0\0\0\0\4", 9);  // version, dtype
  index += std::string("\100\0\0\0\0\0\0\0", 8);  // 64 samples
  test::write_file(folder / "d.idx", index);
  const std::string text = "training:\n  micro_batch_size: 2\n  train_epochs: 3\n" + kTools;
  EXPECT_EQ(flag_in(read(text, {.world = 4, .flags = {{"--data-path", (folder / "d").string()}}}), "--train-iters"),
            "24");
  EXPECT_THAT(read(text).missing,
              Contains(HasSubstr("training.train_epochs: the steps of 3 epochs follow from the data")));
}

TEST(Native, SavesEveryStepByDefault) {
  const Translation file = read("training:\n  save: out\n" + kTools);
  EXPECT_EQ(flag_in(file, "--save-interval"), "1");
  EXPECT_EQ(flag_in(file, "--ckpt-format"), "torch_dcp");
  EXPECT_THAT(file.notes, Contains(HasSubstr("a checkpoint is saved after every step")));
  EXPECT_EQ(flag_in(read(kTools), "--save-interval"), "none");
}

TEST(Native, FeaturesAreKeysOfOurs) {
  const Translation file = read(
      "features:\n  recompute: true\n  recompute_plan: {apply_modules: [\"model.layers.{*}\"]}\n"
      "  enable_chunk_loss: true\n  chunkloss_plan: {chunk_size: 512}\n"
      "  enable_chunk_mbs: true\n"
      "  chunkmbs_plan: {apply_modules: [\"model.layers.{*}\"], chunk_mbs: 2, chunk_kwarg_names: [position_ids]}\n"
      "training:\n  optimizer: muon\n  lora: {enable: true, rank: 4}\n"
      "  no_decay_modules: [norm]\n  no_decay_params: [bias]\n");
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(key_in(file, "recompute_modules"), "[\"model.layers.{*}\"]");
  EXPECT_EQ(key_in(file, "use_reentrant"), "false");
  EXPECT_EQ(flag_in(file, "--loss-chunk-size"), "512");
  EXPECT_EQ(key_in(file, "chunk_mbs"), "2");
  EXPECT_EQ(flag_in(file, "--muon-scale-mode"), "spectral");
  EXPECT_EQ(flag_in(file, "--no-weight-decay-on-norms-and-biases"), "on");
  EXPECT_THAT(key_in(file, "lora"), HasSubstr("rank: 4"));
  EXPECT_THAT(refusal("features:\n  recompute: true\n"), HasSubstr("nothing is recomputed: name modules"));
}

TEST(Native, AClassThatIsNotBuiltIsListedWithItsKeys) {
  const Translation file = read("model:\n  model_id: ltx2\n  transformer: {layers: 4}\n" + kTools);
  EXPECT_FALSE(file.model_is_built);
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_THAT(file.listed, Contains("model.transformer"));
  EXPECT_THAT(refusal("model:\n  model_id: qwen3\n  transformer: {layers: 4}\n" + kTools),
              HasSubstr("unknown key 'model.transformer'"));
}

TEST(Native, MatricesAreShared) {
  const std::string plan =
      "  tp_plan:\n    colwise_parallel: [\"model.layers.{*}.mlp.up_proj\"]\n"
      "    rowwise_parallel: [\"model.layers.{*}.mlp.down_proj\"]\n    sequence_parallel: [model.norm]\n";
  const Translation file = read("parallel:\n  tensor_parallel_size: 2\n" + plan);
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(key_in(file, "tensor_parallel_size"), "2");
  EXPECT_EQ(key_in(file, "colwise_parallel"), "[\"model.layers.{*}.mlp.up_proj\"]");
  EXPECT_EQ(key_in(file, "rowwise_parallel"), "[\"model.layers.{*}.mlp.down_proj\"]");
  EXPECT_EQ(key_in(file, "sequence_parallel"), "true");
  EXPECT_THAT(file.notes, Contains("parallel.tensor_parallel_size is 2: its own tool takes 1 alone"));
  const Translation plain = read("parallel:\n  tensor_parallel_size: 4\n");
  EXPECT_EQ(key_in(plain, "colwise_parallel"), "none");  // the model's plan
  EXPECT_EQ(key_in(plain, "sequence_parallel"), "none");
  const Translation alone = read("parallel:\n" + plan);
  EXPECT_EQ(key_in(alone, "colwise_parallel"), "none");
  EXPECT_EQ(key_in(alone, "sequence_parallel"), "none");
  EXPECT_THAT(alone.without_effect, Contains("parallel.tp_plan.colwise_parallel"));
}

TEST(Native, RanksThatShareMatricesReadTheSameSamples) {
  const std::string text = "parallel:\n  tensor_parallel_size: 2\n  ulysses_parallel_size: 2\n";
  EXPECT_EQ(flag_in(read(text + "training:\n  micro_batch_size: 3\n  gradient_accumulation_steps: 5\n"),
                    "--global-batch-size"),
            "30");
  EXPECT_THAT(read(text + "  data_parallel_size: 2\n").refused, IsEmpty());
  EXPECT_THAT(refusal(text + "  data_parallel_size: 4\n"),
              HasSubstr("parallel.data_parallel_size is 4; 4 ranks share each sequence; write 2 or remove it"));
}

TEST(Native, ExpertsAreShared) {
  const std::string plan =
      "parallel:\n  expert_parallel_size: 2\n  ep_plan: {apply_modules: [\"model.layers.{*}.mlp.experts\"]}\n";
  const Translation file = read(plan + "tools: {}\n", {.world = 8});
  EXPECT_EQ(key_in(file, "expert_parallel_size"), "2");
  EXPECT_EQ(key_in(file, "moe_modules"), "[\"model.layers.{*}.mlp.experts\"]");
  EXPECT_EQ(key_in(file, "reshard_local_experts"), "none");
  const Translation copies = read(plan + "  expert_fully_shard_parallel_size: 1\ntools: {}\n", {.world = 8});
  EXPECT_EQ(key_in(copies, "reshard_local_experts"), "false");
  EXPECT_EQ(
      key_in(read(plan + "  expert_fully_shard_parallel_size: 4\ntools: {}\n", {.world = 8}), "reshard_local_experts"),
      "none");
  EXPECT_THAT(read(plan + "  expert_fully_shard_parallel_size: 3\ntools: {}\n", {.world = 8}).refused,
              Contains(HasSubstr("4 ranks have the same experts; write 4 to shard them over all of these, or 1")));
}

// --- Data with pictures

constexpr const char* kPictures = R"(data:
  dataset_param:
    dataset_type: huggingface
    attr: {images: images, messages: messages, role_tag: role, videos: null}
    basic_parameters: {template: qwen3_vl_nothink, dataset: a.json, cutoff_len: 512}
    preprocess_parameters: {model_name_or_path: folder, image_max_pixels: 12544}
  dataloader_param: {dataloader_mode: sampler, sampler_type: BaseRandomBatchSampler, shuffle: true, drop_last: true,
    pin_memory: true, collate_param: {model_name: qwen3vl}}
)";

TEST(Native, ReadsPicturesFromItsOwnSection) {
  const Translation file = read(kPictures + kTools);
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_THAT(file.missing, ElementsAre(HasSubstr("model.model_name_or_path")));
  EXPECT_EQ(flag_in(file, "--mm-data"), "f.yaml");
  EXPECT_EQ(origin_of(file, "--mm-data"), "f.yaml:4:20 data.dataset_param.attr.images");
  EXPECT_EQ(flag_in(file, "--seq-length"), "512");
  for (const char* flag : {"--stage", "--data-path", "--tokenizer-name-or-path", "--pad-to-multiple-of"}) {
    EXPECT_EQ(flag_in(file, flag), "none") << flag;
  }
  for (const auto* keys : {&file.listed, &file.without_effect}) EXPECT_THAT(*keys, Not(Contains(HasSubstr("data."))));
  EXPECT_EQ(resolve(file, context_of({})).job.data.mm_data, "f.yaml");
}

TEST(Native, ReadsPicturesOfInternvlToo) {
  const std::string text =
      "data:\n  dataset_param: {dataset_type: multimodal, basic_parameters: {data_path: a.jsonl}}\n" + kTools;
  EXPECT_EQ(flag_in(read(text), "--mm-data"), "f.yaml");
}

TEST(Native, LeavesTextToDataThatTheCommandLineNames) {
  const Translation text = read(kPictures + kTools, {.flags = {{"--data-path", "pairs"}}});
  EXPECT_EQ(flag_in(text, "--mm-data"), "none");
  EXPECT_EQ(flag_in(text, "--stage"), "sft");
  EXPECT_EQ(flag_in(text, "--tokenizer-name-or-path"), "folder");
  EXPECT_THAT(text.listed, Contains("data.dataset_param.attr"));
  const std::string without =
      std::string(kPictures).replace(std::string(kPictures).find("images: images"), 14, "images: null");
  EXPECT_EQ(flag_in(read(without + kTools), "--mm-data"), "none");
}

TEST(Native, RefusesToOverrideTheDataOfPictures) {
  EXPECT_EQ(refusal(kPictures + kTools, {.overrides = {"--data.dataset_param.basic_parameters.cutoff_len=64"}}),
            "command line: data.dataset_param.basic_parameters.cutoff_len is 64; the data of pictures is read from "
            "the file alone; write it there");
}

}  // namespace
}  // namespace loom::dialects
