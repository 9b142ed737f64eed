#pragma once
// The primitives of the instruction set that a file is compiled for: of the header in this folder
// that its variant_*.cc includes before all else; of isa/generic.h where none was, as when an
// editor opens a header alone.
#ifndef SLUICE_ISA_CHOSEN
#include "kernels/cpu/isa/generic.h"
#endif
