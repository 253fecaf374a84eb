// Must not compile: a forward that returns a struct without to_value(). The test looks for the remedy in the compiler's
// message.
#include "engine/nn/module.h"

namespace {

struct Output {
  loom::Tensor logits, hidden;
};

class ReturnsAStruct final : public loom::nn::Module {
 public:
  std::string_view type_name() const override { return "ReturnsAStruct"; }

 protected:
  loom::nn::Value forward(const loom::nn::Args& args) override { return Output{args.tensor(0), args.tensor(0)}; }
};

}  // namespace

int main() { return ReturnsAStruct().has_forward() ? 0 : 1; }
