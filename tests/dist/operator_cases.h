// What operators on several ranks give, and their gradients, as cases for ranks of any kind: threads
// (operators_test.cpp) and processes (mpi_operators.cpp). fp64.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/dist/operators.h"
#include "tests/tensor/tensors.h"

namespace loom::dist {

struct Case {
  std::string name;
  std::function<Shape(int rank, int ranks)> shape;
  // What one rank does.
  std::function<Tensor(const Tensor& x, const Channel& channel)> part;
  // The results of all ranks from the inputs of all.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& x)> whole;
  bool one_loss = false;  // all ranks compute the loss of rank 0
};

struct Outcome {
  test::Doubles values;
  test::Doubles gradient;
};

const std::vector<Case>& cases();

// The input of a rank, and its loss: no gradient of it is a constant.
Tensor input_of(int rank, const Shape& shape);
Tensor loss_of(const Tensor& y, int rank);

Outcome on_this_rank(const Case& of, const Channel& channel);
// Of all ranks, computed by one that holds all parts. No rank is current.
std::vector<Outcome> on_one_rank(const Case& of, int ranks);

// The largest distance between two outcomes; infinite where sizes differ or a number is not finite.
double distance(const Outcome& a, const Outcome& b);
inline constexpr double kTolerance = 1e-12;

}  // namespace loom::dist
