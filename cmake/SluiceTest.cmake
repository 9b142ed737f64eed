# sluice_test(NAME sources... LIBS libs...): one GoogleTest program, each TEST a ctest test of its own.
include(GoogleTest)
function(sluice_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} sluice::flags GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SLUICE_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 300)
endfunction()
