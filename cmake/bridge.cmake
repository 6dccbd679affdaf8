# The Rust static library (tokenizers, minijinja, llguidance) behind bridge/include/bridge.h. Sanitised and fuzzing builds share one cargo folder.
find_program(CARGO cargo REQUIRED)
set(LAPIDARY_CARGO_TARGET ${PROJECT_SOURCE_DIR}/build/cargo CACHE PATH "Where cargo builds the bridge")
set(bridge_lib ${LAPIDARY_CARGO_TARGET}/release/liblapidary_bridge.a)
add_custom_command(
  OUTPUT ${bridge_lib}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${LAPIDARY_CARGO_TARGET} ${CARGO} build --release --locked
          --manifest-path ${PROJECT_SOURCE_DIR}/bridge/Cargo.toml
  DEPENDS ${PROJECT_SOURCE_DIR}/bridge/Cargo.toml ${PROJECT_SOURCE_DIR}/bridge/Cargo.lock
  DEPFILE ${LAPIDARY_CARGO_TARGET}/release/liblapidary_bridge.d
  USES_TERMINAL VERBATIM)
add_custom_target(bridge_build DEPENDS ${bridge_lib})
add_library(bridge STATIC IMPORTED GLOBAL)
set_target_properties(bridge PROPERTIES IMPORTED_LOCATION ${bridge_lib} INTERFACE_LINK_LIBRARIES "pthread;dl;m")
target_include_directories(bridge INTERFACE ${PROJECT_SOURCE_DIR}/bridge/include)
add_dependencies(bridge bridge_build)
