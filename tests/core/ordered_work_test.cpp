// Promise: items are taken in the order they were made, each worked on once, whatever the number of workers; few of
//          them exist at a time, and the first error in order comes out.
#include "engine/core/ordered_work.h"

#include <atomic>
#include <chrono>
#include <gmock/gmock.h>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/error.h"

namespace loom {
namespace {

using ::testing::HasSubstr;

constexpr int kItems = 200;

// What happened; items say it themselves.
struct Seen {
  std::vector<int> taken;
  std::atomic<int> alive = 0;
  std::atomic<int> most_alive = 0;
  std::vector<std::atomic<int>> busy = std::vector<std::atomic<int>>(8);  // workers that work
  std::atomic<bool> shared_worker = false;
  int fails_work = -10;
  int fails_take = -10;
};

class Number final : public OrderedItem {
 public:
  Number(int number, Seen& seen) : number_(number), seen_(seen) {
    const int alive = ++seen_.alive;
    int most = seen_.most_alive;
    while (alive > most && !seen_.most_alive.compare_exchange_weak(most, alive)) {
    }
  }
  ~Number() override { --seen_.alive; }

  void work(int worker) override {
    if (++seen_.busy.at(static_cast<std::size_t>(worker)) > 1) seen_.shared_worker = true;
    if (number_ % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // others overtake it
    ++works_;
    --seen_.busy.at(static_cast<std::size_t>(worker));
    if (number_ == seen_.fails_work || number_ == seen_.fails_work + 1) raise<Error>("work {} failed", number_);
  }
  void take() override {
    EXPECT_EQ(works_, 1);
    if (number_ == seen_.fails_take) raise<Error>("take {} failed", number_);
    seen_.taken.push_back(number_);
  }

 private:
  const int number_;
  Seen& seen_;
  int works_ = 0;
};

// Items 0, 1, ...; instead of item `broken` an error.
void run(int workers, Seen& seen, int broken = -1) {
  int made = 0;
  run_in_order(workers, [&]() -> std::unique_ptr<OrderedItem> {
    if (made == broken) raise<Error>("item {} is broken", made);
    if (made == kItems) return nullptr;
    return std::make_unique<Number>(made++, seen);
  });
}

std::string failure(int workers, Seen& seen, int broken = -1) {
  try {
    run(workers, seen, broken);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<int> first(int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

// Numbers of workers that this build accepts: with serial loops only 1.
std::vector<int> worker_counts() {
  std::vector<int> counts;
  for (const int workers : {1, 2, 4}) {
    Seen seen;
    const std::string text = failure(workers, seen);
    if (text == "nothing was thrown") {
      counts.push_back(workers);
    } else {
      EXPECT_EQ(text, std::to_string(workers) +
                          " workers requested, but this build has serial loops (LOOM_PARALLEL=serial); use 1");
    }
  }
  EXPECT_EQ(counts.front(), 1);
  return counts;
}

TEST(OrderedWork, TakesItemsInOrderEachWorkedOnOnce) {
  for (const int workers : worker_counts()) {
    Seen seen;
    run(workers, seen);
    EXPECT_EQ(seen.taken, first(kItems)) << workers;
    EXPECT_LE(seen.most_alive, workers * kItemsPerWorker);
    EXPECT_FALSE(seen.shared_worker);
    EXPECT_EQ(seen.alive, 0);
  }
}

TEST(OrderedWork, RethrowsTheFirstErrorInOrder) {
  for (const int workers : worker_counts()) {
    Seen works;
    works.fails_work = 42;  // 43, whose work ends earlier, fails too
    EXPECT_THAT(failure(workers, works), HasSubstr("work 42 failed"));
    EXPECT_EQ(works.taken, first(42));
    Seen takes;
    takes.fails_take = 17;
    EXPECT_THAT(failure(workers, takes), HasSubstr("take 17 failed"));
    EXPECT_EQ(takes.taken, first(17));
    Seen made;
    EXPECT_THAT(failure(workers, made, 99), HasSubstr("item 99 is broken"));
    EXPECT_EQ(made.taken, first(99));
    EXPECT_EQ(made.alive, 0);
  }
}

}  // namespace
}  // namespace loom
