/*
 * folder.h - for tests that write files: a folder of their own. A test includes it once;
 * POSIX.1-2008 must be asked for before.
 */
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H

#include "status.h"

static char folder[64];

/* Group set-up and its end. */
static inline void make_folder(void)
{
    strcpy(folder, "/tmp/pith-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static inline void remove_folder(void)
{
    char line[128];
    snprintf(line, sizeof(line), "rm -rf '%s'", folder);
    assert_int_equal(system(line), 0);
}

/* The path of a file in it; the last eight stay valid. */
static inline const char *in_folder(const char *name)
{
    static char path[8][160];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
    return path[turn];
}

/* Files in it whose names contain a word. */
static inline int count_files(const char *word)
{
    char line[256], answer[32] = "";
    snprintf(line, sizeof(line), "ls '%s' | grep -c '%s'", folder, word);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(answer, sizeof(answer), pipe));
    pclose(pipe);
    return atoi(answer);
}

#endif
