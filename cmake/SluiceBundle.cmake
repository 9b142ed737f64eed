# sluice_bundle(TARGET KIND FOLDER COMPONENT): when the component is installed, every library of the system that the
# target loads is copied into FOLDER of the prefix, but those of glibc, of the compiler and of a GPU's driver. KIND:
# EXECUTABLES or MODULES. The target finds them by RPATH rather than RUNPATH, so that libraries of libraries are
# looked for there too. LICENCES FOLDER: what the distribution says of each library's licence is copied there.
function(sluice_bundle target kind folder component)
  cmake_parse_arguments(arg "" "LICENCES" "" ${ARGN})
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  install(CODE "
    set(prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
    file(GET_RUNTIME_DEPENDENCIES ${kind} \"$<TARGET_FILE:${target}>\" RESOLVED_DEPENDENCIES_VAR found
      PRE_EXCLUDE_REGEXES \"^ld-linux\" \"^lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\\\\+\\\\+)\\\\.so\" \"^libpython\" \"^libcuda\\\\.so\" \"^libcublas\")
    file(MAKE_DIRECTORY \"\${prefix}/${folder}\")
    foreach(library IN LISTS found)  # each once, by the name that it is asked for: wheels have no links
      get_filename_component(name \"\${library}\" NAME)
      file(REAL_PATH \"\${library}\" real)
      file(COPY_FILE \"\${real}\" \"\${prefix}/${folder}/\${name}\")
      if(NOT \"${arg_LICENCES}\" STREQUAL \"\")
        get_filename_component(file \"\${real}\" NAME)
        execute_process(COMMAND dpkg-query -S \"*/\${file}\" OUTPUT_VARIABLE owner ERROR_QUIET RESULT_VARIABLE failed)
        string(REGEX REPLACE \":.*\" \"\" owner \"\${owner}\")
        set(said \"/usr/share/doc/\${owner}/copyright\")
        if(failed OR NOT EXISTS \"\${said}\")
          message(FATAL_ERROR \"\${real}: no package says what its licence is, so it can't be passed on\")
        endif()
        file(REAL_PATH \"\${said}\" said)
        file(MAKE_DIRECTORY \"\${prefix}/${arg_LICENCES}\")
        file(COPY_FILE \"\${said}\" \"\${prefix}/${arg_LICENCES}/\${owner}\")
      endif()
    endforeach()
    # Those texts name licences by where the distribution keeps them.
    file(GLOB texts /usr/share/common-licenses/*GPL-[23]*)
    if(NOT \"${arg_LICENCES}\" STREQUAL \"\")
      foreach(text IN LISTS texts)
        get_filename_component(name \"\${text}\" NAME)
        file(REAL_PATH \"\${text}\" text)
        file(COPY_FILE \"\${text}\" \"\${prefix}/${arg_LICENCES}/\${name}\")
      endforeach()
    endif()" COMPONENT ${component})
endfunction()
