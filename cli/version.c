/*
 * version.c - `pith --version`: the version, the commit, and what was compiled in. The build says
 * it: cmake/commit.cmake writes the commit at each build, the rest comes from CMakeLists.txt.
 */
#include <stdio.h>

#include "command.h"
#include "pith/pith.h"

extern const char version_commit[]; /* in commit.c of the build folder */

void version_print(void)
{
    printf("pith %s (commit %s)\n", pith_version(), version_commit);
    printf("kernels     %s; this processor uses %s\n", PITH_LEVELS, pith_cpu_level());
    printf("libraries   %s\n", PITH_LIBRARIES);
    printf("compiler    %s, %s\n", PITH_COMPILER, PITH_BUILD_TYPE);
    printf("sanitizers  %s\n", PITH_SANITIZERS);
}
