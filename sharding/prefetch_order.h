// The order in which groups are gathered ahead of their use, by the explicit prefetch lists. Private to sharding.
//
// Unit      the groups whose hooks run together, a module of each, in pre-order: those groups inside one of
//           hook_modules; without hook_modules, one group.
// Order     registration: the model's, reversed in backward. list: the order of the last entry of sub_modules_to_wrap
//           that selects the unit, then the model's; a unit inside another one, and behind it in the list, follows it
//           in both directions.
// Lists     a unit's next units are the targets of the group whose hook runs last: in forward the innermost one, in
//           backward the outermost one.
// Source    MindSpeed-MM, mixin route (registration) and native files (list).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/parallelize.h"

namespace loom::sharding {

using PrefetchUnit = std::vector<std::string>;  // paths

struct PrefetchUnits {
  std::vector<PrefetchUnit> forward;
  std::vector<PrefetchUnit> backward;
};

PrefetchUnits prefetch_units(std::span<const WrappedGroup> groups, PrefetchOrder order);
// `forward` and `backward`: how many units ahead; 0 leaves the implicit order.
void set_prefetch_units(nn::Module& model, const PrefetchUnits& units, int forward, int backward);

}  // namespace loom::sharding
