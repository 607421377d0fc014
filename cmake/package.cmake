# What cpack makes: on Debian pith_VERSION_ARCH.deb with the command, its models, pages, completions
# and the service, and libpith-dev with the library. Libraries that they need are found by
# dpkg-shlibdeps. Elsewhere an archive.
set(CPACK_PACKAGE_VENDOR "Pith")
set(CPACK_PACKAGE_CONTACT "The Pith maintainers <pith@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "language models on a KV cache that is a managed memory")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
  GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_GENERATOR TGZ)
if(EXISTS /etc/debian_version)
  set(CPACK_GENERATOR DEB)
endif()
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL command library)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)

set(deb ${PROJECT_SOURCE_DIR}/cmake/deb)
set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME pith)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMMAND_PACKAGE_CONTROL_EXTRA ${deb}/postinst ${deb}/prerm ${deb}/postrm)
if(PITH_SERVER)
  list(APPEND CPACK_DEBIAN_COMMAND_PACKAGE_CONTROL_EXTRA ${deb}/conffiles)
endif()
set(CPACK_DEBIAN_COMMAND_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENT_COMMAND_DESCRIPTION
  "Runs language models from GGUF files on CPUs. You set the budget of the KV cache, choose which
entries stay, and can get evicted ones back. With a server for the APIs of OpenAI and others.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libpith-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS
  "libpcre2-dev, libsqlite3-dev, libcurl4-openssl-dev | libcurl4-gnutls-dev, libjansson-dev")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
  "The library behind pith: C headers, the library itself, and files for pkg-config and CMake.")
include(CPack)
