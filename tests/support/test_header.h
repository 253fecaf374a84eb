// Precompiled for test programs (cmake/LoomTestCompiler.cmake).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmake/precompiled.h"
