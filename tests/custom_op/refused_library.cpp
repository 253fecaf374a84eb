// Libraries that are refused, one for each value of LOOM_MISTAKE.
#include "engine/custom_op/abi.h"

namespace {

extern "C" {
int32_t shape(const LoomCall*, LoomShape*, LoomMessage*) { return 0; }
int32_t cost(const LoomCall*, const LoomTensor*, LoomCost*, LoomMessage*) { return 0; }
int32_t forward(const LoomCall*, const LoomTensor*, LoomMessage*) { return 0; }
int32_t grad_cost(const LoomGradCall*, LoomCost*, LoomMessage*) { return 0; }
}

enum Mistake {
  kAbi,
  kSize,
  kEmpty,
  kNoTable,
  kTwice,
  kName,
  kNoName,
  kInputs,
  kSaved,
  kDtypes,
  kNoForward,
  kNoBackward,
  kThrows,
  kNoSymbol
};
constexpr Mistake kMistake = LOOM_MISTAKE;

const uint32_t kDtypeSets[] = {kMistake == kDtypes ? 0U : 1U};

constexpr const char* name() { return kMistake == kName ? "Scaled\nGelu" : kMistake == kNoName ? nullptr : "refused"; }

const LoomOperator kRow = {name(),
                           kMistake == kInputs ? 17 : 1,
                           1,
                           0,
                           kMistake == kSaved ? 2 : 0,
                           0,
                           kDtypeSets,
                           shape,
                           cost,
                           kMistake == kNoForward ? nullptr : forward,
                           kMistake == kNoBackward ? grad_cost : nullptr,
                           nullptr};
const LoomOperator kOperators[] = {kRow, kRow};

// Nothing behind the version is valid in a table of another version.
const LoomOperatorTable kTable = {kMistake == kAbi ? 2U : LOOM_CUSTOM_OP_ABI,
                                  kMistake == kSize ? 1U : static_cast<uint32_t>(sizeof(LoomOperator)),
                                  kMistake == kEmpty   ? 0U
                                  : kMistake == kTwice ? 2U
                                                       : 1U,
                                  0, kMistake == kAbi ? nullptr : kOperators};

}  // namespace

#if LOOM_HAS_SYMBOL
extern "C" const LoomOperatorTable* loom_custom_ops(void) {
  if (kMistake == kThrows) throw 1;
  return kMistake == kNoTable ? nullptr : &kTable;
}
#else
extern "C" LOOM_EXPORT const LoomOperatorTable* another_symbol(void) { return &kTable; }
#endif
