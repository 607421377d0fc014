/*
 * bench_share.c - what running many sequences costs and gives, through the scheduler alone:
 *
 *   batch   tokens per second of N sequences that generate together against one, what of a step is
 *           scheduling, and the bound: a step reads the weights and all keys and values once, and
 *           computes with each weight once per sequence,
 *             step >= max(weights / bandwidth, 2 * N * weights / peak) + N * entries / bandwidth
 *           with the bandwidth and the peak that the machine measured (the peak of int8 products
 *           where the weights are quantised, else of f32; of f16 on a GPU)
 *   prefix  time to the first token of a prompt whose head another prompt has had, against the same
 *           when it was new; the bound is the ratio of the tokens that are computed
 *   share   what MemShare's comparing takes of the time of N sequences whose answers are given:
 *           steps of which half recur letter by letter. Needs a model with a tokenizer, as the next
 *   repeat  tokens per second of N such answers in the KV memory of M, where a share of the steps
 *           recurs, against an engine that shares nothing and has its usual pages. The bound is
 *           that of memory: of answers whose affected ratio is a, 1 / (1 - a) times as many fit
 *
 * Everything takes turns in every round, ratios compare times of the same round, and the program
 * prints medians over rounds. So other work on the machine disturbs both sides alike.
 *
 * usage: bench_share [options] MODEL.gguf; see --help
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rig.h"
#include "pith/scheduler.h"

enum {
    MAX_ROUND = 31,
    MAX_SEQ = 64, /* a step has tokens for prompts besides, while others generate */
    N_WARM = 3,   /* steps that are not counted, because they touch memory for the first time */
    MAX_TEXT = 1 << 16,
    STEP_LEN = 46, /* tokens of a step of `repeat`, without its end */
    MAX_WORD = 4096,
};

/* Random weights make no two pages alike. Open thresholds make the policy compare every pair in all
   layers, which is the longest that comparing takes, and share pages. */
#define SHARE "memshare:step=0.8,block=100,relative=2"
#define SHARE_PAGE 16 /* as where pages are compared: sides differ in nothing else */

struct options {
    const char *model;
    const char *parts; /* names of those that run; NULL: all */
    const char *share;
    const char *device;
    int32_t n_thread; /* 0: all processors */
    int32_t n_round;
    struct option_ints seqs;
    int32_t n_step;             /* tokens that each sequence generates in a turn */
    int32_t n_prompt;           /* tokens before them */
    int32_t n_head;             /* tokens of the head that prompts of `prefix` have in common */
    int32_t n_part;             /* steps of an answer of `share` and `repeat` */
    struct option_ints repeats; /* of 100 steps of `repeat` those that recur */
    int32_t n_room;             /* answers of `repeat` that the KV memory holds */
    bool csv;
};

static const struct option option_table[] = {
    RIG_TEXT("--parts", "NAME,...", parts, "all", "of batch, prefix, share, repeat"),
    RIG_TEXT("--device", "NAME", device, "auto", "as the command takes it"),
    RIG_INT("--threads", n_thread, 0, 1024, "0: all processors"),
    RIG_INT("--rounds", n_round, 1, MAX_ROUND, "turns of each"),
    RIG_INTS("--seqs", seqs, 1, MAX_SEQ,
             "sequences side by side, ascending, the first is compared with"),
    RIG_INT("--steps", n_step, 1, 4096, "tokens that each generates in a turn"),
    RIG_INT("--prompt", n_prompt, 1, 1 << 16, "tokens before them"),
    RIG_INT("--head", n_head, 64, 1 << 16, "tokens that prompts of `prefix` have in common"),
    RIG_INT("--answer", n_part, 2, 128, "steps of an answer of `share` and `repeat`"),
    RIG_TEXT("--share", "POLICY", share, NULL, "of the parts `share` and `repeat`"),
    RIG_INTS("--repeat", repeats, 0, 99, "percent of the steps of `repeat` that recur"),
    RIG_INT("--room", n_room, 1, MAX_SEQ, "answers of `repeat` that the KV memory holds"),
    RIG_CSV(csv),
    RIG_MODEL(model),
    {0},
};

struct bench {
    struct options o;
    pith_model *model;
    pith_model_info info;
    pith_machine machine;
    double weight_bytes; /* that a step reads */
    double peak;         /* operations per second of the weights' products */
    uint32_t noise;      /* of prompts */
};

/* bound NAN, goal "": there is none. */
static void print(const struct bench *b, const char *part, const char *what, int32_t n_seq,
                  double value, const char *unit, double bound, const char *goal)
{
    char text[24] = "";
    if (!isnan(bound))
        snprintf(text, sizeof(text), b->o.csv ? "%.6g" : "%.4g", bound);
    printf(b->o.csv ? "%s,%s,%d,%.6g,%s,%s,%s\n" : "%-7s %-34s %4d %12.4g %-9s %10s  %s\n", part,
           what, (int)n_seq, value, unit, text, goal);
    fflush(stdout);
}

/* ---- one engine with its scheduler ---- */

struct side {
    const struct bench *b;
    pith_engine *engine;
    pith_scheduler *scheduler;
    pith_answer_result last; /* of the request that ended last */
    int32_t n_done;
    int64_t n_shared; /* entries of a lane that pages of others stand for, of all that ended */
};

/* The scheduler takes n_seq answers; the KV memory holds n_room of n_token tokens. page_len 0: the
   usual one. */
static void side_open(struct side *s, const struct bench *b, const char *share, bool prefix,
                      int32_t n_seq, int32_t n_room, int32_t n_token, int32_t page_len)
{
    pith_engine_params engine;
    pith_scheduler_params params;
    pith_error err;
    int64_t bytes;
    *s = (struct side){.b = b};
    pith_engine_params_default(&engine);
    pith_scheduler_params_default(&params);
    engine.device = b->o.device;
    engine.n_thread = b->o.n_thread;
    engine.page_len = page_len;
    engine.share = share;
    check(pith_kv_estimate(b->model, &engine, n_token, &bytes, &err), &err);
    engine.kv_bytes = bytes * (n_room + 1); /* a spare one, for what admitting leaves free */
    params.n_seq = params.n_queue = n_seq;
    params.no_prefix = !prefix;
    check(pith_engine_create(b->model, &engine, &s->engine, &err), &err);
    check(pith_scheduler_create(s->engine, &params, &s->scheduler, &err), &err);
}

static void side_close(struct side *s)
{
    pith_scheduler_free(s->scheduler);
    pith_engine_free(s->engine);
}

static void on_done(void *user, const pith_answer_result *result)
{
    struct side *s = user;
    if (result->status != PITH_OK && result->status != PITH_CANCELLED) { /* a turn may end early */
        fprintf(stderr, "bench_share: a request failed: %s\n", result->message);
        exit(1);
    }
    s->last = *result;
    s->n_done++;
    s->n_shared += result->share.tokens_shared;
}

static void submit(struct side *s, const int32_t *prompt, int32_t n_prompt, const int32_t *forced,
                   int32_t n_predict)
{
    pith_generate_params generate;
    pith_request request;
    pith_error err;
    int64_t id;
    pith_generate_params_default(&generate);
    pith_request_default(&request);
    generate.sample.temperature = 0.0f;
    generate.n_predict = n_predict;
    generate.ignore_end = true;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.params = &generate;
    request.forced = forced;
    request.n_forced = forced != NULL ? n_predict : 0;
    request.on_done = on_done;
    request.user = s;
    check(pith_scheduler_submit(s->scheduler, &request, &id, &err), &err);
}

static pith_scheduler_stats step(struct side *s)
{
    pith_scheduler_stats stats;
    pith_error err;
    check(pith_scheduler_step(s->scheduler, NULL, &err), &err);
    pith_scheduler_get_stats(s->scheduler, &stats);
    return stats;
}

static void fill_prompt(struct bench *b, int32_t *out, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        out[i] = (int32_t)((random_u32(&b->noise) >> 8) %
                           (uint32_t)(b->info.n_vocab < 4096 ? b->info.n_vocab : 4096));
    }
}

/* ---- batch ---- */

/* Seconds of a step of n sequences, at least. */
static double step_bound(const struct bench *b, int32_t n, double kv_bytes)
{
    double read = b->weight_bytes / b->machine.read_bytes_per_s;
    double params = (double)b->info.n_param * b->weight_bytes / (double)b->info.weight_bytes;
    double compute = 2.0 * n * params / b->peak;
    return (read > compute ? read : compute) + kv_bytes / b->machine.read_bytes_per_s;
}

struct batch {
    struct samples tokens_per_s, ratio, step_s, schedule_us, schedule_share, bound;
};

/* n sequences side by side: steps in which all of them generate. */
static void batch_turn(struct bench *b, int32_t n, struct batch *out)
{
    struct side s;
    /* While the last prompts are read, the first sequences generate already. */
    int32_t n_predict = b->o.n_step + N_WARM + 2 + n * (1 + b->o.n_prompt / 64);
    int32_t *prompt = memory((size_t)b->o.n_prompt * sizeof(*prompt));
    side_open(&s, b, NULL, false, n, n, b->o.n_prompt + n_predict, SHARE_PAGE);
    for (int32_t i = 0; i < n; i++) {
        fill_prompt(b, prompt, b->o.n_prompt);
        submit(&s, prompt, b->o.n_prompt, NULL, n_predict);
    }
    pith_scheduler_stats begin = step(&s), end;
    while (begin.n_running < n || begin.n_reading > 0)
        begin = step(&s);
    for (int32_t i = 0; i < N_WARM; i++)
        begin = step(&s);
    end = begin;
    for (int32_t i = 0; i < b->o.n_step; i++)
        end = step(&s);
    pith_kv_stats kv;
    pith_engine_kv_stats(s.engine, &kv);
    double seconds = end.seconds - begin.seconds;
    double schedule = end.schedule_s - begin.schedule_s;
    double step_s = seconds / b->o.n_step;
    add(&out->tokens_per_s, (double)(end.generated_tokens - begin.generated_tokens) / seconds);
    add(&out->step_s, step_s);
    add(&out->schedule_us, 1e6 * schedule / b->o.n_step);
    add(&out->schedule_share, 100.0 * schedule / seconds);
    add(&out->bound, n / step_bound(b, n, (double)kv.live_bytes));
    pi_mem_free(prompt);
    side_close(&s);
}

static void part_batch(struct bench *b)
{
    static struct batch batch[OPTION_INTS_MAX];
    const struct option_ints *l = &b->o.seqs;
    for (int32_t r = 0; r < b->o.n_round; r++)
        for (int32_t i = 0; i < l->n; i++) {
            batch_turn(b, l->value[i], &batch[i]);
            add(&batch[i].ratio, batch[i].tokens_per_s.value[r] / batch[0].tokens_per_s.value[r]);
        }
    for (int32_t i = 0; i < l->n; i++) {
        struct batch *x = &batch[i];
        bool goal = l->value[i] == 32;
        double bound = median(&x->bound), speed = median(&x->tokens_per_s);
        print(b, "batch", "generated tokens", l->value[i], speed, "tokens/s", bound, "");
        print(b, "batch", "part of the bound", l->value[i], speed / bound, "", 1.0, "");
        print(b, "batch", "against one sequence", l->value[i], median(&x->ratio), "times",
              bound / median(&batch[0].bound), "");
        print(b, "batch", "step", l->value[i], 1e3 * median(&x->step_s), "ms", NAN, "");
        print(b, "batch", "scheduling of a step", l->value[i], median(&x->schedule_us), "us", NAN,
              "");
        print(b, "batch", "scheduling of a step, share", l->value[i], median(&x->schedule_share),
              "%", NAN, goal ? "below 1" : "");
    }
}

/* ---- prefix ---- */

/* Seconds from submission to the first token, and the tokens that were computed for it. */
static double first_token(struct side *s, const int32_t *prompt, int32_t n, int32_t *n_computed)
{
    int32_t before = s->n_done;
    submit(s, prompt, n, NULL, 1);
    while (s->n_done == before)
        (void)step(s);
    *n_computed = s->last.n_prompt;
    return s->last.queue_s + s->last.prompt_s;
}

static void part_prefix(struct bench *b)
{
    int32_t n_own = 32, n = b->o.n_head + n_own;
    int32_t *prompt = memory((size_t)n * sizeof(*prompt));
    struct samples cold = {.n = 0}, warm = {.n = 0}, times = {.n = 0}, bound = {.n = 0};
    struct side s;
    side_open(&s, b, NULL, true, 2, 2, n + 64, SHARE_PAGE);
    for (int32_t r = -1; r < b->o.n_round; r++) { /* the first round warms up */
        int32_t all, rest;
        fill_prompt(b, prompt, n);
        double without = first_token(&s, prompt, n, &all);
        fill_prompt(b, prompt + b->o.n_head, n_own);
        double with = first_token(&s, prompt, n, &rest);
        if (r < 0)
            continue;
        add(&cold, 1e3 * without);
        add(&warm, 1e3 * with);
        add(&times, without / with);
        add(&bound, (double)all / rest);
    }
    print(b, "prefix", "first token, a new head", 1, median(&cold), "ms", NAN, "");
    print(b, "prefix", "first token, a head that is there", 1, median(&warm), "ms", NAN, "");
    print(b, "prefix", "times as fast", 1, median(&times), "times", median(&bound), "");
    side_close(&s);
    pi_mem_free(prompt);
}

/* ---- share ---- */

/* Steps of about 40 to 60 tokens, drawn from a pool half as large as there are. */
static void write_steps(struct bench *b, char *out, size_t cap)
{
    size_t len = 0;
    int32_t pool[64][4];
    for (int32_t i = 0; i < 64 * 4; i++) {
        pool[i / 4][i % 4] = (int32_t)((random_u32(&b->noise) >> 8) % 20u);
    }
    for (int32_t i = 0; i < b->o.n_part; i++) {
        const int32_t *x = pool[(random_u32(&b->noise) >> 8) % (uint32_t)((b->o.n_part + 1) / 2)];
        len += (size_t)snprintf(out + len, cap - len,
                                "Part %d&%d: %d+%d=%d, %d+%d=%d, %d+%d=%d. Total %d+%d=%d.\n\n",
                                (int)x[0], (int)x[1], (int)x[0], (int)x[1], (int)(x[0] + x[1]),
                                (int)x[1], (int)x[2], (int)(x[1] + x[2]), (int)x[2], (int)x[3],
                                (int)(x[2] + x[3]), (int)x[3], (int)x[0], (int)(x[3] + x[0]));
    }
}

static int32_t *make_answer(struct bench *b, int32_t *n)
{
    static char text[MAX_TEXT];
    pith_error err;
    write_steps(b, text, sizeof(text));
    int32_t cap = (int32_t)strlen(text) + 16, *ids = memory((size_t)cap * sizeof(*ids));
    check(pith_tokenize(b->model, text, strlen(text), 0, ids, cap, n, &err), &err);
    return ids;
}

/* All requests of one turn; *share_s is what comparing took of the time that is returned. */
static double share_turn(struct bench *b, const char *share, int32_t n_seq, int32_t *const *answer,
                         const int32_t *n_answer, const int32_t *prompt, struct side *s,
                         pith_scheduler_stats *stats)
{
    int32_t longest = 0;
    pith_error err;
    for (int32_t i = 0; i < n_seq; i++)
        longest = n_answer[i] > longest ? n_answer[i] : longest;
    /* Pages that steps end early take memory, too: room for twice the tokens. */
    side_open(s, b, share, false, n_seq, n_seq, b->o.n_prompt + 2 * longest, SHARE_PAGE);
    for (int32_t i = 0; i < n_seq; i++)
        submit(s, prompt, b->o.n_prompt, answer[i], n_answer[i]);
    check(pith_scheduler_run(s->scheduler, &err), &err);
    pith_scheduler_get_stats(s->scheduler, stats);
    return stats->seconds;
}

static void part_share(struct bench *b)
{
    int32_t n_seq = b->o.seqs.value[b->o.seqs.n - 1];
    int32_t *answer[MAX_SEQ], n_answer[MAX_SEQ];
    int32_t *prompt = memory((size_t)b->o.n_prompt * sizeof(*prompt));
    struct samples part = {.n = 0}, times = {.n = 0}, schedule = {.n = 0};
    pith_share_stats last = {0};
    if (strcmp(b->info.tokenizer, "none") == 0) {
        fprintf(stderr, "bench_share: share is left out: the model has no tokenizer\n");
        pi_mem_free(prompt);
        return;
    }
    fill_prompt(b, prompt, b->o.n_prompt);
    for (int32_t i = 0; i < n_seq; i++)
        answer[i] = make_answer(b, &n_answer[i]);
    for (int32_t r = 0; r < b->o.n_round; r++) {
        struct side s;
        pith_scheduler_stats stats;
        double without = share_turn(b, NULL, n_seq, answer, n_answer, prompt, &s, &stats);
        side_close(&s);
        double with = share_turn(b, b->o.share, n_seq, answer, n_answer, prompt, &s, &stats);
        last = s.last.share;
        side_close(&s);
        add(&part, 100.0 * stats.share_s / stats.seconds);
        add(&schedule, 100.0 * stats.schedule_s / stats.seconds);
        add(&times, without / with);
    }
    print(b, "share", "comparing, share of the time", n_seq, median(&part), "%", NAN, "below 2");
    print(b, "share", "scheduling, share of the time", n_seq, median(&schedule), "%", NAN, "");
    print(b, "share", "speed against no sharing", n_seq, median(&times), "times", NAN, "");
    print(b, "share", "of one answer: steps closed", 1, (double)last.steps_closed, "", NAN, "");
    print(b, "share", "of one answer: pages compared", 1, (double)last.pages_compared, "", NAN, "");
    print(b, "share", "of one answer: pages shared", 1, (double)last.pages_shared, "", NAN, "");
    for (int32_t i = 0; i < n_seq; i++)
        pi_mem_free(answer[i]);
    pi_mem_free(prompt);
}

/* ---- repeat ---- */

/* Tokens that are words of a step: of some bytes, and no end of a line. */
static int32_t find_words(const struct bench *b, int32_t *out)
{
    char text[64];
    int32_t n = 0;
    for (int32_t id = 0; id < b->info.n_vocab && n < MAX_WORD; id++) {
        size_t len;
        if (pith_token_bytes(b->model, id, false, text, sizeof(text), &len) == PITH_OK && len > 0 &&
            memchr(text, '\n', len) == NULL && !pith_token_is_end(b->model, id))
            out[n++] = id;
    }
    if (n == 0)
        stop(&(pith_error){.message = "repeat: the model's tokenizer has no words"});
    return n;
}

/* An answer of n_part steps of random words. `percent` of 100 steps are copies of earlier ones.
   Returns its tokens in out, and how many there are. */
static int32_t repeat_answer(struct bench *b, int32_t percent, const int32_t *words, int32_t n_word,
                             int32_t *out)
{
    pith_error err;
    int32_t end[8], n_end, step_len;
    check(pith_tokenize(b->model, "\n\n", 2, 0, end, (int32_t)PI_LEN(end), &n_end, &err), &err);
    step_len = STEP_LEN + n_end;
    for (int32_t i = 0; i < b->o.n_part; i++) {
        int32_t *step = out + i * step_len;
        if (i > 0 && (i + 1) * percent / 100 > i * percent / 100) {
            int32_t from = (int32_t)((random_u32(&b->noise) >> 8) % (uint32_t)i);
            memcpy(step, out + from * step_len, (size_t)step_len * sizeof(*step));
            continue;
        }
        for (int32_t j = 0; j < STEP_LEN; j++)
            step[j] = words[(random_u32(&b->noise) >> 8) % (uint32_t)n_word];
        memcpy(step + STEP_LEN, end, (size_t)n_end * sizeof(*end));
    }
    return b->o.n_part * step_len;
}

struct repeat {
    double tokens_per_s, affected; /* of all tokens, those that others stand for */
    int32_t most;                  /* answers at a time */
};

/* All answers in the KV memory of n_room of them. */
static struct repeat repeat_turn(struct bench *b, const char *share, int32_t n_seq,
                                 int32_t *const *answer, int32_t n_answer, const int32_t *prompt)
{
    struct side s;
    struct repeat r;
    pith_scheduler_stats stats;
    pith_error err;
    int32_t n_token = b->o.n_prompt + n_answer;
    side_open(&s, b, share, false, n_seq, b->o.n_room, n_token, share != NULL ? SHARE_PAGE : 0);
    for (int32_t i = 0; i < n_seq; i++)
        submit(&s, prompt, b->o.n_prompt, answer[i], n_answer);
    check(pith_scheduler_run(s.scheduler, &err), &err);
    pith_scheduler_get_stats(s.scheduler, &stats);
    r = (struct repeat){(double)stats.generated_tokens / stats.seconds,
                        (double)s.n_shared / ((double)n_seq * n_token), stats.peak_running};
    side_close(&s);
    return r;
}

static void part_repeat(struct bench *b)
{
    static int32_t words[MAX_WORD];
    int32_t n_seq = b->o.seqs.value[b->o.seqs.n - 1], *answer[MAX_SEQ], n_answer = 0;
    int32_t *prompt = memory((size_t)b->o.n_prompt * sizeof(*prompt));
    if (strcmp(b->info.tokenizer, "none") == 0) {
        fprintf(stderr, "bench_share: repeat is left out: the model has no tokenizer\n");
        pi_mem_free(prompt);
        return;
    }
    int32_t n_word = find_words(b, words);
    fill_prompt(b, prompt, b->o.n_prompt);
    for (int32_t i = 0; i < n_seq; i++)
        answer[i] = memory((size_t)b->o.n_part * (STEP_LEN + 8) * sizeof(**answer));
    for (int32_t j = 0; j < b->o.repeats.n; j++) {
        struct samples times = {.n = 0}, speed = {.n = 0}, plain = {.n = 0};
        struct repeat with = {0}, without = {0};
        char what[64];
        int32_t percent = b->o.repeats.value[j];
        for (int32_t i = 0; i < n_seq; i++)
            n_answer = repeat_answer(b, percent, words, n_word, answer[i]);
        for (int32_t r = 0; r < b->o.n_round; r++) {
            without = repeat_turn(b, NULL, n_seq, answer, n_answer, prompt);
            with = repeat_turn(b, b->o.share, n_seq, answer, n_answer, prompt);
            add(&plain, without.tokens_per_s);
            add(&speed, with.tokens_per_s);
            add(&times, with.tokens_per_s / without.tokens_per_s);
        }
        snprintf(what, sizeof(what), "%d %% recur: no sharing", percent);
        print(b, "repeat", what, n_seq, median(&plain), "tokens/s", NAN, "");
        snprintf(what, sizeof(what), "%d %% recur: sharing", percent);
        print(b, "repeat", what, n_seq, median(&speed), "tokens/s", NAN, "");
        snprintf(what, sizeof(what), "%d %% recur: affected ratio", percent);
        print(b, "repeat", what, n_seq, 100.0 * with.affected, "%", percent, "");
        snprintf(what, sizeof(what), "%d %% recur: answers at a time", percent);
        print(b, "repeat", what, n_seq, (double)with.most / without.most, "times",
              1.0 / (1.0 - with.affected), "");
        snprintf(what, sizeof(what), "%d %% recur: against no sharing", percent);
        print(b, "repeat", what, n_seq, median(&times), "times", 1.0 / (1.0 - with.affected),
              percent >= 40 ? "1.85" : "");
    }
    for (int32_t i = 0; i < n_seq; i++)
        pi_mem_free(answer[i]);
    pi_mem_free(prompt);
}

/* ---- the whole ---- */

static void bench_open(struct bench *b)
{
    pith_error err = {0};
    b->model = load_model(b->o.model, b->o.n_thread, &b->info);
    check(pith_device_measure(b->o.device, b->o.n_thread, &b->machine, &err), &err);
    bool plain = strchr(b->info.file_type, 'Q') == NULL;
    b->weight_bytes = generation_bytes(b->model);
    b->peak = plain ? b->machine.f32_flop_per_s : b->machine.int8_op_per_s;
    if (b->machine.f16_flop_per_s > 0.0) /* a GPU */
        b->peak = b->machine.f16_flop_per_s;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const struct {
        const char *name;
        void (*run)(struct bench *b);
    } parts[] = {{"batch", part_batch},
                 {"prefix", part_prefix},
                 {"share", part_share},
                 {"repeat", part_repeat}};
    b.o = (struct options){.share = SHARE,
                           .n_round = 5,
                           .seqs = {{1, 4, 16, 32}, 4},
                           .n_step = 24,
                           .n_prompt = 64,
                           .n_head = 512,
                           .n_part = 6,
                           .repeats = {{10, 25, 40, 50}, 4},
                           .n_room = 8};
    rig_options(argc, argv, option_table, &b.o);
    bench_open(&b);
    puts(b.o.csv ? "part,what,sequences,value,unit,bound,goal"
                 : "part    what                                seqs        value unit          "
                   "  bound  goal");
    for (size_t i = 0; i < PI_LEN(parts); i++)
        if (rig_wants(b.o.parts, parts[i].name))
            parts[i].run(&b);
    pith_model_free(b.model);
    return EXIT_SUCCESS;
}
