/*
 * outputs.c - see outputs.h. A model is mapped while it runs, so a write to its file loses it and
 * ends the command. Rows of option tables say which options write (option.h), and everything else
 * that may name a file counts as read.
 *
 * Invariant: nothing is opened for writing here, so that a refusal changes no file.
 */
#define _POSIX_C_SOURCE 200809L

#include "outputs.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hash.h"
#include "io.h"
#include "ranks.h"

static const struct option_group *all_groups; /* of the running command; NULL: not checked yet */
static const void *all_values;
static char **inputs; /* [n_input] paths that outputs_check_input had; owned to the end */
static int n_input;

bool outputs_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    if (a == NULL || b == NULL || stat(a, &of_a) != 0 || !S_ISREG(of_a.st_mode))
        return false;
    int failed = strcmp(b, "-") == 0 ? fstat(STDIN_FILENO, &of_b) : stat(b, &of_b);
    return failed == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* Calls back with each text of each option. */
typedef void text_fn(const struct option *o, const char *text, const void *user);

static void each_text(const struct option_group *groups, const void *values, text_fn *call,
                      const void *user)
{
    for (const struct option_group *g = groups; g->options != NULL; g++) {
        for (const struct option *o = g->options; o->name != NULL; o++) {
            const void *field = (const char *)values + g->offset + o->offset;
            if (o->type == OPTION_TEXT && *(const char *const *)field != NULL)
                call(o, *(const char *const *)field, user);
            const struct option_texts *texts = field;
            for (int32_t i = 0; o->type == OPTION_TEXTS && i < texts->n; i++)
                call(o, texts->text[i], user);
        }
    }
}

/* ---- what is read ---- */

/* Whether the value is a path as it is: help calls it so. */
static bool names_file(const struct option *o)
{
    return o->value == NULL || strstr(o->value, "FILE") != NULL || strcmp(o->value, "HOW") == 0 ||
           strcmp(o->value, "STATS") == 0;
}

/* Whether it is a policy with its options. */
static bool names_policy(const struct option *o)
{
    return o->value != NULL &&
           (strstr(o->value, "POLICY") != NULL || strncmp(o->value, "NAME:", 5) == 0);
}

/* Whether a policy's text has KEY=PATH for the path. */
static bool policy_names(const char *policy, const char *path)
{
    char part[4096];
    for (const char *at = strchr(policy, '='); at != NULL; at = strchr(at, '=')) {
        size_t n = strcspn(++at, ",");
        if (n >= sizeof(part))
            continue;
        memcpy(part, at, n);
        part[n] = '\0';
        if (outputs_same_file(path, part))
            return true;
    }
    return false;
}

static bool reads(const struct option *o, const char *text, const char *path)
{
    if (names_policy(o))
        return policy_names(text, path);
    if (text[0] == '@')
        return outputs_same_file(path, text + 1);
    return names_file(o) && outputs_same_file(path, text);
}

/* ---- what ranks have in common ---- */

/* Adds the contents of a file, but for a model's: ranks compare models by themselves. */
static uint64_t add_file(uint64_t hash, const char *path)
{
    uint8_t bytes[4096] = {0};
    FILE *file = fopen(path, "rb");
    size_t n = file != NULL ? fread(bytes, 1, sizeof(bytes), file) : 0;
    while (n > 0 && memcmp(bytes, "GGUF", 4) != 0) {
        hash = cli_hash(hash, bytes, n);
        n = fread(bytes, 1, sizeof(bytes), file);
    }
    if (file != NULL)
        fclose(file);
    return hash;
}

/* Adds a policy's text, and of files that it names the contents: paths may be each machine's. */
static uint64_t add_policy(uint64_t hash, const char *policy)
{
    char part[4096];
    for (size_t n; *policy != '\0'; policy += n + (policy[n] == ',')) {
        n = strcspn(policy, ",");
        size_t key = strcspn(policy, "=") + 1, value = key < n ? n - key : 0;
        if (value > 0 && value < sizeof(part)) {
            memcpy(part, policy + key, value);
            part[value] = '\0';
        }
        bool named = value > 0 && value < sizeof(part) && outputs_same_file(part, part);
        hash = cli_hash(hash, policy, named ? key : n);
        if (named)
            hash = add_file(hash, part);
    }
    return hash;
}

static void add_option(const struct option *o, const char *text, const void *user)
{
    uint64_t *hash = (uint64_t *)(uintptr_t)user;
    if (names_policy(o))
        *hash = add_policy(*hash, text);
    else if (!o->writes && names_file(o) && outputs_same_file(text, text))
        *hash = add_file(*hash, text);
}

void outputs_agree(void)
{
    uint64_t hash = CLI_HASH_EMPTY;
    if (!ranks_several() || all_groups == NULL)
        return;
    each_text(all_groups, all_values, add_option, &hash);
    ranks_agree("text", &hash, sizeof(hash));
}

void outputs_agree_policies(const char *const *policy, int n)
{
    uint64_t hash = CLI_HASH_EMPTY;
    if (!ranks_several())
        return;
    for (int i = 0; i < n; i++)
        hash = add_policy(hash, policy[i] != NULL ? policy[i] : "");
    ranks_agree("policy, or a file that it names,", &hash, sizeof(hash));
}

/* ---- what is written ---- */

struct output {
    const struct option *option;
    const char *path;
};

static void check_against(const struct option *o, const char *text, const void *user)
{
    const struct output *out = user;
    if (o == out->option)
        return;
    if (o->writes && strcmp(text, "-") != 0 &&
        (strcmp(text, out->path) == 0 || outputs_same_file(out->path, text)))
        cli_fail_usage("%s and %s name the same file, \"%s\"", out->option->name, o->name,
                       out->path);
    if (!o->writes && reads(o, text, out->path))
        cli_fail_usage("%s would replace \"%s\", which the command reads (%s): name another file",
                       out->option->name, out->path, o->name);
}

/* Devices may take the output of several options. */
static bool is_plain(const char *path)
{
    struct stat st;
    return strcmp(path, "-") != 0 && (stat(path, &st) != 0 || S_ISREG(st.st_mode));
}

static void check_output(const struct option *o, const char *text, const void *user)
{
    (void)user;
    const struct output out = {o, text};
    if (o->writes && is_plain(text))
        each_text(all_groups, all_values, check_against, &out);
}

void outputs_check(const struct option_group *groups, const void *values)
{
    all_groups = groups;
    all_values = values;
    each_text(groups, values, check_output, NULL);
}

static void check_found(const struct option *o, const char *text, const void *user)
{
    if (o->writes && outputs_same_file(text, user))
        cli_fail_usage("%s would replace \"%s\", which the command reads: name another file",
                       o->name, text);
}

static void note_input(const char *path)
{
    char **grown = realloc(inputs, (size_t)(n_input + 1) * sizeof(*grown));
    char *copy = strdup(path);
    if (grown == NULL || copy == NULL)
        cli_fail("no memory for the name of \"%s\"", path);
    inputs = grown;
    inputs[n_input++] = copy;
}

static void check_input(const char *path)
{
    note_input(path);
    if (all_groups != NULL)
        each_text(all_groups, all_values, check_found, path);
}

/* How many files NAME-00001-of-00003.gguf is the first of; 1 for another name. */
static int count_parts(const char *path)
{
    static const char form[] = "-00001-of-00000.gguf";
    size_t n = sizeof(form) - 1, len = strlen(path);
    const char *end = path + len - n;
    if (len <= n || strncmp(end, form, 10) != 0 || strcmp(end + 15, form + 15) != 0 ||
        strspn(end + 10, "0123456789") != 5)
        return 1;
    return atoi(end + 10);
}

void outputs_check_input(const char *path)
{
    if (path == NULL)
        return;
    check_input(path);
    for (int i = 2; i <= count_parts(path); i++) {
        char *part = strdup(path);
        if (part == NULL)
            cli_fail("no memory for the name of \"%s\"", path);
        char number[12];
        snprintf(number, sizeof(number), "%05d", i);
        memcpy(part + strlen(path) - strlen("00001-of-00000.gguf"), number, 5);
        if (outputs_same_file(part, part))
            check_input(part);
        free(part);
    }
}

struct question {
    const char *path;
    bool *found;
};

static void ask_option(const struct option *o, const char *text, const void *user)
{
    const struct question *q = user;
    if (!o->writes && reads(o, text, q->path))
        *q->found = true;
}

bool outputs_would_lose(const char *path)
{
    bool found = false;
    const struct question q = {path, &found};
    for (int i = 0; i < n_input; i++)
        found = found || outputs_same_file(path, inputs[i]);
    if (all_groups != NULL)
        each_text(all_groups, all_values, ask_option, &q);
    return found;
}
