// Promise: a pipeline's order is read and written as text and as CSV without loss; every order that is made can run;
//          a job or an order that cannot be is refused with what is wrong and what is allowed.
// World:   pipelines of up to five ranks, four stages a rank and twelve micro-batches. The orders of other software are
//          compared by pipeline_parity.
#include "engine/train/schedule/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/train/schedule/pipeline_check.h"
#include "engine/train/schedule/pipeline_csv.h"
#include "engine/train/schedule/pipeline_lowering.h"
#include "engine/train/schedule/pipeline_time.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

PipelineLists lists_of(std::initializer_list<std::string_view> lines) {
  PipelineLists lists;
  for (const std::string_view line : lines) lists.push_back(parse_pipeline_list(line));
  return lists;
}

std::string refused_token(std::string_view token) {
  return test::message_of<ConfigError>([&] { parse_pipeline_step(token); });
}

std::string refused_order(std::initializer_list<std::string_view> lines, std::int64_t micro_batches) {
  return test::message_of<ConfigError>([&] { pipeline_schedule_from_order(lists_of(lines), micro_batches); });
}

// Of lists that run the order of these lists without messages.
std::string refused_lists(std::initializer_list<std::string_view> order, std::initializer_list<std::string_view> lists,
                          std::int64_t micro_batches) {
  const PipelineSchedule schedule = pipeline_schedule_from_order(lists_of(order), micro_batches);
  return test::message_of<ConfigError>([&] { check_lists(schedule, lists_of(lists)); });
}

std::string refused_job(const PipelineJob& job) {
  return test::message_of<ConfigError>([&] { make_pipeline_schedule(job); });
}

TEST(PipelineText, ReadsWhatItWrites) {
  const std::string line =
      "0UNSHARD 12F345 0B0 0I1 0W1 0C2 0R2 (7F3;0B1)OVERLAP_F_B [0SEND_F1,0RECV_B0] <1RECV_F2> 1SEND_B2 0REDUCE_GRAD "
      "0RESHARD";
  const PipelineList list = parse_pipeline_list(line);
  EXPECT_EQ(to_text(list), line);
  EXPECT_EQ(list[1], PipelineStep(PipelineKind::kForward, 12, 345));
  EXPECT_EQ(list[7].join, PipelineJoin::kOverlapped);
  EXPECT_EQ(list[7].actions[1], (PipelineAction{PipelineKind::kBackward, 0, 1}));
  EXPECT_EQ(list[8].join, PipelineJoin::kWaited);
  EXPECT_EQ(list[9].join, PipelineJoin::kPosted);
  EXPECT_EQ(to_text(parse_pipeline_list("  0F0   0B0 ")), "0F0 0B0");
  EXPECT_TRUE(parse_pipeline_list("").empty());
}

TEST(PipelineText, RefusesWhatIsNoAction) {
  for (const char* token : {"F0", "0", "0X0", "0f0", "0F0x", "-1F0", "x", "0F0F0", "1234567890F0", "\x1b[0m"}) {
    EXPECT_THAT(refused_token(token), HasSubstr("KIND is one of F, B, I, W, C, R, UNSHARD")) << token;
  }
  EXPECT_THAT(refused_token("0X0"), StartsWith("a pipeline's order has '0X0', which is no action; write STAGE KIND"));
  EXPECT_THAT(refused_token("3F"), HasSubstr("F needs a micro-batch of one to nine digits; write 3F0"));
  EXPECT_THAT(refused_token("3F1234567890"), HasSubstr("write 3F0"));
  EXPECT_THAT(refused_token("3UNSHARD1"), HasSubstr("UNSHARD is of a whole stage; write 3UNSHARD"));
}

TEST(PipelineText, RefusesPairsAndBatchesThatAreNone) {
  EXPECT_THAT(refused_token("(0F0;1B0)"), HasSubstr("write a forward and a backward that run together as (7F3;0B1)"));
  EXPECT_THAT(refused_token("(0F0;1B0"), HasSubstr("as (7F3;0B1)OVERLAP_F_B"));
  for (const char* pair :
       {"(0B0;1F0)OVERLAP_F_B", "(0F0)OVERLAP_F_B", "(0F0;1I0)OVERLAP_F_B", "(0F0;1B0;1B1)OVERLAP_F_B"}) {
    EXPECT_THAT(refused_token(pair), HasSubstr("not one forward F and one backward B in this order")) << pair;
  }
  EXPECT_THAT(refused_token("[0SEND_F0>"), HasSubstr("a batch of messages without its end"));
  EXPECT_THAT(refused_token("<0SEND_F0"), HasSubstr("a batch of messages without its end"));
  EXPECT_THAT(refused_token("[0SEND_F0,0F1]"), HasSubstr("has 0F1 in a batch of messages; only SEND_F"));
  EXPECT_THAT(refused_token("[]"), HasSubstr("is no action"));
  EXPECT_THAT(refused_token("["), HasSubstr("a batch of messages without its end"));
}

TEST(PipelineCsv, ReadsWhatItWrites) {
  const PipelineSchedule schedule =
      make_pipeline_schedule({.schedule = "dualpipev", .ranks = 2, .stages_per_rank = 2, .micro_batches = 4});
  EXPECT_EQ(parse_pipeline_csv(to_pipeline_csv(schedule.order)), schedule.order);
  const PipelineLists batches = lists_of({"0F0 [0SEND_F0,0RECV_B0] 0B0", "[1RECV_F0] 1F0 1B0 <1SEND_B0>"});
  EXPECT_EQ(to_pipeline_csv(batches), "0F0,\"[0SEND_F0,0RECV_B0]\",0B0\n[1RECV_F0],1F0,1B0,<1SEND_B0>\n");
  const std::filesystem::path file = test::fresh_folder() / "order.csv";
  write_pipeline_csv(file, batches);
  EXPECT_EQ(read_pipeline_csv(file), batches);
}

TEST(PipelineCsv, LeavesIdleSlotsOut) {
  const PipelineLists lists = parse_pipeline_csv("0F0, 0F1 ,,\"0B0\",0B1\r\n,1F0,1B0,,1F1,1B1,\r\n\r\n,,\n");
  EXPECT_EQ(lists, lists_of({"0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"}));
  EXPECT_TRUE(parse_pipeline_csv("").empty());
}

TEST(PipelineCsv, NamesRowAndCellOfAMistake) {
  const auto refused = [](std::string_view text) {
    return test::message_of<ConfigError>([&] { parse_pipeline_csv(text); });
  };
  EXPECT_THAT(refused("0F0,0B0\n1F0,,1X0\n"), StartsWith("row 2, cell 3: a pipeline's order has '1X0'"));
  EXPECT_THAT(refused("\"0F0,0B0\n"), StartsWith("row 1 of a pipeline's CSV has a quote that does not end"));
  EXPECT_THAT(refused("\"0F0\"x,0B0\n"), StartsWith("row 1 of a pipeline's CSV has text behind a quoted cell"));
  const std::filesystem::path folder = test::fresh_folder();
  EXPECT_THAT(test::message_of<ConfigError>([&] { read_pipeline_csv(folder / "none.csv"); }),
              HasSubstr("none.csv cannot be read"));
  test::write_file(folder / "wrong.csv", "0F0,?\n");
  EXPECT_THAT(test::message_of<ConfigError>([&] { read_pipeline_csv(folder / "wrong.csv"); }),
              HasSubstr("wrong.csv: row 1, cell 2: "));
  EXPECT_THAT(test::message_of<ConfigError>([&] { write_pipeline_csv(folder / "none/order.csv", {}); }),
              HasSubstr("cannot be written to"));
}

TEST(APipelineJob, IsRefusedWithWhatIsAllowed) {
  EXPECT_EQ(refused_job({.dialect = "jax"}), "dialect is 'jax'; write one of torch, megatron, mindspeed");
  EXPECT_EQ(refused_job({.dialect = "megatron", .schedule = "gpipe"}),
            "schedule is 'gpipe', which dialect megatron does not have; write one of 1f1b, interleaved_1f1b");
  EXPECT_THAT(refused_job({.ranks = 0}), HasSubstr("ranks is 0, and a pipeline needs between 1 and"));
  EXPECT_THAT(refused_job({.micro_batches = -3}), HasSubstr("micro_batches is -3"));
  EXPECT_THAT(refused_job({.ranks = 1 << 24, .micro_batches = 2}), HasSubstr("more than the 16777216 forwards"));
  EXPECT_EQ(refused_job({.ranks = 2, .stages_per_rank = 2, .micro_batches = 4}),
            "stages_per_rank is 2, and 1f1b of dialect torch needs 1; write 1, or another schedule");
  EXPECT_THAT(refused_job({.dialect = "megatron", .schedule = "interleaved_1f1b", .ranks = 2, .micro_batches = 4}),
              HasSubstr("stages_per_rank is 1, and interleaved_1f1b of dialect megatron needs 2 or more; write 2"));
  EXPECT_EQ(refused_job({.dialect = "megatron", .schedule = "interleaved_1f1b", .stages_per_rank = 2}),
            "interleaved_1f1b of dialect megatron needs 2 ranks or more, and there are 1; write 2 ranks or more");
  EXPECT_THAT(
      refused_job(
          {.dialect = "mindspeed", .schedule = "nanopipe", .ranks = 2, .stages_per_rank = 2, .micro_batches = 4}),
      HasSubstr("needs 3 ranks or more, and there are 2; write 3 ranks or more"));
}

TEST(APipelineJob, IsRefusedForAnOptionThatItsScheduleDoesNotRead) {
  PipelineJob job{.ranks = 2, .micro_batches = 4, .options = {.dw_detach = true}};
  EXPECT_EQ(refused_job(job), "dw_detach is set, which 1f1b of dialect torch does not read; its options are: none");
  job = {.dialect = "mindspeed", .schedule = "dualpipev", .ranks = 2, .stages_per_rank = 2, .micro_batches = 4};
  job.options.group = 2;
  EXPECT_THAT(refused_job(job), HasSubstr("group is set, which dualpipev of dialect mindspeed does not read; its "
                                          "options are: dw_detach, fb_overlap"));
  job.schedule = "interleaved_1f1b";
  job.options = {.recompute_in_bubble = true, .recompute_in_advance = true};
  EXPECT_THAT(refused_job(job), HasSubstr("recompute_in_bubble and recompute_in_advance are both set"));
  job.dialect = "megatron";
  job.options = {.overlap_p2p_warmup_flush = true};
  EXPECT_THAT(refused_job(job), HasSubstr("overlap_p2p_warmup_flush is set without overlap_p2p"));
}

// What a refusal says to write instead is accepted.
TEST(APipelineJob, IsRefusedWithCountsThatRun) {
  PipelineJob job{.schedule = "interleaved_1f1b", .ranks = 2, .stages_per_rank = 2, .micro_batches = 11};
  EXPECT_THAT(refused_job(job), HasSubstr("into 5 rounds (11 micro-batches div 2 ranks), and 11 does not divide by 5; "
                                          "write 10 or 12 micro-batches"));
  for (const std::int64_t count : {10, 12}) EXPECT_NO_THROW((job.micro_batches = count, make_pipeline_schedule(job)));
  job = {.dialect = "megatron", .schedule = "interleaved_1f1b", .ranks = 4, .stages_per_rank = 2, .micro_batches = 7};
  job.options.group = 5;
  EXPECT_THAT(refused_job(job), HasSubstr("leave a last group of 2, and it needs 0 or at least 4 (its ranks); write 5 "
                                          "or 9 micro-batches"));
  for (const std::int64_t count : {5, 9}) EXPECT_NO_THROW((job.micro_batches = count, make_pipeline_schedule(job)));
  job.micro_batches = 3;
  EXPECT_THAT(refused_job(job), HasSubstr("needs a micro-batch for each of its 4 ranks, and there are 3"));
  job = {.dialect = "mindspeed", .schedule = "dualpipev", .ranks = 4, .stages_per_rank = 2, .micro_batches = 6};
  EXPECT_THAT(refused_job(job), HasSubstr("needs 7 micro-batches or more with 4 ranks, and there are 6"));
}

const std::vector<PipelineJob>& kinds_of_job() {
  static const std::vector<PipelineJob> all = {
      {.dialect = "torch", .schedule = "gpipe"},
      {.dialect = "torch", .schedule = "1f1b"},
      {.dialect = "torch", .schedule = "interleaved_1f1b"},
      {.dialect = "torch", .schedule = "interleaved_zero_bubble"},
      {.dialect = "torch", .schedule = "looped_bfs"},
      {.dialect = "torch", .schedule = "zbv_zero_bubble"},
      {.dialect = "torch", .schedule = "dualpipev"},
      {.dialect = "megatron", .schedule = "1f1b"},
      {.dialect = "megatron", .schedule = "interleaved_1f1b"},
      {.dialect = "megatron", .schedule = "interleaved_1f1b", .options = {.group = 5}},
      {.dialect = "megatron", .schedule = "interleaved_1f1b", .options = {.overlap_moe = true}},
      {.dialect = "mindspeed", .schedule = "1f1b"},
      {.dialect = "mindspeed", .schedule = "interleaved_1f1b"},
      {.dialect = "mindspeed", .schedule = "interleaved_1f1b", .options = {.recompute_in_bubble = true}},
      {.dialect = "mindspeed", .schedule = "interleaved_1f1b", .options = {.recompute_in_advance = true}},
      {.dialect = "mindspeed", .schedule = "nanopipe"},
      {.dialect = "mindspeed", .schedule = "dualpipev"},
      {.dialect = "mindspeed", .schedule = "dualpipev", .options = {.dw_detach = true}},
      {.dialect = "mindspeed", .schedule = "dualpipev", .options = {.dw_detach = true, .fb_overlap = true}},
  };
  return all;
}

// How many of one kind of job were accepted; each of them runs, as do its lists with messages.
int count_that_run(PipelineJob job) {
  int made = 0;
  for (job.ranks = 1; job.ranks <= 5; ++job.ranks) {
    for (job.stages_per_rank = 1; job.stages_per_rank <= 4; ++job.stages_per_rank) {
      for (job.micro_batches = 1; job.micro_batches <= 12; ++job.micro_batches) {
        PipelineSchedule schedule;
        try {
          schedule = make_pipeline_schedule(job);
        } catch (const ConfigError&) {
          continue;
        }
        ++made;
        check_order(schedule);
        check_lists(schedule, lower_pipeline(schedule));
      }
    }
  }
  return made;
}

TEST(EveryPipelineOrderThatIsMade, CanRun) {
  for (const PipelineJob& job : kinds_of_job()) {
    int made = 0;
    EXPECT_NO_THROW(made = count_that_run(job)) << job.dialect << " " << job.schedule;
    EXPECT_GT(made, 4) << job.dialect << " " << job.schedule;
  }
}

TEST(APipelineOrder, IsOfTheStagesThatItsListsCompute) {
  const PipelineSchedule schedule =
      pipeline_schedule_from_order(lists_of({"0F0 3F0 3B0 0B0", "1F0 2F0 2I0 1B0 2W0"}), 1);
  EXPECT_THAT(schedule.stage_to_rank, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(pipeline_figures(schedule).makespan, 11);
}

TEST(APipelineOrder, IsRefusedWhenItIsNotComplete) {
  EXPECT_EQ(refused_order({"0F0 0B0", "1F0"}, 1),
            "rank 1 has no 1B0; every stage runs every micro-batch forwards and backwards: add it to its list");
  EXPECT_THAT(refused_order({"0F0 0I0"}, 1), StartsWith("rank 0 has no 0W0; "));
  EXPECT_THAT(refused_order({"0F0 0B0", "2F0 2B0"}, 1), HasSubstr("has stage 2 and no stage 1"));
  EXPECT_THAT(refused_order({"0F0 1F0 0B0", "1B0"}, 1), HasSubstr("rank 1 has 1B0, and stage 1 is on rank 0"));
  EXPECT_THAT(refused_order({"0F0 0B0 0F1 0B1"}, 1),
              HasSubstr("rank 0 has 0F1, and micro-batches are numbered from 0 to 0"));
  EXPECT_THAT(refused_order({}, 1), HasSubstr("needs a list for each rank"));
  EXPECT_THAT(refused_order({"0UNSHARD 0F0 0B0"}, 1), HasSubstr("rank 0 has 0UNSHARD, and an order is compute alone"));
}

TEST(APipelineOrder, IsRefusedWhenItIsNotLegal) {
  const auto why = [](std::string_view list) { return refused_order({list}, 1); };
  EXPECT_EQ(why("0F0 0F0 0B0"),
            "rank 0 cannot run 0F0 where its list has it: a forward of a micro-batch runs once; "
            "move or remove it");
  EXPECT_THAT(why("0B0 0F0"), HasSubstr("0B0 where its list has it: a backward comes behind its forward"));
  EXPECT_THAT(why("0F0 0B0 0B0"), HasSubstr("a micro-batch has one backward: B, or I and W"));
  EXPECT_THAT(why("0F0 0I0 0B0 0W0"), HasSubstr("a micro-batch has one backward: B, or I and W"));
  EXPECT_THAT(why("0F0 0W0 0I0"), HasSubstr("a W runs once, behind its I"));
  EXPECT_THAT(why("0F0 0I0 0W0 0W0"), HasSubstr("a W runs once, behind its I"));
  EXPECT_THAT(why("0C0 0B0"), HasSubstr("the backward of a C comes behind its recomputation R"));
  EXPECT_THAT(why("0F0 0R0 0B0"), HasSubstr("a recomputation R runs once, behind its forward C"));
  EXPECT_THAT(why("0C0 0R0 0R0 0B0"), HasSubstr("a recomputation R runs once, behind its forward C"));
  EXPECT_THAT(why("(0F0;0B0)OVERLAP_F_B"), HasSubstr("a backward comes behind its forward: write 0F0 0B0"));
}

TEST(APipelineOrder, IsRefusedWithTheActionsThatWaitForEachOther) {
  EXPECT_EQ(
      refused_order({"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"}, 2),
      "the order of the pipeline cannot run, because ranks wait for each other: rank 0 stands at 0B0, which needs "
      "1B0, which rank 1 has behind 1F1; rank 1 stands at 1F1, which needs 0F1, which rank 0 has behind 0B0; move "
      "one of these actions");
  EXPECT_THAT(refused_order({"1F0 0F0 0B0 1B0"}, 1),
              HasSubstr("rank 0 stands at 1F0, which needs 0F0, which rank 0 has behind 1F0; move"));
  // A rank that waits for the cycle is not part of it.
  EXPECT_THAT(refused_order({"0F0 0B0 0F1 0B1", "1F0 2F0 2B0 2F1 1F1 2B1 1B0 1B1", "3F0 3F1 3B0 3B1"}, 2),
              ::testing::Not(HasSubstr("0B0")));
}

const std::initializer_list<std::string_view> kOrder = {"0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"};

TEST(PipelineLists, RunWithMessagesOfEitherKind) {
  const PipelineSchedule schedule = pipeline_schedule_from_order(lists_of(kOrder), 2);
  const PipelineLists waited = lists_of({"0F0 [0SEND_F0] 0F1 [0SEND_F1,0RECV_B0] 0B0 [0RECV_B1] 0B1",
                                         "[1RECV_F0] 1F0 1B0 [1SEND_B0,1RECV_F1] 1F1 1B1 [1SEND_B1]"});
  EXPECT_NO_THROW(check_lists(schedule, waited));
  // The second forward of rank 0 waits for the first message, and with posted messages it does not.
  const PipelineLists late = lists_of({"0F0 [0SEND_F0] 0F1 <0SEND_F1> <0RECV_B0> 0B0 [0RECV_B1] 0B1",
                                       "<1RECV_F0> 1F0 1B0 <1SEND_B0> [1RECV_F1] 1F1 1B1 <1SEND_B1>"});
  EXPECT_EQ(pipeline_list_figures(schedule, late).makespan_waiting, pipeline_figures(schedule).makespan);
  EXPECT_TRUE(pipeline_list_figures(schedule, late).first_in_first_out);
}

TEST(PipelineLists, HaveFiguresOfTheirMessages) {
  const PipelineSchedule schedule = pipeline_schedule_from_order(lists_of(kOrder), 2);
  // Rank 1 receives the second output first, and on one stream each rank's first message waits for the other's.
  const PipelineLists crossed = lists_of({"0F0 <0SEND_F0> 0F1 <0SEND_F1> 0RECV_B0 0RECV_B1 0B0 0B1",
                                          "<1RECV_F1> <1RECV_F0> 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1"});
  const PipelineListFigures figures = pipeline_list_figures(schedule, crossed);
  EXPECT_FALSE(figures.first_in_first_out);
  EXPECT_FALSE(figures.runs_on_one_stream);
  EXPECT_EQ(figures.makespan_waiting, 9);
  EXPECT_THAT(figures.unshards, ElementsAre(0, 0));
}

TEST(PipelineLists, AreRefusedForTheirMessages) {
  const std::string_view other = "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1";
  const auto why = [&](std::string_view list) { return refused_lists(kOrder, {list, other}, 2); };
  EXPECT_EQ(why("0F0 0SEND_F0 0F1 0SEND_F1 0B0 0RECV_B0 0RECV_B1 0B1"),
            "rank 0 runs 0B0 without 0RECV_B0 before it; add that in front of it");
  EXPECT_EQ(why("0F0 0SEND_F0 0F1 0RECV_B0 0B0 0RECV_B1 0B1"),
            "the output of micro-batch 1 from stage 0 to stage 1 is received and not sent; add the other side to the "
            "list of rank 0");
  EXPECT_EQ(why("0F0 0SEND_F1 0SEND_F0 0F1 0RECV_B0 0B0 0RECV_B1 0B1"),
            "rank 0 has 0SEND_F1 before the action that makes it; move it behind that");
  EXPECT_THAT(why("0F0 0SEND_F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1"), HasSubstr("0SEND_F0 twice"));
  EXPECT_THAT(why("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0SEND_B0 0RECV_B1 0B1"),
              HasSubstr("rank 0 has 0SEND_B0, and there is no stage -1 on another rank; remove it"));
  EXPECT_EQ(why("0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RESHARD 0RECV_B0 0B0 0RECV_B1 0B1"),
            "rank 0 runs 0B0 while stage 0 is not gathered; add 0UNSHARD in front of it");
}

// The steady state of two ranks that each wait for their send before they receive.
TEST(PipelineLists, AreRefusedWithTheBatchesThatWaitForEachOther) {
  EXPECT_EQ(
      refused_lists(kOrder,
                    {"0F0 [0SEND_F0] 0F1 [0SEND_F1] [0RECV_B0] 0B0 [0RECV_B1] 0B1",
                     "[1RECV_F0] 1F0 1B0 [1SEND_B0] [1RECV_F1] 1F1 1B1 [1SEND_B1]"},
                    2),
      "the order of the pipeline cannot run, because ranks wait for each other: rank 0 stands at [0SEND_F1], which "
      "needs 1RECV_F1, which rank 1 has behind [1SEND_B0]; rank 1 stands at [1SEND_B0], which needs 0RECV_B0, which "
      "rank 0 has behind [0SEND_F1]; move one of these actions");
}

}  // namespace
}  // namespace loom::train
