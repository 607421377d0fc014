/*
 * calibrate.c - `pith calibrate`: learns from texts. Each kind of result is a command of its own,
 * and `all` makes all that policies want (calibrate_all.c).
 * `queries` gathers the statistics of queries. `importance` learns how important entries are
 * (calibrate_importance.c), `loki` finds the bases of keys (calibrate_loki.c). `share` shows how
 * far apart pages of reasoning are (calibrate_share.c), and `inspect` draws files
 * (calibrate_inspect.c).
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
#include "calibrate_all.h"
#include "calibrate_importance.h"
#include "calibrate_loki.h"
#include "calibrate_ranges.h"
#include "calibrate_share.h"
#include "models.h"
#include "outputs.h"

/* ---- options ---- */

#define AT(member) .offset = offsetof(struct calibrate_options, member)
static const struct option text_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXTS, AT(files), .required = true, .absent = "",
     .help = "the text to read; - is standard input", .one_of = "the tokens"},
    {"--tokens", NULL, "FILE", OPTION_TEXT, AT(tokens), .absent = "none",
     .help = "instead of a text: token ids, separated by white space or commas, as they are",
     .one_of = "the tokens"},
    {0},
};

static const struct option piece_table[] = {
    {"--ctx-size", "-c", "N", OPTION_INT, AT(n_piece), .min = 1, .max = INT32_MAX,
     .absent = "the model's context",
     .help = "tokens of a piece: a longer text is read in pieces, each from the first position"},
    {0},
};

static const struct option written_table[] = {
    {"--predict", "-n", "N", OPTION_INT, AT(n_generate), .min = 1, .max = 1 << 24,
     .help = "tokens that the model writes after each piece"},
    {"--temp", NULL, "T", OPTION_FLOAT, AT(temperature), .min = 0, .max = 100,
     .help = "temperature of those tokens"},
    {"--seed", "-s", "N", OPTION_LONG, AT(seed), .max = 0x1p62,
     .help = "of those tokens, and of centres"},
    {0},
};

static const struct option queries_table[] = {
    {"--output", "-o", "STATS", OPTION_TEXT, AT(out), .required = true, .absent = "",
     .help = "the file of statistics to write"},
    {"--select", NULL, "WHICH", OPTION_TEXT, AT(select),
     .help = "whose queries count: all, generated (by the model, after the text), or a file of "
             "ranges of tokens, \"BEGIN END\" on each line"},
    {"--centres", NULL, "K", OPTION_INT, AT(n_centre), .min = 1, .max = 1024,
     .help = "centres of each head (k-means); 1: the mean alone"},
    {"--samples", NULL, "N", OPTION_INT, AT(n_sample), .min = 1, .max = 1 << 24,
     .help = "queries of each head that centres are found from, evenly spaced"},
    {0},
};

static const struct option importance_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXTS, AT(files), .required = true, .absent = "",
     .help = "a text to read; repeatable; - is standard input"},
    {"--output", "-o", "STATS", OPTION_TEXT, AT(out), .required = true, .absent = "",
     .help = "the file of statistics to write"},
    {"--pieces", NULL, "N", OPTION_INT, AT(pieces), .min = 1, .max = 4096,
     .help = "pieces of each text that the model repeats, evenly spaced"},
    {"--ctx-size", "-c", "N", OPTION_INT, AT(n_piece), .min = 1, .max = INT32_MAX, .absent = "1000",
     .help = "tokens of a piece"},
    {"--hidden", NULL, NULL, OPTION_FLAG, AT(hidden),
     .help = "learn to predict importance from the layers' inputs, too"},
    {"--keep", NULL, "POLICY", OPTION_TEXTS, AT(keep), .absent = "none",
     .help = "map the scores of this keep policy to importance; may be repeated. Scores are not "
             "standardised within a lane (z=off), and statistics are those that this run gathers",
     .env = ""},
    {0},
};

static const char *const loki_key_names[] = {"rotated", "plain", NULL};

static const struct option loki_table[] = {
    {"--output", "-o", "BASES", OPTION_TEXT, AT(out), .required = true, .absent = "",
     .help = "the file of bases to write"},
    {"--keys", NULL, "WHICH", OPTION_CHOICE, AT(keys), .choices = loki_key_names,
     .help = "of which keys: as they are stored, or as they were before rotation"},
    {0},
};

static const char *const share_selections[] = {"all", "generated", NULL};

static const struct option share_table[] = {
    {"POLICY", NULL, NULL, OPTION_TEXT, AT(memory.share), .absent = "memshare",
     .help = "memshare, whose options count"},
    {"--select", NULL, "WHICH", OPTION_CHOICE, AT(select), .choices = share_selections,
     .help = "whose steps: the text's, or the steps that the model writes after it"},
    {0},
};

static const struct option inspect_table[] = {
    {"FILE", NULL, NULL, OPTION_TEXT, AT(inspect), .required = true, .absent = "",
     .help = "statistics, or bases of keys"},
    {"--file", "-f", "FILE", OPTION_TEXTS, AT(files), .absent = "none",
     .help = "a text that curves are compared with, with -m; - is standard input"},
    {"--tokens", NULL, "FILE", OPTION_TEXT, AT(tokens), .absent = "none",
     .help = "instead of a text: token ids"},
    {"--layer", NULL, "L", OPTION_INT, AT(layer), .min = -1, .max = 1 << 20,
     .absent = "that of the curve that tells most", .help = "layer of the curve that is drawn"},
    {"--head", NULL, "H", OPTION_INT, AT(head), .min = -1, .max = 1 << 20,
     .absent = "that of the curve that tells most", .help = "its query head"},
    {"--html", NULL, "FILE", OPTION_TEXT, AT(html), .absent = "none", .writes = true,
     .help = "also write a page with drawings of the text's queries, keys and blocks"},
    {0},
};

static const struct option all_table[] = {
    {"--again", NULL, NULL, OPTION_FLAG, AT(again), .help = "learn anew what is there"},
    {0},
};

static const struct option pass_table[] = {
    {"--chunk", NULL, "N", OPTION_INT, AT(memory.chunk), .min = 1, .max = 8192,
     .help = "most tokens of one pass", .also = "-ub --ubatch-size", .env = "LLAMA_ARG_UBATCH"},
    {"--progress", NULL, NULL, OPTION_FLAG, AT(progress), .absent = "on a terminal",
     .help = "show how much is done"},
    {"--quiet", "-q", NULL, OPTION_FLAG, AT(quiet), .help = "say nothing"},
    {0},
};
#undef AT

/* A command's own operand comes before that of the model. */
static const struct option_group queries_groups[] = {
    {"Calibration", queries_table, 0},
    {"Text", text_table, 0},
    {"Pieces", piece_table, 0},
    {"With --select generated", written_table, 0},
    {"Model", model_option_table, offsetof(struct calibrate_options, model)},
    {"Passes", pass_table, 0},
    LLAMA_GROUP,
    {0},
};

static const struct option_group importance_groups[] = {
    {"Calibration", importance_table, 0},
    {"Model", model_option_table, offsetof(struct calibrate_options, model)},
    {"Passes", pass_table, 0},
    LLAMA_GROUP,
    {0},
};

static const struct option_group loki_groups[] = {
    {"Calibration", loki_table, 0},
    {"Text", text_table, 0},
    {"Pieces", piece_table, 0},
    {"Model", model_option_table, offsetof(struct calibrate_options, model)},
    {"Passes", pass_table, 0},
    LLAMA_GROUP,
    {0},
};

static const struct option_group all_groups[] = {
    {"Calibration", all_table, 0},
    {"Model", model_option_table, offsetof(struct calibrate_options, model)},
    {"Passes", pass_table, 0},
    LLAMA_GROUP,
    {0},
};

static const struct option_group share_groups[] = {
    {"Calibration", share_table, 0},
    {"Text", text_table, 0},
    {"With --select generated", written_table, 0},
    {"Model", model_option_table, offsetof(struct calibrate_options, model)},
    {"Passes", pass_table, 0},
    LLAMA_GROUP,
    {0},
};

static const struct option_group inspect_groups[] = {
    {"Calibration", inspect_table, 0},
    {"Model", model_option_table, offsetof(struct calibrate_options, model), .without = "none"},
    {"Passes", pass_table, 0},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct calibrate_options *o = options;
    pith_calibrate_params p;
    pith_calibrate_params_default(&p);
    memory_options_default(&o->memory);
    o->select = share_selections[0];
    o->keys = loki_key_names[0];
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
    if (outputs_same_file(o->out, o->model.path) ||
        outputs_same_file(o->out, calibrate_source(o)) || outputs_same_file(o->out, o->select))
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
    int64_t kv, queries = 0, available = available_memory(&o->model);
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

/* The text and the model. */
static void resolve(struct calibrate_options *o)
{
    o->text = o->files.n > 0 ? o->files.text[0] : NULL;
    if (o->text != NULL && o->tokens != NULL)
        cli_fail_usage("-f reads a text, --tokens the tokens themselves: give one of them");
    if (o->model.hf == NULL)
        return;
    o->model.path = models_resolve(&o->model); /* for as long as the command runs */
    o->model.hf = o->model.hf_file = NULL;
}

static void resolve_one(struct calibrate_options *o)
{
    if (o->files.n > 1)
        cli_fail_usage("several -f go with \"pith calibrate importance\" alone");
    resolve(o);
}

static bool shows_progress(const struct calibrate_options *o)
{
    return !o->quiet && (o->progress || cli_progress_wanted());
}

static int run_queries(void *options)
{
    struct calibrate_options *o = options;
    struct session s = {0};
    pith_stats *stats = NULL;
    pith_error err;
    struct cli_progress progress = {.what = "calibrating", .on = shows_progress(o)};
    pith_range *ranges = NULL;
    if (o->n_sample < o->n_centre)
        cli_fail_usage("--samples %d are fewer than --centres %d", o->n_sample, o->n_centre);
    resolve_one(o);
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

static int run_importance(void *options)
{
    struct calibrate_options *o = options;
    struct session s = {0};
    const struct importance_source from = {.files = &o->files,
                                           .keep = &o->keep,
                                           .n_piece = o->pieces,
                                           .piece_len = o->n_piece > 0 ? o->n_piece : PIECE_LEN,
                                           .hidden = o->hidden};
    resolve(o);
    for (int32_t i = 0; i < o->files.n; i++) {
        o->text = o->files.text[i];
        check_output(o);
    }
    session_load(&s, &o->model, false);
    importance_write(&s, &o->model, &o->memory, &from, shows_progress(o), o->quiet, o->out);
    session_free(&s);
    return EXIT_SUCCESS;
}

static int run_loki(void *options)
{
    struct calibrate_options *o = options;
    struct session s = {0};
    resolve_one(o);
    check_output(o);
    session_load(&s, &o->model, false);
    struct cli_ids ids = calibrate_read_tokens(o, &s);
    struct loki_source from = {&ids, base_name(calibrate_source(o)), o->keys,
                               start_engine(o, &s, ids.n)};
    loki_write(&s, &from, shows_progress(o), o->quiet, o->out);
    free(ids.data);
    session_free(&s);
    return EXIT_SUCCESS;
}

static int run_share(void *options)
{
    struct calibrate_options *o = options;
    struct session s = {0};
    bool writes = strcmp(o->select, "generated") == 0;
    resolve_one(o);
    if (o->memory.share == NULL)
        o->memory.share = "memshare";
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

static int run_inspect(void *options)
{
    struct calibrate_options *o = options;
    resolve_one(o);
    if (o->model.path == NULL && (o->layer >= 0 || o->head >= 0))
        cli_fail_usage("--layer and --head choose a curve, which is drawn where -m names the "
                       "model");
    if (o->model.path == NULL && calibrate_source(o) != NULL)
        cli_fail_usage("a text is compared with only where -m names the model");
    if (o->html != NULL && calibrate_source(o) == NULL)
        cli_fail_usage("--html draws a text: name it with -f, and the model with -m");
    return calibrate_inspect(o);
}

static int run_all(void *options)
{
    struct calibrate_options *o = options;
    return calibrate_all(o, shows_progress(o));
}

/* ---- commands ---- */

static const struct command command_all = {
    .name = "all",
    .summary = "learn all that policies want of a model, from texts that come with Pith",
    .synopsis = "MODEL",
    .notes =
        "\"pith calibrate MODEL\" is the same. The files lie in pith/ below XDG_CACHE_HOME, else\n"
        "below ~/.cache, and commands find them by the model's fingerprint. Ctrl-C stops it,\n"
        "and the same command goes on from there.\n"
        "\n"
        "  pith calibrate model.gguf\n"
        "  pith run -m model.gguf -f long.txt --kv 25%",
    .groups = all_groups,
    .options_size = sizeof(struct calibrate_options),
    .defaults = defaults,
    .run = run_all,
};

static const struct command command_queries = {
    .name = "queries",
    .summary = "gather where queries point, for --keep triattention",
    .synopsis = "-m MODEL -f TEXT|--tokens FILE -o STATS [--select WHICH] [--centres K]",
    .notes = "Which tokens count can decide how a policy does: the file says which they were.\n"
             "scripts/stats_from_pt.py converts the authors' .pt.\n"
             "\n"
             "  pith calibrate queries -m model.gguf -f text.txt -o model.stats --centres 16\n"
             "  pith run -m model.gguf --keep triattention:v3,stats=model.stats,budget=1024 -p ...",
    .groups = queries_groups,
    .options_size = sizeof(struct calibrate_options),
    .defaults = defaults,
    .run = run_queries,
};

static const struct command command_importance = {
    .name = "importance",
    .summary = "learn how important entries are, for --keep kvzap and rankings over all lanes",
    .synopsis = "-m MODEL -f TEXT [-f TEXT]... -o STATS [--keep POLICY]... [--hidden]",
    .notes =
        "The model repeats pieces of the texts. The file has the statistics of queries, too.\n"
        "\n"
        "  pith calibrate importance -m model.gguf -f prose.txt -f code.txt -o model.stats \\\n"
        "    --keep triattention:global\n"
        "  pith run -m model.gguf --keep kvzap:stats=model.stats,budget=25% -p ...",
    .groups = importance_groups,
    .options_size = sizeof(struct calibrate_options),
    .defaults = defaults,
    .run = run_importance,
};

static const struct command command_loki = {
    .name = "loki",
    .summary = "find the bases of keys, for --read loki",
    .synopsis = "-m MODEL -f TEXT|--tokens FILE -o BASES [--keys WHICH]",
    .notes = "  pith calibrate loki -m model.gguf -f text.txt -o model.loki\n"
             "  pith run -m model.gguf --read loki:projection=model.loki,budget=1024 -p ...",
    .groups = loki_groups,
    .options_size = sizeof(struct calibrate_options),
    .defaults = defaults,
    .run = run_loki,
};

static const struct command command_share = {
    .name = "share",
    .summary = "show how far apart the pages of like steps are, for --share memshare",
    .synopsis = "POLICY -m MODEL -f TEXT|--tokens FILE [--select WHICH]",
    .notes = "Beside them stand random pages, so that thresholds can be chosen.\n"
             "\n"
             "  pith calibrate share memshare -m model.gguf -f question.txt --select generated",
    .groups = share_groups,
    .options_size = sizeof(struct calibrate_options),
    .defaults = defaults,
    .run = run_share,
};

static const struct command command_inspect = {
    .name = "inspect",
    .summary = "draw a file of statistics or bases",
    .synopsis = "FILE [-m MODEL] [-f TEXT|--tokens FILE] [--html FILE]",
    .notes = "It reads Pith's files and TRIA. With -m and -f it compares curves with a text.\n"
             "\n"
             "  pith calibrate inspect model.stats -m model.gguf -f other.txt",
    .groups = inspect_groups,
    .options_size = sizeof(struct calibrate_options),
    .defaults = defaults,
    .run = run_inspect,
};

static const struct command *const calibrate_commands[] = {
    &command_all,  &command_queries, &command_importance,
    &command_loki, &command_share,   &command_inspect,
    NULL};

/* Earlier, an option chose the command; its present form, "" for none. */
static const struct command_older older[] = {
    {"--inspect", "", "inspect"}, {"--importance", "", "importance"},
    {"--share", "", "share"},     {"--loki", "--output", "loki"},
    {"-o", "-o", "queries"},      {"--output", "--output", "queries"},
    {NULL, NULL, NULL},
};

const struct command command_calibrate = {
    .name = "calibrate",
    .summary = "learn from texts what policies need",
    .notes = "The result goes to a file, which a policy then reads. Without a task it is \"all\".\n"
             "\n"
             "  pith calibrate model.gguf\n"
             "  pith calibrate importance -m model.gguf -f text.txt -o model.stats\n"
             "  pith calibrate inspect model.stats",
    .subcommands = calibrate_commands,
    .older = older,
    .otherwise = "all",
};
