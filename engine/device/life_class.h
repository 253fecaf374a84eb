// The lifetime of a piece of memory. With --memory-fragmentation each class has its own pools, so that short-lived
// pieces do not lie between long-lived ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace loom::device {

enum class LifeClass : std::uint8_t {
  kStatic,         // the whole run: shards, optimizer state
  kStep,           // from backward to the optimizer: gradients
  kActivation,     // from forward to backward
  kTemporary,      // inside an operator
  kCommunication,  // buffers of collectives, and what they fill
};
inline constexpr std::size_t kLifeClasses = 5;
// "static", "step", "activation", "temporary", "communication".
std::string_view name(LifeClass life);

// Which requests share pieces. kByStream: requests of one stream, as in PyTorch. kByLife: also of one class only.
enum class PoolRule : std::uint8_t { kByStream, kByLife };

}  // namespace loom::device
