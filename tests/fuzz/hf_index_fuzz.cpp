// model.safetensors.index.json beside one shard that holds the tensors "a" and "b".
#include "engine/formats/safetensors/hf_weights.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(hf_index) {
  using namespace loom;
  static const bool shard_is_there = [] {
    const std::string header =
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}} )";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    fuzz::written("model-00001-of-00001.safetensors", bytes + header + std::string(16, '\1'));
    return true;
  }();
  return fuzz::answered_or_refused([&] {
    fuzz::written("model.safetensors.index.json", fuzz::text_of(data, size));
    const io::HfWeights weights(fuzz::scratch_folder());
    if (!shard_is_there || weights.names().size() > 2) fuzz::found("more tensors than there are", "");
  });
}
