// Libraries of threads count the cores of the thread that first uses them, once a process.
#pragma once

namespace loom {

// Has them count now: before the calling thread is bound to fewer. Does nothing in a build with serial loops.
void count_cores();

}  // namespace loom
