#pragma once
// What convert quantises with: the CPU kernels.
#include "io/convert/convert.h"
#include "kernels/quantise.h"

namespace sluice {

/// For io::ConvertOptions::quantise.
io::PanelQuantiser panel_quantiser(kernels::RangeSearch search);

}  // namespace sluice
