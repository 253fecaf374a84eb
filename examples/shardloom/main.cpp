// The shardloom program.
#include "engine/cli/program.h"

int main(int argc, char** argv) { return loom::cli::program_main(argc, argv); }
