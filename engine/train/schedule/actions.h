// A step's work on a rank as a list of actions, in the order in which the host issues them. The trainer runs the list;
// its maker decides the order: today accumulation, one micro-batch after another.
//
//   F0 L0 B0 R0 F1 L1 B1 R1
//
// F  forward: the loss of a micro-batch, by its weight in the loss of the step
// L  the host waits for that loss, reads it and checks it
// B  backward of that loss; frees its tape
// R  the gradients of all backwards up to here are reduced over the ranks. The hooks of a backward issue it group by
//    group as gradients become available, so R directly follows a B; a B without it leaves its gradients unreduced, and
//    they are added to the gradients of the next B
//
// Rules    F, L and B of every micro-batch once and in this order; R of a micro-batch directly behind its B, and behind
//          the last B of the list.
// Threads  any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace loom::train {

enum class ActionKind : std::uint8_t { kForward, kReadLoss, kBackward, kReduce };

struct Action {
  ActionKind kind = ActionKind::kForward;
  std::int64_t micro_batch = 0;

  bool operator==(const Action&) const = default;
};

// One micro-batch after another, each reduced, or the last one alone.
std::vector<Action> accumulation(std::int64_t micro_batches, bool reduces_each = true);

std::string to_text(std::span<const Action> actions);

// InvariantError with the list and the first rule that it violates.
void check_complete(std::span<const Action> actions, std::int64_t micro_batches);

// Whether the gradients of the backward at `index` are reduced with it.
bool is_reduced(std::span<const Action> actions, std::size_t index);

// Whether no backward follows that at `index`.
bool is_last_backward(std::span<const Action> actions, std::size_t index);

}  // namespace loom::train
