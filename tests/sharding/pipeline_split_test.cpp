// Promise: layers are split over a pipeline by the rules of Megatron, MindSpeed and torchtitan, and a split that is
//          impossible is refused with the value, what is allowed and what to write instead.
// World:   no model and no rank; pipeline_parity compares whole splits with the originals.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "sharding/pipeline/split.h"

namespace loom::sharding {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

// "0-1 2 | 3": the layers of the stages.
std::string text_of(const std::vector<StageLayout>& stages) {
  std::vector<std::string> words;
  for (const StageLayout& stage : stages) words.push_back(fmt::format("{}", fmt::join(stage.layers, " ")));
  return fmt::format("{}", fmt::join(words, "|"));
}

std::vector<std::int64_t> ranks_of(const std::vector<StageLayout>& stages) {
  std::vector<std::int64_t> ranks;
  for (const StageLayout& stage : stages) ranks.push_back(stage.rank);
  return ranks;
}

std::vector<StageLayout> layout(const std::string& text, std::int64_t layers = 4, std::int64_t ranks = 2) {
  return split_megatron_layout({.layers = layers, .ranks = ranks, .pipeline_model_parallel_layout = text});
}

std::string text_of_refusal(const std::function<void()>& split) {
  try {
    split();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

// The refusal of a layout without its beginning.
std::string refusal(const std::string& text, std::int64_t layers = 4, std::int64_t ranks = 2) {
  const std::string whole = text_of_refusal([&] { layout(text, layers, ranks); });
  const std::string begin = fmt::format("pipeline_model_parallel_layout '{}'", text);
  return whole.starts_with(begin) ? whole.substr(begin.size()) : whole;
}

// --- Megatron

TEST(PipelineSplit, MegatronSplitsUnevenly) {
  EXPECT_EQ(text_of(split_megatron({.layers = 8, .ranks = 3, .num_layers_in_first_pipeline_stage = 2})),
            "0 1|2 3 4|5 6 7");
  EXPECT_EQ(text_of(split_megatron({.layers = 8, .ranks = 3, .num_layers_in_last_pipeline_stage = 2})),
            "0 1 2|3 4 5|6 7");
  EXPECT_EQ(text_of(split_megatron({.layers = 3, .ranks = 1, .num_layers_in_first_pipeline_stage = 3})), "0 1 2");
}

TEST(PipelineSplit, MegatronFindsTheChunksFromTheLayersOfOne) {
  const auto stages = split_megatron({.layers = 8, .ranks = 2, .num_layers_per_virtual_pipeline_stage = 2});
  EXPECT_EQ(text_of(stages), "0 1|2 3|4 5|6 7");
  EXPECT_THAT(ranks_of(stages), ::testing::ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(stages[3].chunk, 1);
  const auto counted = split_megatron({.layers = 7,
                                       .ranks = 2,
                                       .num_layers_per_virtual_pipeline_stage = 2,
                                       .account_for_embedding_in_pipeline_split = true});
  EXPECT_EQ(text_of(counted), "0|1 2|3 4|5 6");
}

TEST(PipelineSplit, MegatronsRefusalsSayWhatToWrite) {
  EXPECT_THAT([] { split_megatron({.layers = 10, .ranks = 4}); },
              ThrowsMessage<ConfigError>(
                  StrEq("num_layers is 10, which 4 pipeline ranks do not divide; write num_layers 8 or 12, or "
                        "num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage or a "
                        "pipeline_model_parallel_layout")));
  EXPECT_THAT(
      [] { split_megatron({.layers = 8, .ranks = 4, .account_for_loss_in_pipeline_split = true}); },
      ThrowsMessage<ConfigError>(HasSubstr("count 1 more: 9, which 4 pipeline ranks do not divide; write num_layers 7 "
                                           "or 11,")));
  EXPECT_THAT([] { split_megatron({.layers = 8, .ranks = 2, .chunks = 3}); },
              ThrowsMessage<ConfigError>(StrEq("each pipeline rank has 4 layers, and 3 chunks of a rank do not divide "
                                               "them; write 3 or 6 layers, or a number of chunks that divides 4")));
  EXPECT_THAT([] { split_megatron({.layers = 8, .ranks = 2, .num_layers_per_virtual_pipeline_stage = 3}); },
              ThrowsMessage<ConfigError>(StrEq(
                  "num_layers_per_virtual_pipeline_stage is 3: 2 pipeline ranks hold 6 layers a turn, and 8 layers "
                  "are no whole number of turns; write num_layers 6 or 12, or a number that divides the layers of "
                  "a rank")));
  EXPECT_THAT(
      [] { split_megatron({.layers = 8, .ranks = 2, .chunks = 4, .num_layers_per_virtual_pipeline_stage = 2}); },
      ThrowsMessage<ConfigError>(HasSubstr("makes 2 chunks of 8 layers on 2 pipeline ranks, and 4 chunks are "
                                           "requested; leave one of the two out")));
}

MegatronSplit uneven(std::int64_t layers, std::int64_t ranks, std::int64_t first, std::int64_t last) {
  return {.layers = layers,
          .ranks = ranks,
          .num_layers_in_first_pipeline_stage = first,
          .num_layers_in_last_pipeline_stage = last};
}

TEST(PipelineSplit, MegatronsUnevenRefusalsCountTheOtherRanks) {
  const auto refused = [](MegatronSplit split) { return text_of_refusal([&] { split_megatron(split); }); };
  EXPECT_THAT(refused(uneven(9, 4, 2, 2)),
              HasSubstr("5 are left for 2 other ranks, which do not divide them; write num_layers 8 or 10,"));
  EXPECT_THAT(refused(uneven(6, 2, 2, 2)),
              HasSubstr("2 are left for 0 other ranks; write two numbers that add up to 6"));
  EXPECT_THAT(refused(uneven(4, 3, 2, 2)), HasSubstr("0 are left for 1 other ranks; write smaller numbers"));
  EXPECT_THAT(refused(uneven(4, 3, 3, 3)), HasSubstr("-2 are left for 1 other ranks; write smaller numbers"));
  EXPECT_THAT(refused(uneven(4, 1, 2, 2)), HasSubstr("need two pipeline ranks, and there is one"));
  EXPECT_EQ(refused(uneven(4, 3, 0, 2)), "num_layers_in_first_pipeline_stage is 0; write a number from 1 to 1000000");
  MegatronSplit split = uneven(6, 3, 2, 2);
  split.num_layers_per_virtual_pipeline_stage = 1;
  EXPECT_THAT(refused(split), HasSubstr("write the number of chunks of a rank"));
}

TEST(PipelineSplit, SizesHaveLimits) {
  EXPECT_THAT([] { split_megatron({.layers = 0}); },
              ThrowsMessage<ConfigError>(StrEq("num_layers is 0; write a number from 1 to 1000000")));
  EXPECT_THAT([] { split_megatron({.layers = 4, .ranks = -1}); },
              ThrowsMessage<ConfigError>(HasSubstr("the number of pipeline ranks is -1;")));
  EXPECT_THAT([] { split_torchtitan({.layers = 4, .ranks = 100000, .chunks = 100000}); },
              ThrowsMessage<ConfigError>(HasSubstr("ranks times chunks, is 10000000000;")));
}

// --- Megatron's layout strings

TEST(PipelineSplit, CommasOfALayoutMeanNothing) {
  EXPECT_EQ(text_of(layout("E,tt|,ttL")), text_of(layout("Ett|ttL")));
  EXPECT_EQ(text_of(layout("Et,*,2|(t,)*,2L")), "0 1|2 3");
  EXPECT_EQ(text_of(layout("Et*1,0|ttL", 12)), "0 1 2 3 4 5 6 7 8 9|10 11");
}

TEST(PipelineSplit, ALayoutRepeatsSymbolsGroupsAndStages) {
  EXPECT_EQ(text_of(layout("E(t*2|)*2L", 4, 3)), "0 1|2 3|");
  EXPECT_EQ(text_of(layout("Ett|*3ttL", 4, 4)), "0 1|||2 3");
  EXPECT_EQ(text_of(layout("Ett|t*0ttL")), "0 1|2 3");
}

TEST(PipelineSplit, ALayoutsErrorNamesTheCharacter) {
  EXPECT_EQ(
      refusal("E,tt|tx|ttL"),
      ", character 7: 'x' is unknown; allowed are E (embedding), t (layer), m (layer of multi-token prediction), L "
      "(loss), '|' (next stage), commas, 'x*n' and '(..)*n'");
  EXPECT_THAT(refusal("E tt|ttL"), HasSubstr("character 2: ' ' is unknown;"));
  EXPECT_THAT(refusal("Ett｜ttL"), HasSubstr("character 4: '｜' is unknown;"));
  EXPECT_THAT(refusal("Et\n|ttL"), HasSubstr("character 3: '\\n' is unknown;"));
  EXPECT_THAT(refusal("Et2|ttL"), HasSubstr("character 3: '2' is unknown;"));
  EXPECT_EQ(refusal("E(t(t|)*2)*2L"), ", character 4: a group inside a group; write out the inner one");
  EXPECT_EQ(refusal("E(tt|ttL"), ", character 2: '(' has no ')'; write '(..)*n'");
  EXPECT_EQ(refusal("Ett|tt)*2L"), ", character 7: ')' has no '('; write '(..)*n'");
  EXPECT_EQ(refusal("E(tt|)ttL"), ", character 2: the group has no number of repetitions behind it; write '(..)*n'");
  EXPECT_THAT(refusal("E()*2L"), HasSubstr("character 2: the group is empty; allowed are"));
  EXPECT_EQ(refusal("*2Ett"), ", character 1: nothing stands before '*'; write 'x*n' or '(..)*n'");
  EXPECT_EQ(refusal("Et*|ttL"), ", character 3: '*' has no number behind it; write 'x*n' or '(..)*n'");
  EXPECT_EQ(refusal("Et*2*2|L"), ", character 5: a repetition is repeated; write one number that is the product");
  EXPECT_THAT(refusal("Et*99999999999999999999L"),
              HasSubstr("character 3: the layout has more than 1000000 letters when repetitions are written out"));
  EXPECT_THAT(refusal("E(t*999999)*999999L"), HasSubstr("character 12: the layout has more than"));
}

TEST(PipelineSplit, ALayoutHasItsOrder) {
  EXPECT_EQ(refusal("tt|ttL"),
            ", character 1: the first layer is t, and it has to be E (embedding); write E before it");
  EXPECT_EQ(refusal("Ett|tt"), ", character 6: the last layer is t, and it has to be L (loss); write L behind it");
  EXPECT_EQ(refusal("Ett|EttL"), ", character 5: a second E (embedding); write one");
  EXPECT_EQ(refusal("EttL|ttL"), ", character 8: a second L (loss); write one");
  EXPECT_EQ(refusal("Ettm|ttL"), ", character 4: m stands before a t; write every m behind all t");
  EXPECT_EQ(refusal("|,|"), " has no layers; write E, the layers t and L, as 'Ett|ttL'");
  EXPECT_EQ(refusal(""), " has no layers; write E, the layers t and L, as 'Ett|ttL'");
}

TEST(PipelineSplit, ALayoutHasTheCountsOfTheModel) {
  EXPECT_EQ(refusal("Ett|ttL", 5), " has 4 layers (t), and num_layers is 5; write 5 t, or num_layers 4");
  EXPECT_EQ(refusal("Ett|ttmL"),
            " has 1 layers of multi-token prediction (m), and mtp_num_layers is 0; write 0 m, or mtp_num_layers 1");
  EXPECT_EQ(refusal("Et|t|ttL"),
            " has 3 stages, and pipeline_model_parallel_size is 2; write 2 or 4 stages, or a size that divides 3");
  EXPECT_THAT(
      text_of_refusal([] {
        split_megatron_layout({.layers = 4, .ranks = 2, .chunks = 2, .pipeline_model_parallel_layout = "Ett|ttL"});
      }),
      HasSubstr("which makes the number of chunks 1, and 2 is requested; leave that number out, or write 4 "
                "stages"));
}

TEST(PipelineSplit, MtpLayersStandInOneLastChunk) {
  const auto refused = [](const std::string& text, std::int64_t mtp) {
    return text_of_refusal([&] {
      split_megatron_layout({.layers = 2, .ranks = 2, .mtp_layers = mtp, .pipeline_model_parallel_layout = text});
    });
  };
  EXPECT_THAT(refused("Ett|m||L", 1), HasSubstr("character 5: m stands in stage 1 of 4, which is not the last chunk of "
                                                "its rank; write it in one of the last 2 stages"));
  EXPECT_THAT(refused("Et|t|m|mL", 2),
              HasSubstr("character 6: this stage has 1 of 2 m; write all of them in one stage"));
  EXPECT_EQ(refused("Et|t|mm|L", 2), "not refused");
}

// --- MindSpeed

TEST(PipelineSplit, DualPipeVComesBackToTheFirstRank) {
  const auto stages = split_mindspeed({.layers = 6, .ranks = 3, .schedules_method = "dualpipev"});
  EXPECT_THAT(ranks_of(stages), ::testing::ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_TRUE(stages.front().embedding);
  EXPECT_TRUE(stages.back().loss);
}

TEST(PipelineSplit, NoopPlacesHoldNoLayer) {
  EXPECT_EQ(text_of(split_mindspeed({.layers = 8, .ranks = 4, .noop_layers = "7, 0,1"})), "|0 1|2 3|4");
  EXPECT_THAT([] { split_mindspeed({.layers = 8, .ranks = 4, .noop_layers = "8"}); },
              ThrowsMessage<ConfigError>(StrEq("noop_layers is '8', and num_layers is 8; write places from 0 to 7")));
}

TEST(PipelineSplit, MindSpeedsRefusalsSayWhatToWrite) {
  const auto refused = [](MindSpeedSplit split) { return text_of_refusal([&] { split_mindspeed(split); }); };
  EXPECT_EQ(
      refused({.layers = 10, .ranks = 4}),
      "num_layers is 10, which 4 stages (4 pipeline ranks, 1 a rank) do not divide; write num_layers 8 or 12 with "
      "noop_layers for places without a layer, or num_layer_list with the layers of every rank");
  EXPECT_EQ(refused({.layers = 8, .ranks = 2, .num_layer_list = "4,3"}),
            "num_layer_list '4,3' adds up to 7, and num_layers is 8; write numbers that add up to 8");
  EXPECT_EQ(refused({.layers = 8, .ranks = 2, .num_layer_list = "4,3,1"}),
            "num_layer_list '4,3,1' has 3 numbers, and pipeline_model_parallel_size is 2; write one number a rank");
  for (const std::string text : {"4,", ",8", "4,-4", "4,x", "4;4", "4,99999999999999999999"}) {
    EXPECT_THAT(refused({.layers = 8, .ranks = 2, .num_layer_list = text}), HasSubstr("in it is no number from 0"))
        << text;
  }
  EXPECT_THAT(refused({.layers = 8, .ranks = 2, .chunks = 2, .num_layer_list = "4,4"}),
              HasSubstr("is for one chunk a rank, and there are 2; leave it out"));
  EXPECT_THAT(refused({.layers = 8, .ranks = 2, .num_layer_list = "4,4", .noop_layers = "1"}),
              HasSubstr("has no effect where noop_layers is given"));
  EXPECT_EQ(refused({.layers = 8, .ranks = 2, .schedules_method = "dualpipe"}),
            "schedules_method is 'dualpipe'; write dualpipev, or leave it out");
  EXPECT_THAT(refused({.layers = 12, .ranks = 2, .chunks = 3, .schedules_method = "dualpipev"}),
              HasSubstr("has two chunks a rank, and 3 are requested"));
  EXPECT_THAT(refused({.layers = 6, .ranks = 2, .schedules_method = "dualpipev"}),
              HasSubstr("which 4 stages (2 pipeline ranks, 2 a rank) do not divide; write num_layers 4 or 8"));
}

TEST(PipelineSplit, UnalignedListsAreRepeated) {
  const auto split = [](const std::string& text, std::int64_t layers, std::int64_t ranks, std::int64_t chunks) {
    return text_of(split_mindspeed_unaligned(
        {.layers = layers, .ranks = ranks, .chunks = chunks, .pipeline_num_transformer_layers = text}));
  };
  EXPECT_EQ(split("[[1],[2]*2,[0]]", 5, 4, 1), "0|1 2|3 4|");
  EXPECT_EQ(split("[[1*2],[1, 2]]", 5, 2, 2), "0|1|2|3 4");
}

TEST(PipelineSplit, UnalignedRefusalsNameTheCharacter) {
  const auto refused = [](const std::string& text, std::int64_t chunks = 1) {
    return text_of_refusal([&] {
      split_mindspeed_unaligned({.layers = 4, .ranks = 2, .chunks = chunks, .pipeline_num_transformer_layers = text});
    });
  };
  EXPECT_EQ(refused("[2,2]"),
            "pipeline_num_transformer_layers '[2,2]', character 2: '2' stands where one list for each pipeline rank in "
            "'[' and ']' is allowed; write one list a pipeline rank with one number a chunk, as [[2,1],[3,2]] or "
            "[[2,1]*4]");
  EXPECT_THAT(refused("[[2],[-2]]"), HasSubstr("character 7: '-' stands where numbers"));
  EXPECT_THAT(refused("[[2],[2]"), HasSubstr("character 9: the end of the text stands where"));
  EXPECT_THAT(refused("[[2],[2]]]"), HasSubstr("character 10: ']' stands where the end of the text is allowed"));
  EXPECT_THAT(refused("[[2]*]"), HasSubstr("character 6: ']' stands where a number behind '*' is allowed"));
  EXPECT_THAT(refused(""), HasSubstr("character 1: the end of the text stands where a list of lists"));
  EXPECT_THAT(refused("[[2]*9999999]"), HasSubstr("a number above 1000000"));
  EXPECT_THAT(refused("[[2],[1],[1]]"), HasSubstr("has 3 lists, and pipeline_model_parallel_size is 2"));
  EXPECT_THAT(refused("[[2],[2]]", 2), HasSubstr("has 1 numbers for rank 0, and a rank has 2 chunks"));
  EXPECT_THAT(refused("[[2],[1]]"), HasSubstr("adds up to 3, and num_layers is 4; write numbers that add up to 4"));
}

// --- torchtitan

TEST(PipelineSplit, TorchtitanGivesEarlierStagesWhatRemains) {
  EXPECT_EQ(text_of(split_torchtitan({.layers = 7, .ranks = 4})), "0 1|2 3|4 5|6");
  EXPECT_EQ(text_of(split_torchtitan({.layers = 3, .ranks = 1, .first_stage_less_layers = 9})), "0 1 2");
  EXPECT_THAT(ranks_of(split_torchtitan({.layers = 4, .ranks = 2, .chunks = 2, .placement = Placement::kV})),
              ::testing::ElementsAre(0, 1, 1, 0));
}

TEST(PipelineSplit, TorchtitansRefusalsSayWhatToWrite) {
  const auto refused = [](TorchtitanSplit split) { return text_of_refusal([&] { split_torchtitan(split); }); };
  EXPECT_EQ(refused({.layers = 8, .ranks = 4, .chunks = 2, .first_stage_less_layers = 2}),
            "first_stage_less_layers is 2, and the smallest stage has 1; write 1 at most, more layers or fewer stages");
  EXPECT_EQ(refused({.layers = 1, .ranks = 4}),
            "1 layers with first_stage_less_layers 1 and last_stage_less_layers 1 count as 3, and there are 4 stages; "
            "write 3 stages at most");
  EXPECT_EQ(refused({.layers = 4, .ranks = 2, .last_stage_less_layers = -1}),
            "last_stage_less_layers is -1; write a number from 0 to 1000000");
  EXPECT_THAT(refused({.layers = 4, .ranks = 2, .placement = Placement::kV}),
              HasSubstr("has two stages a rank, and 1 are requested"));
}

}  // namespace
}  // namespace loom::sharding
