// The project's own models/, of the same names as Shardloom's: each finds its own.
#pragma once

inline constexpr int kOwnModelHub = 5;
