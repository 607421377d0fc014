/*
 * ranks.c - see ranks.h. The output of other ranks goes to a file without a name. It is shown only
 * where one of them fails and rank 0 does not.
 */
#define _POSIX_C_SOURCE 200809L

#include "ranks.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hash.h"
#include "io.h"
#include "pith/ranks.h"

extern char **environ;

#define WAIT_S 3 /* for rank 0, which may be slower to fail */

/* Commands whose results depend on nothing but their options and files, and those in which rank 0
   leads. */
static const char *const able[] = {"run", "eval", "bench", "logits", "info", "serve", "batch"};

const char *const ranks_splits[] = {"rows", "layers", "auto", NULL};

static pith_ranks_info ranks = {.n_rank = 1};
static int shown = -1; /* where this rank's messages would have gone; -1: they go there */
static FILE *messages;
static bool left; /* ranks_leave was called */

/* The processes that MPI started together: Open MPI's variable, then MPICH's. */
static int started_together(void)
{
    const char *n = getenv("OMPI_COMM_WORLD_SIZE");
    n = n != NULL ? n : getenv("PMI_SIZE");
    return n != NULL ? atoi(n) : 1;
}

static void show_messages(void)
{
    char line[512], name[32];
    int length = snprintf(name, sizeof(name), "rank %d: ", (int)ranks.rank);
    if (messages == NULL)
        return;
    fflush(stderr);
    rewind(messages);
    while (fgets(line, sizeof(line), messages) != NULL)
        if (write(shown, name, (size_t)length) < 0 || write(shown, line, strlen(line)) < 0)
            return;
}

void ranks_abandon(void)
{
    if (left || ranks.n_rank == 1)
        return;
    if (!pith_ranks_all_fail(WAIT_S)) /* else rank 0's own message is enough */
        show_messages();
    pith_ranks_end(false);
}

static void hide_output(void)
{
    messages = tmpfile();
    shown = dup(STDERR_FILENO);
    if (freopen("/dev/null", "w", stdout) == NULL || messages == NULL || shown < 0 ||
        dup2(fileno(messages), STDERR_FILENO) < 0)
        cli_fail("rank %d: its output cannot be put aside", (int)ranks.rank);
}

/* ---- what ranks have in common ---- */

/* Options that ranks may have for themselves: how fast they compute, and what is rank 0's alone.
   Of a variable this is what follows PITH_, LLAMA_ARG_ or LLAMA_. */
static const char *const own[] = {
    "-t",      "--threads", "--cpu-level", "THREADS",       "CPU_LEVEL",
    "HOST",    "PORT",      "API_KEY",     "API_KEY_FILE",  "QUIET",
    "VERBOSE", "ALIAS",     "TIMEOUT",     "SSL_CERT_FILE", "SSL_KEY_FILE",
    "DRAIN",   "HANG",      "CONNECTIONS", "CACHE", /* of llama.cpp */
};

/* Whether the len bytes of name are one of them. */
static bool is_own(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strlen(own[i]) == len && memcmp(own[i], name, len) == 0)
            return true;
    return false;
}

/* Whether an entry of the environment may be an option that all have to have. */
static bool is_option(const char *entry)
{
    static const char *const prefixes[] = {"PITH_", "LLAMA_ARG_", "LLAMA_"};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(entry, prefixes[i], n) == 0)
            return !is_own(entry + n, strcspn(entry + n, "="));
    }
    return false;
}

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The command line and variables that must be equal on all ranks; NULL: no memory. The caller frees
   the list, not the words. */
static const char **common_words(int argc, char **argv, int32_t *n_word)
{
    size_t n_env = 0, n = 0;
    while (environ[n_env] != NULL)
        n_env++;
    const char **words = malloc((n_env + (size_t)argc + 1) * sizeof(*words));
    if (words == NULL)
        return NULL;
    for (int i = 1; i < argc; i++) {
        size_t len = strcspn(argv[i], "=");
        if (!is_own(argv[i], len))
            words[n++] = argv[i];
        else if (argv[i][len] == '\0')
            i++; /* its value */
    }
    size_t n_argument = n;
    for (size_t i = 0; i < n_env; i++)
        if (is_option(environ[i]))
            words[n++] = environ[i];
    qsort(words + n_argument, n - n_argument, sizeof(*words), compare_words);
    *n_word = (int32_t)n;
    return words;
}

void ranks_agree(const char *what, const void *data, size_t size)
{
    if (ranks.n_rank == 1)
        return;
    uint64_t sum = cli_hash(CLI_HASH_EMPTY, data, size), first = sum;
    pith_ranks_tell(&first, sizeof(first));
    if (first != sum)
        cli_fail("its %s is not rank 0's", what);
}

/* Threads of MPI take no signal that the command waits for. */
static pith_status start(int argc, char **argv, pith_error *err)
{
    sigset_t mine, before;
    int32_t n_word;
    const char **words = common_words(argc, argv, &n_word);
    if (words == NULL)
        cli_fail("no memory for the options");
    sigemptyset(&mine);
    sigaddset(&mine, SIGINT);
    sigaddset(&mine, SIGTERM);
    sigprocmask(SIG_BLOCK, &mine, &before);
    pith_status status = pith_ranks_start(words, n_word, err);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(words);
    return status;
}

void ranks_join(int argc, char **argv)
{
    pith_error err;
    size_t i = 0;
    if (started_together() <= 1)
        return;
    pith_status status = start(argc, argv, &err);
    pith_ranks_describe(&ranks);
    if (ranks.rank > 0)
        hide_output();
    if (status != PITH_OK)
        cli_fail("%s", err.message);
    while (i < sizeof(able) / sizeof(able[0]) && (argc < 2 || strcmp(argv[1], able[i]) != 0))
        i++;
    bool writes = argc > 2 && strcmp(argv[1], "eval") == 0 &&
                  (strcmp(argv[2], "sweep") == 0 || strcmp(argv[2], "record") == 0);
    if ((writes || i == sizeof(able) / sizeof(able[0])) && ranks.n_rank > 1)
        cli_fail_usage("%s: it cannot run over several ranks; run, serve, batch, bench, logits, "
                       "info and the measurements of eval can",
                       argc < 2 ? "pith" : argv[writes ? 2 : 1]);
}

int32_t ranks_weights(const char *text, int32_t *weight)
{
    int32_t n = 0;
    for (const char *at = text;; at++) {
        char *end;
        long value = strtol(at, &end, 10);
        bool ends = *end == '\0';
        if (end == at || (*end != ',' && !ends) || value < 1 || value > PITH_RANKS_WEIGHT_MOST ||
            n == RANKS_MOST)
            cli_fail_usage("--ranks: \"%.64s\" is no list of weights from 1 to %d, as 3,1", text,
                           PITH_RANKS_WEIGHT_MOST);
        weight[n++] = (int32_t)value;
        at = end;
        if (ends)
            return n;
    }
}

pith_split ranks_split(const char *name)
{
    int i = 0;
    while (name != NULL && strcmp(ranks_splits[i], name) != 0)
        i++;
    return (pith_split)i;
}

void ranks_divide(const char *split, const char *weights)
{
    pith_error err;
    int32_t weight[RANKS_MOST], n = weights != NULL ? ranks_weights(weights, weight) : 0;
    if (pith_ranks_divide(ranks_split(split), weight, n, &err) != PITH_OK)
        cli_fail_usage("--%s", err.message);
}

void ranks_leave(void)
{
    left = true;
    pith_ranks_end(true);
}

void ranks_report(void)
{
    char sent[32];
    pith_ranks_info now;
    pith_ranks_describe(&now);
    bool layers = now.split == PITH_SPLIT_LAYERS;
    if (now.n_rank > 1)
        fprintf(stderr, "ranks    %d, of which this one sent %s in %lld %s that took %.3f s\n",
                (int)now.n_rank, cli_bytes(now.sent_bytes, sent), (long long)now.n_gather,
                layers ? "messages" : "gathers", now.gather_s);
    if (now.n_rank > 1 && now.probe_s > 0)
        fprintf(stderr, "split    %s: a gather of 16 kB takes %.0f us\n", ranks_splits[now.split],
                now.probe_s * 1e6);
}

int ranks_add(json_t *report)
{
    pith_ranks_info now;
    pith_ranks_describe(&now);
    if (now.n_rank == 1)
        return 0;
    return json_object_set_new(report, "ranks",
                               json_pack("{s:i, s:i, s:s, s:f, s:I, s:I, s:f}", "rank",
                                         (int)now.rank, "n_rank", (int)now.n_rank, "split",
                                         ranks_splits[now.split], "probe_s", now.probe_s,
                                         "n_gather", (json_int_t)now.n_gather, "sent_bytes",
                                         (json_int_t)now.sent_bytes, "gather_s", now.gather_s));
}

bool ranks_several(void)
{
    return ranks.n_rank > 1;
}

bool ranks_is_follower(void)
{
    return ranks.rank > 0;
}

bool ranks_follow(pith_scheduler *scheduler)
{
    pith_error err;
    if (ranks.rank == 0)
        return false;
    cli_check(pith_scheduler_follow(scheduler, &err), &err);
    return true;
}

const char *ranks_output(const char *path)
{
    return path != NULL && ranks.rank > 0 ? "/dev/null" : path;
}
