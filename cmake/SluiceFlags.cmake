# sluice::warnings, and sluice::flags: those and sanitizers, linked PRIVATE by every target of ours.
add_library(sluice_warnings INTERFACE)
add_library(sluice::warnings ALIAS sluice_warnings)
target_compile_options(sluice_warnings INTERFACE
                       $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>)
# Of several sources in one, gcc takes all but the first for headers, whose types may not have parts that are a source's own.
target_compile_options(sluice_warnings INTERFACE
                       $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
add_library(sluice_flags INTERFACE)
add_library(sluice::flags ALIAS sluice_flags)
target_link_libraries(sluice_flags INTERFACE sluice::warnings)
if(SLUICE_SANITIZE)
  target_compile_options(sluice_flags INTERFACE $<IF:$<BOOL:$<TARGET_PROPERTY:SLUICE_UNOPTIMISED>>,-O0,-O1> -UNDEBUG
                         -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer)
  if(SLUICE_SANITIZE MATCHES "undefined")
    # A null pointer ends the program anyway, with its place, and a pointer that runs over misses its object; checks of them and
    # of alignment before every access are a quarter of the compile.
    target_compile_options(sluice_flags INTERFACE -fno-sanitize-recover=undefined
                           -fno-sanitize=null,object-size,vptr,alignment,pointer-overflow)
  endif()
  target_link_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()

# Instrumented code takes two to three times as long to compile with any optimisation: what computes little goes without
# (sluice_unoptimised(TARGET)).
function(sluice_unoptimised target)
  set_target_properties(${target} PROPERTIES SLUICE_UNOPTIMISED ON)
endfunction()

# The presets but debug compile a folder's sources eight at a time (CMakePresets.json), which takes half as long: a folder's
# sources have no names of their own in common. Targets whose sources differ in flags stay apart (sluice_apart(TARGET)).
function(sluice_apart target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
endfunction()

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE)
  # Paths relative to the build: tests are the same to the cache in every build folder.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${SLUICE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()
