#include "engine/kernels/bf16_products.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace loom::kernels {
namespace {

#if defined(__x86_64__)
bool is_of_intel() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ebx == signature_INTEL_ebx && ecx == signature_INTEL_ecx &&
         edx == signature_INTEL_edx;
}

bool is_cooper_lake() {
  constexpr unsigned kFamily = 6, kModel = 0x55;  // shared with Skylake and Cascade Lake, which have no vdpbf16ps
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  const unsigned model = (eax >> 4 & 0xf) | (eax >> 12 & 0xf0);
  return (eax >> 8 & 0xf) == kFamily && model == kModel;
}
#endif

}  // namespace

Bf16Products fastest_bf16_products() {
#if defined(__x86_64__)
  static const Bf16Products fastest =
      is_of_intel() && !is_cooper_lake() ? Bf16Products::kWidened : Bf16Products::kPairs;
  return fastest;
#else
  return Bf16Products::kPairs;
#endif
}

}  // namespace loom::kernels
