// Promise: a sweep tries each mesh that the model and the world can have, says why it leaves out the others, stays
//          within a node where anything fits there, and gives the numbers of the plans; its text and its JSON say why
//          the best are the best.
// World:   small decoders of two layers on 4 to 8 devices of an H200, in nodes of 2 to 8.
#include "engine/plan/sweep.h"

#include <cmath>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/plan/config_file.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/plan_search.h"
#include "sharding/config/fsdp2_keys.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

std::string llama(int heads, int kv_heads, int vocab = 300) {
  return fmt::format(
      "model_type: llama\nvocab_size: {}\nhidden_size: 48\nintermediate_size: 96\nnum_hidden_layers: 2\n"
      "num_attention_heads: {}\nnum_key_value_heads: {}\nhead_dim: 8\nmax_position_embeddings: 65536\n"
      "rms_norm_eps: 1.0e-6\ntie_word_embeddings: false\n",
      vocab, heads, kv_heads);
}

constexpr const char* kMoe =
    "model_type: qwen3_moe\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
    "num_attention_heads: 4\nnum_key_value_heads: 2\nhead_dim: 8\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
    "num_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 8\nnorm_topk_prob: true\ndecoder_sparse_step: 1\n"
    "mlp_only_layers: []\ntie_word_embeddings: false\n";

train::TrainSections job(const std::string& model, int ranks, const std::string& keys = "") {
  train::TrainSections a = arguments();
  const std::filesystem::path folder = test::fresh_folder();
  a.model.model_config = test::write_file(folder / "model.yaml", model);
  a.parallel.fsdp2_config_path = test::write_file(
      folder / "fsdp2.yaml",
      "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n" + keys);
  a.data.seq_length = 24;
  a.launch.ranks = ranks;
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = ranks;
  return a;
}

// In nodes of `node` devices.
virtual_time::HardwareProfile cluster(int node, std::int64_t memory_bytes = std::int64_t{1} << 37) {
  virtual_time::HardwareProfile made = profile(memory_bytes);
  made.host.numa_node_of_device.assign(static_cast<std::size_t>(node), 0);
  made.links.levels.front().devices = node;
  return made;
}

Sweep sweep_of(const train::TrainSections& a, const virtual_time::HardwareProfile& device, SearchOptions options = {}) {
  if (!options.micro_batch_size) options.micro_batch_size = 1;
  return PlanSearch(a, cli::hub_callbacks(a), device, options).sweep();
}

std::vector<std::string> meshes_of(const Sweep& sweep) {
  std::vector<std::string> meshes;
  for (const Candidate& c : sweep.fitting) {
    const std::string mesh = to_text(degrees_of(c.choice));
    if (std::ranges::find(meshes, mesh) == meshes.end()) meshes.push_back(mesh);
  }
  return meshes;
}

// Those without replicas, which the best have with fewer ranks that shard.
std::vector<std::string> sharded_meshes_of(const Sweep& sweep) {
  std::vector<std::string> meshes = meshes_of(sweep);
  std::erase_if(meshes, [](const std::string& mesh) { return mesh.find("dp_replicate") != std::string::npos; });
  return meshes;
}

// Of tp 1, 3, 6 and ulysses 1, 3, 6 (2 goes with neither 3 key/value heads) and ring 1, 2, 3, 6: all that divide 6.
TEST(Sweep, TriesEachMeshThatModelAndWorldCanHaveAndCountsTheOthers) {
  const Sweep sweep = sweep_of(job(llama(6, 3), 6), cluster(8));
  EXPECT_THAT(
      sharded_meshes_of(sweep),
      UnorderedElementsAre("dp_shard 6", "ring 2 x dp_shard 3", "ring 3 x dp_shard 2", "ring 6 x dp_shard 1",
                           "ulysses 3 x dp_shard 2", "ulysses 3 x ring 2 x dp_shard 1", "ulysses 6 x dp_shard 1",
                           "tp 3 x dp_shard 2", "tp 3 x ring 2 x dp_shard 1", "tp 6 x dp_shard 1"));
  EXPECT_EQ(sweep.meshes, 10);
  EXPECT_EQ(sweep.meshes_that_fit, 10);
  EXPECT_EQ(sweep.together, 6) << "all devices are of one node";
  EXPECT_THAT(sweep.pruned,
              UnorderedElementsAre(
                  Pruned{"2 ranks cannot share 'model.layers.0.self_attn.k_proj', which has 3 heads", 1},
                  Pruned{"stages need several micro-batches, which --global-batch-size gives", 1},
                  Pruned{"ulysses_parallel_size is 2, but 'model.layers.0.self_attn' has 3 key/value heads", 1},
                  Pruned{"moe_modules: 'model.layers.{*}.mlp.experts' matches nothing: there is no "
                         "'model.layers.0.mlp.experts' in the model",
                         3},
                  Pruned{"recompute of a part, swap or a loss in chunks would free memory that gains nothing", 3 * 6}));
}

TEST(Sweep, LeavesOutDegreesThatDoNotDivideTheWorld) {
  const Sweep sweep = sweep_of(job(llama(8, 8, 320), 12), cluster(8));
  for (const char* reason :
       {"tensor_parallel_size is 8, but 12 ranks are running", "expert_parallel_size is 8, but 12 ranks are running",
        "ulysses_parallel_size 8 x ring_attention_size 1 = 8, but 12 ranks are running",
        "ulysses_parallel_size 1 x ring_attention_size 8 = 8, but 12 ranks are running"}) {
    EXPECT_THAT(sweep.pruned, ::testing::Contains(Pruned{reason, 1}));
  }
}

TEST(Sweep, LeavesOutTensorParallelismOfAFamilyWithoutAPlan) {
  train::TrainSections a = arguments();
  a.model.model_config = kSource / "examples/pretrain_vlm/model.yaml";
  a.parallel.fsdp2_config_path =
      test::write_file(test::fresh_folder() / "fsdp2.yaml",
                       "sharding_size: auto\nsub_modules_to_wrap: [\"model.language_model.layers.{*}\"]\n");
  a.data.seq_length = 16;
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = kRanks;
  const Sweep sweep = sweep_of(a, cluster(8));
  EXPECT_THAT(sharded_meshes_of(sweep), ::testing::ElementsAre("dp_shard 4"));
  EXPECT_THAT(sweep.pruned,
              ::testing::Contains(Pruned{"InternVLForConditionalGeneration has no plan of tensor parallelism", 2}));
}

// 4 data ranks share out no batch of 2; 2 and 1 do. Meshes of 4 devices with tp x ulysses x ring = 1, 2, 4: 1, 3, 6;
// and of 2 stages of 2 devices, where one device has both micro-batches, 3.
TEST(Sweep, LeavesOutMeshesThatDoNotShareOutTheGlobalBatch) {
  train::TrainSections a = job(llama(4, 4), 4);
  a.schedule.global_batch_size = 2;
  const Sweep sweep = sweep_of(a, cluster(4), {.global_batch_size = 2});
  EXPECT_THAT(sweep.pruned, ::testing::Contains(Pruned{"4 groups of devices cannot share out --global-batch-size 2 in "
                                                       "micro-batches of 1",
                                                       1}));
  EXPECT_EQ(sweep.meshes, 3 + 6 + 3);
  for (const Candidate& c : sweep.fitting) EXPECT_EQ(c.plan.throughput.tokens, 2 * 24) << c.change;
}

// Two layers make two stages at most; four micro-batches of two data ranks are enough for them.
TEST(Sweep, TriesStages) {
  train::TrainSections a = job(llama(4, 4), 4);
  a.schedule.global_batch_size = 8;
  const Sweep sweep = sweep_of(a, cluster(4), {.global_batch_size = 8});
  EXPECT_THAT(sharded_meshes_of(sweep), IsSupersetOf({"dp_shard 4", "pp 2 x dp_shard 2"}));
  std::vector<std::string> reasons;
  for (const Pruned& pruned : sweep.pruned) reasons.push_back(pruned.reason);
  EXPECT_THAT(reasons, ::testing::Contains(HasSubstr("layers")));
  for (const Candidate& c : sweep.fitting) {
    EXPECT_EQ(c.plan.pipeline.has_value(), c.choice.stages > 1) << c.change;
    if (c.choice.stages > 1) {
      EXPECT_THAT(c.change, HasSubstr("--pipeline-model-parallel-size: 2"));
    }
  }
  train::TrainSections given = a;
  given.parallel.pipeline.pipeline_model_parallel_size = 2;
  for (const std::string& mesh : meshes_of(sweep_of(given, cluster(4), {.global_batch_size = 8}))) {
    EXPECT_THAT(mesh, ::testing::StartsWith("pp 2 x ")) << "what a flag gives stays";
  }
}

TEST(Sweep, SharesExperts) {
  const Sweep sweep = sweep_of(job(kMoe, 4), cluster(4));
  EXPECT_THAT(sharded_meshes_of(sweep),
              IsSupersetOf({"ep 2 x dp_shard 4", "ep 4 x dp_shard 4", "tp 2 x ep 2 x dp_shard 2",
                            "ulysses 2 x ep 4 x dp_shard 2", "tp 4 x ep 4 x dp_shard 1"}));
}

TEST(Sweep, KeepsDegreesOfFlags) {
  train::TrainSections a = job(llama(4, 4), 4);
  a.parallel.tensor_model_parallel_size = 2;
  a.schedule.global_batch_size = 2;
  EXPECT_THAT(sharded_meshes_of(sweep_of(a, cluster(4))),
              UnorderedElementsAre("tp 2 x dp_shard 2", "tp 2 x ring 2 x dp_shard 1", "tp 2 x ulysses 2 x dp_shard 1"));
}

TEST(Sweep, ShardsOverANodeAndItsPartsToo) {
  const Sweep sweep = sweep_of(job(llama(4, 4), 8), cluster(4));
  const std::vector<std::string> meshes = meshes_of(sweep);
  Degrees best = sweep.best.front().degrees;
  for (best.dp_shard = 1; best.dp_shard * best.together() < 8; best.dp_shard *= 2) {
    best.dp_replicate = 8 / best.together() / best.dp_shard;
    EXPECT_THAT(meshes, ::testing::Contains(to_text(best)));
  }
  EXPECT_THAT(meshes, IsSupersetOf({"dp_shard 8", "dp_shard 4 x dp_replicate 2", "tp 2 x dp_shard 4",
                                    "tp 2 x dp_shard 2 x dp_replicate 2"}));
}

std::int64_t least_memory(const Sweep& sweep) {
  std::int64_t least = sweep.fitting.front().plan.memory.peak_allocated_bytes;
  for (const Candidate& c : sweep.fitting) least = std::min(least, c.plan.memory.peak_allocated_bytes);
  return least;
}

// Long sequences: more ranks that share them need less memory each.
TEST(Sweep, StaysWithinANodeWhereAnythingFitsThere) {
  train::TrainSections a = job(llama(8, 8), 8);
  a.data.seq_length = 16384;
  a.data.held_out_fraction = 0;
  a.data.data_path = {test::write_file(a.model.model_config->parent_path() / "text", std::string(1 << 18, 'a'))};
  const auto together = [](const Sweep& sweep) {
    std::vector<int> ranks;
    for (const Candidate& c : sweep.fitting) ranks.push_back(degrees_of(c.choice).together());
    return ranks;
  };
  const Sweep within = sweep_of(a, cluster(2));
  EXPECT_EQ(within.together, 2);
  EXPECT_THAT(together(within), Each(::testing::Le(2)));
  const Sweep beyond = sweep_of(a, cluster(2, least_memory(within) - 1));
  EXPECT_EQ(beyond.together, 4) << "twice a node";
  EXPECT_THAT(together(beyond), AllOf(::testing::Not(::testing::IsEmpty()), Each(4)));
}

// The file with the keys of a choice.
train::TrainSections written(const train::TrainSections& from, const PlanChoice& choice) {
  train::TrainSections a = from;
  a.parallel.fsdp2_config_path =
      test::write_file(from.model.model_config->parent_path() / "best.yaml", file_text(choice.config));
  a.schedule.micro_batch_size = choice.micro_batch;
  a.parallel.pipeline.pipeline_model_parallel_size = choice.stages;
  a.parallel.pipeline.num_virtual_stages_per_pipeline_rank = choice.stages_per_rank;
  return a;
}

void expect_own_plans(const train::TrainSections& a, const virtual_time::HardwareProfile& device, const Sweep& sweep) {
  for (const BestMesh& best : sweep.best) {
    const Candidate& row = sweep.fitting[best.row];
    train::TrainSections own = written(a, row.choice);
    own.schedule.global_batch_size = static_cast<int>(row.plan.throughput.tokens / a.data.seq_length);
    const ordered_json plan = to_json(estimate_step(own, cli::hub_callbacks(own), device));
    const ordered_json in_sweep = to_json(row.plan);
    for (const char* key : {"memory", "time", "communication", "volume", "throughput", "micro_batches", "mode"}) {
      EXPECT_EQ(plan.at(key), in_sweep.at(key)) << key << ": " << row.change;
    }
  }
}

TEST(Sweep, HasTheNumbersOfThePlansOfItsBest) {
  const train::TrainSections a = job(llama(4, 4), 8);
  const virtual_time::HardwareProfile device = cluster(4);
  const Sweep sweep = PlanSearch(a, cli::hub_callbacks(a), device, {.micro_batch_size = 2}).sweep();
  ASSERT_EQ(sweep.best.size(), 3u);
  expect_own_plans(a, device, sweep);
  train::TrainSections many = a;
  many.schedule.global_batch_size = 8 * 5;
  const Sweep of_many = sweep_of(many, device, {.global_batch_size = 8 * 5});
  ASSERT_EQ(of_many.best.size(), 3u);
  EXPECT_GT(of_many.fitting_in_part, 0) << "most are compared by two of their five micro-batches";
  EXPECT_GE(of_many.fitting.front().plan.micro_batches, 5);
  expect_own_plans(many, device, of_many);
}

TEST(Sweep, IsTheSameEveryTime) {
  const train::TrainSections a = job(kMoe, 4);
  EXPECT_EQ(to_json(sweep_of(a, cluster(4))), to_json(sweep_of(a, cluster(4))));
}

// Share of the time of a token, and its parts: what the plans say.
TEST(Sweep, SaysWhyTheBestAreTheBest) {
  const Sweep sweep = sweep_of(job(llama(4, 4), 8), cluster(4));
  ASSERT_EQ(sweep.best.size(), 3u);
  const auto ns_per_token = [&](std::size_t row) {
    const StepEstimate& plan = sweep.fitting[row].plan;
    return static_cast<double>(plan.time.step_ns) * plan.world / static_cast<double>(plan.throughput.tokens);
  };
  const std::string text = to_text(sweep);
  const ordered_json json = to_json(sweep);
  EXPECT_THAT(text,
              ::testing::StartsWith(fmt::format("{} of {} meshes fit, with ranks of tp x ulysses x ring and of ep "
                                                "among 4 devices\n",
                                                sweep.meshes_that_fit, sweep.meshes)));
  for (std::size_t i = 0; i < 3; ++i) {
    const BestMesh& best = sweep.best[i];
    EXPECT_EQ(best.against, sweep.best[i == 0 ? 1 : 0].row);
    double difference = 0;
    for (const TokenTime& part : best.differences) difference += part.ns;
    const double own = ns_per_token(best.row), other = ns_per_token(*best.against);
    EXPECT_NEAR(difference, own - other, 1e-6 * own) << "the parts are all of it";
    EXPECT_NEAR(best.longer, own / other - 1, 1e-9);
    EXPECT_TRUE(i == 0 ? best.longer <= 0 : best.longer >= 0);
    const StepEstimate& plan = sweep.fitting[best.row].plan;
    EXPECT_THAT(text, HasSubstr(fmt::format("\n  {}. {}: {} tokens/s per device\n", i + 1, to_text(best.degrees),
                                            figure(plan.throughput.tokens_per_s_per_device, 0))));
    std::int64_t exposed = 0;
    for (const auto& axis : json["best"][i]["exposed"]) exposed += axis["exposed_ns"].get<std::int64_t>();
    EXPECT_EQ(exposed, plan.time.breakdown.exposed_comm_ns) << "each instant counts for one axis";
  }
  EXPECT_THAT(text, AllOf(HasSubstr("     ahead of 2 by "), HasSubstr("     behind 1 by "),
                          HasSubstr(" of the time of a token: "), HasSubstr("exposed communication "),
                          HasSubstr("peak reserved ")));
}

// Eight layers, so that each k-th has some, on a device that cannot keep all of them.
TEST(Sweep, TradesMemoryWhereItLimits) {
  train::TrainSections a = arguments();
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = kRanks;
  a.data.seq_length = 256;
  const virtual_time::HardwareProfile device = profile(208 * kMiB);
  const Sweep sweep = PlanSearch(a, cli::hub_callbacks(a), device).sweep();
  std::vector<std::string> changes;
  for (const Candidate& c : sweep.fitting) changes.push_back(c.change);
  for (const char* part :
       {"recompute_keep: selected_ops_needed", "recompute_every: 2", "recompute_every: 4",
        "activation_offload_modules: [\"model.layers.{*}\"], pin_memory: true", "--loss-chunk-size: 64"}) {
    EXPECT_THAT(changes, ::testing::Contains(HasSubstr(part))) << part;
  }
  for (const Candidate& c : sweep.fitting) EXPECT_LE(c.plan.memory.peak_reserved_bytes, 208 * kMiB) << c.change;
}

TEST(Sweep, CountsWhatMoreMemoryWouldNotSpeedUp) {
  const auto counted = [](const Sweep& sweep) {
    std::int64_t candidates = 0;
    for (const Pruned& pruned : sweep.pruned) {
      if (pruned.reason.ends_with("would free memory that gains nothing")) candidates += pruned.candidates;
    }
    return candidates;
  };
  EXPECT_EQ(counted(sweep_of(job(llama(4, 4), 4), cluster(4))), 3 * (5 + 1)) << "of each of three meshes";
  train::TrainSections few = job(llama(4, 4), 4);
  few.objective.loss_chunk_size = 8;
  EXPECT_EQ(counted(sweep_of(few, cluster(4))), 3 * 5) << "the loss is in chunks already";
}

// By the definition, row by row.
TEST(Sweep, MarksTheRowsThatNoOtherBeats) {
  train::TrainSections a = arguments();
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = kRanks;
  const Sweep sweep = PlanSearch(a, cli::hub_callbacks(a), profile(208 * kMiB)).sweep();
  const ordered_json json = to_json(sweep);
  const std::string text = to_text(sweep);
  const auto beats = [&](std::size_t one, std::size_t other) {
    const StepEstimate &a = sweep.fitting[one].plan, &b = sweep.fitting[other].plan;
    const double faster = a.throughput.tokens_per_s_per_device - b.throughput.tokens_per_s_per_device;
    const std::int64_t less = b.memory.peak_reserved_bytes - a.memory.peak_reserved_bytes;
    return faster >= 0 && less >= 0 && (faster > 0 || less > 0);
  };
  std::size_t marked = 0;
  for (std::size_t i = 0; i < sweep.fitting.size(); ++i) {
    bool beaten = false;
    for (std::size_t other = 0; other < sweep.fitting.size(); ++other) beaten = beaten || beats(other, i);
    EXPECT_EQ(json["sweep"][i]["pareto"], !beaten) << i;
    EXPECT_EQ(json["sweep"][i]["row"], i);
    if (beaten) continue;
    EXPECT_THAT(text, HasSubstr(fmt::format("\n{:<5} ", fmt::format("{}*", i)))) << "in one of the tables";
    ++marked;
  }
  EXPECT_EQ(sweep.pareto.size(), marked);
  EXPECT_GE(marked, 3u);
  EXPECT_LT(marked, sweep.fitting.size());
}

TEST(Sweep, RefusesWhatIsWrongAsGiven) {
  const train::TrainSections a = job(llama(4, 4), 4, "tensor_parallel_size: 3\n");
  EXPECT_THAT([&] { sweep_of(a, cluster(4)); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("tensor_parallel_size is 3, but 4 ranks are running")));
}

}  // namespace
}  // namespace loom::plan
