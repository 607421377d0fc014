/* read_check.c - see read_check.h. */
#include "read_check.h"

#include <math.h>

#include "base/mem.h"
#include "status.h"

/* ---- problems ---- */

static size_t q_len(const struct read_problem *p)
{
    return (size_t)p->n_q * (size_t)p->chunk * (size_t)p->dim;
}

static size_t past_len(const struct read_problem *p)
{
    return (size_t)p->n_kv * (size_t)p->n * (size_t)p->dim;
}

static size_t own_len(const struct read_problem *p)
{
    return (size_t)p->n_kv * (size_t)p->chunk * (size_t)p->dim;
}

void read_problem_make(struct read_problem *p)
{
    p->q = test_calloc(q_len(p), sizeof(float));
    p->k = test_calloc(past_len(p) + 1, sizeof(float));
    p->v = test_calloc(past_len(p) + 1, sizeof(float));
    p->kc = test_calloc(own_len(p), sizeof(float));
    p->vc = test_calloc(own_len(p), sizeof(float));
}

void read_problem_free(struct read_problem *p)
{
    test_free(p->q);
    test_free(p->k);
    test_free(p->v);
    test_free(p->kc);
    test_free(p->vc);
}

/* Numbers of magnitude 1, and a mean of its own in every third dimension. */
static void fill_random(float *x, size_t n, int32_t dim, float mean, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(rng) + (i % (size_t)dim % 3 == 0 ? mean : 0.0f);
}

void read_problem_random(struct read_problem *p, uint64_t *rng)
{
    read_problem_make(p);
    fill_random(p->q, q_len(p), p->dim, 0.4f, rng);
    fill_random(p->k, past_len(p), p->dim, -0.3f, rng);
    fill_random(p->v, past_len(p), p->dim, 0.0f, rng);
    fill_random(p->kc, own_len(p), p->dim, -0.3f, rng);
    fill_random(p->vc, own_len(p), p->dim, 0.0f, rng);
}

/* ---- vectors ---- */

static json_t *root;

json_t *read_vectors(void)
{
    if (root == NULL)
        root = json_load_file(READ_VECTORS, 0, NULL);
    assert_non_null(root);
    return root;
}

void read_vectors_free(void)
{
    json_decref(root);
    root = NULL;
}

json_t *read_vector_at(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("the vectors have no \"%s\"", key);
    return value;
}

json_t *read_vector_case(const char *name)
{
    json_t *cases = read_vector_at(read_vectors(), "cases");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i);
        if (strcmp(json_string_value(read_vector_at(c, "name")), name) == 0)
            return c;
    }
    fail_msg("the vectors have no case %s", name);
    return NULL;
}

static int32_t number(const json_t *object, const char *key)
{
    return (int32_t)json_integer_value(read_vector_at(object, key));
}

/* The numbers of a nested list, the innermost last. */
static size_t flatten(const json_t *list, float *out)
{
    size_t n = 0;
    if (!json_is_array(list)) {
        *out = (float)json_number_value(list);
        return 1;
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        n += flatten(json_array_get(list, i), out + n);
    return n;
}

static void load_list(const json_t *c, const char *key, float *out, size_t n)
{
    if (n > 0)
        assert_int_equal(flatten(read_vector_at(c, key), out), n);
}

/* The linear congruential generator of the cases without lists. */
static void generate(uint32_t *state, float *out, size_t n, int32_t dim, float bias)
{
    for (size_t i = 0; i < n; i++) {
        *state = 1664525u * *state + 1013904223u;
        out[i] = (float)(*state >> 8) * 0x1p-23f - 1.0f;
        out[i] += i % (size_t)dim == 0 ? bias : 0.0f;
    }
}

static void check_first(const json_t *c, const char *key, float x)
{
    assert_true((float)json_number_value(read_vector_at(read_vector_at(c, "first_values"), key)) ==
                x);
}

static void load_generated(const json_t *c, struct read_problem *p)
{
    uint32_t state = (uint32_t)number(read_vector_at(c, "generator"), "seed");
    generate(&state, p->q, q_len(p), p->dim, 0.5f);
    generate(&state, p->k, past_len(p), p->dim, -0.5f);
    generate(&state, p->v, past_len(p), p->dim, 0.0f);
    generate(&state, p->kc, own_len(p), p->dim, -0.5f);
    generate(&state, p->vc, own_len(p), p->dim, 0.0f);
    check_first(c, "Q000", p->q[0]);
    check_first(c, "K000", p->k[0]);
    check_first(c, "V000", p->v[0]);
    check_first(c, "Kc000", p->kc[0]);
    check_first(c, "Vc000", p->vc[0]);
    check_first(c, "Vc_last", p->vc[own_len(p) - 1]);
}

void read_vector_load(const json_t *c, struct read_problem *p)
{
    const json_t *from = c, *same = json_object_get(c, "same_inputs_as");
    *p = (struct read_problem){.n_q = number(c, "n_q"),
                               .n_kv = number(c, "n_kv"),
                               .dim = number(c, "d"),
                               .chunk = number(c, "chunk"),
                               .n = number(c, "T"),
                               .n_query = number(c, "N_Q"),
                               .budget = number(c, "B_SA")};
    read_problem_make(p);
    if (same != NULL)
        from = read_vector_case(json_string_value(same));
    p->scale = (float)json_number_value(read_vector_at(from, "scale"));
    if (json_object_get(from, "generator") != NULL) {
        load_generated(c, p);
        return;
    }
    load_list(from, "Q", p->q, q_len(p));
    load_list(from, "K", p->k, past_len(p));
    load_list(from, "V", p->v, past_len(p));
    load_list(from, "Kc", p->kc, own_len(p));
    load_list(from, "Vc", p->vc, own_len(p));
    if (json_object_get(c, "zero_key") != NULL)
        memset(p->k + (size_t)number(c, "zero_key") * (size_t)p->dim, 0,
               (size_t)p->dim * sizeof(float));
}

/* ---- lanes ---- */

static void fill_lanes(struct read_world *w)
{
    const struct read_problem *p = w->problem;
    size_t dim = (size_t)p->dim;
    check(kv_seq_reserve(w->kv, p->n + p->chunk, &err), &err);
    for (int32_t h = 0; h < p->n_kv; h++) {
        size_t past = (size_t)h * (size_t)p->n * dim, own = (size_t)h * (size_t)p->chunk * dim;
        if (p->n > 0)
            kv_seq_append(w->kv, 0, h, 0, p->n, p->k + past, dim, p->v + past, dim);
        kv_seq_append(w->kv, 0, h, p->n, p->chunk, p->kc + own, dim, p->vc + own, dim);
    }
}

void read_world_open(struct read_world *w, const struct read_problem *p,
                     const struct read_policy *policy, const char *options, enum kv_type type)
{
    size_t dim = (size_t)p->dim, row = (size_t)p->n_q * dim;
    *w = (struct read_world){.problem = p};
    w->model = (struct policy_model){.g = {.n_layer = 1,
                                           .n_head = p->n_kv,
                                           .dim_k = p->dim,
                                           .dim_v = p->dim,
                                           .page_len = 16,
                                           .type_k = type,
                                           .type_v = type},
                                     .n_group = p->n_q / p->n_kv,
                                     .scale = p->scale};
    check(read_config_set(policy, options, &w->config, &err), &err);
    check(read_config_fit(&w->config, &w->model.g, &err), &err);
    check(kv_cache_create(&w->model.g, kv_bytes_for_tokens(&w->model.g, p->n + p->chunk + 64),
                          &w->cache, &err),
          &err);
    if (policy->open != NULL)
        check(policy->open(&w->config.params, &w->model, &w->data, &err), &err);
    if (policy->projection != NULL)
        kv_cache_set_projection(w->cache, policy->projection(w->data));
    check(kv_seq_create(w->cache, &w->kv, &err), &err);
    fill_lanes(w);
    w->q = test_calloc((size_t)p->chunk * row, sizeof(float));
    for (size_t h = 0; h < (size_t)p->n_q; h++)
        for (size_t t = 0; t < (size_t)p->chunk; t++)
            memcpy(w->q + t * row + h * dim, p->q + (h * (size_t)p->chunk + t) * dim,
                   dim * sizeof(float));
    size_t size = policy->scratch_size == NULL ? 0
                                               : policy->scratch_size(&w->config.params, &w->model,
                                                                      p->n + p->chunk, p->chunk);
    w->score = pi_mem_alloc(PI_MEM_OTHER, size);
    w->view = (struct read_view){
        .kv = w->kv, .model = &w->model, .rules = &w->config.rules, .data = w->data};
}

void read_world_close(struct read_world *w)
{
    kv_seq_free(w->kv);
    kv_cache_free(w->cache);
    if (w->config.policy->close != NULL)
        w->config.policy->close(w->data);
    test_free(w->q);
    pi_mem_free(w->score);
}

/* ---- a policy on them ---- */

struct read_chunk read_world_chunk(const struct read_world *w, int32_t head)
{
    const struct read_problem *p = w->problem;
    return (struct read_chunk){
        .head = head,
        .n = p->n,
        .n_tok = p->chunk,
        .n_group = w->model.n_group,
        .pos0 = p->n,
        .q = w->q + (size_t)head * (size_t)w->model.n_group * (size_t)p->dim,
        .q_stride = (size_t)p->n_q * (size_t)p->dim,
        .n_choose = read_budget_at(&w->config.rules, p->n),
        .scratch = w->score,
    };
}

/* As a reader does: the device scores by what the policy asks, where it does. */
void read_world_score_chunk(const struct read_world *w, const struct read_chunk *chunk, float *out)
{
    struct read_chunk c = *chunk;
    const struct read_policy *p = w->config.policy;
    const void *params = &w->config.params;
    int32_t n_set = p->n_set != NULL ? p->n_set(params, &w->model, c.n_tok) : 0;
    size_t n = (size_t)c.n, n_row = p->unites ? (size_t)w->model.n_group : 1;
    struct kv_score_job *jobs = test_calloc((size_t)n_set + 1, sizeof(*jobs));
    float *row = test_malloc(((size_t)n_set + n_row) * n * sizeof(*row));
    int32_t n_vector = n_set > 0 ? p->n_vector(params, &w->model, c.n_tok) : 0;
    c.vector = test_malloc(((size_t)n_vector + 1) * (size_t)w->model.g.dim_k * sizeof(float));
    void *scratch = test_malloc(kv_score_scratch_bytes(&w->model.g, n_vector + 1));
    if (n_set > 0)
        p->ask(params, &w->view, &c, jobs);
    for (int32_t i = 0; i < n_set; i++) {
        jobs[i].seq = w->kv;
        jobs[i].layer = c.layer;
        jobs[i].head = c.head;
        jobs[i].n = c.n;
        jobs[i].rope = w->model.rope;
        jobs[i].out = row + (size_t)i * n;
        kv_score(&jobs[i], scratch);
    }
    p->score(params, &w->view, &c, row);
    memcpy(out, row, n_row * n * sizeof(*row));
    test_free(c.vector);
    test_free(scratch);
    test_free(row);
    test_free(jobs);
}

void read_world_score(const struct read_world *w, int32_t head, float *out)
{
    struct read_chunk c = read_world_chunk(w, head);
    read_world_score_chunk(w, &c, out);
    for (int32_t s = 0; s < c.n; s++)
        if (out[s] != out[s])
            fail_msg("%s: the score of slot %d is not a number", w->config.policy->name, s);
}

bool read_world_choose(const struct read_world *w, const float *score, int32_t *slots)
{
    int32_t n = w->problem->n, n_read = read_budget_at(&w->config.rules, n);
    void *scratch = test_malloc(kv_choose_scratch_bytes(n));
    if (n_read < n) {
        struct kv_choose_job job = read_choice(&w->config.rules, score, n, n_read, slots);
        kv_choose(&job, scratch);
        read_fill(&w->config.rules, n, n_read, slots);
    }
    test_free(scratch);
    return n_read < n;
}

void read_world_attend(const struct read_world *w, const int32_t *slots, int32_t n_slot, float *out)
{
    const struct read_problem *p = w->problem;
    int32_t n_group = w->model.n_group;
    size_t dim = (size_t)p->dim, row = (size_t)n_group * dim;
    int32_t *all = test_calloc((size_t)(n_slot + p->chunk), sizeof(int32_t));
    float *rows = test_calloc((size_t)p->chunk * row, sizeof(float));
    void *scratch = test_malloc(kv_attend_scratch_bytes(&w->model.g, p->chunk * n_group));
    for (int32_t h = 0; h < p->n_kv; h++) {
        for (int32_t i = 0; i < n_slot; i++)
            all[i] = slots[(size_t)h * (size_t)n_slot + (size_t)i];
        for (int32_t t = 0; t < p->chunk; t++)
            all[n_slot + t] = p->n + t;
        struct kv_attend_job job = {
            .seq = w->kv,
            .head = h,
            .n_tok = p->chunk,
            .n_group = n_group,
            .pos0 = p->n,
            .q = w->q + (size_t)h * row,
            .q_stride = (size_t)p->n_q * dim,
            .scale = p->scale,
            .out = rows,
            .out_stride = row,
            .rope = w->model.rope,
            .slots = slots != NULL ? all : NULL,
            .n_slot = n_slot + p->chunk,
        };
        kv_attend(&job, scratch);
        for (size_t g = 0; g < (size_t)n_group; g++)
            for (size_t t = 0; t < (size_t)p->chunk; t++)
                memcpy(out + (((size_t)h * (size_t)n_group + g) * (size_t)p->chunk + t) * dim,
                       rows + t * row + g * dim, dim * sizeof(float));
    }
    test_free(all);
    test_free(rows);
    test_free(scratch);
}

enum kv_type read_type(int32_t i, int32_t dim)
{
    enum kv_type type = (enum kv_type)(i % KV_N_TYPE);
    const struct kv_geometry g = {.n_layer = 1,
                                  .n_head = 1,
                                  .dim_k = dim,
                                  .dim_v = dim,
                                  .page_len = 16,
                                  .type_k = type,
                                  .type_v = type};
    return kv_geometry_check(&g, NULL) == PITH_OK ? type : KV_TYPE_F16;
}
