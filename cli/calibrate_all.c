/*
 * calibrate_all.c - `pith calibrate MODEL`: all that policies want, from texts of four kinds that
 * come with Pith. It gathers where queries point, the importance of entries and maps of policies'
 * scores. It learns the bases of keys, and how far apart pages of like steps are. The files lie in
 * pith/ below XDG_CACHE_HOME, named by the model's fingerprint.
 * Invariant: files appear whole or not at all, and a run that was stopped goes on.
 */
#define _POSIX_C_SOURCE 200809L

#include "calibrate_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <eval.h>

#include "budget.h"
#include "calibrate_importance.h"
#include "calibrate_loki.h"
#include "calibrate_share.h"
#include "models_folder.h"
#include "shipped.h"

#define N_PIECE 4     /* of each text, */
#define PIECE_LEN 500 /* tokens */
#define STEPS_LEN 700 /* tokens of solved problems, which are much alike */
#define STEPS 2       /* the text that has them */

static const char *const texts[] = {"prose", "code", "mathematics", "dialogue"};
#define N_TEXT (sizeof(texts) / sizeof(texts[0]))

/* Policies whose scores can rank entries over all lanes. The last four look at entries alone, so
   that they cost nothing. */
static const char *const maps[] = {"expected", "h2o",   "snapkv", "triattention:global",
                                   "keydiff",  "knorm", "vnorm"};

/* The shipped files, as the options of `pith calibrate importance` would name them. */
static void find_texts(struct option_texts *files)
{
    char name[64];
    for (size_t i = 0; i < N_TEXT; i++) {
        snprintf(name, sizeof(name), "demo/calibration/%s.txt", texts[i]);
        files->text[files->n++] = cli_find_shipped(name);
    }
}

static void free_texts(struct option_texts *files)
{
    for (int32_t i = 0; i < files->n; i++)
        free((char *)files->text[i]);
}

/* Tokens of all texts, one behind the other. */
static struct cli_ids read_texts(const struct session *s, const struct option_texts *files)
{
    struct cli_ids all = {0};
    for (int32_t i = 0; i < files->n; i++) {
        struct cli_text text = cli_read_file(files->text[i]);
        struct cli_ids ids = session_tokenize(s->model, text.data, text.len, 0);
        all.data = realloc(all.data, (size_t)(all.n + ids.n) * sizeof(*all.data));
        if (all.data == NULL)
            cli_fail("no memory for %d tokens", all.n + ids.n);
        memcpy(all.data + all.n, ids.data, (size_t)ids.n * sizeof(*all.data));
        all.n += ids.n;
        free(ids.data);
        free(text.data);
    }
    return all;
}

static void report(const struct session *s, const char *path, double seconds)
{
    pith_stats *stats = NULL;
    pith_importance_info i;
    pith_error err;
    double sum = 0.0;
    cli_check(pith_stats_load(path, &stats, &err), &err);
    if (pith_stats_get_importance(stats, &i) == PITH_OK)
        for (int32_t lane = 0; lane < i.n_lane; lane++)
            sum += (double)i.key_r2[lane] / i.n_lane;
    pith_stats_free(stats);
    cli_note(
        "%s is calibrated, in %.0f s: R^2 of importance is %.2f on texts held out. --kv, --keep "
        "kvzap, --read loki and --share memshare find the files (%s)",
        s->info.name[0] != '\0' ? s->info.name : s->path, seconds, sum, path);
}

static void learn_stats(struct session *s, const struct calibrate_options *o,
                        const struct option_texts *files, bool progress, const char *path)
{
    struct option_texts keep = {.n = (int32_t)(sizeof(maps) / sizeof(maps[0]))};
    char *part = models_join(path, ".", "part");
    memcpy(keep.text, maps, sizeof(maps));
    const struct importance_source from = {
        .files = files, .keep = &keep, .n_piece = N_PIECE, .piece_len = PIECE_LEN, .resume = part};
    importance_write(s, &o->model, &o->memory, &from, progress, true, path);
    free(part);
}

static void learn_bases(struct session *s, const struct calibrate_options *o,
                        const struct option_texts *files, bool progress, const char *path)
{
    struct cli_ids ids = read_texts(s, files);
    const struct loki_source keys = {&ids, "calibration", o->keys, 2 * PIECE_LEN};
    struct memory_options memory = o->memory;
    memory.n_ctx = keys.n_ctx;
    if (s->engine == NULL) /* statistics were there */
        session_start(s, &o->model, &memory, 0);
    loki_write(s, &keys, progress, true, path);
    free(ids.data);
}

/* A line, "block=0.8"; block=auto where a sequence had better measure by itself. */
static void learn_threshold(const struct session *s, const struct calibrate_options *o,
                            const struct option_texts *files, const char *path)
{
    const struct option_texts one = {.n = 1, .text = {files->text[STEPS]}};
    pith_error err;
    struct eval_text line = {0};
    struct cli_ids ids = read_texts(s, &one);
    if (ids.n > STEPS_LEN)
        ids.n = STEPS_LEN;
    const struct share_source from = {.ids = &ids};
    double block = share_threshold(s, &o->model, &o->memory, &from);
    if (block > 0.0)
        eval_text_printf(&line, "block=%.4g\n", block);
    else
        eval_text_add(&line, "block=auto\n");
    if (line.failed)
        cli_fail("no memory for a threshold");
    cli_check(eval_write_file(path, &line, &err), &err);
    eval_text_free(&line);
    free(ids.data);
}

/* Whether the file of bases is there and is the model's. */
static bool has_bases(const pith_model *model, const char *path)
{
    pith_error err;
    pith_projection *bases = NULL;
    bool good = pith_projection_load(path, &bases, &err) == PITH_OK &&
                pith_projection_check(bases, model, &err) == PITH_OK;
    pith_projection_free(bases);
    return good;
}

/* Whether there are statistics that can be used. Of damaged ones it says why they are replaced. */
static bool has_stats(const struct session *s, const char *path, bool quiet)
{
    pith_error err;
    if (access(path, R_OK) != 0)
        return false;
    bool good = budget_check_stats(s->model, path, &err) == PITH_OK;
    if (!good && !quiet)
        cli_note("%s: they are learned anew", err.message);
    return good;
}

int calibrate_all(struct calibrate_options *o, bool progress)
{
    struct session s = {0};
    struct option_texts files = {0};
    double start = clock_s();
    char value[BUDGET_THRESHOLD];
    pith_error err;
    session_load(&s, &o->model, false);
    char *path = budget_stats_path(s.model);
    char *bases = models_join(path, ".", "loki"), *threshold = models_join(path, ".", "share");
    models_make_folders(path);
    bool has[] = {has_stats(&s, path, o->quiet), has_bases(s.model, bases),
                  budget_read_threshold(threshold, value, &err) == PITH_OK};
    if (!o->again && has[0] && has[1] && has[2]) {
        if (!o->quiet)
            cli_note("%s is there: --again learns it anew", path);
    } else {
        find_texts(&files);
        if (o->again || !has[0])
            learn_stats(&s, o, &files, progress, path);
        if (o->again || !has[1])
            learn_bases(&s, o, &files, progress, bases);
        if (o->again || !has[2])
            learn_threshold(&s, o, &files, threshold);
        if (!o->quiet)
            report(&s, path, clock_s() - start);
        free_texts(&files);
    }
    free(path);
    free(bases);
    free(threshold);
    session_free(&s);
    return EXIT_SUCCESS;
}
