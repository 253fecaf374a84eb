#include "engine/launch/stack.h"

#include <pthread.h>

#include <exception>
#include <sys/resource.h>
#include <thread>

namespace loom::launch {
namespace {

constexpr std::size_t kEnoughBytes = std::size_t{1} << 20;

// For threads started later.
void enlarge_default_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  std::size_t bytes = 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  if (bytes < kStackBytes && pthread_attr_setstacksize(&attributes, kStackBytes) == 0) {
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
}

bool this_stack_is_large() {
  rlimit limit{};
  return getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kEnoughBytes;
}

}  // namespace

int run_on_large_stack(const std::function<int()>& main) {
  enlarge_default_stack();
  if (this_stack_is_large()) return main();
  int status = 0;
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      status = main();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
  return status;
}

}  // namespace loom::launch
