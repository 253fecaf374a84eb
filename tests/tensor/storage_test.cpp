// Promise: a storage is one object through any number of releases; reading what has no memory is an error that names
//          it.
#include "engine/tensor/storage.h"

#include <algorithm>
#include <chrono>
#include <gmock/gmock.h>
#include <thread>

#include "engine/core/error.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using device::MemCategory;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(Storage, ReadingAReleasedOneNamesIt) {
  test::OneRank rank;
  const Tensor x = Tensor::zeros({4}, DType::kF32, MemCategory::kParameter, "layers.3.weight");
  x.storage()->release();
  EXPECT_THAT([&] { x.raw(); },
              ThrowsMessage<InvariantError>(
                  StrEq("[rank 0] internal: 'layers.3.weight' was read while it has no memory (it was released)")));
}

TEST(Storage, ReadingAMetaTensorNamesIt) {
  test::OneRank rank;
  const Tensor x = Tensor::meta({4}, DType::kF32, "weight");
  EXPECT_TRUE(x.is_meta());
  EXPECT_THAT([&] { x.raw(); },
              ThrowsMessage<InvariantError>(
                  StrEq("[rank 0] internal: 'weight' was read while it has no memory (it is on the meta device)")));
  EXPECT_THAT([&] { x.storage()->allocate(); },
              ThrowsMessage<InvariantError>(
                  StrEq("[rank 0] internal: 'weight' is on the meta device and cannot be allocated there")));
}

TEST(Storage, TensorsSeeTheValuesThatAreThereWhenTheyRead) {
  test::OneRank rank;
  const Tensor x = test::constant({1, 2, 3});
  const Tensor earlier = x.detach();
  x.storage()->release();
  EXPECT_EQ(rank.bytes(), 0);
  x.storage()->allocate();
  x.copy_from(test::constant({4, 5, 6}));
  EXPECT_THAT(test::values(earlier), ElementsAre(4, 5, 6));
  EXPECT_EQ(rank.bytes(), 512);
}

TEST(Storage, AllocatingAndReleasingMayBeRepeated) {
  test::OneRank rank;
  const Tensor x = Tensor::zeros({4}, DType::kF32);
  const void* bytes = x.raw();
  x.storage()->allocate();
  EXPECT_EQ(x.raw(), bytes);
  x.storage()->release();
  x.storage()->release();
  EXPECT_FALSE(x.storage()->allocated());
}

TEST(Storage, HostMemoryIsNotTheDevices) {
  test::OneRank rank({.profile = {.name = "tiny", .memory_bytes = 512}});
  const Tensor x = Tensor::host({1000}, DType::kF64);
  x.fill(2);
  EXPECT_EQ(test::values(x)[999], 2);
  EXPECT_EQ(rank.bytes(), 0);
}

TEST(Storage, AdoptsABlockThatIsLargeEnough) {
  test::OneRank rank;
  const Tensor x = Tensor::zeros({4}, DType::kF32, MemCategory::kParameter, "weight");
  x.storage()->release();
  auto small = rank.device().memory().allocate(8, MemCategory::kTemporary, "block");
  EXPECT_THAT([&] { x.storage()->adopt(small); },
              ThrowsMessage<InvariantError>(StrEq("[rank 0] internal: 'weight' needs 16 bytes and was offered 8")));
  auto block = rank.device().memory().allocate(16, MemCategory::kTemporary, "block");
  x.storage()->adopt(block);
  EXPECT_EQ(x.raw(), block->data());
}

TEST(Storage, RecategorizingMovesItsBytes) {
  test::OneRank rank;
  const Tensor x = Tensor::zeros({4}, DType::kF32);
  x.storage()->recategorize(MemCategory::kGradient);
  EXPECT_EQ(rank.stats().by_category[MemCategory::kGradient], 512);
  x.storage()->release();
  x.storage()->allocate();  // stays where it was put
  EXPECT_EQ(rank.stats().by_category[MemCategory::kGradient], 512);
}

TEST(Storage, HasNoBytesInADryRun) {
  test::OneRank rank({.dry_run = true});
  const Tensor x = Tensor::full({1 << 20, 1 << 10}, DType::kF32, 3);
  EXPECT_EQ(x.raw(), nullptr);
  EXPECT_EQ(rank.bytes(), std::int64_t{4} << 30);
  EXPECT_EQ(Tensor::full({}, DType::kF32, 3).item(), 0);
}

// --- Host memory beside a device

Tensor host_like_a_gradient(device::Device& device, bool pinned) {
  auto storage = std::make_shared<Storage>(Place::kHost, &device, 16, MemCategory::kGradient, "gradient", pinned);
  storage->allocate();
  return {std::move(storage), 0, {4}, DType::kF32};
}

TEST(HostStorage, BesideADeviceIsCountedInItsHostMemory) {
  test::OneRank rank;
  const Tensor x = host_like_a_gradient(rank.device(), true);
  const Tensor y = Tensor::empty_beside(x, {2}, DType::kF32, MemCategory::kOptimizerState, "moment");
  EXPECT_EQ(y.storage()->place(), Place::kHost);
  EXPECT_TRUE(y.storage()->pinned());
  EXPECT_EQ(rank.device().host_memory().stats().total_bytes, 16 + 8);
  EXPECT_EQ(rank.bytes(), 0);
  x.storage()->release();
  EXPECT_EQ(rank.device().host_memory().stats().total_bytes, 8);
  EXPECT_EQ(Tensor::host({4}, DType::kF32).storage()->device(), nullptr);  // belongs to no account
  EXPECT_EQ(rank.device().host_memory().stats().total_bytes, 8);
}

TEST(HostStorage, IsReadOnlyAfterItsBytesHaveLanded) {
  test::OneRank rank;
  const Tensor x = host_like_a_gradient(rank.device(), false);
  x.fill(0);
  auto* bytes = x.data<float>();
  const device::Event landed = device::Event::pending();
  x.storage()->set_ready(landed);
  EXPECT_FALSE(x.storage()->is_ready());
  const std::jthread stream([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a reader that does not wait would see zeros
    std::fill_n(bytes, 4, 3.0f);
    landed.settle(nullptr);
  });
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(3, 3, 3, 3));
  EXPECT_TRUE(x.storage()->is_ready());
}

TEST(HostStorage, WhoseCopyFailedTellsTheReaderWhy) {
  test::OneRank rank;
  const Tensor x = host_like_a_gradient(rank.device(), false);
  const device::Event landed = device::Event::pending();
  x.storage()->set_ready(landed);
  landed.settle(std::make_exception_ptr(CommError("rank 1 is gone")));
  EXPECT_THAT([&] { x.raw(); }, ThrowsMessage<CommError>(StrEq("rank 1 is gone")));
}

}  // namespace
}  // namespace loom
