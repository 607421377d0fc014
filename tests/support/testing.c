/*
 * testing.c - main() of the test programs: runs their tests, or lists them. CMocka decides
 * failures, skips and the order of tests; exit status 77 is ours.
 */
#define _POSIX_C_SOURCE 200809L

#include <fnmatch.h>
#include <stdbool.h>
#include <string.h>

#include "testing.h"

#define ALL_SKIPPED 77
#define N_PATH 8
#define LATER_MAX 4096

static struct test *first;         /* ordered by line */
static const struct test *running; /* NULL: a fixture of the group */
static int n_begun, n_ended;       /* those that neither failed nor were skipped end */
static void *later[LATER_MAX];     /* [n_later] owned */
static size_t n_later;

void testing_add(struct test *test)
{
    struct test **at = &first;
    while (*at != NULL && (*at)->line < test->line)
        at = &(*at)->next;
    test->next = *at;
    *at = test;
}

void test_free_later(void *memory)
{
    assert_true(n_later < LATER_MAX);
    later[n_later++] = memory;
}

/* ---- skipping ---- */

_Noreturn void test_skip(const char *format, ...)
{
    char reason[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    print_message("skipped: %s: %s\n", running != NULL ? running->name : "all", reason);
    skip();
    abort(); /* skip() has jumped */
}

/* The path of a file that can be read in one of the folders; NULL without one. */
static const char *find(const char *const *folders, size_t n, const char *name)
{
    static char paths[N_PATH][4096];
    static int turn;
    for (size_t i = 0; i < n; i++) {
        if (folders[i] == NULL || folders[i][0] == '\0')
            continue;
        char *path = paths[turn];
        snprintf(path, sizeof(paths[0]), "%s/%s", folders[i], name);
        if (access(path, R_OK) == 0) {
            turn = (turn + 1) % N_PATH;
            return path;
        }
    }
    return NULL;
}

const char *test_data_find(const char *name)
{
    const char *const folders[] = {getenv("PITH_DATA"), PITH_SOURCE_DIR "/build-data",
                                   PITH_SOURCE_DIR "/../shared/data"};
    return find(folders, sizeof(folders) / sizeof(folders[0]), name);
}

const char *test_data(const char *name)
{
    const char *path = test_data_find(name);
    if (path == NULL)
        test_skip("there is no %s; to fetch it: scripts/data.sh", name);
    return path;
}

const char *test_model_file(const char *name, const char *file)
{
    const char *const folders[] = {getenv("PITH_MODELS"), PITH_SOURCE_DIR "/build-models"};
    const char *path = find(folders, sizeof(folders) / sizeof(folders[0]), file);
    if (path == NULL)
        test_skip("there is no %s; to fetch it: scripts/models.sh build-models %s", file, name);
    return path;
}

/* ---- running ---- */

static int set_up(void **state)
{
    running = *state;
    if (running->set_up != NULL)
        running->set_up();
    return 0;
}

static void run(void **state)
{
    running = *state;
    n_begun++;
    *running->err = (pith_error){0};
    running->run();
    n_ended++;
}

static int tear_down(void **state)
{
    running = *state;
    while (n_later > 0)
        free(later[--n_later]);
    if (running->tear_down != NULL)
        running->tear_down();
    return 0;
}

static int set_up_group(void **state)
{
    (void)state;
    if (&test_group != NULL && test_group.set_up != NULL)
        test_group.set_up();
    return 0;
}

static int tear_down_group(void **state)
{
    (void)state;
    running = NULL;
    if (&test_group != NULL && test_group.tear_down != NULL)
        test_group.tear_down();
    return 0;
}

/* Whether a test is asked for: by a word of its name, or by a pattern of the shell's. */
static bool fits(const char *name, const char *pattern)
{
    return pattern == NULL || strstr(name, pattern) != NULL || fnmatch(pattern, name, 0) == 0;
}

static int run_those(const char *program, const char *pattern)
{
    size_t n = 0;
    for (const struct test *t = first; t != NULL; t = t->next)
        n += fits(t->name, pattern);
    struct CMUnitTest *tests = calloc(n + 1, sizeof(*tests));
    if (n == 0 || tests == NULL) {
        fprintf(stderr, "%s has no test like \"%s\"\n", program, pattern != NULL ? pattern : "");
        free(tests);
        return 2;
    }
    n = 0;
    for (struct test *t = first; t != NULL; t = t->next)
        if (fits(t->name, pattern))
            tests[n++] = (struct CMUnitTest){t->name, run, set_up, tear_down, t};
    int failed = _cmocka_run_group_tests(program, tests, n, set_up_group, tear_down_group) != 0;
    free(tests);
    return failed == 0 && n_begun > 0 && n_ended == 0 ? ALL_SKIPPED : failed;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *program = slash != NULL ? slash + 1 : argv[0];
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const struct test *t = first; t != NULL; t = t->next)
            printf("%s %s\n", program, t->name);
        return 0;
    }
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        fprintf(stderr, "usage: %s [PATTERN | --list]\n", program);
        return 2;
    }
    return run_those(program, argc == 2 ? argv[1] : NULL);
}

int32_t test_gpu_layers(void)
{
    const char *text = getenv("PITH_TEST_LAYERS");
    return text != NULL ? atoi(text) : 0;
}
