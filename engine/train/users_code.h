// Exceptions of a program's callbacks, with their place. Private to engine/train.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "engine/core/error.h"

namespace loom::train {

// Runs `call`, code of the user's program. Its exception becomes an Error "[rank R] NAME threw an exception in PLACE:
// TEXT". Errors of the engine and bad_alloc pass unchanged: they have more detail already.
template <class Call>
auto run_users_code(std::string_view name, std::string_view place, Call&& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    raise<Error>("{} threw an exception in {}: {}", name, place, error.what());
  }
}

}  // namespace loom::train
