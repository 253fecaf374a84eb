// ReshardAfterForward: what becomes of gathered parameters between forward and backward.
//
//   never (false)    they stay gathered.
//   always (true)    they are freed; backward gathers them from all ranks of the shard group.
//   to k ranks (k)   each of k consecutive ranks keeps 1 / k of them; backward gathers from these.
//
// Written as in fsdp2_config.yaml and in PyTorch: true, false or a number. On N ranks, 1 is false and N is true. "Not
// chosen" (the root then keeps, all others free) is std::optional's nothing, not a value of this type.
#pragma once

#include <optional>
#include <string>

namespace loom::sharding {

class ReshardAfterForward {
 public:
  // As the key's values are written. ConfigError unless `ranks` >= 1.
  ReshardAfterForward(bool on) : ranks_(on ? kAlways : kNever) {}  // NOLINT: as written
  ReshardAfterForward(int ranks);                                  // NOLINT
  ReshardAfterForward(double) = delete;
  template <class T>
  ReshardAfterForward(T*) = delete;

  static ReshardAfterForward always() { return true; }
  static ReshardAfterForward never() { return false; }
  static ReshardAfterForward to(int ranks) { return ranks; }

  // Gathered parameters are freed, wholly or but for a part.
  bool frees() const { return ranks_ != kNever; }
  // k; nothing for true and false.
  std::optional<int> ranks() const { return ranks_ > 0 ? std::optional(ranks_) : std::nullopt; }
  // The same on a shard group of `shard_size` ranks, where 1 is never and N always: then ranks() lies strictly between.
  // Nothing when k does not divide N.
  std::optional<ReshardAfterForward> on(int shard_size) const;

  // "true", "false", "2": as it is written in the file.
  std::string text() const;

  // 1 and false are different values, though they do the same: compare what on() gives.
  bool operator==(const ReshardAfterForward&) const = default;

 private:
  static constexpr int kNever = -1;
  static constexpr int kAlways = 0;

  int ranks_;
};

}  // namespace loom::sharding
