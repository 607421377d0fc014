/*
 * grammar_walk.c - for scripts/golden/grammar.py and for measuring: random texts of grammars, and
 * masks at given places.
 *
 *     grammar_walk MODEL walk N SEED COMPACT < schemas    one JSON schema a line; for each N lines
 *         "ok HEX" (a whole text), "cut HEX" (one that did not end), or one "no STATUS MESSAGE"
 *     grammar_walk MODEL mask 0 0 COMPACT < lines         "HEX-OF-TEXT SCHEMA" a line; the mask
 *         behind the text as 64-bit words, or "no ..."
 *     grammar_walk MODEL vocab 0 0 0                      each token: "token HEX" of its bytes,
 *         "end" or "-"
 *     grammar_walk MODEL time N SEED COMPACT < schemas    microseconds a token, of texts of
 *         at most N
 *
 * A line may also be GBNF, with tabs between its rules.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pith/grammar.h"

#define LINE_MAX_LEN (1 << 22)

struct job {
    const pith_model *model;
    int32_t n_vocab;
    const char *kind;
    long n;
    uint64_t seed;
    pith_grammar_params params;
    uint64_t *bits;
    uint8_t *len; /* [n_vocab] bytes of tokens, at most 255 */
    char *first;  /* [n_vocab] first bytes */
    double seconds, worst;
    long n_token, n_first;
    double first_seconds;
};

/* Of this thread: other programs do not count. */
static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void print_hex(const char *what, const char *text, size_t len)
{
    printf("%s ", what);
    for (size_t i = 0; i < len; i++)
        printf("%02x", (uint8_t)text[i]);
    printf("\n");
}

/* A token of the mask: any at first; when the text is long what closes it, and short tokens. */
static int32_t choose(struct job *j, long at, long limit)
{
    int32_t best = -1;
    uint64_t best_key = 0;
    for (int32_t id = 0; id < j->n_vocab; id++) {
        if ((j->bits[id / 64] >> (id % 64) & 1) == 0)
            continue;
        uint64_t key = next_random(&j->seed) >> 8;
        if (at > limit / 4 && j->len[id] == 1)
            key |= UINT64_C(1) << 60;
        if (at > limit / 4 && j->len[id] == 1 && strchr("\"]}", j->first[id]) != NULL)
            key |= UINT64_C(1) << 61;
        if (at > limit / 4 && pith_token_is_end(j->model, id))
            key |= UINT64_C(1) << 62;
        if (best < 0 || key > best_key) {
            best = id;
            best_key = key;
        }
    }
    return best;
}

static bool mask(struct job *j, pith_grammar_state *s, pith_error *err)
{
    double start = now_s();
    pith_status status = pith_grammar_state_mask(s, j->bits, err);
    double took = now_s() - start;
    j->seconds += took;
    j->n_token++;
    j->worst = took > j->worst ? took : j->worst;
    if (took > 20e-6) {
        j->n_first++;
        j->first_seconds += took;
    }
    return status == PITH_OK;
}

static void walk(struct job *j, const pith_grammar *g, long limit)
{
    static char text[1 << 20];
    size_t len = 0, n;
    pith_grammar_state *s = NULL;
    pith_error err = {.message = ""};
    bool ended = false;
    if (pith_grammar_state_create(g, &s, &err) != PITH_OK) {
        printf("no %s %s\n", pith_status_name(err.status), err.message);
        return;
    }
    for (long i = 0; i < limit && !ended; i++) {
        if (!mask(j, s, &err))
            break;
        int32_t id = choose(j, i, limit);
        if (id < 0) {
            snprintf(err.message, sizeof(err.message), "no token is allowed");
            break;
        }
        double start = now_s();
        if (pith_grammar_state_accept(s, id, &err) != PITH_OK)
            break;
        j->seconds += now_s() - start;
        ended = pith_token_is_end(j->model, id);
        if (!ended &&
            pith_token_bytes(j->model, id, false, text + len, sizeof(text) - len, &n) == PITH_OK)
            len += n;
    }
    if (err.message[0] != '\0')
        printf("bad %s\n", err.message);
    else if (strcmp(j->kind, "walk") == 0)
        print_hex(ended ? "ok" : "cut", text, len);
    pith_grammar_state_free(s);
}

static void print_mask(struct job *j, const pith_grammar *g, const char *hex, size_t n)
{
    static char text[LINE_MAX_LEN];
    pith_grammar_state *s = NULL;
    pith_error err;
    for (size_t i = 0; i + 1 < n; i += 2) {
        unsigned value = 0;
        sscanf(hex + i, "%2x", &value);
        text[i / 2] = (char)value;
    }
    if (pith_grammar_state_create(g, &s, &err) != PITH_OK ||
        pith_grammar_state_accept_bytes(s, text, n / 2, &err) != PITH_OK ||
        pith_grammar_state_mask(s, j->bits, &err) != PITH_OK) {
        printf("no %s %s\n", pith_status_name(err.status), err.message);
    } else {
        printf("mask");
        for (int32_t i = 0; i < (j->n_vocab + 63) / 64; i++)
            printf(" %llx", (unsigned long long)j->bits[i]);
        printf("\n");
    }
    pith_grammar_state_free(s);
}

static void print_vocab(const struct job *j)
{
    char piece[1024];
    for (int32_t id = 0; id < j->n_vocab; id++) {
        size_t n = 0;
        pith_status status = pith_token_bytes(j->model, id, false, piece, sizeof(piece), &n);
        if (pith_token_is_end(j->model, id))
            printf("end\n");
        else if (status != PITH_OK || n == 0)
            printf("-\n");
        else
            print_hex("token", piece, n);
    }
}

static void do_line(struct job *j, char *line)
{
    pith_grammar *g = NULL;
    pith_error err;
    const char *schema = line;
    size_t n_hex = 0;
    if (strcmp(j->kind, "mask") == 0) {
        n_hex = strcspn(line, " ");
        schema = line + n_hex + 1;
    }
    bool is_gbnf = strstr(schema, "::=") != NULL && schema[0] != '{';
    for (char *at = line; is_gbnf && *at != '\0'; at++)
        *at = *at == '\t' ? '\n' : *at;
    pith_status status =
        is_gbnf ? pith_grammar_create_gbnf(j->model, schema, strlen(schema), &j->params, &g, &err)
                : pith_grammar_create_json_schema(j->model, schema, strlen(schema), &j->params, &g,
                                                  &err);
    if (status != PITH_OK)
        printf("no %s %s\n", pith_status_name(status), err.message);
    else if (strcmp(j->kind, "mask") == 0)
        print_mask(j, g, line, n_hex);
    else if (strcmp(j->kind, "time") == 0)
        walk(j, g, j->n);
    else
        for (long i = 0; i < j->n; i++)
            walk(j, g, 400);
    pith_grammar_free(g);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    pith_model_params mp;
    pith_model *model = NULL;
    pith_error err;
    pith_model_info info;
    if (argc != 6) {
        fprintf(stderr, "usage: grammar_walk MODEL walk|mask|time|vocab N SEED COMPACT < lines\n");
        return 2;
    }
    pith_model_params_default(&mp);
    mp.vocab_only = true;
    if (pith_model_load(argv[1], &mp, &model, &err) != PITH_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    pith_model_get_info(model, &info);
    struct job j = {.model = model,
                    .n_vocab = info.n_vocab,
                    .kind = argv[2],
                    .n = atol(argv[3]),
                    .seed = strtoull(argv[4], NULL, 10)};
    j.params.compact = atoi(argv[5]) != 0;
    j.bits = calloc((size_t)info.n_vocab / 64 + 1, sizeof(*j.bits));
    j.len = calloc((size_t)info.n_vocab, 1);
    j.first = calloc((size_t)info.n_vocab, 1);
    char *line = malloc(LINE_MAX_LEN), piece[256];
    if (j.bits == NULL || j.len == NULL || j.first == NULL || line == NULL)
        return 1;
    for (int32_t id = 0; id < info.n_vocab; id++) {
        size_t n = 0;
        if (pith_token_bytes(model, id, false, piece, sizeof(piece), &n) == PITH_OK && n > 0) {
            j.len[id] = n > 255 ? 255 : (uint8_t)n;
            j.first[id] = piece[0];
        }
    }
    if (strcmp(j.kind, "vocab") == 0)
        print_vocab(&j);
    while (strcmp(j.kind, "vocab") != 0 && fgets(line, LINE_MAX_LEN, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        do_line(&j, line);
    }
    if (j.n_token > 0)
        fprintf(stderr,
                "%ld tokens, %.2f us each, worst %.0f us; %ld masks above 20 us take %.2f of %.2f "
                "ms\n",
                j.n_token, 1e6 * j.seconds / (double)j.n_token, 1e6 * j.worst, j.n_first,
                1e3 * j.first_seconds, 1e3 * j.seconds);
    free(line);
    free(j.bits);
    free(j.len);
    free(j.first);
    pith_model_free(model);
    return 0;
}
