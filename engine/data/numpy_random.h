// NumpyRandom: the draws of numpy.random.RandomState, bit for bit.
//
// Source   numpy/random: _mt19937.pyx (legacy seeding), distributions.c (random_interval), mtrand.pyx (shuffle).
// Threads  one thread at a time.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace loom::data {

class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  // 0 to `most`, each as likely. Draws of 32 bits, or of 64 where `most` needs them, are cut to the bits of `most` and
  // drawn again while they are above it.
  std::uint64_t bounded(std::uint64_t most);

  // Depends on the number of values alone.
  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[bounded(i)]);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace loom::data
