# The installed package: library, program, public headers, and find_package(orthant) with orthant_add_plugin.
include(CMakePackageConfigHelpers)
install(TARGETS orthant EXPORT orthantTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET orthant_program)
  install(TARGETS orthant_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY core/include/orthant DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY "${ORTHANT_GENERATED_DIR}/orthant/abi" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/orthant)
set(ORTHANT_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/orthant")
install(EXPORT orthantTargets NAMESPACE orthant:: DESTINATION ${ORTHANT_PACKAGE_DIR})
configure_package_config_file(cmake/orthantConfig.cmake.in "${CMAKE_BINARY_DIR}/orthantConfig.cmake"
  INSTALL_DESTINATION ${ORTHANT_PACKAGE_DIR})
write_basic_package_version_file("${CMAKE_BINARY_DIR}/orthantConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/orthantConfig.cmake" "${CMAKE_BINARY_DIR}/orthantConfigVersion.cmake"
  cmake/OrthantPlugin.cmake cmake/OrthantStamp.cmake DESTINATION ${ORTHANT_PACKAGE_DIR})
install(FILES scripts/completion/orthant.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME orthant)
install(FILES scripts/completion/_orthant DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
