/*
 * calibrate.c - `pith calibrate`: gathers the statistics of a model's queries over a text. With
 * --inspect it draws such a file (calibrate_inspect.c). With --loki it gathers the bases of the
 * model's keys instead (calibrate_loki.c), with --importance also how important entries are
 * (calibrate_importance.c). With --share it shows how far apart pages of reasoning are
 * (calibrate_share.c).
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calibrate.h"
#include "calibrate_importance.h"
#include "calibrate_loki.h"
#include "calibrate_ranges.h"
#include "calibrate_share.h"
#include "models.h"

#define AT(member) .offset = offsetof(struct calibrate_options, member)
static const struct option table[] = {
    {"--file", "-f", "FILE", OPTION_TEXTS, AT(files), .absent = "none",
     .help = "the text to read; - is standard input; --importance takes several"},
    {"--tokens", NULL, "FILE", OPTION_TEXT, AT(tokens), .absent = "none",
     .help = "instead of a text: token ids, separated by white space or commas, as they are"},
    {"--output", "-o", "STATS", OPTION_TEXT, AT(out), .absent = "none",
     .help = "the file of statistics to write"},
    {"--loki", NULL, "BASES", OPTION_TEXT, AT(loki), .absent = "none",
     .help = "instead of statistics: write the bases of the model's keys, for --read loki"},
    {"--share", NULL, "POLICY", OPTION_TEXT, AT(memory.share), .absent = "none",
     .help = "instead of statistics: show how far apart the pages of like steps are, and pages at "
             "random, for the thresholds of memshare, whose options count. The tokens of the text "
             "are the steps; with --select generated those that the model writes after it",
     .env = ""},
    {"--importance", NULL, NULL, OPTION_FLAG, AT(importance),
     .help = "into the statistics: how important entries are, learnt from pieces of the texts that "
             "the model is made to repeat"},
    {"--pieces", NULL, "N", OPTION_INT, AT(pieces), .min = 1, .max = 4096,
     .help = "pieces of each text that --importance takes, of -c tokens (1000), evenly spaced"},
    {"--hidden", NULL, NULL, OPTION_FLAG, AT(hidden),
     .help = "with --importance: learn to predict it from the layers' inputs, too",
     .with = "--importance"},
    {"--keep", NULL, "POLICY", OPTION_TEXTS, AT(keep), .absent = "none",
     .help =
         "with --importance: map the scores of this keep policy to importance; may be repeated. "
         "Scores are not standardised within a lane (z=off), and statistics are those that "
         "this run gathers",
     .with = "--importance"},
    {"--keys", NULL, "WHICH", OPTION_TEXT, AT(keys),
     .help =
         "of which keys --loki finds bases: rotated, as they are stored, or plain, as they were "
         "before rotation"},
    {"--select", NULL, "WHICH", OPTION_TEXT, AT(select),
     .help = "whose queries count: all, generated (by the model, after the text), or a file of "
             "ranges of tokens, \"BEGIN END\" on each line"},
    {"--ctx-size", "-c", "N", OPTION_INT, AT(n_piece), .min = 1, .max = INT32_MAX,
     .absent = "the model's context",
     .help = "tokens of a piece: a longer text is read in pieces, each from the first position"},
    {"--predict", "-n", "N", OPTION_INT, AT(n_generate), .min = 1, .max = 1 << 24,
     .help = "tokens that the model writes after each piece, with --select generated"},
    {"--temp", NULL, "T", OPTION_FLOAT, AT(temperature), .min = 0, .max = 100,
     .help = "temperature of those tokens"},
    {"--centres", NULL, "K", OPTION_INT, AT(n_centre), .min = 1, .max = 1024,
     .help = "centres of each head (k-means); 1: the mean alone"},
    {"--samples", NULL, "N", OPTION_INT, AT(n_sample), .min = 1, .max = 1 << 24,
     .help = "queries of each head that centres are found from, evenly spaced"},
    {"--seed", "-s", "N", OPTION_LONG, AT(seed), .max = 0x1p62,
     .help = "of the centres and of the tokens written"},
    {"--inspect", NULL, "STATS", OPTION_TEXT, AT(inspect), .absent = "none",
     .help = "draw a file of statistics; with -m and -f also its curves against a text"},
    {"--layer", NULL, "L", OPTION_INT, AT(layer), .min = -1, .max = 1 << 20,
     .absent = "that of the curve that tells most",
     .help = "layer of the curve that --inspect draws"},
    {"--head", NULL, "H", OPTION_INT, AT(head), .min = -1, .max = 1 << 20,
     .absent = "that of the curve that tells most", .help = "its query head"},
    {"--chunk", NULL, "N", OPTION_INT, AT(memory.chunk), .min = 1, .max = 8192,
     .help = "most tokens of one pass", .also = "-ub --ubatch-size", .env = "LLAMA_ARG_UBATCH"},
    {"--progress", NULL, NULL, OPTION_FLAG, AT(progress), .absent = "on a terminal",
     .help = "show how much is done"},
    {"--quiet", "-q", NULL, OPTION_FLAG, AT(quiet), .help = "say nothing"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct calibrate_options, model), .without = "none"},
    {"Calibration", table, 0},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct calibrate_options *o = options;
    pith_calibrate_params p;
    pith_calibrate_params_default(&p);
    memory_options_default(&o->memory);
    o->select = "all";
    o->keys = "rotated";
    o->pieces = 5;
    o->n_generate = p.n_generate;
    o->n_centre = p.n_centre;
    o->n_sample = p.n_sample;
    o->temperature = p.sample.temperature;
    o->layer = o->head = -1;
}

/* ---- gathering ---- */

/* The file's name without its folders. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

const char *calibrate_source(const struct calibrate_options *o)
{
    return o->tokens != NULL ? o->tokens : o->text;
}

struct cli_ids calibrate_read_tokens(const struct calibrate_options *o, const struct session *s)
{
    struct cli_text text =
        o->tokens != NULL ? numbers_read(o->tokens) : cli_read_file(calibrate_source(o));
    struct cli_ids ids;
    if (text.len == 0)
        cli_fail("%s: the file is empty", calibrate_source(o));
    if (o->tokens != NULL)
        ids = ids_parse(o->tokens, text.data, s->info.n_vocab);
    else
        ids = session_tokenize(s->model, text.data, text.len, PITH_TOKENIZE_BOS);
    free(text.data);
    if (ids.n == 0)
        cli_fail("%s: there are no tokens in the file", calibrate_source(o));
    return ids;
}

static bool same_file(const struct stat *a, const char *path)
{
    struct stat b;
    return path != NULL && stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

/* A file that cannot be written is refused before the calibration, which is long. */
static void check_output(const struct calibrate_options *o)
{
    struct stat st;
    const char *name = base_name(o->out);
    size_t n = (size_t)(name - o->out);
    char *folder = cli_alloc(n + 2, 1);
    memcpy(folder, n > 0 ? o->out : ".", n > 0 ? n : 1);
    if (access(folder, W_OK | X_OK) != 0)
        cli_fail("%s: cannot write in \"%s\": %s", o->out, folder, strerror(errno));
    free(folder);
    if (stat(o->out, &st) != 0)
        return;
    if (!S_ISREG(st.st_mode))
        cli_fail("%s: not a regular file", o->out);
    if (same_file(&st, o->model.path) || same_file(&st, calibrate_source(o)) ||
        same_file(&st, o->select))
        cli_fail("%s: the statistics would replace a file that they are made from", o->out);
}

/* Fails where the KV memory of a piece and the queries for the centres, at most n_query of a head,
   would not fit. */
static void check_memory(const struct calibrate_options *o, const struct session *s,
                         int64_t n_query)
{
    pith_engine_params p = engine_params(&o->model, &o->memory);
    pith_error err;
    char kv_text[32], query_text[32], free_text[32];
    int64_t kv, queries = 0, available = available_memory();
    cli_check(pith_kv_estimate(s->model, &p, o->memory.n_ctx, &kv, &err), &err);
    if (o->n_centre > 1)
        queries = (int64_t)s->info.n_layer_kv * s->info.n_head * s->info.head_dim_k * 4 *
                  (o->n_sample < n_query ? o->n_sample : n_query);
    if (available > 0 && kv + queries > available)
        cli_fail("%s of KV memory for %d tokens (-c) and %s of queries to find centres from "
                 "(--samples) are more than the %s of available memory",
                 cli_bytes(kv, kv_text), o->memory.n_ctx, cli_bytes(queries, query_text),
                 cli_bytes(available, free_text));
}

/* The tokens of a piece; starts the engine that holds them and what the model writes after them. */
static int32_t start_engine(struct calibrate_options *o, struct session *s, int32_t n_token)
{
    bool more = strcmp(o->select, "generated") == 0;
    int32_t n_more = more ? o->n_generate : 0, n_fit = s->info.n_ctx_train - n_more;
    int32_t n_piece = o->n_piece > 0 ? o->n_piece : n_fit;
    if (n_piece < 1)
        cli_fail("-n %d leaves none of the model's context of %d tokens", o->n_generate,
                 s->info.n_ctx_train);
    n_piece = n_piece < n_token ? n_piece : n_token;
    if ((int64_t)n_piece + n_more > INT32_MAX)
        cli_fail("-c %d and -n %d are more tokens than %d", n_piece, n_more, INT32_MAX);
    if (n_piece > n_fit && !o->quiet)
        cli_note("pieces of %d tokens go beyond the model's context of %d, where its queries are "
                 "not what it was trained for",
                 n_piece + n_more, s->info.n_ctx_train);
    o->memory.n_ctx = n_piece + n_more;
    int64_t n_pieces = ((int64_t)n_token + n_piece - 1) / n_piece;
    check_memory(o, s, more ? n_pieces * n_more : n_token);
    session_start(s, &o->model, &o->memory, 0);
    return n_piece;
}

static pith_calibrate_params calibrate_params(const struct calibrate_options *o,
                                              struct cli_progress *progress)
{
    pith_calibrate_params p;
    pith_calibrate_params_default(&p);
    p.select = strcmp(o->select, "all") == 0         ? PITH_SELECT_ALL
               : strcmp(o->select, "generated") == 0 ? PITH_SELECT_GENERATED
                                                     : PITH_SELECT_RANGES;
    p.n_generate = o->n_generate;
    p.n_centre = o->n_centre;
    p.n_sample = o->n_sample;
    p.seed = p.sample.seed = (uint64_t)o->seed;
    p.sample.temperature = o->temperature;
    p.text = base_name(calibrate_source(o));
    p.progress = cli_progress_step;
    p.progress_user = progress;
    return p;
}

static void report(const struct calibrate_options *o, const pith_stats *stats, double seconds)
{
    pith_stats_info i;
    pith_stats_head head;
    pith_stats_get_info(stats, &i);
    pith_stats_get_head(stats, 0, 0, &head);
    if (!o->quiet)
        fprintf(stderr,
                "%s: %d layers, %d heads, %d centre%s, from %lld of %lld tokens in %.1f s\n",
                o->out, i.n_layer, i.n_head, i.n_centre, i.n_centre == 1 ? "" : "s",
                (long long)head.n_query, (long long)i.n_token, seconds);
}

static int gather(struct calibrate_options *o)
{
    struct session s = {0};
    pith_stats *stats = NULL;
    pith_error err;
    struct cli_progress progress = {.what = "calibrating",
                                    .on = !o->quiet && (o->progress || cli_progress_wanted())};
    pith_range *ranges = NULL;
    pith_calibrate_params p = calibrate_params(o, &progress);
    check_output(o);
    if (p.select == PITH_SELECT_RANGES)
        ranges = ranges_read(o->select, &p.n_range);
    p.ranges = ranges;
    session_load(&s, &o->model, false);
    struct cli_ids ids = calibrate_read_tokens(o, &s);
    p.n_ctx = start_engine(o, &s, ids.n);
    cli_interrupt_catch();
    double start = clock_s();
    cli_progress_step(&progress, 0.0);
    pith_status status = pith_calibrate(s.engine, ids.data, ids.n, &p, &stats, &err);
    cli_progress_end(&progress);
    if (status == PITH_CANCELLED)
        cli_exit(EXIT_INTERRUPTED);
    session_check(status, &err);
    cli_check(pith_stats_save(stats, o->out, &err), &err);
    report(o, stats, clock_s() - start);
    pith_stats_free(stats);
    free(ids.data);
    free(ranges);
    session_free(&s);
    return EXIT_SUCCESS;
}

#define PIECE_LEN 1000 /* tokens of a piece whose importance is learnt */

/* How important entries are. */
static int gather_importance(struct calibrate_options *o)
{
    struct session s = {0};
    const struct importance_source from = {.files = &o->files,
                                           .keep = &o->keep,
                                           .n_piece = o->pieces,
                                           .piece_len = o->n_piece > 0 ? o->n_piece : PIECE_LEN,
                                           .hidden = o->hidden};
    if (o->model.path == NULL || o->files.n == 0 || o->out == NULL)
        cli_fail_usage("--importance wants -m MODEL, -f TEXT (one or several) and -o STATS");
    if (o->loki != NULL || o->memory.share != NULL || o->tokens != NULL ||
        strcmp(o->select, "all") != 0 || o->n_centre > 1)
        cli_fail_usage("--importance takes all tokens of texts, with one centre: leave out --loki, "
                       "--share, --tokens, --select and --centres");
    for (int32_t i = 0; i < o->files.n; i++) {
        o->text = o->files.text[i];
        check_output(o);
    }
    session_load(&s, &o->model, false);
    importance_write(&s, &o->model, &o->memory, &from,
                     !o->quiet && (o->progress || cli_progress_wanted()), o->quiet, o->out);
    session_free(&s);
    return EXIT_SUCCESS;
}

/* How far apart pages are. */
static int compare_pages(struct calibrate_options *o)
{
    struct session s = {0};
    bool writes = strcmp(o->select, "generated") == 0;
    if (o->out != NULL || o->loki != NULL)
        cli_fail_usage("-o and --loki write files, --share shows: give one of them");
    if (!writes && strcmp(o->select, "all") != 0)
        cli_fail_usage("--share takes all tokens of the text, or with --select generated those "
                       "that the model writes");
    if (o->model.path == NULL || calibrate_source(o) == NULL)
        cli_fail_usage("--share wants -m MODEL and -f TEXT or --tokens FILE");
    share_calibrate_check(o->memory.share);
    (void)engine_params(&o->model, &o->memory); /* complains before the model is loaded */
    session_load(&s, &o->model, false);
    struct cli_ids ids = calibrate_read_tokens(o, &s);
    const struct share_source from = {&ids, writes ? o->n_generate : 0, o->temperature, o->seed};
    share_calibrate(&s, &o->model, &o->memory, &from);
    free(ids.data);
    session_free(&s);
    return EXIT_SUCCESS;
}

/* The bases of the keys. */
static int gather_bases(struct calibrate_options *o)
{
    struct session s = {0};
    o->out = o->loki;
    loki_keys(o->keys);
    check_output(o);
    session_load(&s, &o->model, false);
    struct cli_ids ids = calibrate_read_tokens(o, &s);
    struct loki_source from = {&ids, base_name(calibrate_source(o)), o->keys,
                               start_engine(o, &s, ids.n)};
    loki_write(&s, &from, !o->quiet && (o->progress || cli_progress_wanted()), o->quiet, o->out);
    free(ids.data);
    session_free(&s);
    return EXIT_SUCCESS;
}

static int run(void *options)
{
    struct calibrate_options *o = options;
    if (o->files.n > 1 && !o->importance)
        cli_fail_usage("several -f go with --importance alone");
    o->text = o->files.n > 0 ? o->files.text[0] : NULL;
    if (o->model.hf != NULL) {
        o->model.path = models_resolve(&o->model); /* for as long as the command runs */
        o->model.hf = o->model.hf_file = NULL;
    }
    if (o->text != NULL && o->tokens != NULL)
        cli_fail_usage("-f reads a text, --tokens the tokens themselves: give one of them");
    if (o->inspect != NULL) {
        if (o->model.path == NULL && (o->layer >= 0 || o->head >= 0))
            cli_fail_usage("--layer and --head choose a curve, which --inspect draws where -m "
                           "names the model");
        if (o->out != NULL || o->loki != NULL)
            cli_fail_usage("--inspect reads a file, -o and --loki write one: give one of them");
        if (calibrate_source(o) != NULL && o->model.path == NULL)
            cli_fail_usage("--inspect compares with a text only where -m names the model");
        return calibrate_inspect(o);
    }
    if (o->importance)
        return gather_importance(o);
    if (o->memory.share != NULL)
        return compare_pages(o);
    if (o->loki != NULL && o->out != NULL)
        cli_fail_usage("-o writes statistics, --loki bases: give one of them");
    if (o->model.path == NULL || calibrate_source(o) == NULL || (o->out == NULL && o->loki == NULL))
        cli_fail_usage("-m MODEL, -f TEXT (or --tokens FILE) and -o STATS or --loki BASES are "
                       "wanted, or --inspect FILE");
    if (o->loki != NULL && strcmp(o->select, "all") != 0)
        cli_fail_usage("--loki takes the keys of all tokens: leave out --select");
    if (o->loki != NULL)
        return gather_bases(o);
    if (o->n_sample < o->n_centre)
        cli_fail_usage("--samples %d are fewer than --centres %d", o->n_sample, o->n_centre);
    return gather(o);
}

const struct command command_calibrate = {
    .name = "calibrate",
    .summary =
        "gather statistics for keep policies, bases for Loki, or distances of pages of steps",
    .synopsis =
        "-m MODEL -f TEXT|--tokens FILE -o STATS|--loki BASES [--importance] [--select WHICH]",
    .notes =
        "Which tokens count can decide how a policy does: the file says which they were. Inspect\n"
        "reads Pith's files and TRIA; scripts/stats_from_pt.py converts the authors' .pt.\n"
        "\n"
        "  pith calibrate -m model.gguf -f text.txt -o model.stats --centres 16\n"
        "  pith calibrate --inspect model.stats -m model.gguf -f other.txt\n"
        "  pith run -m model.gguf --keep triattention:v3,stats=model.stats,budget=1024 -p ...\n"
        "\n"
        "  pith calibrate --importance -m model.gguf -f prose.txt -f code.txt -o model.stats \\\n"
        "    --keep triattention:global\n"
        "\n"
        "  pith calibrate -m model.gguf -f text.txt --loki model.loki\n"
        "  pith run -m model.gguf --read loki:projection=model.loki,budget=1024 -p ...\n"
        "\n"
        "  pith calibrate -m model.gguf -f question.txt --select generated --share memshare",
    .groups = groups,
    .options_size = sizeof(struct calibrate_options),
    .defaults = defaults,
    .run = run,
};
