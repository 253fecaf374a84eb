#include "engine/train/pipeline/stage_tensors.h"

#include <cstdint>

namespace loom::train {
namespace {

constexpr const char* kTag = "tensors of a stage";

// A number of 8-byte words, then these.
void send_words(comm::ProcessGroup& ranks, int to, const std::vector<std::int64_t>& words) {
  const auto count = static_cast<std::int64_t>(words.size());
  ranks.send(comm::kHostLane, to, {&count, sizeof count}, kTag);
  ranks.send(comm::kHostLane, to, {words.data(), words.size() * sizeof(std::int64_t)}, kTag);
}

std::vector<std::int64_t> received_words(comm::ProcessGroup& ranks, int from) {
  std::int64_t count = 0;
  ranks.recv(comm::kHostLane, from, {&count, sizeof count}, kTag);
  std::vector<std::int64_t> words(static_cast<std::size_t>(count));
  ranks.recv(comm::kHostLane, from, {words.data(), words.size() * sizeof(std::int64_t)}, kTag);
  return words;
}

}  // namespace

void send_tensors(comm::ProcessGroup& ranks, int to, const NamedTensors& tensors) {
  send_words(ranks, to, {static_cast<std::int64_t>(tensors.size())});
  for (const auto& [name, tensor] : tensors) {
    std::vector<std::int64_t> words{static_cast<std::int64_t>(tensor.dtype()), tensor.shape().ndim()};
    words.insert(words.end(), tensor.shape().sizes().begin(), tensor.shape().sizes().end());
    words.insert(words.end(), name.begin(), name.end());
    send_words(ranks, to, words);
    ranks.send(comm::kHostLane, to, {tensor.raw(), static_cast<std::size_t>(tensor.nbytes())}, kTag);
  }
}

NamedTensors received_tensors(comm::ProcessGroup& ranks, int from) {
  NamedTensors tensors(static_cast<std::size_t>(received_words(ranks, from).at(0)));
  for (auto& [name, tensor] : tensors) {
    const std::vector<std::int64_t> words = received_words(ranks, from);
    const auto dims = words.begin() + 2, end_of_dims = dims + words.at(1);
    for (auto letter = end_of_dims; letter != words.end(); ++letter) name.push_back(static_cast<char>(*letter));
    tensor = Tensor::host(Shape(std::vector<std::int64_t>(dims, end_of_dims)), static_cast<DType>(words.at(0)), name);
    ranks.recv(comm::kHostLane, from, {tensor.raw(), static_cast<std::size_t>(tensor.nbytes())}, kTag);
    tensor.storage()->bump_version();
  }
  return tensors;
}

}  // namespace loom::train
