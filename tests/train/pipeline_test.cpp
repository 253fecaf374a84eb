// Promise: stages get each other's tensors in order, whatever their shapes; a stage that fails or stalls ends the
//          others with its cause; a pipeline's flags, its file and its model are checked before anything runs; part of
//          a world is a world.
// World:   2 to 4 ranks as threads; decoders of four layers on the meta device.
#include <array>
#include <atomic>
#include <gmock/gmock.h>
#include <thread>

#include "engine/comm/mesh.h"
#include "engine/comm/part_of_world.h"
#include "engine/core/error.h"
#include "engine/nn/absent.h"
#include "engine/tensor/ops.h"
#include "engine/train/pipeline/pipeline_plan.h"
#include "engine/train/pipeline/stage_links.h"
#include "engine/train/rank_setup.h"
#include "engine/train/trainer.h"
#include "models/decoder/decoder.h"
#include "sharding/pipeline/keep_stage.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace loom::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(StageLinks, PassTensorsInOrderWithTheirShapes) {
  for (const auto executor : {device::ExecutorKind::kInline, device::ExecutorKind::kThreaded}) {
    test::run_world(3,
                    [](RankContext& context, comm::World& world) {
                      StageLinks links(world, 3);
                      const int rank = context.rank(), next = (rank + 1) % 3, previous = (rank + 2) % 3;
                      for (const char* tag : {"a", "b"}) links.post_receive(previous, tag, {});
                      links.post_receive(next, "c", {});
                      links.send(next, {Tensor::from<double>({1.0 + rank, 2}, {1, 2}, DType::kF32), 7}, "a");
                      links.send(next, {Tensor::from<double>({3, 4, 5.0 + rank}, {3}, DType::kF64), 8}, "b");
                      links.send(previous, {Tensor::from<double>({9.0 * rank}, {1}, DType::kBF16)}, "c");
                      const StageMessage c = links.take("c"), a = links.take("a"), b = links.take("b");
                      EXPECT_EQ(a.tensor.shape(), (Shape{1, 2}));
                      EXPECT_THAT(a.tensor.to_vector<double>(), ElementsAre(1.0 + previous, 2));
                      EXPECT_EQ(a.draws, 7U);
                      EXPECT_EQ(b.tensor.dtype(), DType::kF64);
                      EXPECT_THAT(b.tensor.to_vector<double>(), ElementsAre(3, 4, 5.0 + previous));
                      EXPECT_THAT(c.tensor.to_vector<double>(), ElementsAre(9.0 * next));
                      links.synchronize();
                    },
                    {.executor = executor});
  }
}

TEST(StageLinks, AStageThatFailsEndsTheOthersWithItsCause) {
  const auto run = [] {
    test::run_world(2, [](RankContext& context, comm::World& world) {
      StageLinks links(world, 2);
      if (context.rank() == 1) throw Error("the second stage is out of paper");
      links.post_receive(1, "0.B0", {});
      links.take("0.B0");
    });
  };
  EXPECT_THAT(run, ThrowsMessage<Error>(HasSubstr("the second stage is out of paper")));
}

TEST(StageLinks, AStageThatStallsIsNamedAfterTheDeadline) {
  const auto run = [] {
    test::run_world(2,
                    [](RankContext& context, comm::World& world) {
                      StageLinks links(world, 2);
                      if (context.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
                      links.post_receive(1 - context.rank(), "1.F3", {});
                      links.take("1.F3");
                    },
                    {.timeout = std::chrono::milliseconds(300)});
  };
  EXPECT_THAT(run,
              ThrowsMessage<CommError>(AllOf(HasSubstr("[rank 0] recv '1.F3' from rank 1 in group 'pp' (ranks 0,1)"),
                                             HasSubstr("rank 1 did not come within 300 ms"))));
}

TEST(PartOfWorld, IsAWorldOfItsRanks) {
  test::run_world(4, [](RankContext& context, comm::World& world) {
    const auto part = comm::part_of_world(world, 2);
    EXPECT_EQ(part->size(), 2);
    EXPECT_EQ(part->rank(), context.rank() % 2);
    const auto mesh = comm::DeviceMesh::create(*part, {{"dp_shard", 2}});
    const comm::Axis pair = mesh.axis("dp_shard");
    const int first = context.rank() / 2 * 2;
    EXPECT_THAT(pair.ranks(), ElementsAre(first, first + 1));
    double sum = context.rank();
    pair.group().all_reduce(comm::kHostLane, &sum, 1, DType::kF64, comm::ReduceOp::sum(), "test");
    EXPECT_EQ(sum, 2 * first + 1);
    EXPECT_EQ(pair.consecutive(2, "two").ranks(), pair.ranks());
    EXPECT_THROW(comm::part_of_world(world, 3), ConfigError);
  });
}

models::DecoderConfig decoder(bool tied) {
  models::DecoderConfig config;
  config.family = models::DecoderFamily::kLlama;
  config.vocab_size = 32;
  config.hidden_size = config.intermediate_size = 8;
  config.num_hidden_layers = 4;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = tied;
  return config;
}

TEST(KeepStage, LeavesPlaceholdersUnderTheSamePaths) {
  const auto model = models::build_decoder(decoder(false));
  const std::int64_t whole = model->parameter_count();
  std::int64_t parts = 0;
  const PipelinePlan plan = plan_pipeline({.pipeline_model_parallel_size = 2}, 4, 4);
  for (const sharding::StageLayout& stage : plan.stages) {
    const auto part = models::build_decoder(decoder(false));
    sharding::keep_stage(*part, stage);
    parts += part->parameter_count();
    EXPECT_EQ(nn::is_absent(*part->find("model.embed_tokens")), stage.stage == 1);
    EXPECT_EQ(nn::is_absent(*part->find("model.layers.1")), stage.stage == 1);
    EXPECT_EQ(nn::is_absent(*part->find("model.layers.2")), stage.stage == 0);
    EXPECT_EQ(nn::is_absent(*part->find("lm_head")), stage.stage == 0);
  }
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(
      text_of(plan),
      "pipeline 1F1B over 2 ranks; stage 0 on rank 0: embedding, layers 0 to 1; stage 1 on rank 1: layers 2 to 3, "
      "output");
}

TEST(KeepStage, LeavesATiedEmbeddingOnBothEnds) {
  const PipelinePlan plan = plan_pipeline({.pipeline_model_parallel_size = 4}, 4, 4);
  for (const sharding::StageLayout& stage : plan.stages) {
    const auto part = models::build_decoder(decoder(true));
    sharding::keep_stage(*part, stage);
    const bool is_end = stage.embedding || stage.loss;
    EXPECT_EQ(nn::is_absent(*part->find("model.embed_tokens")), !is_end);
    EXPECT_EQ(nn::is_absent(*part->find("lm_head")), !stage.loss);
    const auto shared = sharding::shared_slots(*part);
    ASSERT_EQ(shared.size(), is_end ? 1U : 0U);
    if (is_end) {
      EXPECT_EQ(shared.front().path, "model.embed_tokens.weight");
      EXPECT_EQ(shared.front().tied_path, "lm_head.weight");
    }
  }
}

data::Batch batch_of(std::span<const std::int64_t> samples) {
  const Shape shape{static_cast<std::int64_t>(samples.size()), 8};
  const Tensor ids = Tensor::host(shape, DType::kI32, "ids");
  for (std::int64_t i = 0; i < ids.numel(); ++i) ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % 32);
  return {{{"input_ids", ids}, {"targets", ids}}};
}

// Stages of two ranks, of which one fails in its second step: every rank has messages under way then.
TEST(Pipeline, AStageThatFailsInAStepEndsAllStages) {
  for (const int failing : {0, 1, 2, 3}) {
    SCOPED_TRACE(failing);
    TrainSections arguments;
    arguments.launch.ranks = 4;
    arguments.schedule.global_batch_size = 8;
    arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 3;
    arguments.parallel.use_torch_fsdp2 = true;
    arguments.parallel.fsdp2_config = std::make_shared<const sharding::Fsdp2Config>(
        sharding::parse_fsdp2_config("sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}']\n", "file"));
    arguments.parallel.pipeline.pipeline_model_parallel_size = 2;
    const PretrainCallbacks callbacks{
        .train_valid_test_datasets_provider =
            [](const TrainArguments&) { return data::DataLoaders{.train = batch_of}; },
        .model_provider = [](const TrainArguments&) { return models::build_decoder(decoder(false)); },
        .forward_step =
            [failing, calls = std::make_shared<std::array<std::atomic<int>, 4>>()](data::DataIterator& data,
                                                                                   nn::Module& model) {
              const int rank = RankContext::current().rank();
              if (++(*calls)[static_cast<std::size_t>(rank)] == 6 && rank == failing)
                throw std::runtime_error("no paper");
              const data::Batch batch = data.next();
              return data::ForwardResult{model(batch["input_ids"]),
                                         [targets = batch["targets"]](const nn::Value& logits) -> data::Loss {
                                           return ops::cross_entropy(logits, targets);
                                         }};
            }};
    const TrainingInputs inputs = read_inputs(arguments, callbacks);
    const auto run = [&] {
      launch::run_ranks(4, {std::chrono::seconds(50)}, [&](RankContext& context, comm::World& world) {
        nn::make_rank(context, rank_setup(arguments));
        Trainer trainer(arguments, callbacks, inputs, world);
        for (int step = 0; step < 3; ++step) trainer.step();
      });
    };
    EXPECT_THAT(run, ThrowsMessage<Error>(AllOf(HasSubstr("iteration 2 of 3"), HasSubstr("no paper"))));
  }
}

std::string refusal(const PipelineParallel& options, std::int64_t layers = 4, std::int64_t micro_batches = 4) {
  try {
    plan_pipeline(options, layers, micro_batches);
    return "nothing is refused";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(PlanPipeline, RefusesFlagsThatDoNotFit) {
  EXPECT_THAT(refusal({.pipeline_model_parallel_size = 2, .pipeline_parallel_schedule = "2F2B"}),
              StrEq("--pipeline-parallel-schedule is 2F2B; use 1F1B, GPipe, Interleaved1F1B, InterleavedZeroBubble, "
                    "LoopedBFS, ZBVZeroBubble, DualPipeV"));
  EXPECT_THAT(refusal({.pipeline_model_parallel_size = 3}), HasSubstr("4"));
  EXPECT_EQ(refusal({.pipeline_model_parallel_size = 2, .num_layer_list = "1,3"}), "nothing is refused");
}

TEST(PlanPipeline, ReadsAnOrderOfTheUsers) {
  const std::filesystem::path folder = test::fresh_folder();
  const auto options = [&](const std::string& text) {
    return PipelineParallel{.pipeline_model_parallel_size = 2,
                            .pipeline_parallel_schedule_csv = test::write_file(folder / "order.csv", text)};
  };
  const PipelinePlan plan = plan_pipeline(options("0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1B1\n"), 4, 2);
  EXPECT_FALSE(plan.gathers_stages);
  EXPECT_EQ(plan.stages.size(), 2U);
  const PipelinePlan v = plan_pipeline(options("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"), 4, 1);
  EXPECT_TRUE(v.gathers_stages);
  EXPECT_EQ(v.stages[3].rank, 0);
  EXPECT_EQ(v.stages[3].chunk, 1);
  EXPECT_THAT(refusal(options("0F0,0B0\n"), 4, 1), HasSubstr("the order is of 1 ranks, and --pipeline-model-parallel-"
                                                             "size is 2; give a row for each rank"));
  EXPECT_THAT(refusal(options("0F0,0B0\n1B0,1F0\n"), 4, 1), HasSubstr("1B0"));
}

}  // namespace
}  // namespace loom::train
