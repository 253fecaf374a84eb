#include "engine/kernels/gemm_isa_avx512.h"

namespace loom::kernels {
namespace {

constexpr int kRows = 8;
constexpr TilesOfWidth<Avx512, kRows, 3> kWide;
constexpr TilesOfWidth<Avx512, kRows, 2> kMiddle;
constexpr TilesOfWidth<Avx512, kRows, 1> kNarrow;

}  // namespace

extern const TileSet kAvx512Fp32 = {kRows, {48, 32, 16},           {kWide.of_rows, kMiddle.of_rows, kNarrow.of_rows},
                                    false, &pack_a<Avx512, kRows>, &pack_b<Avx512>};

}  // namespace loom::kernels
