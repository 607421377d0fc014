# Writes the commit of the source into a C file, and touches the file only where that changed:
#   cmake -DSOURCE=DIR -DOUTPUT=FILE -P commit.cmake
# Without git, or outside of a repository of our own, it is "unknown".
set(commit unknown)
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --abbrev=10
    --exclude=* OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(described)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT}
  CONTENT "extern const char version_commit[];\nconst char version_commit[] = \"${commit}\";\n")
