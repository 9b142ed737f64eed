# sluice::flags: warnings and sanitizers, linked PRIVATE by every target of ours.
add_library(sluice_flags INTERFACE)
add_library(sluice::flags ALIAS sluice_flags)
target_compile_options(sluice_flags INTERFACE
                       $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>)
if(SLUICE_SANITIZE)
  target_compile_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer)
  if(SLUICE_SANITIZE MATCHES "undefined")
    # A null pointer ends the program anyway, with its place; checks of it before every access are a tenth of the compile.
    target_compile_options(sluice_flags INTERFACE -fno-sanitize-recover=undefined -fno-sanitize=null,object-size,vptr)
  endif()
  target_link_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()

# Instrumented code takes two to three times as long to compile with any optimisation: what only calls the product goes
# without (sluice_unoptimised(TARGET)).
function(sluice_unoptimised target)
  if(SLUICE_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
endfunction()

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()
