# Everything that is not ours comes from distribution packages (scripts/setup.sh installs them).
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Boost 1.74 REQUIRED)  # headers: Asio and Beast
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)

# Not by its own config file: Debian's demands OpenCL headers, which nothing here needs.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
if(NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()

# Not by pkg-config: Ubuntu 24.04's file asks for protobuf's, which the package does not bring and nothing here needs.
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h REQUIRED)
find_library(SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
if(NOT TARGET sentencepiece::sentencepiece)
  add_library(sentencepiece::sentencepiece UNKNOWN IMPORTED)
  set_target_properties(sentencepiece::sentencepiece PROPERTIES IMPORTED_LOCATION ${SENTENCEPIECE_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${SENTENCEPIECE_INCLUDE_DIR})
endif()

# cpp-httplib: a header alone on newer distributions, a compiled part on others.
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)

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
  include(CheckLanguage)
  if(CUDAToolkit_FOUND)
    if(NOT DEFINED ENV{CUDACXX} AND NOT CMAKE_CUDA_COMPILER)
      set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})  # it need not be in the path
    endif()
    set(CMAKE_CUDA_ARCHITECTURES ${SLUICE_CUDA_ARCHS})
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(SLUICE_HAVE_CUDA ON)
    message(STATUS "CUDA ${CUDAToolkit_VERSION} found: building for GPUs of ${SLUICE_CUDA_ARCHS}")
  else()
    message(STATUS "No CUDA compiler that works here: building for the CPU only")
  endif()
endif()

# The C interface alone: no library of C++ bindings.
set(SLUICE_HAVE_MPI OFF)
if(SLUICE_MPI)
  enable_language(C)  # its compiler names the library
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    set(SLUICE_HAVE_MPI ON)
  else()
    message(STATUS "No MPI (libopenmpi-dev): sluice batch works on one machine, or by --shard")
  endif()
endif()
