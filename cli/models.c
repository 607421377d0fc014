/*
 * models.c - `pith models`: lists the models that were pulled, and removes one.
 */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 700

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "models_folder.h"

#define MOST_OPEN 8 /* folders, one in the other */

static void format_used(time_t used, char *buf, size_t cap)
{
    double days = difftime(time(NULL), used) / 86400.0;
    if (days < 1.0)
        snprintf(buf, cap, "today");
    else
        snprintf(buf, cap, "%.0f day%s ago", days, days < 1.5 ? "" : "s");
}

static void print_entry(const struct model_entry *e)
{
    char size[32], used[32], name[300];
    snprintf(name, sizeof(name), "%s:%s", e->nick[0] != '\0' ? e->nick : e->repo, e->quant);
    format_used(e->used, used, sizeof(used));
    printf("%-40s %12s  %s%s%s%s\n", name, e->size >= 0 ? cli_bytes(e->size, size) : "incomplete",
           used, e->nick[0] != '\0' ? "  (" : "", e->nick[0] != '\0' ? e->repo : "",
           e->nick[0] != '\0' ? ")" : "");
}

static int list_models(void *options)
{
    (void)options;
    struct model_entries all = models_read();
    char *folder = models_folder(), size[32];
    int64_t sum = 0;
    for (size_t i = 0; i < all.n; i++) {
        print_entry(&all.entry[i]);
        sum += all.entry[i].size > 0 ? all.entry[i].size : 0;
    }
    if (all.n == 0)
        printf("There is no model in %s; \"pith help pull\" says how to get one.\n", folder);
    else
        printf("%zu model%s, %s in %s\n", all.n, all.n == 1 ? "" : "s", cli_bytes(sum, size),
               folder);
    free(folder);
    models_free(&all);
    return EXIT_SUCCESS;
}

/* Whether another model has the file, too. */
static bool is_wanted(const struct model_entries *all, const struct model_entry *but,
                      const char *file)
{
    for (size_t i = 0; i < all->n; i++) {
        const struct model_entry *e = &all->entry[i];
        const json_t *other;
        size_t j;
        if (e == but || strcmp(e->repo, but->repo) != 0)
            continue;
        json_array_foreach(
            json_object_get(e->json, "files"), j,
            other) if (strcmp(json_string_value(other) != NULL ? json_string_value(other) : "",
                              file) == 0) return true;
    }
    return false;
}

static void remove_file(const char *folder, const char *file)
{
    char *path = models_join(folder, "/", file);
    if (unlink(path) != 0 && errno != ENOENT)
        cli_fail("cannot remove \"%s\": %s", path, strerror(errno));
    free(path);
}

/* Of a folder: parts of broken pulls, and itself where it is empty then. */
static int remove_rest(const char *path, const struct stat *st, int type, struct FTW *at)
{
    size_t len = strlen(path);
    (void)st, (void)at;
    if (type == FTW_DP)
        rmdir(path);
    else if (len > 5 && strcmp(path + len - 5, ".part") == 0)
        unlink(path);
    return 0;
}

static int64_t remove_entry(const struct model_entries *all, const struct model_entry *e)
{
    char *folder = models_repo_folder(e->repo), *lock_path = models_join(folder, "/", ".lock");
    int lock = models_lock(folder);
    const json_t *file;
    size_t i;
    if (unlink(e->path) != 0)
        cli_fail("cannot remove \"%s\": %s", e->path, strerror(errno));
    json_array_foreach(json_object_get(e->json, "files"), i, file)
    {
        const char *path = json_string_value(file);
        if (path != NULL && path[0] != '/' && strstr(path, "..") == NULL &&
            !is_wanted(all, e, path))
            remove_file(folder, path);
    }
    bool alone = true;
    for (size_t j = 0; j < all->n; j++)
        alone = alone && (&all->entry[j] == e || strcmp(all->entry[j].repo, e->repo) != 0);
    if (alone)
        unlink(lock_path);
    nftw(folder, remove_rest, MOST_OPEN, FTW_DEPTH | FTW_PHYS);
    close(lock);
    free(folder);
    free(lock_path);
    return e->size > 0 ? e->size : 0;
}

struct rm_options {
    struct option_texts names;
};

static const struct option rm_table[] = {
    {"NAME", NULL, NULL, OPTION_TEXTS, offsetof(struct rm_options, names),
     .help = "a model, as \"pith models list\" writes it"},
    {0},
};

static const struct option_group rm_groups[] = {{NULL, rm_table, 0}, {0}};

static int remove_models(void *options)
{
    const struct rm_options *o = options;
    char size[32];
    int status = EXIT_SUCCESS;
    if (o->names.n == 0)
        cli_fail_usage("NAME is missing: a model, as \"pith models list\" writes it");
    for (int32_t i = 0; i < o->names.n; i++) {
        struct model_entries all = models_read();
        struct model_name name = models_parse("NAME", o->names.text[i], NULL);
        const struct model_entry *e = models_find_entry(&all, &name);
        for (size_t j = 0; j < all.n && e == NULL; j++) /* one that is incomplete */
            if (strcasecmp(all.entry[j].repo, name.repo) == 0 &&
                (name.quant[0] == '\0' || strcasecmp(all.entry[j].quant, name.quant) == 0))
                e = &all.entry[j];
        if (e == NULL) {
            cli_note("%s: there is no such model here; \"pith models\" lists them",
                     o->names.text[i]);
            status = EXIT_FAILURE;
        } else {
            cli_note("%s:%s is gone, %s", e->repo, e->quant,
                     cli_bytes(remove_entry(&all, e), size));
        }
        models_free(&all);
    }
    return status;
}

static const struct option no_table[] = {{0}};
static const struct option_group no_groups[] = {{NULL, no_table, 0}, {0}};

static const struct command command_list = {
    .name = "list",
    .summary = "list the models that were pulled",
    .synopsis = "",
    .groups = no_groups,
    .options_size = 1,
    .run = list_models,
};

static const struct command command_rm = {
    .name = "rm",
    .summary = "remove a model that was pulled",
    .synopsis = "NAME...",
    .groups = rm_groups,
    .options_size = sizeof(struct rm_options),
    .run = remove_models,
};

static const struct command *const models_commands[] = {&command_list, &command_rm, NULL};

const struct command command_models = {
    .name = "models",
    .summary = "list the models that were pulled, or remove one",
    .notes =
        "They lie in pith/models below XDG_CACHE_HOME, else below ~/.cache. Commands take their\n"
        "names after -m.\n"
        "\n"
        "  pith models\n"
        "  pith models rm smollm2:Q4_K_M",
    .run = list_models,
    .subcommands = models_commands,
};
