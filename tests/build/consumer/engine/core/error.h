#error "the project's own engine/core/error.h stands in the place of Shardloom's"
