// Models as a user writes them, for tests of the mixins.
//
//   OwnModel  embed -> layers[n]{norm, up} -> norm -> head, all of width D
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::test {

inline constexpr std::int64_t kOwnWidth = 6;

class OwnBlock : public nn::Module {
 public:
  OwnBlock()
      : norm_(register_module("norm", std::make_shared<nn::RMSNorm>(kOwnWidth, 1e-6))),
        up_(register_module("up", std::make_shared<nn::Linear>(kOwnWidth, kOwnWidth, true, 0.5))) {}
  std::string_view type_name() const override { return "OwnBlock"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    return ops::add(args.tensor(0), ops::tanh(up_(norm_(args.tensor(0)))));
  }

 private:
  nn::RMSNorm& norm_;
  nn::Linear& up_;
};

class PlainModel : public nn::Module {
 public:
  explicit PlainModel(int blocks = 3)
      : embed(register_module("embed", std::make_shared<nn::Linear>(kOwnWidth, kOwnWidth, false, 0.5))),
        layers(register_module("layers", std::make_shared<nn::ModuleList>())),
        norm(register_module("norm", std::make_shared<nn::RMSNorm>(kOwnWidth, 1e-6))),
        head(register_module("head", std::make_shared<nn::Linear>(kOwnWidth, kOwnWidth, true, 0.5))) {
    for (int i = 0; i < blocks; ++i) layers.append(std::make_shared<OwnBlock>());
  }
  std::string_view type_name() const override { return "OwnModel"; }

  nn::Linear& embed;
  nn::ModuleList& layers;
  nn::RMSNorm& norm;
  nn::Linear& head;

 protected:
  nn::Value forward(const nn::Args& args) override {
    Tensor h = embed(args.tensor(0));
    for (std::size_t i = 0; i < layers.size(); ++i) h = layers[i](h);
    return head(norm(h));
  }
};

class OwnModel : public PlainModel, public models::FSDP2Mixin {
 public:
  using PlainModel::PlainModel;
};

inline sharding::Fsdp2Config own_config(const std::string& text) {
  return sharding::parse_fsdp2_config(text, "f.yaml");
}

inline const std::string kWrapLayers = "sharding_size: auto\nsub_modules_to_wrap: ['layers.{*}']\n";

}  // namespace loom::test
