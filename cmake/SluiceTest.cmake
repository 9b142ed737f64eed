# sluice_test(NAME sources... LIBS libs... [TOGETHER]): one GoogleTest program, each TEST a ctest test of its own. TOGETHER: its
# sources are compiled eight at a time, in every build alike: a third of the time, and no names of their own in common.
include(GoogleTest)

# Compiled for tests only. asan watches the product: what calls it is compiled without, by the very command of the release
# preset, so that the compiler cache compiles it once for both. Threads have to be watched on both sides. Nobody waits for a
# test's own loops, and its lines are in what GoogleTest says: less optimisation, no debug information (the debug preset has it).
function(sluice_test_code target)
  sluice_apart(${target})
  if(SLUICE_SANITIZE MATCHES "thread")
    target_link_libraries(${target} PRIVATE sluice::flags)
    sluice_unoptimised(${target})
    return()
  endif()
  target_link_libraries(${target} PRIVATE sluice::warnings)
  if(SLUICE_SANITIZE)
    target_link_options(${target} PRIVATE -fsanitize=${SLUICE_SANITIZE})
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1;-g0>)
  endif()
endfunction()

function(sluice_test name)
  cmake_parse_arguments(arg "TOGETHER" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gtest GTest::gtest_main)
  add_dependencies(${name} sluice_fixtures)  # what models there are says which tests there are
  target_compile_definitions(${name} PRIVATE SLUICE_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  sluice_test_code(${name})
  if(arg_TOGETHER)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS "${arg_LABELS}")
endfunction()
