# lapidary_layer(NAME DEP...): one static library from all the sources of the calling folder, linked against the given targets.
function(lapidary_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  add_library(lapidary_${name} STATIC ${sources})
  target_include_directories(lapidary_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(lapidary_${name} PUBLIC ${ARGN})
endfunction()
