/*
 * bench_draft.c - what drafts are worth, and that they change nothing. Each prompt, a file, is read
 * once as a user's message. Then forks of that sequence generate by turns without drafts, with those
 * of the text so far (lookup), with those of a smaller model, and with both. Counted is the
 * processor time of the generation alone, which includes all that a draft takes: also that the
 * smaller model has to read the prompt.
 *
 * Every text is compared with the one without drafts, token by token and by the hash of its last
 * logits. --vary takes another seed and temperature in every round, and drafts wherever it can in
 * every second one: that is for many comparisons, not for times.
 *
 * Before the texts, what a pass of several rows takes beside one of one row at that depth. With a
 * tokens a pass that took c times one row's time, the most that can be gained is a / c.
 *
 * usage: bench_draft -m MODEL [-d MODEL] [-n N] [--temp X] [--rounds N] [--max N] [--vary] FILE...
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pith/inspect.h"

#define MAX_ROUND 4096
#define MAX_TEXT (1 << 20)
#define N_WAY 4

struct options {
    const char *model, *draft;
    int32_t n_predict, n_round, n_max;
    float temperature;
    bool vary, ignore_end;
    char **file;
    int n_file;
};

static const char *const ways[N_WAY] = {"none", "lookup", "model", "both"};

struct text {
    int32_t *token;
    int32_t n;
    uint64_t hash;
};

/* What a way's rounds gave. */
struct result {
    double seconds[MAX_ROUND];
    double ratio[MAX_ROUND]; /* of the same round without drafts */
    int64_t n_token, n_draft, n_accepted;
    int64_t n_other; /* texts that are others than without drafts */
};

struct bench {
    struct options o;
    pith_model *model, *draft_model;
    pith_engine *engine, *draft_engine;
    pith_model_info info;
    pith_seq *base; /* holds the prompt */
    int32_t *prompt;
    int32_t n_prompt;
    struct result result[N_WAY];
};

static void fail(const char *what, const pith_error *err)
{
    fprintf(stderr, "bench_draft: %s: %s\n", what, err != NULL ? err->message : "failed");
    exit(1);
}

static void need(pith_status status, const char *what, const pith_error *err)
{
    if (status != PITH_OK)
        fail(what, err);
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int32_t n)
{
    static double sorted[MAX_ROUND];
    memcpy(sorted, values, (size_t)n * sizeof(*values));
    qsort(sorted, (size_t)n, sizeof(*sorted), by_size);
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* ---- a prompt ---- */

static pith_engine *engine_of(const pith_model *model, int32_t kv_tokens)
{
    pith_engine_params p;
    pith_engine *e = NULL;
    pith_error err;
    pith_engine_params_default(&p);
    p.n_thread = 1;
    p.kv_tokens = kv_tokens;
    need(pith_engine_create(model, &p, &e, &err), "engine", &err);
    return e;
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(MAX_TEXT + 1, 1);
    if (file == NULL || text == NULL)
        fail(path, NULL);
    size_t len = fread(text, 1, MAX_TEXT, file);
    fclose(file);
    while (len > 0 && text[len - 1] == '\n')
        text[--len] = '\0';
    return text;
}

/* The text as a message, where the model has a template; else as it is. */
static void tokenize(struct bench *b, char *text)
{
    pith_error err;
    pith_chat_params chat;
    pith_prompt *prompt = NULL;
    pith_message message = {"user", text};
    int32_t cap = (int32_t)strlen(text) + 1024;
    b->prompt = calloc((size_t)cap, sizeof(*b->prompt));
    if (pith_chat_template(b->model) == NULL) {
        need(pith_tokenize(b->model, text, strlen(text), PITH_TOKENIZE_BOS, b->prompt, cap,
                           &b->n_prompt, &err),
             "tokens", &err);
        return;
    }
    pith_chat_params_default(&chat);
    chat.messages = &message;
    chat.n_message = 1;
    chat.flags = PITH_CHAT_GENERATE;
    need(pith_prompt_create(b->model, &chat, &prompt, &err), "template", &err);
    need(pith_prompt_tokenize(b->model, prompt, PITH_TOKENIZE_BOS | PITH_TOKENIZE_SPECIAL,
                              b->prompt, cap, &b->n_prompt, &err),
         "tokens", &err);
    pith_prompt_free(prompt);
}

static void begin_prompt(struct bench *b, const char *path)
{
    pith_error err;
    pith_generate_params p;
    char *text = read_text(path);
    tokenize(b, text);
    free(text);
    int32_t n = b->n_prompt + b->o.n_predict + 128;
    b->engine = engine_of(b->model, 2 * n);
    b->draft_engine = b->draft_model != NULL ? engine_of(b->draft_model, n) : NULL;
    need(pith_seq_create(b->engine, &b->base, &err), "sequence", &err);
    pith_generate_params_default(&p);
    p.n_predict = 0;
    need(pith_generate(b->base, b->prompt, b->n_prompt, &p, NULL, NULL, NULL, &err), "prompt",
         &err);
    memset(b->result, 0, sizeof(b->result));
}

static void end_prompt(struct bench *b)
{
    pith_seq_free(b->base);
    pith_engine_free(b->engine);
    pith_engine_free(b->draft_engine);
    free(b->prompt);
}

/* ---- passes of several rows ---- */

static bool drop_row(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)seq;
    *(float *)user += logits[pos % 7];
    return true;
}

static void measure_rows(struct bench *b)
{
    static const int32_t rows[] = {1, 2, 3, 4, 6, 8, 12, 16};
    double one = 0.0, seconds[5];
    float sum = 0.0f;
    pith_error err;
    printf("rows");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && rows[i] <= b->n_prompt; i++) {
        for (int k = 0; k < 5; k++) {
            pith_seq *fork = NULL;
            need(pith_seq_fork(b->base, &fork, &err), "fork", &err);
            pith_batch_item item = {.seq = fork,
                                    .tokens = b->prompt,
                                    .n_token = rows[i],
                                    .logits = PITH_LOGITS_ALL,
                                    .on_logits = drop_row,
                                    .user = &sum};
            double start = cpu_s();
            need(pith_batch_eval(b->engine, &item, 1, NULL, NULL, &err), "rows", &err);
            seconds[k] = cpu_s() - start;
            pith_seq_free(fork);
        }
        one = i == 0 ? median(seconds, 5) : one;
        printf("  %d: %.2f", rows[i], median(seconds, 5) / one);
    }
    printf("  (1: %.2f ms)\n", 1e3 * one);
}

/* ---- texts ---- */

static double generate(struct bench *b, int way, int32_t round, struct text *out)
{
    static const float temperatures[] = {0.0f, 0.3f, 0.7f, 1.0f, 1.3f};
    pith_error err;
    pith_seq *seq = NULL;
    pith_generate_params p;
    pith_generate_result r;
    pith_draft_params draft;
    pith_draft_params_default(&draft);
    draft.n_max = b->o.n_max;
    draft.lookup = way != 2;
    draft.engine = way >= 2 ? b->draft_engine : NULL;
    draft.always = b->o.vary && round % 2 == 1;
    pith_generate_params_default(&p);
    p.n_predict = b->o.n_predict;
    p.ignore_end = b->o.ignore_end;
    p.sample.seed = (uint64_t)round;
    p.sample.temperature = b->o.vary ? temperatures[round % 5] : b->o.temperature;
    p.draft = way > 0 ? &draft : NULL;
    need(pith_seq_fork(b->base, &seq, &err), "fork", &err);
    double start = cpu_s();
    need(pith_generate(seq, b->prompt, b->n_prompt, &p, NULL, NULL, &r, &err), "text", &err);
    double seconds = cpu_s() - start;
    out->n = pith_seq_length(seq);
    out->token = calloc((size_t)out->n, sizeof(int32_t));
    memcpy(out->token, pith_seq_tokens(seq), (size_t)out->n * sizeof(int32_t));
    out->hash = pith_logits_hash(pith_seq_logits(seq), b->info.n_vocab);
    b->result[way].n_token += r.n_generated;
    b->result[way].n_draft += r.n_draft;
    b->result[way].n_accepted += r.n_draft_accepted;
    pith_seq_free(seq);
    return seconds;
}

static bool is_same(const struct text *a, const struct text *b)
{
    return a->n == b->n && a->hash == b->hash &&
           memcmp(a->token, b->token, (size_t)a->n * sizeof(int32_t)) == 0;
}

static void run_round(struct bench *b, int32_t round)
{
    struct text plain = {0};
    for (int way = 0; way < N_WAY; way++) {
        struct text text = {0};
        struct result *r = &b->result[way];
        if (way >= 2 && b->draft_engine == NULL)
            continue;
        r->seconds[round] = generate(b, way, round, way == 0 ? &plain : &text);
        r->ratio[round] = b->result[0].seconds[round] / r->seconds[round];
        if (way > 0)
            r->n_other += !is_same(&plain, &text);
        free(text.token);
    }
    free(plain.token);
}

/* Returns the texts that differ. */
static int64_t print_ways(const struct bench *b, const char *path)
{
    int32_t n = b->o.n_round;
    int64_t n_other = 0;
    for (int way = 0; way < N_WAY; way++) {
        const struct result *r = &b->result[way];
        if (r->n_token == 0)
            continue;
        printf("%s prompt=%d way=%-6s tokens=%lld ms_per_token=%.2f times=%.3f drafted=%lld "
               "came=%lld per_pass=%.2f other=%lld/%d\n",
               path, b->n_prompt, ways[way], (long long)r->n_token,
               1e3 * median(r->seconds, n) * n / (double)r->n_token, median(r->ratio, n),
               (long long)r->n_draft, (long long)r->n_accepted,
               (double)r->n_token / (double)(r->n_token - r->n_accepted), (long long)r->n_other, n);
        n_other += r->n_other;
    }
    fflush(stdout);
    return n_other;
}

static struct options read_options(int argc, char **argv)
{
    struct options o = {.n_predict = 128, .n_round = 3, .n_max = 15, .temperature = 0.0f};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--vary") == 0)
            o.vary = true;
        else if (strcmp(argv[i], "--ignore-eos") == 0)
            o.ignore_end = true;
        else if (strcmp(argv[i], "-m") == 0 && ++i)
            o.model = value;
        else if (strcmp(argv[i], "-d") == 0 && ++i)
            o.draft = value;
        else if (strcmp(argv[i], "-n") == 0 && ++i)
            o.n_predict = (int32_t)atoi(value);
        else if (strcmp(argv[i], "--temp") == 0 && ++i)
            o.temperature = (float)atof(value);
        else if (strcmp(argv[i], "--rounds") == 0 && ++i)
            o.n_round = (int32_t)atoi(value);
        else if (strcmp(argv[i], "--max") == 0 && ++i)
            o.n_max = (int32_t)atoi(value);
        else
            break;
    }
    o.file = argv + i;
    o.n_file = argc - i;
    if (o.model == NULL || o.n_file < 1 || o.n_round < 1 || o.n_round > MAX_ROUND ||
        o.n_predict < 1) {
        fprintf(stderr, "usage: bench_draft -m MODEL [-d MODEL] [-n N] [--temp X] [--rounds N] "
                        "[--max N] [--vary] [--ignore-eos] FILE...\n");
        exit(2);
    }
    return o;
}

int main(int argc, char **argv)
{
    struct bench *b = calloc(1, sizeof(*b));
    pith_error err;
    int64_t n_other = 0;
    if (b == NULL)
        return 1;
    b->o = read_options(argc, argv);
    need(pith_model_load(b->o.model, NULL, &b->model, &err), "model", &err);
    if (b->o.draft != NULL)
        need(pith_model_load(b->o.draft, NULL, &b->draft_model, &err), "draft", &err);
    pith_model_get_info(b->model, &b->info);
    for (int i = 0; i < b->o.n_file; i++) {
        begin_prompt(b, b->o.file[i]);
        if (!b->o.vary)
            measure_rows(b);
        for (int32_t r = 0; r < b->o.n_round; r++)
            run_round(b, r);
        n_other += print_ways(b, b->o.file[i]);
        end_prompt(b);
    }
    pith_model_free(b->model);
    pith_model_free(b->draft_model);
    free(b);
    return n_other > 0;
}
