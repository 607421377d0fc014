/*
 * view_record.c - runs a model under a keep policy and writes the messages for its watchers, one
 * JSON object a line. {"view": document} is the live page's document, and {"say": text} a piece of
 * the answer. test_page.py plays them to a browser.
 *
 * usage: view_record MODEL KEEP PROMPT_FILE N_PREDICT KV_TOKENS   record
 *        view_record --time MODEL KEEP N_TOKEN                     times of a snapshot and a delta
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "pith/inspect.h"
#include "serve/view/view.h"

#define TEXT_MAX (1 << 16)
#define TOKENS_MAX (1 << 15)
#define CHUNK 128 /* tokens of a step that reads */

struct recording {
    pith_model *model;
    pith_engine *engine;
    pith_seq *seq;
    struct serve_view *view;
    struct serve_view_item item[3];
    struct serve_view_source source;
    double begin_s;
};

static void must(pith_status status, const pith_error *err)
{
    if (status == PITH_OK)
        return;
    fprintf(stderr, "view_record: %s\n", err->message);
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void open_all(struct recording *r, const char *path, const char *keep, int32_t kv_tokens)
{
    pith_error err;
    pith_engine_params params;
    struct serve_view_setup setup = {.keep = keep};
    must(pith_model_load(path, NULL, &r->model, &err), &err);
    pith_engine_params_default(&params);
    params.n_thread = 1;
    params.keep = keep;
    params.kv_tokens = kv_tokens;
    must(pith_engine_create(r->model, &params, &r->engine, &err), &err);
    must(pith_seq_create(r->engine, &r->seq, &err), &err);
    setup.model = r->model;
    must(serve_view_create(&setup, &r->view, &err), &err);
    r->source = (struct serve_view_source){.engine = r->engine, .items = r->item, .n_item = 1};
    r->item[0] = (struct serve_view_item){.id = 1, .slot = 0, .state = "reading", .seq = r->seq};
    r->source.stats.n_running = 1;
    r->begin_s = now_s();
}

static void close_all(struct recording *r)
{
    serve_view_free(r->view);
    pith_seq_free(r->seq);
    pith_engine_free(r->engine);
    pith_model_free(r->model);
}

/* ---- recording ---- */

static void put_view(struct recording *r, bool all)
{
    char *json = NULL;
    size_t len = 0;
    pith_error err = {PITH_NOMEM, "no memory for a document"};
    must(all ? serve_view_snapshot(r->view, &r->source, &json, &len)
             : serve_view_delta(r->view, &r->source, &json, &len),
         &err);
    printf("{\"view\":%s}\n", json);
    serve_view_text_free(json);
}

static void put_text(const char *text, size_t len)
{
    json_t *line = json_pack("{s:s%}", "say", text, len);
    char *json = json_dumps(line, JSON_COMPACT);
    printf("%s\n", json);
    free(json);
    json_decref(line);
}

static int64_t held_bytes(const struct recording *r)
{
    pith_model_info info;
    int64_t bytes = 0;
    pith_model_get_info(r->model, &info);
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            pith_lane_info lane = {0};
            pith_seq_lane(r->seq, l, h, &lane, NULL, 0);
            bytes += lane.bytes;
        }
    return bytes;
}

static int64_t full_bytes(const struct recording *r)
{
    int64_t bytes = 0;
    pith_kv_estimate(r->model, NULL, pith_seq_length(r->seq), &bytes, NULL);
    return bytes;
}

static void step(struct recording *r)
{
    r->source.stats.n_step++;
    r->source.now_s = now_s() - r->begin_s;
    r->item[0].n_done = pith_seq_length(r->seq);
    r->item[0].held_bytes = held_bytes(r);
    r->item[0].full_bytes = full_bytes(r);
    serve_view_step(r->view, &r->source);
}

static void read_prompt(struct recording *r, const int32_t *tokens, int32_t n)
{
    pith_error err;
    for (int32_t i = 0; i < n; i += CHUNK) {
        int32_t part = n - i < CHUNK ? n - i : CHUNK;
        must(pith_seq_eval(r->seq, tokens + i, part, &err), &err);
        r->source.stats.prompt_tokens += part;
        step(r);
        put_view(r, false);
    }
}

static void generate(struct recording *r, int32_t n_predict)
{
    pith_error err;
    pith_sample_params params;
    pith_sampler *sampler = NULL;
    pith_model_info info;
    pith_utf8_stream stream = {{0}, 0};
    pith_model_get_info(r->model, &info);
    pith_sample_params_default(&params);
    params.temperature = 0;
    must(pith_sampler_create(&params, info.n_vocab, &sampler, &err), &err);
    r->item[0].state = "generating";
    for (int32_t i = 0; i < n_predict; i++) {
        char bytes[256], text[1024];
        size_t len = 0;
        int32_t token = pith_sampler_sample(sampler, pith_seq_logits(r->seq));
        must(pith_token_bytes(r->model, token, false, bytes, sizeof(bytes), &len), &err);
        put_text(text, pith_utf8_push(&stream, bytes, len, text, sizeof(text)));
        must(pith_seq_eval(r->seq, &token, 1, &err), &err);
        r->source.stats.generated_tokens++;
        r->item[0].n_generated++;
        step(r);
        if (i % 4 == 3)
            put_view(r, false);
    }
    put_view(r, false);
    pith_sampler_free(sampler);
}

static int record(char **argv)
{
    static char text[TEXT_MAX];
    static int32_t tokens[TOKENS_MAX];
    struct recording r = {0};
    pith_error err;
    int32_t n = 0;
    FILE *in = fopen(argv[3], "rb");
    if (in == NULL)
        return fprintf(stderr, "view_record: %s cannot be read\n", argv[3]), 1;
    size_t len = fread(text, 1, sizeof(text), in);
    fclose(in);
    open_all(&r, argv[1], argv[2], atoi(argv[5]));
    must(pith_tokenize(r.model, text, len, PITH_TOKENIZE_BOS | PITH_TOKENIZE_SPECIAL, tokens,
                       TOKENS_MAX, &n, &err),
         &err);
    r.item[0].n_prompt = n;
    r.item[0].n_pin = n;
    /* Other requests that wait and rest, for the table. */
    r.item[1] = (struct serve_view_item){.id = 2, .slot = -1, .state = "waiting", .n_prompt = 611};
    r.item[2] = (struct serve_view_item){.id = 3, .slot = -1, .state = "waiting", .n_prompt = 38};
    r.source.n_item = 3;
    r.source.stats.n_waiting = 2;
    serve_view_watch(r.view, true);
    put_view(&r, true);
    read_prompt(&r, tokens, n);
    generate(&r, atoi(argv[4]));
    r.item[0].state = "parked";
    r.source.stats.n_running = 0;
    r.source.stats.n_done = 1;
    put_view(&r, false);
    put_view(&r, true);
    close_all(&r);
    return 0;
}

/* ---- times ---- */

static double time_view(struct recording *r, bool all, size_t *len)
{
    char *json = NULL;
    pith_error err = {PITH_NOMEM, "no memory for a document"};
    double begin = now_s();
    must(all ? serve_view_snapshot(r->view, &r->source, &json, len)
             : serve_view_delta(r->view, &r->source, &json, len),
         &err);
    double end = now_s();
    serve_view_text_free(json);
    return 1e3 * (end - begin);
}

static double time_step(struct recording *r)
{
    double begin = now_s();
    serve_view_step(r->view, &r->source);
    return 1e3 * (now_s() - begin);
}

/* Tokens that mean nothing, and a round at the end. */
static int times(char **argv)
{
    static int32_t tokens[TOKENS_MAX];
    struct recording r = {0};
    pith_error err;
    pith_keep_stats keep;
    size_t len = 0;
    int32_t n = atoi(argv[4]);
    if (n < 2 || n > TOKENS_MAX)
        return fprintf(stderr, "view_record: N_TOKEN is %d: from 2 to %d\n", n, TOKENS_MAX), 2;
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((i * 7919ll) % 20000);
    open_all(&r, argv[2], argv[3], n + 64);
    must(pith_seq_eval(r.seq, tokens, n - 1, &err), &err);
    printf("step unwatched   %8.3f ms\n", time_step(&r));
    serve_view_watch(r.view, true);
    double first = time_view(&r, true, &len);
    printf("snapshot before  %8.3f ms, %zu bytes\n", first, len);
    time_view(&r, false, &len);
    must(pith_seq_keep_round(r.seq, &err), &err);
    pith_seq_keep_stats(r.seq, &keep);
    printf("step with round  %8.3f ms\n", time_step(&r));
    first = time_view(&r, false, &len);
    printf("delta of a round %8.3f ms, %zu bytes\n", first, len);
    for (int i = 0; i < 3; i++) {
        first = time_view(&r, true, &len);
        printf("snapshot after   %8.3f ms, %zu bytes, %lld entries of %d tokens\n", first, len,
               (long long)keep.live, pith_seq_length(r.seq));
    }
    must(pith_seq_eval(r.seq, tokens + n - 1, 1, &err), &err);
    printf("step of a token  %8.3f ms\n", time_step(&r));
    first = time_view(&r, false, &len);
    printf("delta of a token %8.3f ms, %zu bytes\n", first, len);
    close_all(&r);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--time") == 0)
        return times(argv);
    if (argc == 6)
        return record(argv);
    fprintf(stderr, "usage: view_record MODEL KEEP PROMPT_FILE N_PREDICT KV_TOKENS\n"
                    "       view_record --time MODEL KEEP N_TOKEN\n");
    return 2;
}
