// Patterns of modules, parsed and expanded over a small tree.
#include <algorithm>
#include <array>

#include "sharding/config/module_pattern.h"
#include "tests/fuzz/fuzz.h"

namespace {

// model, model.layers.0 to .7, model.layers.N.mlp, lm_head.
class Tree : public loom::sharding::ModuleTreeView {
 public:
  Tree() : paths_{"model", "model.layers", "lm_head"} {
    for (int i = 0; i < kLayers; ++i) {
      paths_.push_back(fmt::format("model.layers.{}", i));
      paths_.push_back(fmt::format("model.layers.{}.mlp", i));
    }
  }
  bool exists(std::string_view path) const override {
    return std::find(paths_.begin(), paths_.end(), path) != paths_.end();
  }
  std::optional<int> container_size(std::string_view path) const override {
    return path == "model.layers" ? std::optional(kLayers) : std::nullopt;
  }
  std::vector<std::string> known_paths() const override { return paths_; }

 private:
  static constexpr int kLayers = 8;
  std::vector<std::string> paths_;
};

}  // namespace

LOOM_FUZZ_TARGET(module_pattern) {
  using namespace loom;
  static const Tree tree;
  return fuzz::answered_or_refused([&] {
    const auto pattern =
        sharding::ModulePattern::parse(fuzz::text_of(data, size), "sub_modules_to_wrap", {"fsdp2_config.yaml", 3, 5});
    for (const std::string& path : sharding::expand(pattern, tree).paths) {
      if (!tree.exists(path)) fuzz::found("a path the tree does not have", path);
    }
  });
}
