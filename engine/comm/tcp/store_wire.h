// What clients of torch.distributed's TCPStore and its server say. Private to engine/comm.
//
// A request is a Query and its arguments: texts as their length (u64) and bytes, numbers as they lie in memory (little
// endian). A client says kValidate and kValidationMagic first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loom::comm::tcp {

enum class Query : std::uint8_t {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing
};
enum class Check : std::uint8_t { kReady, kNotReady };
enum class Wait : std::uint8_t { kStopWaiting, kWaitCanceled };

inline constexpr std::uint32_t kValidationMagic = 0x3C85F7CE;
inline constexpr std::size_t kLongestKey = 4096;
inline constexpr std::size_t kLongestValue = std::size_t{1} << 20;

}  // namespace loom::comm::tcp
