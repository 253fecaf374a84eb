#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/convert/convert.h"
#include "engine/convert/dcp/dcp_output.h"
#include "engine/convert/dcp/names.h"
#include "engine/convert/hf/expert_tensors.h"
#include "engine/convert/mcore/mcore_output.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/io/output_plan.h"

namespace loom::checkpoint {
namespace {

// What goes into one file of the checkpoint, in order.
using FileTensors = std::map<std::string, std::vector<OutputTensor>>;

class Import {
 public:
  Import(const HfToDcp& options, const TensorList& list)
      : options_(options), list_(list), fused_(options.fused_linear_names) {}

  FileTensors outputs() {
    const FusedExperts experts = fused_experts(list_);
    for (const SourceTensor& tensor : list_.tensors()) {
      if (!experts.taken.contains(tensor.name)) add(tensor, tensor.name);
    }
    for (const OutputTensor& fused : experts.tensors) put(fused, fused.parts.front().from->file);
    for (const auto& [target, source] : options_.ties) add_tie(target, source);
    fused_.refuse_unmet(options_.hf_dir.string(), list_.names());
    return std::move(outputs_);
  }

 private:
  void add(const SourceTensor& tensor, const std::string& hf_name) { put(whole(tensor, hf_name), tensor.file); }

  // A tensor under its Hugging Face name.
  void put(OutputTensor output, const std::string& file) {
    const std::string hf_name = std::exchange(output.name, options_.names.to_dcp(output.name));
    if (output.shape.ndim() == 3 && fused_.has(hf_name)) {
      output.shape = {output.shape[0] * output.shape[1], output.shape[2]};
    }
    if (options_.dtype && is_floating(output.dtype)) output.dtype = *options_.dtype;
    const auto [former, is_new] = taken_.emplace(output.name, hf_name);
    if (!is_new) {
      config_error("--dcp-prefix and --hf-prefix: '{}' and '{}' would both be 'model.{}' in the checkpoint",
                   shown_text(former->second), shown_text(hf_name), shown_text(output.name));
    }
    outputs_[file].push_back(std::move(output));
  }

  void add_tie(const std::string& target, const std::string& source) {
    const SourceTensor* tensor = list_.find(source);
    if (tensor == nullptr) {
      const auto nearest = nearest_spelling(source, list_.names());
      config_error("--tie-weight-mapping {}={}: {} has no tensor '{}'{}", shown_text(target), shown_text(source),
                   options_.hf_dir.string(), shown_text(source),
                   nearest ? fmt::format("; did you mean '{}'?", shown_text(*nearest)) : "");
    }
    if (list_.find(target) != nullptr) {
      config_error("--tie-weight-mapping {}={}: {} has a tensor '{}' of its own; leave the pair out",
                   shown_text(target), shown_text(source), options_.hf_dir.string(), shown_text(target));
    }
    add(*tensor, target);
  }

  const HfToDcp& options_;
  const TensorList& list_;
  FusedNames fused_;
  FileTensors outputs_;
  std::map<std::string, std::string> taken_;  // name in the checkpoint -> Hugging Face name
};

std::uint64_t size_of(const FileTensors& files) {
  std::uint64_t bytes = 0;
  for (const auto& [file, tensors] : files) {
    for (const OutputTensor& tensor : tensors) bytes += tensor.size_bytes();
  }
  return bytes;
}

void write_file(DcpOutput& output, const std::vector<OutputTensor>& tensors, TensorCopy& copy) {
  output.begin_file();
  for (const OutputTensor& tensor : tensors) {
    io::DcpItem item{"model." + tensor.name, {"model", tensor.name}, true, tensor.dtype, tensor.shape, {}};
    const Offset begin(static_cast<std::size_t>(tensor.shape.ndim()), 0);
    output.tensor(item, begin, tensor.shape, copy.producer(tensor));
    output.add(std::move(item));
  }
}

}  // namespace

Converted convert(const HfToDcp& options, const CopyWatcher& watcher) {
  const io::HfWeights weights(options.hf_dir);
  const TensorList list = with_qwen_spelling(tensors_of(weights));
  const FileTensors files = Import(options, list).outputs();
  io::OutputPlan plan;
  plan.reads("--hf-dir", options.hf_dir);
  plan.writes_folder("--dcp-dir", options.dcp_dir);
  plan.check();
  plan.prepare();
  DcpOutput output("--dcp-dir", options.dcp_dir, kRelease);
  Converted done{.files = static_cast<std::int64_t>(files.size()), .bytes = size_of(files)};
  TensorCopy copy(done.bytes, watcher);
  for (const auto& [file, tensors] : files) {
    write_file(output, tensors, copy);
    done.tensors += static_cast<std::int64_t>(tensors.size());
  }
  io::DcpItem version{"checkpoint_version", {"checkpoint_version"}, false, {}, {}, {}};
  if (files.empty()) output.begin_file();
  output.value(version, io::PlainValue::real(kMegatronVersion));
  output.add(std::move(version));
  done.path = output.commit();
  done.overflows = copy.overflows();
  return done;
}

}  // namespace loom::checkpoint
