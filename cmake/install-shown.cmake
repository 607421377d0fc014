# Installs what the command writes about itself (pages of man, completions), and the unit of systemd
# with the paths of this installation. Runs at install time, since the prefix is known only then.
# PITH_PROGRAM is the command, PITH_SOURCE the source's folder, PITH_SERVED whether it has a server;
# BINDIR, DATADIR and MANDIR come from GNUInstallDirs.
set(prefix ${CMAKE_INSTALL_PREFIX})
set(work ${PITH_WORK})
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work}/man)

function(write_shown output)
  execute_process(COMMAND ${PITH_PROGRAM} ${ARGN} OUTPUT_FILE ${work}/${output} RESULT_VARIABLE bad)
  if(bad)
    message(FATAL_ERROR "${PITH_PROGRAM} ${ARGN}: ${bad}")
  endif()
endfunction()

function(put file folder)
  file(INSTALL ${work}/${file} DESTINATION ${folder} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ
    WORLD_READ)
endfunction()

write_shown(pages help --man ${work}/man)
file(GLOB pages RELATIVE ${work} ${work}/man/*.1)
foreach(page ${pages})
  put(${page} ${prefix}/${MANDIR}/man1)
endforeach()

# Debian's zsh looks elsewhere for what packages bring.
set(zsh ${prefix}/${DATADIR}/zsh/site-functions)
if(prefix STREQUAL "/usr" AND EXISTS /etc/debian_version)
  set(zsh ${prefix}/${DATADIR}/zsh/vendor-completions)
endif()
write_shown(pith completion bash)
put(pith ${prefix}/${DATADIR}/bash-completion/completions)
write_shown(_pith completion zsh)
put(_pith ${zsh})
write_shown(pith.fish completion fish)
put(pith.fish ${prefix}/${DATADIR}/fish/vendor_completions.d)

if(PITH_SERVED)
  set(settings ${prefix}/etc/default)
  if(prefix STREQUAL "/usr")
    set(settings /etc/default)
  endif()
  file(READ ${PITH_SOURCE}/examples/pith.service unit)
  string(REPLACE "/usr/local/bin" "${prefix}/${BINDIR}" unit "${unit}")
  string(REPLACE "/usr/local/etc/default" "${settings}" unit "${unit}")
  file(WRITE ${work}/pith.service "${unit}")
  put(pith.service ${prefix}/lib/systemd/system)
  # What somebody has changed stays.
  if(NOT EXISTS "$ENV{DESTDIR}${settings}/pith")
    file(MAKE_DIRECTORY ${work}/default)
    configure_file(${PITH_SOURCE}/examples/pith.default ${work}/default/pith COPYONLY)
    put(default/pith ${settings})
  endif()
endif()
