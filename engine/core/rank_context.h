// RankContext: the one thing a rank owns; everything else it has hangs off it.
//
// A rank is one host thread of control with one emulated NPU. There is no global mutable state: a floor that needs
// something per rank (the device, the grad mode, the compute pool) keeps it in a slot of its own type here.
// A thread works for at most one rank at a time; RankScope says which.
//
// Threads  any thread working for the rank may look up a slot; what is in it has its own rule (mostly: the host
//          thread's).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <typeindex>
#include <unordered_map>
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
    const std::lock_guard lock(mutex_);
    std::shared_ptr<void>& held = slots_[std::type_index(typeid(T))];
    if (!held) held = std::make_shared<T>();
    return *static_cast<T*>(held.get());
  }

  // Runs `stop` when the context ends, the last one given first, while every slot can still be looked up: for what
  // works for the rank on threads of its own. `stop` does not throw.
  void at_end(std::function<void()> stop);

  // What of the user's program is running, for the text of ModelErrors: "the forward of 'layers.1' (Block)", or "". A
  // floor that knows of programs gives the function, which is called on the rank's host thread.
  void set_program_place(std::string (*place)()) { program_place_ = place; }
  std::string program_place() const { return program_place_ == nullptr ? std::string{} : program_place_(); }

  // The context of this thread. Throws InvariantError when no rank is current.
  static RankContext& current();
  static RankContext* current_or_null();

 private:
  friend class RankScope;
  const int rank_;
  const int world_size_;
  std::mutex mutex_;
  std::unordered_map<std::type_index, std::shared_ptr<void>> slots_;
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
