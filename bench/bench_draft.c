/*
 * bench_draft.c - how much time drafts save, and a check that they change no text. Each prompt, a
 * file, is read once as a user's message. Then forks of that sequence generate by turns:
 * without drafts, with lookup in the text so far, with a smaller model, and with both. The
 * time is the processor time of the generation alone. It includes all work for drafts, also that
 * the smaller model has to read the prompt.
 *
 * Every text is compared with the one without drafts, token by token and by the hash of its last
 * logits. --vary takes another seed and temperature in every round, and in every second round
 * drafts wherever possible. It serves many comparisons, not timing.
 *
 * Before the texts it prints the time of a pass of several rows relative to one row at that depth.
 * If a pass takes c times as long as one row and gives a tokens, the largest possible gain is
 * a / c.
 *
 * usage: bench_draft -m MODEL [options] FILE...; see --help
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "rig.h"

#define MAX_ROUND MAX_SAMPLE
#define MAX_TEXT (1 << 20)
#define N_WAY 4

struct options {
    const char *model, *draft;
    int32_t n_predict, n_round, n_max;
    float temperature;
    bool vary, ignore_end;
    struct option_texts files;
};

#define AT(member) .offset = offsetof(struct options, member), .env = ""
static const struct option option_table[] = {
    {"--model", "-m", "MODEL", OPTION_TEXT, AT(model), .required = true, .help = "the model"},
    {"--draft", "-d", "MODEL", OPTION_TEXT, AT(draft), .absent = "none",
     .help = "the smaller one, which drafts"},
    {"--predict", "-n", "N", OPTION_INT, AT(n_predict), .min = 1, .max = 1 << 20,
     .help = "tokens of a text"},
    {"--temp", NULL, "X", OPTION_FLOAT, AT(temperature), .max = 100, .help = "temperature"},
    RIG_INT("--rounds", n_round, 1, MAX_ROUND, "turns of each way"),
    RIG_INT("--max", n_max, 1, 1 << 10, "most tokens of a draft"),
    RIG_FLAG("--vary", vary, "another seed and temperature in every round"),
    RIG_FLAG("--ignore-eos", ignore_end, "go on behind the end of a text"),
    {"FILES", NULL, NULL, OPTION_TEXTS, AT(files), .help = "the prompts"},
    {0},
};
#undef AT

static const char *const ways[N_WAY] = {"none", "lookup", "model", "both"};

struct text {
    int32_t *token;
    int32_t n;
    uint64_t hash;
};

/* The results of one way's rounds. */
struct result {
    struct samples seconds;
    struct samples ratio; /* to the same round without drafts */
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

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
    check(pith_engine_create(model, &p, &e, &err), &err);
    return e;
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = memory(MAX_TEXT + 1);
    if (file == NULL) {
        fprintf(stderr, "bench_draft: cannot open %s\n", path);
        exit(EXIT_FAILURE);
    }
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
    b->prompt = memory((size_t)cap * sizeof(*b->prompt));
    if (pith_chat_template(b->model) == NULL) {
        check(pith_tokenize(b->model, text, strlen(text), PITH_TOKENIZE_BOS, b->prompt, cap,
                            &b->n_prompt, &err),
              &err);
        return;
    }
    pith_chat_params_default(&chat);
    chat.messages = &message;
    chat.n_message = 1;
    chat.flags = PITH_CHAT_GENERATE;
    check(pith_prompt_create(b->model, &chat, &prompt, &err), &err);
    check(pith_prompt_tokenize(b->model, prompt, PITH_TOKENIZE_BOS | PITH_TOKENIZE_SPECIAL,
                               b->prompt, cap, &b->n_prompt, &err),
          &err);
    pith_prompt_free(prompt);
}

static void begin_prompt(struct bench *b, const char *path)
{
    pith_error err;
    pith_generate_params p;
    char *text = read_text(path);
    tokenize(b, text);
    pi_mem_free(text);
    int32_t n = b->n_prompt + b->o.n_predict + 128;
    b->engine = engine_of(b->model, 2 * n);
    b->draft_engine = b->draft_model != NULL ? engine_of(b->draft_model, n) : NULL;
    check(pith_seq_create(b->engine, &b->base, &err), &err);
    pith_generate_params_default(&p);
    p.n_predict = 0;
    check(pith_generate(b->base, b->prompt, b->n_prompt, &p, NULL, NULL, NULL, &err), &err);
    memset(b->result, 0, sizeof(b->result));
}

static void end_prompt(struct bench *b)
{
    pith_seq_free(b->base);
    pith_engine_free(b->engine);
    pith_engine_free(b->draft_engine);
    pi_mem_free(b->prompt);
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
            check(pith_seq_fork(b->base, &fork, &err), &err);
            pith_batch_item item = {.seq = fork,
                                    .tokens = b->prompt,
                                    .n_token = rows[i],
                                    .logits = PITH_LOGITS_ALL,
                                    .on_logits = drop_row,
                                    .user = &sum};
            double start = cpu_s();
            check(pith_batch_eval(b->engine, &item, 1, NULL, NULL, &err), &err);
            seconds[k] = cpu_s() - start;
            pith_seq_free(fork);
        }
        one = i == 0 ? median_of(seconds, 5) : one;
        printf("  %d: %.2f", rows[i], median_of(seconds, 5) / one);
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
    check(pith_seq_fork(b->base, &seq, &err), &err);
    double start = cpu_s();
    check(pith_generate(seq, b->prompt, b->n_prompt, &p, NULL, NULL, &r, &err), &err);
    double seconds = cpu_s() - start;
    out->n = pith_seq_length(seq);
    out->token = memory((size_t)out->n * sizeof(int32_t));
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
        double seconds = generate(b, way, round, way == 0 ? &plain : &text);
        add(&r->seconds, seconds);
        add(&r->ratio, b->result[0].seconds.value[round] / seconds);
        if (way > 0)
            r->n_other += !is_same(&plain, &text);
        pi_mem_free(text.token);
    }
    pi_mem_free(plain.token);
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
               1e3 * median(&r->seconds) * n / (double)r->n_token, median(&r->ratio),
               (long long)r->n_draft, (long long)r->n_accepted,
               (double)r->n_token / (double)(r->n_token - r->n_accepted), (long long)r->n_other, n);
        n_other += r->n_other;
    }
    fflush(stdout);
    return n_other;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct bench *b = &bench;
    int64_t n_other = 0;
    b->o = (struct options){.n_predict = 128, .n_round = 3, .n_max = 15};
    rig_options(argc, argv, option_table, &b->o);
    if (b->o.files.n == 0)
        rig_usage("FILES is missing: the prompts");
    if (b->o.draft != NULL)
        b->draft_model = load_model(b->o.draft, 0, &b->info);
    b->model = load_model(b->o.model, 0, &b->info);
    for (int32_t i = 0; i < b->o.files.n; i++) {
        begin_prompt(b, b->o.files.text[i]);
        if (!b->o.vary)
            measure_rows(b);
        for (int32_t r = 0; r < b->o.n_round; r++)
            run_round(b, r);
        n_other += print_ways(b, b->o.files.text[i]);
        end_prompt(b);
    }
    pith_model_free(b->model);
    pith_model_free(b->draft_model);
    return n_other > 0;
}
