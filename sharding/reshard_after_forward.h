// ReshardAfterForward: the state of gathered parameters between forward and backward.
//
//   never (false)    they remain gathered.
//   always (true)    they are freed; backward gathers them from all ranks of the shard group.
//   to k ranks (k)   each of k consecutive ranks keeps 1 / k of them; backward gathers from these.
//
// Written as in fsdp2_config.yaml and in PyTorch: true, false or a number. On N ranks, 1 is false and N is true. "Not
// set" (the root then keeps, all others free) is an empty std::optional, not a value of this type.
#pragma once

#include <optional>
#include <string>

namespace loom::sharding {

class ReshardAfterForward {
 public:
  // From the values of the key. ConfigError unless `ranks` >= 1.
  ReshardAfterForward(bool on) : ranks_(on ? kAlways : kNever) {}  // NOLINT: as written
  ReshardAfterForward(int ranks);                                  // NOLINT
  ReshardAfterForward(double) = delete;
  template <class T>
  ReshardAfterForward(T*) = delete;

  static ReshardAfterForward always() { return true; }
  static ReshardAfterForward never() { return false; }
  static ReshardAfterForward to(int ranks) { return ranks; }

  // Whether gathered parameters are freed, wholly or except for a part.
  bool frees() const { return ranks_ != kNever; }
  // k; none for true and false.
  std::optional<int> ranks() const { return ranks_ > 0 ? std::optional(ranks_) : std::nullopt; }
  // The same on a shard group of `shard_size` ranks, where 1 is never and N always: then ranks() is strictly between.
  // Nothing if k does not divide N.
  std::optional<ReshardAfterForward> on(int shard_size) const;

  // "true", "false", "2": the form in the file.
  std::string text() const;

  // 1 and false are different values, though their effect is the same: compare the results of on().
  bool operator==(const ReshardAfterForward&) const = default;

 private:
  static constexpr int kNever = -1;
  static constexpr int kAlways = 0;

  int ranks_;
};

}  // namespace loom::sharding
