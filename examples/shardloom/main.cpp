// The shardloom program.
#include "engine/train/program.h"

int main(int argc, char** argv) { return loom::train::program_main(argc, argv); }
