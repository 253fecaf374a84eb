// Promise: the printed schedule is what the host issued, in its order, and names each wasted prefetch.
// World:   2 ranks as threads; root and two items, each y = x + weight, weights of 4 fp32, so 8 bytes a shard and 16
//          whole; x is [2, 4].
#include "engine/observe/schedule_view.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/device/device.h"
#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "sharding/fully_shard.h"
#include "sharding/parallelize.h"

namespace loom::observe {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Shift : public nn::Module {
 public:
  Shift() : weight(register_parameter("weight", {4}, nn::Init::ones())) {}
  std::string_view type_name() const override { return "Shift"; }
  nn::ParamSlot& weight;

 protected:
  nn::Value forward(const nn::Args& args) override { return ops::add(args.tensor(0), weight.value); }
};

// Its own weight, then its two items.
class Shifts : public nn::Module {
 public:
  Shifts()
      : weight(register_parameter("weight", {4}, nn::Init::ones())),
        items(register_module("items", std::make_shared<nn::ModuleList>())) {
    for (int i = 0; i < 2; ++i) items.append(std::make_shared<Shift>());
  }
  std::string_view type_name() const override { return "Shifts"; }
  nn::ParamSlot& weight;
  nn::ModuleList& items;
  bool skips_last = false;
  bool own_last = false;  // its own weight after the items

 protected:
  nn::Value forward(const nn::Args& args) override {
    Tensor y = args.tensor(0);
    if (!own_last) y = ops::add(y, weight.value);
    y = items[0](y);
    if (!skips_last) y = items[1](y);
    return own_last ? ops::add(y, weight.value) : y;
  }
};

struct Setting {
  sharding::GatherLayout layout = sharding::GatherLayout::kBuffered;
  bool skips_last = false;
  bool own_last = false;
  bool reshards_root = false;  // a root stays whole unless this says otherwise
  std::function<void(Shifts&)> prepare = [](Shifts&) {};
};

// Rank 0's second step.
ScheduleView second_step(const Setting& setting) {
  ScheduleView view;
  launch::run_ranks(2, {std::chrono::minutes(1)}, [&](RankContext& context, comm::World& world) {
    device::Device& device = device::Device::install(context, {});
    Shifts model;
    sharding::FullyShardOptions options;
    options.axes = sharding::FsdpAxes::over(world, 2);
    options.layout = setting.layout;
    for (std::size_t i = 0; i < 2; ++i) sharding::fully_shard(model.items[i], options);
    if (setting.reshards_root) options.reshard_after_forward = true;
    sharding::fully_shard(model, options);
    sharding::materialize_shards(model);
    nn::init_weights(model, 1);
    setting.prepare(model);
    model.skips_last = setting.skips_last;
    model.own_last = setting.own_last;
    std::optional<device::Recorder> recorder;
    for (int step = 0; step < 2; ++step) {
      if (step == 1) recorder.emplace(device, device::RecorderOptions{.memory = true});
      device.memory().reset_peaks();
      const Tensor x = Tensor::zeros({2, 4}, DType::kF32);
      autograd::backward(ops::mean(model(x).tensor()));
      for (const Tensor& parameter : model.parameters()) parameter.set_grad({});
    }
    if (context.rank() == 0) view = view_schedule(recorder->recording());
  });
  return view;
}

// A forward adds: 2 x 4 and 4 elements read, 2 x 4 written, 80 bytes; its backward sums rows: 8 read, 4 written, 48
// bytes; the mean reads 8 and writes 1. A gather copies 8 bytes in, receives the peer's 8 and copies 16 out; a
// reduction copies 16 in and receives 8. Blocks count as 512 bytes. The root stays whole beside one item: 2. A gather's
// buffer is held until the next group is whole: 2.
TEST(ScheduleText, IsOneLineAnEvent) {
  EXPECT_EQ(to_text(second_step({})),
            R"(schedule of one step, in the order the host issued it
IN copy-in, AG all-gather, W waited for, RE resharded, RIN reduction's copy-in, RS reduce-scatter, AR all-reduce, B backward, O optimizer
    #  stream          event  group           bytes
    1  gather_copy_in  IN     (root)              8  fp32
    2  gather          AG     (root)              8  fp32
    3  compute         W      (root)             16
    4  compute         run                       80  1 kernel
    5  gather_copy_in  IN     items.0             8  fp32
    6  gather          AG     items.0             8  fp32
    7  compute         W      items.0            16
    8  compute         run                       80  1 kernel
    9                  RE     items.0
   10  gather_copy_in  IN     items.1             8  fp32
   11  gather          AG     items.1             8  fp32
   12  compute         W      items.1            16
   13  compute         run                       80  1 kernel
   14                  RE     items.1
   15  compute         run                       36  1 kernel
   16  gather_copy_in  IN     items.1             8  fp32
   17  gather          AG     items.1             8  fp32
   18  compute         W      items.1            16
   19  gather_copy_in  IN     items.0             8  fp32
   20  gather          AG     items.0             8  fp32, prefetched
   21  compute         run                       48  1 kernel
   22                  RE     items.1
   23  compute         RIN    items.1            16  fp32
   24  reduce_scatter  RS     items.1             8  fp32
   25  compute         W      items.0            16
   26  compute         run                       48  1 kernel
   27                  RE     items.0
   28  compute         RIN    items.0            16  fp32
   29  reduce_scatter  RS     items.0             8  fp32
   30  compute         run                       48  1 kernel
   31                  RE     (root)
   32  compute         RIN    (root)             16  fp32
   33  reduce_scatter  RS     (root)              8  fp32
gather_copy_in: 5 events, 40 bytes
gather: 5 events, 40 bytes
compute: 15 events, 548 bytes
reduce_scatter: 3 events, 24 bytes
peak of unsharded parameters: 1024 bytes; of gather buffers: 1024 bytes
no prefetch was wasted
)");
}

// Shards on the host: copies and casts of each parameter, and the host's own work, would be most of the lines.
TEST(ScheduleText, FoldsTheItemsOfAGroup) {
  ScheduleView view;
  const auto add = [&](std::string stream, std::string token, std::string group, std::int64_t bytes) {
    view.events.push_back({std::move(stream), std::move(token), std::move(group), bytes});
  };
  for (const char* parameter : {"gate", "up", "down"}) {
    add("gather_copy_in", "h2d", parameter, 8);
    add("gather_copy_in", "cast", parameter, 4);
  }
  add("gather", "AG", "items.0", 12);
  add("gather_copy_in", "h2d", "norm", 2);
  add("gather", "AG", "", 2);
  add("reduce_scatter", "RS", "items.0", 6);
  for (const char* parameter : {"gate", "up", "down"}) add("reduce_scatter", "d2h", parameter, 2);
  for (const char* parameter : {"gate", "up"}) add("host", "adamw", parameter, 16);
  EXPECT_EQ(to_text(view),
            R"(schedule of one step, in the order the host issued it
IN copy-in, AG all-gather, W waited for, RE resharded, RIN reduction's copy-in, RS reduce-scatter, AR all-reduce, B backward, O optimizer
    #  stream          event  group           bytes
  1-5  gather_copy_in  h2d    items.0            24  3 items
  2-6  gather_copy_in  cast   items.0            12  3 items
    7  gather          AG     items.0            12
    8  gather_copy_in  h2d    norm                2
    9  gather          AG     (root)              2
   10  reduce_scatter  RS     items.0             6
11-13  reduce_scatter  d2h    items.0             6  3 items
14-15  host            adamw                     32  2 items
gather_copy_in: 7 events, 38 bytes
gather: 2 events, 14 bytes
reduce_scatter: 4 events, 12 bytes
host: 2 events, 32 bytes
peak of unsharded parameters: 0 bytes; of gather buffers: 0 bytes
no prefetch was wasted
)");
}

// Each rank copies its rows to their place, and nothing out. A group in flight is one more: 3.
TEST(ScheduleText, OfTheFastLayoutIsThatOfADeviceThatGathersInPlace) {
  EXPECT_EQ(to_text(second_step({.layout = sharding::GatherLayout::kFast})),
            R"(schedule of one step, in the order the host issued it
IN copy-in, AG all-gather, W waited for, RE resharded, RIN reduction's copy-in, RS reduce-scatter, AR all-reduce, B backward, O optimizer
    #  stream          event  group           bytes
    1  gather_copy_in  IN     (root)              8  fp32
    2  gather          AG     (root)              8  fp32
    3  compute         W      (root)              0
    4  compute         run                       80  1 kernel
    5  gather_copy_in  IN     items.0             8  fp32
    6  gather          AG     items.0             8  fp32
    7  compute         W      items.0             0
    8  compute         run                       80  1 kernel
    9                  RE     items.0
   10  gather_copy_in  IN     items.1             8  fp32
   11  gather          AG     items.1             8  fp32
   12  compute         W      items.1             0
   13  compute         run                       80  1 kernel
   14                  RE     items.1
   15  compute         run                       36  1 kernel
   16  gather_copy_in  IN     items.1             8  fp32
   17  gather          AG     items.1             8  fp32
   18  compute         W      items.1             0
   19  gather_copy_in  IN     items.0             8  fp32
   20  gather          AG     items.0             8  fp32, prefetched
   21  compute         run                       48  1 kernel
   22                  RE     items.1
   23  compute         RIN    items.1            16  fp32
   24  reduce_scatter  RS     items.1             8  fp32
   25  compute         W      items.0             0
   26  compute         run                       48  1 kernel
   27                  RE     items.0
   28  compute         RIN    items.0            16  fp32
   29  reduce_scatter  RS     items.0             8  fp32
   30  compute         run                       48  1 kernel
   31                  RE     (root)
   32  compute         RIN    (root)             16  fp32
   33  reduce_scatter  RS     (root)              8  fp32
gather_copy_in: 5 events, 40 bytes
gather: 5 events, 40 bytes
compute: 15 events, 468 bytes
reduce_scatter: 3 events, 24 bytes
peak of unsharded parameters: 1536 bytes; of gather buffers: 0 bytes
no prefetch was wasted
)");
}

void root_prefetches_first_item(Shifts& model) { sharding::set_modules_to_forward_prefetch(model, {&model.items[0]}); }

TEST(WastedPrefetch, IsNoneBehindTheRootsOwnKernel) {
  EXPECT_THAT(second_step({.prepare = root_prefetches_first_item}).wasted, IsEmpty());
}

TEST(WastedPrefetch, IsOneThatIsWaitedForBeforeAnyKernel) {
  const ScheduleView view = second_step({.own_last = true, .prepare = root_prefetches_first_item});
  // IN, AG, W of the root; IN, AG of items.0, ahead; W of items.0.
  EXPECT_THAT(to_text(view),
              HasSubstr("\nprefetch of items.0 (event 5) had nothing to hide behind: no kernel ran before it was "
                        "waited for (event 6)\n"));
  EXPECT_THAT(view.wasted, SizeIs(1));
}

// Forward of the root 1..4, of items.0 5..9, the mean 10; items.0 gathered 11..13, items.1 ahead 14, 15; backward of
// items.0 16..19, of the root 20..23; then the end of backward.
TEST(WastedPrefetch, IsOneThatIsNeverUsed) {
  const ScheduleView view =
      second_step({.skips_last = true, .prepare = [](Shifts& model) {
                     sharding::set_modules_to_backward_prefetch(model.items[0], {&model.items[1]});
                   }});
  ASSERT_THAT(view.wasted, SizeIs(1));
  EXPECT_EQ(view.wasted[0].why, WastedPrefetch::Why::kNeverUsed);
  EXPECT_EQ(view.events[view.wasted[0].issued - 1].token, "AG");
  EXPECT_EQ(view.events[view.wasted[0].ended - 1].token, "DROP");
  EXPECT_THAT(to_text(view), HasSubstr("\nprefetch of items.1 (event 15) was never used and dropped (event 24)\n"));
}

// Root 1..4 (its AG 2), then ahead: items.1 5, 6 and items.0 7, 8; items.0 is waited for first.
TEST(WastedPrefetch, IsOneThatComesBeforeItsTurn) {
  const ScheduleView view = second_step({.prepare = [](Shifts& model) {
    sharding::set_modules_to_forward_prefetch(model, {&model.items[1], &model.items[0]});
  }});
  ASSERT_THAT(view.wasted, SizeIs(1));
  const WastedPrefetch& wasted = view.wasted[0];
  EXPECT_EQ(wasted.why, WastedPrefetch::Why::kOutOfOrder);
  EXPECT_EQ(view.events[wasted.ended - 1].token, "W");
  EXPECT_THAT(to_text(view), HasSubstr(fmt::format(
                                 "\nprefetch of items.1 (event {}) came out of order: it was used at event {}, after "
                                 "1 group gathered later; list the modules in the order in which they run\n",
                                 wasted.issued, wasted.ended)));
}

// items.1 returns what the root returns: its hook prefetches items.0, then the root's gathers its own parameters.
TEST(WastedPrefetch, IsNoneThatARootOvertakesInBackward) {
  const ScheduleView view =
      second_step({.reshards_root = true, .prepare = [](Shifts& model) {
                     sharding::set_modules_to_backward_prefetch(model.items[1], {&model.items[0]});
                   }});
  EXPECT_THAT(to_text(view), ContainsRegex("AG +items.0 .*prefetched\n.*\n.*AG +\\(root\\) "));
  EXPECT_THAT(view.wasted, IsEmpty());
}

}  // namespace
}  // namespace loom::observe
