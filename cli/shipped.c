/*
 * shipped.c - where the files lie that come with Pith, installed or in the source's folder.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "shipped.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io.h"

/* Seen from the folder of the program: installed (bin/ and share/pith/), or in a build folder
   within the source. The last is where the source was when it was built. */
static const char *const places[] = {
    "../share/pith",
    "../../models",
    "../models",
    "models",
};
#define N_PLACE (sizeof(places) / sizeof(places[0]))

static bool program_folder(char *buf, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", buf, cap - 1);
    if (n <= 0)
        return false;
    buf[n] = '\0';
    char *slash = strrchr(buf, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

char *cli_find_shipped(const char *name)
{
    char folder[PATH_MAX];
    char *path = cli_alloc(3 * PATH_MAX, 1);
    if (program_folder(folder, sizeof(folder)))
        for (size_t i = 0; i < N_PLACE; i++) {
            snprintf(path, 3 * PATH_MAX, "%s/%s/%s", folder, places[i], name);
            if (access(path, R_OK) == 0)
                return path;
        }
    snprintf(path, 3 * PATH_MAX, "%s/%s", PITH_MODEL_FOLDER, name);
    if (access(path, R_OK) == 0)
        return path;
    cli_fail("cannot find \"%s\", which comes with Pith, in share/pith or in the source's folder "
             "models; -m, -f and --answer name files of your own",
             name);
}
