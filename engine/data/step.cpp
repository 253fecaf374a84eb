#include "engine/data/step.h"

#include <cstring>
#include <fmt/format.h>
#include <utility>

#include "engine/core/error.h"

namespace loom::data {

const nn::Value& Batch::at(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const auto& [key, value] : values) {
    if (key == name) return value;
    names.push_back(key);
  }
  model_error("the batch has no '{}'; it has {}; give it in the DataLoader, or read one of these", name,
              names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", ")));
}

const nn::Value& Batch::find(std::string_view name) const {
  static const nn::Value none;
  for (const auto& [key, value] : values) {
    if (key == name) return value;
  }
  return none;
}

Batch DataIterator::next() {
  if (taken_) config_error("forward_step took a second batch; it gets one micro-batch for each call");
  taken_ = true;
  Batch batch = to_device(loader_ != nullptr ? (*loader_)(samples_) : std::exchange(batch_, {}));
  if (complete_) complete_(batch);
  return batch;
}

Batch to_device(const Batch& batch) {
  const auto moved = [](const Tensor& tensor) {
    if (tensor.storage()->place() == Place::kDevice) return tensor;
    const Tensor on_device =
        Tensor::empty(tensor.shape(), tensor.dtype(), device::MemCategory::kActivation, tensor.storage()->what());
    require(!tensor.is_meta() || on_device.raw() == nullptr,
            "a batch of shapes without values ('{}') outside a dry run", tensor.storage()->what());
    if (on_device.raw() != nullptr) {
      std::memcpy(on_device.raw(), tensor.raw(), static_cast<std::size_t>(tensor.nbytes()));
    }
    return on_device;
  };
  Batch result;
  for (const auto& [name, value] : batch.values) result.values.emplace_back(name, value.map_tensors(moved));
  return result;
}

}  // namespace loom::data
