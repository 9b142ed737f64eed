# sluice_test(NAME sources... LIBS libs...): one GoogleTest program, each TEST a ctest test of its own.
include(GoogleTest)

# Compiled for tests only. asan watches the product: what calls it compiles a third faster without. Threads have to be watched
# on both sides. Nobody waits for a test's own loops, and its lines are in what GoogleTest says: less optimisation, no debug
# information (the debug preset has it).
function(sluice_test_code target)
  if(SLUICE_SANITIZE)
    target_compile_definitions(${target} PRIVATE SLUICE_SANITIZED)
  endif()
  if(SLUICE_SANITIZE MATCHES "thread")
    sluice_unoptimised(${target})
  elseif(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1;-g0>)
  endif()
  if(SLUICE_SANITIZE MATCHES "address")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=all>)
  endif()
endfunction()

function(sluice_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} sluice::flags GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SLUICE_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  sluice_test_code(${name})
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS "${arg_LABELS}")
endfunction()
