#include <cpuid.h>
#include <unistd.h>

#include <sys/syscall.h>

#include "engine/core/processor_level.h"
#include "engine/kernels/bf16_products.h"
#include "engine/kernels/gemm_kernels.h"

namespace loom::kernels {

extern const TileSet kAvx2Fp32;
extern const TileSet kAvx512Fp32;
extern const TileSet kAvx512Bf16;
extern const TileSet kAmxBf16;

namespace {

constexpr GemmKernels kAvx2 = {"AVX2", &kAvx2Fp32, nullptr};
constexpr GemmKernels kAvx512 = {"AVX-512", &kAvx512Fp32, nullptr};
constexpr GemmKernels kAvx512AndBf16 = {"AVX-512 bf16", &kAvx512Fp32, &kAvx512Bf16};
constexpr GemmKernels kAvx512AndAmx = {"AMX bf16", &kAvx512Fp32, &kAmxBf16};

// The processor has matrix registers for bf16, and Linux lets this process use them.
bool may_use_amx() {
  constexpr unsigned kAmxBf16Bit = 1u << 22, kAmxTileBit = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxBf16Bit) == 0 || (edx & kAmxTileBit) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Found {
  const GemmKernels* sets[4] = {};
  int count = 0;

  Found() {
    __builtin_cpu_init();
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!has_avx2) return;
    sets[count++] = &kAvx2;
    if (processor_level() < ProcessorLevel::kAvx512) return;
    const bool pairs_are_fast = fastest_bf16_products() == Bf16Products::kPairs;
    if (pairs_are_fast) sets[count++] = &kAvx512;
    if (processor_level() == ProcessorLevel::kAvx512Bf16) sets[count++] = &kAvx512AndBf16;
    if (!pairs_are_fast) sets[count++] = &kAvx512;
    if (may_use_amx()) sets[count++] = &kAvx512AndAmx;
  }
};

}  // namespace

GemmKernelSets gemm_kernel_sets() {
  static const Found found;
  return {found.sets, found.count};
}

}  // namespace loom::kernels
