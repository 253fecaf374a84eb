// ExpertRoutes: how many rows go to each expert, of which ranks share E: the part of the work that the two dispatchers
// have in common. Private to models.
//
// Letters  e ranks share E experts, rank r has those from r E / e on.
// Dry run  there are no tokens to count: rows are shared out evenly, or as expert_load.h says, as far as a capacity
//          allows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/comm/mesh.h"
#include "engine/dist/channel.h"
#include "engine/tensor/ops/moe.h"

namespace loom::models {

class ExpertRoutes {
 public:
  // Precondition: the axis has e ranks, and e divides `experts`.
  // `path` of the module names the work in errors and traces.
  ExpertRoutes(const comm::Axis& axis, std::int64_t experts, std::string path)
      : ranks_{axis.shared_group()}, experts_(experts), own_(experts / axis.size()), path_(std::move(path)) {}

  const dist::Channel& ranks() const { return ranks_; }
  std::int64_t experts() const { return experts_; }
  std::int64_t own() const { return own_; }  // experts of this rank
  std::int64_t first() const { return ranks_.rank() * own_; }
  const std::string& path() const { return path_; }

  // Of a dry run, for each expert, of `rows` rows.
  std::vector<std::int64_t> planned(std::int64_t rows, const ops::ExpertCapacity& capacity) const;

 private:
  const dist::Channel ranks_;
  const std::int64_t experts_;
  const std::int64_t own_;
  const std::string path_;
};

// What a host does before it reads values: it waits for the compute stream. For a dry run, which has none to read.
void await_values(const Tensor& values);

}  // namespace loom::models
