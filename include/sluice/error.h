#pragma once
// The exception that everything here throws. An installed library has the declarations themselves
// in this place.
#include "src/base/error.h"
