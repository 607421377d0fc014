/*
 * real.h - for tests that want a real pretrained model: a folder of scripts/models.sh, which
 * PITH_MODELS names. Without it, or without the model, a test says so and skips.
 */
#ifndef TESTS_REAL_H
#define TESTS_REAL_H

#include "testing.h"

#include <string.h>

/* The path of a model's file; the test ends here, with the reason, where it is not. */
static inline const char *real_model(const char *file)
{
    static char path[4096];
    const char *folder = getenv("PITH_MODELS");
    if (folder == NULL || folder[0] == '\0') {
        print_message("skipped: PITH_MODELS names no folder of scripts/models.sh\n");
        skip();
    }
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is not there; scripts/models.sh fetches it\n", path);
        skip();
    }
    return path;
}

#endif
