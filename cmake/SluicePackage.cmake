# What `cpack` makes of a build (scripts/package.sh does it all): of the program a package `sluice`, of the library
# `libsluice-dev`, each as .deb and as .tar.gz. Component `manual`: the program's pages and what shells complete,
# written by the program itself.
set(pages ${CMAKE_BINARY_DIR}/share)
set(completions ${pages}/bash-completion/completions/sluice ${pages}/zsh/vendor-completions/_sluice
                ${pages}/fish/vendor_completions.d/sluice.fish)
list(GET completions 0 bash)
list(GET completions 1 zsh)
list(GET completions 2 fish)
foreach(file IN LISTS completions)
  get_filename_component(folder ${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
endforeach()
add_custom_command(OUTPUT ${completions} ${pages}/man/man1/sluice.1
                   COMMAND sluice_tool manual --all ${pages}/man/man1
                   COMMAND sluice_tool completions bash > ${bash}
                   COMMAND sluice_tool completions zsh > ${zsh}
                   COMMAND sluice_tool completions fish > ${fish}
                   DEPENDS sluice_tool VERBATIM COMMENT "Writing manual pages and completions")
add_custom_target(sluice_pages DEPENDS ${completions} ${pages}/man/man1/sluice.1)
install(DIRECTORY ${pages}/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT manual EXCLUDE_FROM_ALL)

# systemd looks in lib, whatever the distribution calls the folder of its libraries.
install(FILES ${PROJECT_SOURCE_DIR}/packaging/sluice@.service ${PROJECT_SOURCE_DIR}/packaging/sluice@.socket
        DESTINATION lib/systemd/system COMPONENT manual EXCLUDE_FROM_ALL)

set(docs ${CMAKE_INSTALL_DATADIR}/doc)
foreach(name sluice libsluice-dev)
  set(component manual)
  if(name STREQUAL "libsluice-dev")
    set(component library)
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${docs}/${name} COMPONENT ${component} EXCLUDE_FROM_ALL
          RENAME copyright)
  install(FILES ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${docs}/${name} COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/examples/generate.cc DESTINATION ${docs}/libsluice-dev/examples COMPONENT library
        EXCLUDE_FROM_ALL)

set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_VENDOR sluice)
set(CPACK_PACKAGE_CONTACT "the sluice developers <noreply@sluice.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "runs language models that are bigger than the memory")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_COMPONENTS_ALL program manual library)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENT_PROGRAM_GROUP program)
set(CPACK_COMPONENT_MANUAL_GROUP program)
set(CPACK_COMPONENT_LIBRARY_GROUP library)

set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/SluiceArchive.cmake)
set(CPACK_PACKAGE_FILE_NAME sluice-${PROJECT_VERSION}-linux-x86_64)
set(CPACK_ARCHIVE_PROGRAM_FILE_NAME ${CPACK_PACKAGE_FILE_NAME})
set(CPACK_ARCHIVE_LIBRARY_FILE_NAME libsluice-dev-${PROJECT_VERSION}-linux-x86_64)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME sluice)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libsluice-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION
    "What fits stays in memory; the rest of a model's weights streams from disk
while the processor computes. Hugging Face folders, GGUF files and packed
stores; a command line and an OpenAI-compatible server.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
    "The static library, its headers, a CMake package and a pkg-config file,
for programs that run models that are bigger than the memory.")

# sluice_installed_version(PACKAGE OUT): "12.2" of a package's upstream version on this machine; empty where there is
# none.
function(sluice_installed_version package out)
  execute_process(COMMAND dpkg-query -W -f \${Version} ${package} OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX REPLACE "^[0-9]+:" "" version "${version}")
  string(REGEX MATCH "^[0-9]+(\\.[0-9]+)?" version "${version}")
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Who links the static library needs the very libraries that its code was compiled against: their series here.
set(series "")
foreach(package libfmt-dev liburing-dev libglpk-dev libdnnl-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev
                zlib1g-dev)
  sluice_installed_version(${package} version)
  if(version MATCHES "^([0-9]+)")
    math(EXPR next "${CMAKE_MATCH_1} + 1")
    execute_process(COMMAND dpkg-query -W -f \${Version} ${package} OUTPUT_VARIABLE whole ERROR_QUIET)
    string(REGEX MATCH "^[0-9]+:" epoch "${whole}")
    list(APPEND series "${package} (>= ${epoch}${version})" "${package} (<< ${epoch}${next})")
  endif()
endforeach()
list(JOIN series ", " CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS)

if(SLUICE_BUNDLE)
  if(SLUICE_HAVE_MPI)
    message(FATAL_ERROR "Open MPI looks for its parts in folders of its own, so a package can't hold it: "
                        "-DSLUICE_MPI=OFF, or -DSLUICE_BUNDLE=OFF")
  endif()
  set_target_properties(sluice_tool PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/sluice")
  sluice_bundle(sluice_tool EXECUTABLES lib/sluice program LICENCES ${docs}/sluice/libraries)
  # What is left is glibc and the compiler's libraries, in the versions of this machine or later ones.
  sluice_installed_version(libc6 glibc)
  sluice_installed_version(libstdc++6 compiler)
  string(REGEX MATCH "^[0-9]+" compiler "${compiler}")
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS "libc6 (>= ${glibc}), libstdc++6 (>= ${compiler}), libgcc-s1")
else()
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
endif()
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "bash-completion")
include(CPack)
