# orthant_add_plugin(NAME source...): a plugin module, built the same way inside the tree and outside it.
# The file is lib<orthant_plugin_NAME>.so; the loader finds NAME by that file name.
# Behind NAME may stand NOT_INSTALLED: for tests, no part of the package; or ON_USE: `./launch` does not build it, its
# first use does.
function(orthant_add_plugin name)
  set(target orthant_plugin_${name})
  cmake_parse_arguments(PARSE_ARGV 1 plugin "NOT_INSTALLED;ON_USE" "" "")
  add_library(${target} MODULE ${plugin_UNPARSED_ARGUMENTS})
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(TARGET orthant::orthant)  # outside the tree: into the build folder itself
    orthant_stamp(${target})
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
    target_link_libraries(${target} PRIVATE orthant::orthant)
  else()
    target_link_libraries(${target} PRIVATE orthant orthant_options)
    orthant_compile_by_folder(${target})
    if(plugin_NOT_INSTALLED)
      orthant_stamp(${target})
      set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/orthant/plugins")
    elseif(plugin_ON_USE)
      orthant_own_module(${target})
    else()
      orthant_install_module(${target})
    endif()
  endif()
endfunction()

# orthant_stamp(TARGET): a checksum behind the library's end, by which one that was damaged later is refused. Installing
# then must not rewrite the library's search path: it is the installed one from the start. The loader needs none for
# liborthant.so, which has been loaded by then.
set(ORTHANT_STAMP "${CMAKE_CURRENT_LIST_DIR}/OrthantStamp.cmake" CACHE INTERNAL "")
function(orthant_stamp target)
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  add_custom_command(TARGET ${target} POST_BUILD VERBATIM
    COMMAND "${CMAKE_COMMAND}" -D "FILE=$<TARGET_FILE:${target}>" -P "${ORTHANT_STAMP}")
endfunction()

# orthant_install_module(TARGET): a module of this tree that the loader finds beside the plugins, here and where it is
# installed.
function(orthant_install_module target)
  orthant_place_module(${target})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  set_property(GLOBAL APPEND PROPERTY ORTHANT_PLUGIN_TARGETS ${target})
endfunction()
function(orthant_place_module target)
  orthant_stamp(${target})
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/orthant/plugins")
  install(TARGETS ${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/orthant/plugins")
endfunction()

# orthant_own_module(TARGET): a module that is opened, and in a build folder built, when it is needed
# (core/base/build_on_use.h).
function(orthant_own_module target)
  orthant_place_module(${target})
  set_property(GLOBAL APPEND PROPERTY ORTHANT_OWN_MODULES ${target})
  file(CONFIGURE OUTPUT "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/orthant/plugins/lib${target}.so.about"
    CONTENT "build = ${CMAKE_BINARY_DIR}\n" @ONLY)
endfunction()
