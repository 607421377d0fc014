/*
 * calibrate_importance.c - `pith calibrate importance`: cuts texts into pieces and lets the model
 * repeat them. It writes into statistics how important their entries were, and prints how well that
 * is predicted, layer by layer.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calibrate_importance.h"

#define N_AROUND 256   /* tokens of the request to repeat, at most */
#define RETENTION 0.25 /* of all entries, whose shares over lanes are shown */
#define SHORTEST 64    /* tokens of a piece from which a file has something to teach */
#define NAME_CAP 1024
/* 12 pieces of 400 tokens: R^2 on texts of other kinds is 0.28 after 4 texts, 0.44 after 8 and 0.47
   after 16 (SmolLM2, docs/stats.md). After 4 kvzap answered with wrong digits. */
#define ENOUGH_TOKENS 4800
#define ENOUGH_PIECES 5 /* the fifth is the first that is held out */

/* ---- pieces ---- */

/* Pieces of all files, in turn: the first of each file, the second of each, ... */
struct pieces {
    struct cli_ids *ids;         /* [n_file] owned */
    pith_importance_text *texts; /* [n] owned; their tokens are the ids' */
    int32_t n;
};

static int32_t count_pieces(const struct importance_source *from, int32_t n_token)
{
    int32_t n = n_token / from->piece_len;
    return n < 1 ? 1 : n < from->n_piece ? n : from->n_piece;
}

/* Piece i of n, evenly spaced over the tokens. */
static pith_importance_text piece_at(const struct importance_source *from,
                                     const struct cli_ids *ids, int32_t i, int32_t n)
{
    int32_t len = ids->n < from->piece_len ? ids->n : from->piece_len;
    double begin = (double)(ids->n - len) * (i + 0.5) / n;
    return (pith_importance_text){ids->data + (int32_t)begin, len};
}

/* The file whose piece i comes j-th of the pieces i. Every fifth piece is held out: five files take
   turns at that place, as other numbers do anyway. */
static size_t file_at(size_t n_file, int32_t i, size_t j)
{
    return (j + (n_file % 5 == 0 ? (size_t)i : 0)) % n_file;
}

static void read_files(const struct session *s, const struct importance_source *from,
                       struct pieces *out)
{
    size_t n_file = (size_t)from->files->n;
    out->ids = cli_alloc(n_file, sizeof(*out->ids));
    out->texts = cli_alloc(n_file * (size_t)from->n_piece, sizeof(*out->texts));
    for (size_t i = 0; i < n_file; i++) {
        const char *path = from->files->text[i];
        struct cli_text text = cli_read_file(path);
        out->ids[i] = session_tokenize(s->model, text.data, text.len, 0);
        free(text.data);
        if (out->ids[i].n < SHORTEST)
            cli_fail("%s: %d tokens are fewer than %d", path, out->ids[i].n, SHORTEST);
    }
    for (int32_t i = 0; i < from->n_piece; i++)
        for (size_t j = 0; j < n_file; j++) {
            size_t f = file_at(n_file, i, j);
            int32_t n = count_pieces(from, out->ids[f].n);
            if (i < n)
                out->texts[out->n++] = piece_at(from, &out->ids[f], i, n);
        }
}

static void free_pieces(struct pieces *p, int32_t n_file)
{
    for (int32_t i = 0; i < n_file; i++)
        free(p->ids[i].data);
    free(p->ids);
    free(p->texts);
}

/* The files' names without their folders: "prose.txt, code.txt". */
static void join_names(const struct option_texts *files, char *out)
{
    size_t used = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < files->n && used < NAME_CAP; i++) {
        const char *slash = strrchr(files->text[i], '/');
        int n = snprintf(out + used, NAME_CAP - used, "%s%s", i > 0 ? ", " : "",
                         slash != NULL ? slash + 1 : files->text[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* ---- printing ---- */

static double mean_of(const float *x, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum / n;
}

/* Where no text was held out the file has zeros, which no measurement gives for all lanes. */
static bool is_measured(const pith_importance_info *i)
{
    for (int32_t lane = 0; lane < i->n_lane; lane++)
        if (i->key_r2[lane] != 0.0f)
            return true;
    return false;
}

static void print_r2(const pith_importance_info *i, const float *r2, int32_t n)
{
    if (is_measured(i))
        printf("  %6.3f", mean_of(r2, n));
    else
        printf("  %6s", "-");
}

static void print_layer(const pith_importance_info *i, const double *share, int32_t layer)
{
    int32_t n = i->n_head_kv, at = layer * n;
    printf("  layer %3d  %7.2f  %5.2f", layer, mean_of(i->mean + at, n),
           mean_of(i->deviation + at, n));
    print_r2(i, i->key_r2 + at, n);
    if (i->hidden_r2 != NULL)
        print_r2(i, i->hidden_r2 + at, n);
    printf("  ");
    for (int32_t h = 0; h < n; h++)
        printf(" %4.0f %%", 100.0 * share[at + h]);
    printf("\n");
}

/* The part of the target's variance that is which lane an entry lies in. */
static double between_lanes(const pith_importance_info *i)
{
    double all = mean_of(i->mean, i->n_lane), between = 0.0, within = 0.0;
    for (int32_t lane = 0; lane < i->n_lane; lane++) {
        between += pow((double)i->mean[lane] - all, 2.0);
        within += pow((double)i->deviation[lane], 2.0);
    }
    return between + within > 0.0 ? between / (between + within) : 0.0;
}

static void print_maps(const pith_stats *stats, const pith_importance_info *i)
{
    pith_importance_map map;
    for (int32_t m = 0; m < i->n_map && pith_stats_get_map(stats, m, &map) == PITH_OK; m++) {
        int32_t n_flat = 0;
        for (int32_t lane = 0; lane < i->n_lane; lane++)
            n_flat += map.slope[lane] == 0.0f;
        printf("map of %-12s mean correlation %.3f; %d of %d lanes say nothing\n", map.policy,
               mean_of(map.correlation, i->n_lane), n_flat, i->n_lane);
    }
}

void importance_print(const pith_stats *stats)
{
    pith_importance_info i;
    if (pith_stats_get_importance(stats, &i) != PITH_OK)
        return;
    double *share = cli_alloc((size_t)i.n_lane, sizeof(*share));
    pith_stats_get_shares(stats, RETENTION, share);
    printf("\n"
           "Importance of entries: its logarithm's mean and deviation, and R^2 on held-out texts. "
           "Then\n"
           "the share of each KV head's entries that the best %.0f %% of all lanes' entries hold\n",
           100.0 * RETENTION);
    printf("  %-9s  %7s  %5s  %6s%s\n", "", "mean", "dev.", "key",
           i.hidden_r2 != NULL ? "   input" : "");
    for (int32_t l = 0; l < i.n_layer; l++)
        print_layer(&i, share, l);
    if (!is_measured(&i))
        printf("R^2 not measured: no text was held out, which every fifth piece is");
    else
        printf("mean R^2 %.3f", mean_of(i.key_r2, i.n_lane));
    if (i.hidden_r2 != NULL && is_measured(&i))
        printf(" of keys, %.3f of layers' inputs", mean_of(i.hidden_r2, i.n_lane));
    printf("; %.0f %% of the variance is which lane an entry lies in\n", 100.0 * between_lanes(&i));
    print_maps(stats, &i);
    free(share);
}

/* ---- learning ---- */

static void note_few(const struct pieces *p)
{
    int64_t n_token = 0;
    for (int32_t i = 0; i < p->n; i++)
        n_token += p->texts[i].n_token;
    if (p->n < ENOUGH_PIECES || n_token < ENOUGH_TOKENS)
        cli_note("%d pieces of %lld tokens together are too few to rely on: give %d pieces or more "
                 "and %d tokens (more texts, --pieces, -c)",
                 p->n, (long long)n_token, ENOUGH_PIECES, ENOUGH_TOKENS);
}

/* Where statistics stand until they are whole: beside the file. */
static char *name_beside(const char *path)
{
    size_t cap = strlen(path) + 32;
    char *name = cli_alloc(cap, 1);
    snprintf(name, cap, "%s.part-%ld", path, (long)getpid());
    return name;
}

static pith_stats *learn(struct session *s, const struct importance_source *from,
                         const struct pieces *pieces, bool progress, const char *part)
{
    struct cli_progress shown = {.what = "calibrating", .on = progress};
    pith_importance_params p;
    pith_stats *stats = NULL;
    pith_error err;
    char names[NAME_CAP];
    join_names(from->files, names);
    pith_importance_params_default(&p);
    p.texts = pieces->texts;
    p.n_text = pieces->n;
    p.hidden = from->hidden;
    p.keep = from->keep->text;
    p.n_keep = from->keep->n;
    p.path = part;
    p.resume = from->resume;
    p.text = names;
    p.progress = cli_progress_step;
    p.progress_user = &shown;
    cli_progress_step(&shown, 0.0);
    cli_interrupt_catch();
    pith_status status = pith_calibrate_importance(s->engine, &p, &stats, &err);
    cli_progress_end(&shown);
    unlink(part);
    if (status == PITH_CANCELLED && from->resume != NULL)
        cli_note("stopped: the same command goes on from there");
    if (status == PITH_CANCELLED)
        cli_exit(EXIT_INTERRUPTED);
    session_check(status, &err);
    return stats;
}

void importance_write(struct session *s, const struct model_options *m,
                      const struct memory_options *memory, const struct importance_source *from,
                      bool progress, bool quiet, const char *path)
{
    struct memory_options o = *memory;
    struct pieces pieces = {0};
    pith_error err;
    char *part = name_beside(path);
    read_files(s, from, &pieces);
    o.n_ctx = 2 * from->piece_len + N_AROUND;
    if (o.n_ctx > s->info.n_ctx_train && !quiet)
        cli_note("a piece of %d tokens with its repetition goes beyond the model's context of %d",
                 from->piece_len, s->info.n_ctx_train);
    session_start(s, m, &o, 0);
    double start = clock_s();
    pith_stats *stats = learn(s, from, &pieces, progress, part);
    cli_check(pith_stats_save(stats, path, &err), &err);
    if (from->resume != NULL)
        unlink(from->resume);
    if (!quiet)
        fprintf(stderr, "%s: importance of entries from %d pieces of at most %d tokens in %.1f s\n",
                path, pieces.n, from->piece_len, clock_s() - start);
    if (!quiet)
        note_few(&pieces);
    if (!quiet)
        importance_print(stats);
    pith_stats_free(stats);
    free_pieces(&pieces, from->files->n);
    free(part);
}
