#include "engine/kernels/gemm_amx_tile.h"
#include "engine/kernels/gemm_isa_avx512.h"

namespace loom::kernels {
namespace {

struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct AmxRegisters {
  // The configuration belongs to the thread.
  static void begin() {
    static thread_local bool is_configured = false;
    if (is_configured) return;
    const TileConfiguration configuration;
    _tile_loadconfig(&configuration);
    is_configured = true;
  }
  // The compiler's own functions are macros that want a literal register.
  template <int kC>
  static LOOM_ALWAYS_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kC));
  }
  template <int kRegister>
  static LOOM_ALWAYS_INLINE void load(const void* from, std::int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(kRegister) : "memory");
  }
  template <int kC, int kA, int kB>
  static LOOM_ALWAYS_INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC>
  static LOOM_ALWAYS_INLINE void store(void* to, std::int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(kC) : "memory");
  }
  template <int kWidth>
  static void write(const GemmTile& t, const float* sums) {
    write_words<Avx512, kWidth / Avx512::kLanes>(t, sums);
  }
};

template <int kWidth>
struct OfAnyRows {
  TileSet::Multiply of_rows[kAmxRows];
  constexpr OfAnyRows() {
    for (TileSet::Multiply& multiply : of_rows) multiply = &AmxTile<AmxRegisters, kWidth>::multiply;
  }
};

constexpr OfAnyRows<32> kWide;
constexpr OfAnyRows<16> kNarrow;

}  // namespace

extern const TileSet kAmxBf16 = {kAmxRows,
                                 {32, 32, 16},
                                 {kWide.of_rows, kWide.of_rows, kNarrow.of_rows},
                                 true,
                                 &pack_a_along_k<Avx512, kAmxRows>,
                                 &pack_b<Avx512>};

}  // namespace loom::kernels
