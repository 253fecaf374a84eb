// Must not compile: a module that is called with a pointer, which would become a flag. The test looks for the remedy in
// the compiler's message.
#include "engine/nn/module.h"

loom::nn::Value call(loom::nn::Module& module, const loom::Tensor* hidden) { return module(hidden); }
