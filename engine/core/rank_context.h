// RankContext: the root of a rank's state. It owns everything else that the rank has.
//
// A rank is one host thread of control with one emulated NPU. There is no global mutable state: a floor that needs
// something per rank (the device, the grad mode, the compute pool) keeps it in a slot of its own type here.
// A thread works for at most one rank at a time; RankScope says which.
//
// Slots    one T a rank, made at first use and ended with the context, the last one made first. Every type has a fixed
//          index, so that a look-up is one load; at most kMaxSlots types in a program (InvariantError beyond).
// Threads  any thread working for the rank may look up a slot; what is in it has its own rule (mostly: the host
//          thread's).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace loom {

class RankContext {
 public:
  RankContext(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // The rank's own T, default-constructed at first use. The reference stays valid as long as the context.
  template <class T>
  T& slot() {
    static const std::size_t index = next_slot_index();
    void* held = slots_[index].load(std::memory_order_acquire);
    if (held == nullptr)
      held = make_slot(index, [] { return Owned{new T, [](void* p) { delete static_cast<T*>(p); }}; });
    return *static_cast<T*>(held);
  }

  // Runs `stop` when the context ends, the last one given first, while every slot can still be looked up: for what
  // works for the rank on threads of its own. `stop` does not throw.
  void at_end(std::function<void()> stop);

  // The part of the user's program that is running, for the text of ModelErrors: "the forward of 'layers.1' (Block)",
  // or "". A higher floor supplies the function, which is called on the rank's host thread.
  void set_program_place(std::string (*place)()) { program_place_ = place; }
  std::string program_place() const { return program_place_ == nullptr ? std::string{} : program_place_(); }

  // The context of this thread. Throws InvariantError when no rank is current.
  static RankContext& current();
  static RankContext* current_or_null();

  static constexpr std::size_t kMaxSlots = 32;

 private:
  friend class RankScope;
  struct Owned {
    void* value;
    void (*end)(void*);
  };
  static std::size_t next_slot_index();
  void* make_slot(std::size_t index, Owned (*make)());

  const int rank_;
  const int world_size_;
  std::array<std::atomic<void*>, kMaxSlots> slots_{};
  std::recursive_mutex making_;  // a slot's constructor may look up another slot
  std::vector<Owned> owned_;     // in the order they were made
  std::vector<std::function<void()>> at_end_;
  std::string (*program_place_)() = nullptr;
};

// Makes a context current on this thread for the scope's lifetime; scopes nest.
class RankScope {
 public:
  explicit RankScope(RankContext& context);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  RankContext* const previous_;
};

}  // namespace loom
