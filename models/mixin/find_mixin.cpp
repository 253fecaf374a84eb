#include "models/mixin/find_mixin.h"

#include <cxxabi.h>

#include "engine/core/error.h"

namespace loom::models {
namespace {

struct Paths {
  int all = 0;
  int hidden = 0;  // over a base that is not public
};

// The ways from a class to one of its bases, as the C++ ABI of GCC and clang describes classes.
void count_paths(const std::type_info& type, const std::type_info& base, bool is_public, Paths& paths) {
  if (type == base) {
    ++paths.all;
    if (!is_public) ++paths.hidden;
  } else if (const auto* one = dynamic_cast<const abi::__si_class_type_info*>(&type)) {
    count_paths(*one->__base_type, base, is_public, paths);
  } else if (const auto* several = dynamic_cast<const abi::__vmi_class_type_info*>(&type)) {
    for (unsigned i = 0; i < several->__base_count; ++i) {
      const abi::__base_class_type_info& info = several->__base_info[i];
      count_paths(*info.__base_type, base, is_public && info.__is_public_p(), paths);
    }
  }
}

}  // namespace

void check_unreachable(const nn::Module& model, const std::type_info& mixin, std::string_view name) {
  Paths paths;
  count_paths(typeid(model), mixin, true, paths);
  if (paths.all == 0) return;
  if (paths.hidden > 0) {
    config_error(
        "{} inherits {} without public, so that none of its hooks would be called; write 'public models::{}' among its "
        "bases",
        model.type_name(), name, name);
  }
  config_error(
      "{} inherits {} {} times, through different bases, so that none of its hooks would be called; name it once: "
      "leave it out where a base has it already",
      model.type_name(), name, paths.all);
}

}  // namespace loom::models
