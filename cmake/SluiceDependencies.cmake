# Everything that is not ours comes from distribution packages (scripts/setup.sh installs them).
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)

# Not by its own config file: Debian's demands OpenCL headers, which nothing here needs.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
if(NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()

# GLPK ships no configuration of its own.
find_path(GLPK_INCLUDE_DIR glpk.h REQUIRED)
find_library(GLPK_LIBRARY glpk REQUIRED)
if(NOT TARGET GLPK::glpk)
  add_library(GLPK::glpk UNKNOWN IMPORTED)
  set_target_properties(GLPK::glpk PROPERTIES IMPORTED_LOCATION ${GLPK_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${GLPK_INCLUDE_DIR})
endif()

set(SLUICE_HAVE_CUDA OFF)
if(SLUICE_CUDA)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    set(SLUICE_HAVE_CUDA ON)
    message(STATUS "CUDA ${CUDAToolkit_VERSION} found: sluice doctor reports GPUs")
  else()
    message(STATUS "CUDA not found: building for the CPU only")
  endif()
endif()
