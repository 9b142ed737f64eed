# sluice_fixtures: lays what tests/fixtures/packs holds into tests/fixtures (scripts/fixtures.py), now and before what
# reads it is built. Tenths of a second where it lies there already.
find_program(SLUICE_PYTHON_PROGRAM python3 REQUIRED)
set(unpack ${SLUICE_PYTHON_PROGRAM} ${PROJECT_SOURCE_DIR}/scripts/fixtures.py unpack)
execute_process(COMMAND ${unpack} COMMAND_ERROR_IS_FATAL ANY)
add_custom_target(sluice_fixtures ALL COMMAND ${unpack} COMMENT "")
