// Promise: ranks whose fsdp2_config.yaml differ in any key get one error, the same on every rank, that names the key,
//          the ranks and the values, before a group is made or anything is allocated; spellings of the same do not
//          matter.
// World:   4 ranks as threads; root and 4 blocks of width 4.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "sharding/parallelize.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;
using ::testing::Each;
using ::testing::HasSubstr;

using TextOf = std::function<std::string(int rank)>;

Fsdp2Config config(const std::string& text) { return parse_fsdp2_config(text, "f.yaml"); }

// What every rank ends with; "" where all is well.
std::vector<std::string> ends(const TextOf& text_of, int ranks = 4) {
  return test::of_each_rank(ranks, [&](RankContext& context, comm::World& world) -> std::string {
    test::ToyChain chain(4, 4);
    const ResolvedFsdp2Config plan =
        resolve_fsdp2(chain, config(text_of(context.rank())), world.size(), GatherLayout::kBuffered);
    try {
      parallelize(chain, plan, world);
    } catch (const ConfigError& error) {
      EXPECT_EQ(FsdpState::of(chain), nullptr);
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(FsdpState::of(chain.layers[i]), nullptr);
      EXPECT_EQ(device::Device::current().memory().stats().peak_bytes, 0);
      return error.what();
    }
    return "";
  });
}

std::string in_frame(const std::string& differences) {
  return "ranks differ in fsdp2_config.yaml: " + differences + "; give every rank the same file and model";
}

TEST(SameConfig, OfRanksThatDifferInSizeIsRefusedBeforeAGroupIsMade) {
  EXPECT_THAT(ends([](int rank) { return rank == 3 ? "sharding_size: 2" : "sharding_size: 4"; }),
              Each(in_frame("sharding_size: ranks 0-2 have 4, rank 3 has 2")));
  EXPECT_THAT(ends([](int rank) { return rank == 0 || rank == 2 ? "{}" : "sharding_size: auto"; }),
              Each(in_frame("sharding_size: ranks 0,2 have 1, ranks 1,3 have 4")));
  EXPECT_THAT(ends([](int rank) { return fmt::format("sharding_size: {}", rank == 3 ? 4 : 1 + rank % 2); }),
              Each(in_frame("sharding_size: ranks 0,2 have 1, rank 1 has 2, rank 3 has 4")));
}

TEST(SameConfig, OfRanksThatListOtherModulesNamesTheModules) {
  EXPECT_THAT(ends([](int rank) {
                return rank == 3 ? "sub_modules_to_wrap: [\"layers.{0-2}\"]" : "sub_modules_to_wrap: [\"layers.{*}\"]";
              }),
              Each(in_frame("sub_modules_to_wrap: ranks 0-2 list 'layers.3', rank 3 does not")));
  EXPECT_THAT(ends([](int rank) { return rank == 1 ? "ignored_modules: [layers.1]" : "{}"; }),
              Each(in_frame("ignored_modules: rank 1 lists 'layers.1', ranks 0,2-3 do not")));
}

TEST(SameConfig, NamesEveryDifferenceUpToEight) {
  EXPECT_THAT(ends([](int rank) { return rank == 0 ? "param_dtype: bf16\nuse_reentrant: false" : "{}"; }),
              Each(in_frame("param_dtype: rank 0 has bf16, ranks 1-3 have null; use_reentrant: rank 0 has false, ranks "
                            "1-3 have true")));
  EXPECT_THAT(ends([](int rank) {
                return rank == 0 ? "sub_modules_to_wrap: [\"layers.{*}\"]\nrecompute_modules: [\"layers.{*}\"]\n"
                                   "ignored_modules: [layers.0, layers.1]"
                                 : "{}";
              }),
              Each(HasSubstr("rank 0 lists 'layers.1', ranks 1-3 do not; and 2 more; give every rank")));
}

// Each key, with a value other than its default.
struct Key {
  const char* name;
  const char* value;
};
void PrintTo(const Key& key, std::ostream* out) { *out << key.name << ": " << key.value; }
class SameConfigKey : public ::testing::TestWithParam<Key> {};
INSTANTIATE_TEST_SUITE_P(
    Keys, SameConfigKey,
    ::testing::Values(Key{"sharding_size", "2"}, Key{"param_dtype", "bf16"}, Key{"reduce_dtype", "fp32"},
                      Key{"output_dtype", "fp32"}, Key{"cast_forward_inputs", "false"},
                      Key{"sub_modules_to_wrap", "[layers.2]"}, Key{"ignored_modules", "[layers.2]"},
                      Key{"recompute_modules", "[layers.2]"}, Key{"use_reentrant", "false"},
                      Key{"recompute_keep", "selected_ops"}, Key{"recompute_every", "2"},
                      Key{"reshard_after_forward", "false"}, Key{"root_reshard_after_forward", "false"},
                      Key{"reshard_after_backward", "false"}, Key{"sync_each_batch", "false"},
                      Key{"offload_to_cpu", "true"}, Key{"pin_memory", "true"},
                      Key{"activation_offload_modules", "[layers.2]"}, Key{"num_to_forward_prefetch", "1"},
                      Key{"num_to_backward_prefetch", "2"}, Key{"prefetch_order", "list"},
                      Key{"recompute_children", "true"}, Key{"hook_modules", "[layers.2]"}, Key{"pregather", "true"},
                      Key{"chunk_mbs_modules", "[layers.2]"}, Key{"chunk_mbs", "2"}, Key{"chunk_arg_indexs", "[1]"},
                      Key{"chunk_kwarg_names", "[mask]"}, Key{"reshard_local_experts", "false"},
                      Key{"moe_token_dispatcher_type", "allgather"}, Key{"moe_shared_expert_overlap", "true"}),
    [](const auto& info) { return info.param.name; });

TEST_P(SameConfigKey, MustHaveOneValue) {
  const std::string given = fmt::format("{}: {}", GetParam().name, GetParam().value);
  EXPECT_THAT(ends([&](int rank) { return rank == 1 ? given : "{}"; }, 2),
              Each(HasSubstr(fmt::format("yaml: {}: rank", GetParam().name))));
}

// The keys above, and those of which a plan has only one value so far, are all there are.
TEST(SameConfig, ComparesEveryKeyTheReaderKnows) {
  test::ToyChain chain(4, 4);
  Fsdp2Config all = config(
      "sub_modules_to_wrap: [layers.0]\nhook_modules: [layers.0]\nignored_modules: [layers.1]\nrecompute_modules: [layers.2]\n"
      "activation_offload_modules: [layers.2]\nchunk_mbs_modules: [layers.2]");
  ResolvedFsdp2Config plan = resolve_fsdp2(chain, all, 4, GatherLayout::kBuffered);
  all.moe_modules = all.colwise_parallel = all.rowwise_parallel = patterns_of(all.sub_modules_to_wrap);
  std::string known = message_of<ConfigError>([] { config("qqqqqqqqqqqqqqqqqqqq: 1"); });
  known = known.substr(known.find("the keys are "));
  for (const ConfigEntry& entry : effective_config(all, plan)) {
    const std::size_t at = known.find(entry.key);
    ASSERT_NE(at, std::string::npos) << entry.key;
    known.erase(at, entry.key.size());
  }
  EXPECT_EQ(known.find('_'), std::string::npos) << known;
}

TEST(SameConfig, MayBeSpeltInOtherWords) {
  EXPECT_THAT(ends([](int rank) {
                return rank % 2 == 0
                           ? "sharding_size: auto\nsub_modules_to_wrap: [\"layers.{*}\"]\nreshard_after_forward: 4"
                           : "sharding_size: 4\nsub_modules_to_wrap: [ToyBlock]\nreshard_after_forward: true";
              }),
              Each(""));
}

}  // namespace
}  // namespace loom::sharding
