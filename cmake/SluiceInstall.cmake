# The installed library: one archive of all rooms, libsluice.a, the headers of include/sluice, a CMake package and a
# pkg-config file. cmake --install BUILD --component library [--prefix DIR].
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(rooms base shape schedule policy io kernels text chat sampling guide lora jobs device cache layer model engine profile app api service library gpu)
if(SLUICE_HAVE_CUDA)
  list(APPEND rooms engine_cuda cuda)
endif()
set(archive ${CMAKE_BINARY_DIR}/lib/libsluice.a)
set(script "CREATE ${archive}\n")
set(targets "")
foreach(room ${rooms})
  string(APPEND script "ADDLIB $<TARGET_FILE:sluice_${room}>\n")
  list(APPEND targets sluice_${room})
endforeach()
if(SLUICE_HAVE_CUDA)
  string(APPEND script "ADDLIB $<TARGET_FILE:CUDA::cudart_static>\n")
endif()
string(APPEND script "SAVE\nEND\n")
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/lib/libsluice.mri CONTENT "${script}")
add_custom_command(OUTPUT ${archive}
                   COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
                   COMMAND ${CMAKE_AR} -M < ${CMAKE_BINARY_DIR}/lib/libsluice.mri
                   DEPENDS ${targets} ${CMAKE_BINARY_DIR}/lib/libsluice.mri
                   COMMENT "Putting the library's rooms into one archive")
add_custom_target(sluice_archive DEPENDS ${archive})

# What the archive needs of the system, by the names that a linker takes.
set(SLUICE_SYSTEM_LIBRARIES fmt uring glpk dnnl pcre2-8 utf8proc sentencepiece z gomp pthread dl rt m)
list(TRANSFORM SLUICE_SYSTEM_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE flags)
list(JOIN flags " " SLUICE_SYSTEM_FLAGS)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/sluice-config.cmake.in ${CMAKE_BINARY_DIR}/lib/sluice-config.cmake
                              INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lib/sluice-config-version.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH SLUICE_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/sluice.pc.in ${CMAKE_BINARY_DIR}/lib/sluice.pc @ONLY)

install(FILES ${archive} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sluice DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library
        EXCLUDE_FROM_ALL PATTERN error.h EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/src/base/error.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice COMPONENT library
        EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_BINARY_DIR}/lib/sluice-config.cmake ${CMAKE_BINARY_DIR}/lib/sluice-config-version.cmake
        DESTINATION ${package} COMPONENT library EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_BINARY_DIR}/lib/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library
        EXCLUDE_FROM_ALL)
install(TARGETS sluice_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
