/*
 * The scheduler where memory is short: the traces of the specification, and a plain model of its
 * steps. Also requests that are put back, and the end of a request when no other gives way.
 */
#include "testing.h"

#include "scheduler_rig.h"

static void setup(void)
{
    model_load(73);
}

TEST_GROUP(setup, model_free);

/* ---- a plain model ---- */

/*
 * The scheduler with reserve=0, no watermark, no cache of prefixes and equal priorities, counted in
 * blocks. Running requests come first, generated tokens before prompts, each in the order of
 * admission. Where blocks are missing, the last admitted request goes back to the front of the
 * queue, and the step is planned anew. If none went back, waiting requests are admitted in order. A
 * request is admitted while all its known tokens fit beside the tokens still to be read.
 */
#define REQUEST_MAX 24

struct one {
    int32_t prompt;
    int32_t generate;
    int32_t known; /* prompt and chosen tokens */
    int32_t done;  /* evaluated */
    int32_t take;
    bool ended;
    int32_t n_preempted;
};

struct sim {
    struct one r[REQUEST_MAX];
    int32_t n;
    int32_t running[REQUEST_MAX]; /* by admission */
    int32_t n_running;
    int32_t waiting[REQUEST_MAX]; /* in order */
    int32_t n_waiting;
    int32_t n_block;
    int32_t block_size;
    int32_t budget;
    int32_t n_seq;
    int32_t n_preempt; /* in the last step */
    int32_t first_preempted;
    int32_t n_admit;
};

static int32_t blocks(const struct sim *m, int32_t n_token)
{
    return (n_token + m->block_size - 1) / m->block_size;
}

static int32_t free_blocks(const struct sim *m)
{
    int32_t n = m->n_block;
    for (int32_t i = 0; i < m->n_running; i++) {
        const struct one *r = &m->r[m->running[i]];
        n -= blocks(m, r->done + r->take);
    }
    return n;
}

static void put_back(struct sim *m, int32_t i)
{
    int32_t id = m->running[i];
    m->r[id].done = m->r[id].take = 0;
    m->r[id].n_preempted++;
    if (m->n_preempt++ == 0)
        m->first_preempted = id;
    m->n_running--;
    memmove(&m->running[i], &m->running[i + 1], (size_t)(m->n_running - i) * sizeof(int32_t));
    int32_t at = 0;
    while (at < m->n_waiting && m->waiting[at] < id)
        at++;
    memmove(&m->waiting[at + 1], &m->waiting[at], (size_t)(m->n_waiting - at) * sizeof(int32_t));
    m->waiting[at] = id;
    m->n_waiting++;
}

static bool plan(struct sim *m, int32_t *left)
{
    *left = m->budget;
    for (int32_t i = 0; i < m->n_running; i++)
        m->r[m->running[i]].take = 0;
    for (int32_t reading = 0; reading < 2; reading++)
        for (int32_t i = 0; i < m->n_running; i++) {
            struct one *r = &m->r[m->running[i]];
            /* One whose tokens are all there but the last that was chosen generates. */
            bool reads = r->done < r->prompt || r->known - r->done > 1;
            if (reads != reading)
                continue;
            int32_t n = (int32_t)pi_min(r->known - r->done, *left);
            if (blocks(m, r->done + n) - blocks(m, r->done) > free_blocks(m)) {
                put_back(m, m->n_running - 1);
                return false;
            }
            r->take = n;
            *left -= n;
        }
    return true;
}

/* One step; out gets the requests that a token was chosen for. */
static void sim_step(struct sim *m, bool *got)
{
    int32_t left;
    m->n_preempt = m->n_admit = 0;
    while (!plan(m, &left)) {
    }
    while (m->n_preempt == 0 && m->n_waiting > 0 && left > 0 && m->n_running < m->n_seq) {
        struct one *r = &m->r[m->waiting[0]];
        int32_t room = free_blocks(m);
        for (int32_t i = 0; i < m->n_running; i++) {
            const struct one *o = &m->r[m->running[i]];
            room -= blocks(m, o->known) - blocks(m, o->done + o->take);
        }
        if (blocks(m, r->known) > room)
            break;
        m->running[m->n_running++] = m->waiting[0];
        memmove(&m->waiting[0], &m->waiting[1], (size_t)--m->n_waiting * sizeof(int32_t));
        m->n_admit++;
        r->take = (int32_t)pi_min(r->known, left);
        left -= r->take;
    }
    memset(got, 0, REQUEST_MAX * sizeof(*got));
    for (int32_t i = 0; i < m->n_running; i++) {
        struct one *r = &m->r[m->running[i]];
        r->done += r->take;
        if (r->take == 0 || r->done < r->known)
            continue;
        got[m->running[i]] = true;
        r->known++;
        r->ended = r->known - r->prompt == r->generate;
    }
}

/* Takes what ended out. */
static void sim_finish(struct sim *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_running; i++) {
        m->r[m->running[i]].take = 0;
        if (!m->r[m->running[i]].ended)
            m->running[n++] = m->running[i];
    }
    m->n_running = n;
}

/* ---- the traces ---- */

/* tests/vectors/memshare.json, scheduler_trace and scheduler_trace_roomy. A step has the tokens of
   a, b and c and the request that was put back (-1: none). It also has the admitted and the ended
   requests (bits), and the free blocks afterwards. */
struct trace_step {
    int32_t take[3];
    int32_t preempted;
    int32_t n_admit;
    int32_t ended;
    int32_t n_free;
};

static const struct trace_step trace[] = {
    {{8, 0, 0}, -1, 1, 0, 4}, {{2, 6, 0}, -1, 1, 0, 1}, {{1, 1, 0}, -1, 0, 0, 1},
    {{1, 1, 0}, -1, 0, 0, 1}, {{1, 0, 0}, 1, 0, 1, 6},  {{0, 8, 0}, -1, 1, 0, 4},
    {{0, 1, 7}, -1, 1, 0, 1}, {{0, 1, 2}, -1, 0, 0, 0}, {{0, 1, 1}, -1, 0, 0, 0},
    {{0, 1, 1}, -1, 0, 4, 3}, {{0, 1, 0}, -1, 0, 2, 6},
};
static const struct trace_step trace_roomy[] = {
    {{8, 0, 0}, -1, 1, 0, 18}, {{2, 6, 0}, -1, 1, 0, 15}, {{1, 1, 6}, -1, 1, 0, 13},
    {{1, 1, 3}, -1, 0, 0, 12}, {{1, 1, 1}, -1, 0, 1, 14}, {{0, 1, 1}, -1, 0, 4, 17},
    {{0, 1, 0}, -1, 0, 0, 17}, {{0, 1, 0}, -1, 0, 0, 17}, {{0, 1, 0}, -1, 0, 2, 20},
};

static void follow(const struct trace_step *steps, size_t n, int32_t n_block)
{
    struct sim m = {.n = 3, .n_block = n_block, .block_size = 4, .budget = 8, .n_seq = 4};
    static const int32_t prompt[3] = {10, 6, 9}, generate[3] = {4, 8, 3};
    bool got[REQUEST_MAX];
    for (int32_t i = 0; i < 3; i++) {
        m.r[i] = (struct one){.prompt = prompt[i], .generate = generate[i], .known = prompt[i]};
        m.waiting[m.n_waiting++] = i;
    }
    for (size_t k = 0; k < n; k++) {
        int32_t ended = 0;
        sim_step(&m, got);
        for (int32_t i = 0; i < 3; i++) {
            assert_int_equal(m.r[i].take, steps[k].take[i]);
            ended |= m.r[i].ended && m.r[i].take > 0 ? 1 << i : 0;
        }
        assert_int_equal(ended, steps[k].ended);
        assert_int_equal(m.n_admit, steps[k].n_admit);
        assert_int_equal(m.n_preempt, steps[k].preempted >= 0);
        if (m.n_preempt > 0)
            assert_int_equal(m.first_preempted, steps[k].preempted);
        sim_finish(&m);
        assert_int_equal(free_blocks(&m), steps[k].n_free);
    }
    assert_int_equal(m.n_running + m.n_waiting, 0);
}

/* Pages have 16 entries at least, and the traces' blocks 4: the model follows the traces, and the
   scheduler the model (test_model). */
TEST(follows_the_traces_of_the_vectors)
{
    follow(trace, PI_LEN(trace), 6);
    follow(trace_roomy, PI_LEN(trace_roomy), 20);
}

/* ---- the scheduler and the model ---- */

static int32_t n_tokens_heard[REQUEST_MAX + 1];
static bool has_ended[REQUEST_MAX + 1];

static bool count_token(void *user, const pith_answer_token *t)
{
    (void)user;
    n_tokens_heard[t->request] += t->token >= 0;
    return true;
}

static void count_done(void *user, const pith_answer_result *result)
{
    const struct sim *m = user;
    const struct one *r = &m->r[result->request - 1];
    assert_int_equal(result->status, PITH_OK);
    assert_int_equal(result->reason, PITH_STOP_LENGTH);
    assert_int_equal(result->n_generated, r->generate);
    assert_int_equal(result->n_preempted, r->n_preempted);
    has_ended[result->request] = true;
}

static void fill(struct sim *m, pith_scheduler *s, uint64_t *rng)
{
    memset(n_tokens_heard, 0, sizeof(n_tokens_heard));
    memset(has_ended, 0, sizeof(has_ended));
    for (int32_t i = 0; i < m->n; i++) {
        struct one *r = &m->r[i];
        pith_generate_params params;
        pith_request request;
        r->prompt = 1 + (int32_t)rng_below(rng, 70);
        r->generate = 1 + (int32_t)rng_below(rng, 60);
        r->known = r->prompt;
        m->waiting[m->n_waiting++] = i;
        pith_generate_params_default(&params);
        params.n_predict = r->generate;
        params.ignore_end = true;
        pith_request_default(&request);
        request.prompt = tokens + 10 * i;
        request.n_prompt = r->prompt;
        request.params = &params;
        request.on_token = count_token;
        request.on_done = count_done;
        request.user = m;
        check(pith_scheduler_submit(s, &request, NULL, &err), &err);
    }
}

/* Returns how many were put back. */
static int64_t compare_steps(uint64_t seed)
{
    struct sim m = {.block_size = PAGE_LEN};
    uint64_t rng = seed;
    bool got[REQUEST_MAX], idle = false;
    int32_t heard[REQUEST_MAX] = {0};
    int64_t n_preempted = 0;
    pith_scheduler_params params;
    pith_kv_stats kv;
    m.n = 4 + (int32_t)rng_below(&rng, REQUEST_MAX - 4);
    m.n_block = 9 + (int32_t)rng_below(&rng, 16);
    m.budget = 8 + (int32_t)rng_below(&rng, 60);
    m.n_seq = 2 + (int32_t)rng_below(&rng, 9);
    pith_engine *e = engine_make(NULL, 64, 1, m.n_block * PAGE_LEN);
    pith_scheduler_params_default(&params);
    params.n_seq = m.n_seq;
    params.step_tokens = m.budget;
    params.reserve = 0.0;
    params.watermark = 0.0;
    params.no_prefix = true;
    params.max_preempt = 1000;
    pith_scheduler *s = scheduler_make(e, &params);
    fill(&m, s, &rng);
    for (int32_t step = 0; !idle; step++) {
        sim_step(&m, got);
        n_preempted += m.n_preempt;
        sim_finish(&m);
        check(pith_scheduler_step(s, &idle, &err), &err);
        for (int32_t i = 0; i < m.n; i++) {
            heard[i] += got[i];
            if (n_tokens_heard[i + 1] != heard[i] || has_ended[i + 1] != m.r[i].ended)
                fail_msg("seed %llu, step %d, request %d: %d tokens, ended %d, not %d, %d",
                         (unsigned long long)seed, step, i, n_tokens_heard[i + 1], has_ended[i + 1],
                         heard[i], m.r[i].ended);
        }
        pith_engine_kv_stats(e, &kv);
        assert_int_equal(kv.used_bytes * m.n_block / kv.reserved_bytes,
                         m.n_block - free_blocks(&m));
        pith_scheduler_stats t = stats_of_scheduler(s);
        assert_int_equal(t.preempted_recompute, n_preempted);
        assert_int_equal(t.n_running, m.n_running);
        assert_int_equal(idle, m.n_running + m.n_waiting == 0);
        assert_true(step < 5000);
    }
    free_both(s, e);
    return n_preempted;
}

TEST(agrees_with_a_plain_model_step_by_step)
{
    int64_t n_preempted = 0;
    for (uint64_t seed = 1; seed <= 30; seed += TEST_STRIDE)
        n_preempted += compare_steps(seed);
    assert_true(n_preempted > 30 / TEST_STRIDE);
}

/* ---- what gives way ---- */

#define N_ASK 6

static pith_engine *engine_of(const char *keep, const char *read, int32_t kv_tokens)
{
    return engine_with(model, (pith_engine_params){.chunk = 64,
                                                   .n_thread = 1,
                                                   .kv_tokens = kv_tokens,
                                                   .page_len = PAGE_LEN,
                                                   .keep = keep,
                                                   .read = read});
}

static void make_asks(struct ask *asks, struct heard *alone, pith_engine *e)
{
    for (int32_t i = 0; i < N_ASK; i++) {
        ask_init(&asks[i], 25 * i, 20 + 9 * i, 90 - 7 * i, i % 2 == 0 ? 0.0f : 0.8f);
        generate_alone(e, &asks[i], 0, &alone[i]);
    }
}

/* With no memory reserved for generation most requests are put back, and give the same results. */
TEST(requests_that_are_put_back_come_to_the_same)
{
    static const char *const reads[] = {NULL, "quoka:budget=16,chunk=16,gate=1"};
    static struct ask asks[N_ASK];
    static struct heard alone[N_ASK];
    for (size_t k = 0; k < 2 * PI_LEN(reads); k++) {
        pith_engine *e = engine_of(NULL, reads[k / 2], 17 * PAGE_LEN);
        pith_scheduler_params params;
        make_asks(asks, alone, e);
        pith_scheduler_params_default(&params);
        params.reserve = 0.0;
        params.watermark = 0.0;
        params.no_prefix = k % 2 == 1;
        pith_scheduler *s = scheduler_make(e, &params);
        for (int32_t i = 0; i < N_ASK; i++)
            submit(s, &asks[i]);
        run_all(s);
        for (int32_t i = 0; i < N_ASK; i++)
            expect_same(&asks[i].answer[0], &alone[i], "put back");
        pith_scheduler_stats t = stats_of_scheduler(s);
        if (k < 2) {
            assert_true(t.preempted_recompute > 1 && t.preempted_swap == 0);
            assert_true(k == 0 || t.recomputed_tokens > 0);
        } else {
            assert_true(t.preempted_swap > 1);
        }
        assert_int_equal(t.swapped_bytes, 0);
        assert_int_equal(t.n_swapped, 0);
        free_both(s, e);
    }
}

/* Without host memory, a request that cannot be computed again ends with its text so far. */
TEST(without_host_memory_an_answer_ends_early)
{
    static struct ask asks[N_ASK];
    static struct heard alone[N_ASK];
    pith_engine *e = engine_of(NULL, "quoka:budget=16,chunk=16,gate=1", 17 * PAGE_LEN);
    pith_scheduler_params params;
    int32_t n_full = 0;
    make_asks(asks, alone, e);
    pith_scheduler_params_default(&params);
    params.reserve = 0.0;
    params.swap_bytes = 0;
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < N_ASK; i++)
        submit(s, &asks[i]);
    run_all(s);
    for (int32_t i = 0; i < N_ASK; i++) {
        const struct heard *h = &asks[i].answer[0];
        assert_int_equal(h->result.status, PITH_OK);
        assert_int_equal(h->n_done, 1);
        assert_memory_equal(h->token, alone[i].token, (size_t)(h->n - 1) * sizeof(int32_t));
        n_full += h->result.reason == PITH_STOP_FULL;
        assert_true(h->n == alone[i].n || h->result.reason == PITH_STOP_FULL);
    }
    assert_true(n_full > 0 && n_full < N_ASK);
    assert_int_equal(stats_of_scheduler(s).preempted_swap, 0);
    free_both(s, e);
}

/* Unless told otherwise it sets aside all of their growth then, so that none ends early. */
TEST(without_host_memory_growth_is_set_aside)
{
    static struct ask asks[N_ASK];
    static struct heard alone[N_ASK];
    pith_engine *e = engine_of(NULL, "quoka:budget=16,chunk=16,gate=1", 17 * PAGE_LEN);
    pith_scheduler_params params;
    make_asks(asks, alone, e);
    pith_scheduler_params_default(&params);
    params.swap_bytes = 0;
    params.watermark = 0.0;
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < N_ASK; i++)
        submit(s, &asks[i]);
    run_all(s);
    for (int32_t i = 0; i < N_ASK; i++)
        expect_same(&asks[i].answer[0], &alone[i], "set aside");
    free_both(s, e);
}

/* No request gives way to the last one: it ends where it would end alone. */
TEST(the_last_request_ends_where_it_would_alone)
{
    static struct ask asks[3];
    static struct heard alone[3];
    pith_engine *e = engine_of(NULL, NULL, 8 * PAGE_LEN);
    pith_scheduler *s = scheduler_make(e, NULL);
    for (int32_t i = 0; i < 3; i++) {
        ask_init(&asks[i], 30 * i, 40 - 10 * i, -1, 0.5f);
        generate_alone(e, &asks[i], 0, &alone[i]);
        assert_int_equal(alone[i].result.reason, PITH_STOP_FULL);
        submit(s, &asks[i]);
    }
    run_all(s);
    for (int32_t i = 0; i < 3; i++)
        expect_same(&asks[i].answer[0], &alone[i], "full");
    free_both(s, e);
}

/* A budget that is a share of the tokens is no constant: early rounds and looser scans are tried
   first. The order of arrivals then decides which entries are kept, and every end is defined. */
TEST(early_rounds_come_before_putting_back)
{
    static struct ask asks[N_ASK];
    static struct heard alone[N_ASK];
    pith_engine *e = engine_of("knorm:budget=50%,slack=40,window=4", NULL, 14 * PAGE_LEN);
    pith_scheduler_params params;
    make_asks(asks, alone, e);
    pith_scheduler_params_default(&params);
    params.pressure = true;
    params.reserve = 0.0;
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < N_ASK; i++)
        submit(s, &asks[i]);
    run_all(s);
    for (int32_t i = 0; i < N_ASK; i++) {
        assert_int_equal(asks[i].answer[0].n_done, 1);
        assert_int_equal(asks[i].answer[0].result.status, PITH_OK);
        assert_int_equal(asks[i].answer[0].n, alone[i].n);
    }
    assert_true(stats_of_scheduler(s).pressure_rounds > 0);
    free_both(s, e);
}

TEST(looser_sharing_comes_before_putting_back)
{
    static struct ask asks[N_ASK];
    pith_engine_params engine;
    pith_scheduler_params params;
    pith_engine *e = NULL;
    pith_logit_bias bias = {.bias = 6.0f}; /* of a line's end, for steps to end */
    int32_t n;
    check(pith_tokenize(model, "\n", 1, 0, &bias.token, 1, &n, &err), &err);
    pith_engine_params_default(&engine);
    engine.n_thread = 1;
    engine.page_len = PAGE_LEN;
    engine.kv_tokens = 24 * PAGE_LEN;
    engine.share = "memshare:step=0.1,block=0.002,relative=0.004,loose=100";
    check(pith_engine_create(model, &engine, &e, &err), &err);
    pith_scheduler_params_default(&params);
    params.pressure = true;
    params.reserve = 0.0;
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < 2; i++) {
        ask_init(&asks[i], 25 * i, 20 + 9 * i, 190 - 7 * i, 0.8f);
        asks[i].params.sample.bias = &bias;
        asks[i].params.sample.n_bias = 1;
        submit(s, &asks[i]);
    }
    run_all(s);
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(asks[i].answer[0].n_done, 1);
        assert_int_equal(asks[i].answer[0].result.status, PITH_OK);
        assert_int_equal(asks[i].answer[0].n, asks[i].params.n_predict);
    }
    pith_scheduler_stats t = stats_of_scheduler(s);
    assert_true(t.pressure_shared > 0 && t.share_s > 0.0 && t.share_s < t.seconds);
    free_both(s, e);
}

/* ---- reserved memory ---- */

/* With all growth set aside no request is put back. Cases: full caches, and budgets whose prompts
   begin alike, so that rounds copy the pages of the cache of prefixes. Forks included. */
TEST(with_all_growth_set_aside_none_is_put_back)
{
    static const char *const keeps[] = {NULL, "knorm:budget=48,slack=16,window=4",
                                        "streaming:budget=48,slack=8"};
    static struct ask asks[12];
    static struct heard alone[12][3];
    int64_t n_cached[PI_LEN(keeps)] = {0};
    for (size_t k = 0; k < PI_LEN(keeps); k++)
        for (int32_t n_page = 18; n_page <= 30; n_page += 4) {
            pith_engine *e = engine_of(keeps[k], NULL, n_page * PAGE_LEN);
            pith_scheduler_params params;
            pith_scheduler_params_default(&params);
            params.reserve = 1.0;
            params.watermark = 0.0;
            pith_scheduler *s = scheduler_make(e, &params);
            for (int32_t i = 0; i < 12; i++) {
                ask_init(&asks[i], 0, 60 + 3 * i, 20 + i, 0.8f);
                asks[i].request.n_answer = 1 + i % 3;
                for (int32_t j = 0; j < asks[i].request.n_answer; j++)
                    generate_alone(e, &asks[i], j, &alone[i][j]);
            }
            for (int32_t i = 0; i < 12; i++)
                submit(s, &asks[i]);
            run_all(s);
            for (int32_t i = 0; i < 12; i++)
                for (int32_t j = 0; j < asks[i].request.n_answer; j++)
                    expect_same(&asks[i].answer[j], &alone[i][j], "set aside");
            pith_scheduler_stats t = stats_of_scheduler(s);
            if (t.preempted_recompute + t.preempted_swap > 0)
                fail_msg("%s, %d pages: %lld were put back", keeps[k] != NULL ? keeps[k] : "none",
                         n_page, (long long)t.preempted_recompute);
            assert_true(t.peak_running > 1);
            n_cached[k] += t.cached_tokens;
            free_both(s, e);
        }
    for (size_t k = 0; k < PI_LEN(keeps); k++)
        assert_true(n_cached[k] > 0);
}

/* ---- prefixes ---- */

TEST(prefixes_are_found_and_dropped_for_room)
{
    static struct ask asks[3];
    static struct heard alone[3];
    static int32_t longer[TOKENS_MAX];
    pith_engine *e = engine_of(NULL, NULL, 64 * PAGE_LEN);
    pith_scheduler *s = scheduler_make(e, NULL);
    ask_init(&asks[0], 0, 50, 40, 0.0f);
    generate_alone(e, &asks[0], 0, &alone[0]);
    submit(s, &asks[0]);
    run_all(s);
    expect_same(&asks[0].answer[0], &alone[0], "first");
    assert_int_equal(asks[0].answer[0].result.n_cached, 0);
    assert_int_equal(stats_of_scheduler(s).prefix_pages, (50 + 39) / PAGE_LEN);

    /* The same again, and its answer as a part of the next prompt. */
    ask_init(&asks[1], 0, 50, 40, 0.0f);
    memcpy(longer, tokens, 50 * sizeof(int32_t));
    memcpy(longer + 50, asks[0].answer[0].token, 40 * sizeof(int32_t));
    ask_init(&asks[2], 0, 90, 10, 0.0f);
    asks[2].request.prompt = longer;
    generate_alone(e, &asks[2], 0, &alone[2]);
    submit(s, &asks[1]);
    submit(s, &asks[2]);
    run_all(s);
    expect_same(&asks[1].answer[0], &alone[0], "again");
    expect_same(&asks[2].answer[0], &alone[2], "longer");
    assert_int_equal(asks[1].answer[0].result.n_cached, 48);
    assert_int_equal(asks[1].answer[0].result.n_prompt, 2);
    assert_int_equal(asks[2].answer[0].result.n_cached, 80);
    pith_scheduler_stats t = stats_of_scheduler(s);
    pith_kv_stats kv;
    pith_engine_kv_stats(e, &kv);
    assert_int_equal(t.cached_tokens, 128);
    assert_int_equal(t.prefix_bytes, kv.used_bytes); /* no request runs */
    assert_int_equal(t.prefix_dropped, 0);

    /* Unused blocks make room. */
    ask_init(&asks[0], 100, 300, 100, 0.0f);
    ask_init(&asks[1], 101, 310, 90, 0.0f);
    ask_init(&asks[2], 102, 320, 80, 0.0f);
    for (int32_t i = 0; i < 3; i++)
        generate_alone(e, &asks[i], 0, &alone[i]);
    for (int32_t i = 0; i < 3; i++)
        submit(s, &asks[i]);
    run_all(s);
    for (int32_t i = 0; i < 3; i++)
        expect_same(&asks[i].answer[0], &alone[i], "room");
    assert_true(stats_of_scheduler(s).prefix_dropped > 0);
    free_both(s, e);
}

/* The scheduler cannot take memory that other sequences of the engine hold. A request that does not
   fit beside it even alone fails when it is its turn. */
TEST(memory_of_others_is_not_the_schedulers)
{
    static struct ask asks[2];
    static struct heard alone;
    pith_engine *e = engine_of(NULL, NULL, 10 * PAGE_LEN);
    ask_init(&asks[0], 0, 90, 8, 0.0f);
    ask_init(&asks[1], 0, 20, 8, 0.0f);
    generate_alone(e, &asks[1], 0, &alone);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 80);
    pith_scheduler *s = scheduler_make(e, NULL);
    submit(s, &asks[0]);
    submit(s, &asks[1]);
    run_all(s);
    assert_int_equal(asks[0].answer[0].result.status, PITH_KV_FULL);
    assert_non_null(strstr(asks[0].answer[0].message, "not used by others"));
    assert_int_equal(stats_of_scheduler(s).n_failed, 1);
    expect_same(&asks[1].answer[0], &alone, "beside another");
    pith_seq_free(seq);
    free_both(s, e);
}

/* ---- one budget for pages and what stands beside them ---- */

static void expect_within(pith_engine *e, int64_t swap_bytes, const char *what)
{
    pith_memory_stats m;
    pith_engine_memory_stats(e, &m);
    if (m.total_bytes - m.aside_bytes > m.budget_bytes || m.aside_bytes > swap_bytes)
        fail_msg("%s: %lld bytes, of them %lld in host memory, of %lld and %lld", what,
                 (long long)m.total_bytes, (long long)m.aside_bytes, (long long)m.budget_bytes,
                 (long long)swap_bytes);
}

/* Short conversations leave more beside pages than in them. However many are parked, and however
   many run at once, all parts stay within the budget, and host memory within its own.
   Afterwards one conversation of the length that the budget is for has its memory. */
TEST(many_short_conversations_stay_within_a_budget)
{
    enum { N_TOGETHER = 6, N_TURN = 20, N_LONG = 400 };
    static struct ask ask[N_TOGETHER];
    static struct heard alone;
    static const struct {
        const char *keep, *recall;
        int64_t swap_bytes;
        int32_t n_prompt;
    } forms[] = {
        {NULL, NULL, 0, 9},
        {NULL, NULL, 256 << 10, 40},
        {"snapkv:budget=25%", NULL, 0, 9},
        {"snapkv:budget=25%", "kv", 0, 9},
        {"rkv:budget=64", NULL, 0, 9},
        {"rkv:budget=64", NULL, 256 << 10, 9},
        {"adakv:budget=25%", NULL, 0, 9},
        {"triattention:v3,budget=300", NULL, 512 << 10, 60},
        {"streaming:budget=32,slack=8", "text", 0, 60},
        {"streaming:budget=32,slack=8", "text", 1 << 20, 60},
    };
    for (size_t i = 0; i < PI_LEN(forms); i++) {
        char what[96];
        pith_engine_params p;
        pith_scheduler_params sp;
        pith_engine *e = NULL;
        pith_scheduler_stats t;
        pith_engine_params_default(&p);
        pith_scheduler_params_default(&sp);
        p.n_thread = 1;
        p.keep = forms[i].keep;
        p.recall = forms[i].recall;
        sp.swap_bytes = forms[i].swap_bytes;
        snprintf(what, sizeof(what), "%s, recall %s, %d KiB of host memory",
                 p.keep != NULL ? p.keep : "full", p.recall != NULL ? p.recall : "none",
                 (int)(sp.swap_bytes >> 10));
        check(pith_memory_estimate(model, &p, N_LONG + 16, &p.memory_bytes, &err), &err);
        check(pith_engine_create(model, &p, &e, &err), &err);
        ask_init(&ask[0], 7, N_LONG, 8, 0.0f);
        generate_alone(e, &ask[0], 0, &alone);
        pith_engine_free(e);
        check(pith_engine_create(model, &p, &e, &err), &err);
        pith_scheduler *s = scheduler_make(e, &sp);
        for (int32_t turn = 0; turn < N_TURN; turn++) {
            for (int32_t j = 0; j < N_TOGETHER; j++) {
                ask_init(&ask[j], 3 * (turn * N_TOGETHER + j), forms[i].n_prompt, 3, 0.0f);
                ask[j].request.slot = PITH_SLOT_ANY;
                submit(s, &ask[j]);
            }
            for (bool idle = false; !idle;) {
                check(pith_scheduler_step(s, &idle, &err), &err);
                expect_within(e, sp.swap_bytes, what);
            }
            for (int32_t j = 0; j < N_TOGETHER; j++)
                assert_int_equal(ask[j].answer[0].result.status, PITH_OK);
        }
        t = stats_of_scheduler(s);
        printf("%s: %d parked, %d of them in host memory, %lld dropped, %d at once\n", what,
               t.n_parked, t.n_parked_swapped, (long long)t.parked_dropped, t.peak_running);
        assert_true(t.n_parked > 0 && t.parked_dropped > 0);
        assert_int_equal(t.preempted_recompute + t.preempted_swap, 0);
        ask_init(&ask[0], 7, N_LONG, 8, 0.0f);
        submit(s, &ask[0]);
        run_all(s);
        expect_same(&ask[0].answer[0], &alone, what);
        free_both(s, e);
    }
}
