// Compiled into every program that links the installed package: where the package's configs/ are.
#include <shardloom/engine/config/share_folder.h>

namespace {
const loom::config::ShareFolder kOfPackage(SHARDLOOM_SHARE_DIR);
}
