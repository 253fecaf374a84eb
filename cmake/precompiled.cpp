// The source that a target with a precompiled header needs (LoomPrecompiled.cmake).
int main() {}
