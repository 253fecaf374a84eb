// Thread libraries count the cores once per process: the cores of the thread that first uses the library.
#pragma once

namespace loom {

// Makes them count now, before the calling thread is bound to fewer. Does nothing in a build with serial loops.
void count_cores();

}  // namespace loom
