#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "engine/core/philox_rounds.h"
#include "engine/core/rng.h"

// Box-Muller for kBlocks Philox blocks side by side, with polynomials of our own in place of the C library's log, sin
// and cos: additions, products, quotients and square roots alone, compiled without contraction, so every processor and
// library gives the same bits. Four million numbers were within 3e-15 of max(1, |x|) of those with the C library.

#define LOOM_INLINE [[gnu::always_inline]] inline

namespace loom {
namespace {

constexpr int kBlocks = kPhiloxBlocks;
constexpr int kNumbers = 2 * kBlocks;
using Words = PhiloxWords;
typedef std::int64_t Integers __attribute__((vector_size(8 * kBlocks)));
typedef double Reals __attribute__((vector_size(8 * kBlocks)));

// coefficients[0] + x * coefficients[1] + ...
template <int kCount>
LOOM_INLINE Reals polynomial(const double (&coefficients)[kCount], Reals x) {
  Reals sum = x * coefficients[kCount - 1] + coefficients[kCount - 2];
#pragma GCC unroll 16
  for (int i = kCount - 3; i >= 0; --i) sum = sum * x + coefficients[i];
  return sum;
}

// ln(n / 2^32) of whole numbers in [1, 2^32]: n = f 2^e with f in [sqrt(1/2), sqrt(2)],
// ln f = 2 atanh((f - 1) / (f + 1)).
LOOM_INLINE Reals log_of_fraction(Words n) {
  constexpr double kAtanh[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9, 2.0 / 11,
                               2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  constexpr std::int64_t kMantissa = (std::int64_t{1} << 52) - 1, kOne = std::int64_t{1023} << 52;
  const Integers bits = (Integers) __builtin_convertvector(n, Reals);
  Reals f = (Reals)((bits & kMantissa) | kOne);
  const Integers is_above = f > std::numbers::sqrt2;
  const Integers exponent = (bits >> 52) - 1023 - is_above;  // true is -1
  f = is_above ? f * 0.5 : f;
  const Reals s = (f - 1.0) / (f + 1.0);
  return __builtin_convertvector(exponent - 32, Reals) * std::numbers::ln2 + s * polynomial(kAtanh, s * s);
}

struct CosineAndSine {
  Reals cosine, sine;
};

// Of 2 pi n / 2^32: n = quarter 2^30 + rest, |rest| <= 2^29, exactly; Taylor's polynomials on [-pi/4, pi/4].
LOOM_INLINE CosineAndSine cosine_and_sine_of_turns(Words n) {
  constexpr double kCosine[] = {1.0,
                                -1.0 / 2,
                                1.0 / 24,
                                -1.0 / 720,
                                1.0 / 40320,
                                -1.0 / 3628800,
                                1.0 / 479001600,
                                -1.0 / 87178291200.0,
                                1.0 / 20922789888000.0};
  constexpr double kSine[] = {1.0,          -1.0 / 6,        1.0 / 120,          -1.0 / 5040,
                              1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800.0, -1.0 / 1307674368000.0};
  const Words quarter = (n + (std::uint64_t{1} << 29)) >> 30;
  const Reals x = __builtin_convertvector((Integers)(n - (quarter << 30)), Reals) * (2 * std::numbers::pi * 0x1p-32);
  const Reals square = x * x;
  const Reals cosine = polynomial(kCosine, square), sine = x * polynomial(kSine, square);
  const Integers is_odd = (quarter & 1) != 0;
  const Reals c = is_odd ? sine : cosine, s = is_odd ? cosine : sine;
  const Words cosine_sign = ((quarter + 1) & 2) << 62, sine_sign = (quarter & 2) << 62;
  return {(Reals)((Words)c ^ cosine_sign), (Reals)((Words)s ^ sine_sign)};
}

LOOM_INLINE Reals square_root(Reals x) {
  for (int i = 0; i < kBlocks; ++i) x[i] = std::sqrt(x[i]);
  return x;
}

// Elements 2 block ... 2 block + kNumbers - 1 of a stream. One function for all callers: the same bits.
[[gnu::noinline]] void draw_blocks(std::uint64_t key, std::uint64_t block, double* to) {
  const std::array<Words, 4> words = philox_blocks(key, block);
  const Reals radius = square_root(log_of_fraction(words[0] + 1) * -2.0);
  const CosineAndSine angle = cosine_and_sine_of_turns(words[1]);
  const Reals even = radius * angle.cosine, odd = radius * angle.sine;
  for (int i = 0; i < kBlocks; ++i) {
    to[2 * i] = even[i];
    to[2 * i + 1] = odd[i];
  }
}

}  // namespace

void normals_at(std::uint64_t key, std::uint64_t first, std::span<double> to) {
  std::size_t done = 0;
  while (done < to.size()) {
    const std::uint64_t index = first + done;
    if (index % 2 == 0 && to.size() - done >= kNumbers) {
      draw_blocks(key, index / 2, to.data() + done);
      done += kNumbers;
      continue;
    }
    double numbers[kNumbers];
    draw_blocks(key, index / 2, numbers);
    const std::size_t some = std::min<std::size_t>(kNumbers - index % 2, to.size() - done);
    std::copy_n(numbers + index % 2, some, to.data() + done);
    done += some;
  }
}

double normal_at(std::uint64_t key, std::uint64_t index) {
  double number = 0;
  normals_at(key, index, {&number, 1});
  return number;
}

}  // namespace loom
