# Read by cpack for each kind of package: an archive holds one folder of its own name, a .deb what belongs under /.
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
