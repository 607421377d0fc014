/*
 * LongFlow on lanes of numbers: the published method's six steps (victims, scores, in every form)
 * and logits of any size. Thousands of random steps run beside a reference that reads the lanes
 * entry by entry in double.
 *
 * The vectors were made with float64 from the authors' code (yisunlp/LongFLow at 89a68d3,
 * models/ours.py, triton_kernel/attention_new.py) and the formulas of longflow.c. Inputs lie on a
 * grid of 1/8, so that they are exact in every type.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/half.h"
#include "base/mem.h"
#include "policy/keep/rules/rounds.h"
#include "rounded.h"
#include "near.h"
#include "status.h"
#include "pith/policy.h"

/* ---- lanes that are stepped as the engine does ---- */

struct world {
    struct kv_geometry g;
    int32_t n_group;
    float scale;
    struct keep_config config;
    struct kv_cache *cache;
    struct kv_seq *kv;
    struct keep *keep;
    struct keep_tally tally;
    void *state;
    void *scratch;
    int32_t n_token;
    float *weight; /* [n_group][stride] of the last lane */
    float *out;    /* [n_group][dim_v] */
    size_t stride;
};

static void world_make(struct world *w, const char *options)
{
    struct policy_model model = {.g = w->g, .n_group = w->n_group, .scale = w->scale};
    check(keep_config_set(&keep_longflow, options, &w->config, &err), &err);
    check(keep_config_fit(&w->config, &w->g, &err), &err);
    check(kv_cache_create(&w->g, kv_bytes_for_tokens(&w->g, 1024), &w->cache, &err), &err);
    check(keep_create(&w->config, &model, 1, &w->keep, &err), &err);
    assert_int_equal(keep_n_mark(w->keep), 0);
    assert_true((keep_needs(w->keep) & KEEP_NEED_VALUE_NORM) != 0);
    kv_cache_set_marks(w->cache, 0, true);
    check(kv_seq_create(w->cache, &w->kv, &err), &err);
    w->state = pi_mem_alloc(PI_MEM_OTHER, keep_state_size(w->keep));
    w->scratch = pi_mem_alloc(PI_MEM_OTHER, kv_attend_scratch_bytes(&w->g, w->n_group));
    w->stride = 1024;
    w->weight = pi_mem_alloc_n(PI_MEM_OTHER, w->stride * (size_t)w->n_group, sizeof(float));
    w->out = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)(w->n_group * w->g.dim_v), sizeof(float));
}

static void world_free(struct world *w)
{
    kv_seq_free(w->kv);
    keep_free(w->keep);
    kv_cache_free(w->cache);
    pi_mem_free(w->state);
    pi_mem_free(w->scratch);
    pi_mem_free(w->weight);
    pi_mem_free(w->out);
}

static void append(struct world *w, int32_t layer, int32_t head, const float *k, const float *v)
{
    kv_seq_append(w->kv, layer, head, w->n_token, 1, k, (size_t)w->g.dim_k, v, (size_t)w->g.dim_v);
}

/* Makes whole weights of weights in parts. */
static void finish_weights(struct world *w, const struct kv_attend_tap *tap, int32_t n)
{
    for (int32_t g = 0; tap->parts != NULL && g < w->n_group; g++) {
        const struct kv_weight_parts *parts = tap->parts;
        assert_int_equal(parts->end[parts->n - 1], n);
        for (int32_t s = 0, j = 0; s < n; s++) {
            j += s == parts->end[j];
            w->weight[(size_t)g * w->stride + (size_t)s] *= parts->factor[j * w->n_group + g];
        }
    }
}

/* Attention of one token in one lane, shown to the policy. Every second token comes in parts, and
   there is not always room for all of them. */
static void attend(struct world *w, int32_t layer, int32_t head, int32_t slot, const float *q)
{
    float max[16], sum[16];
    enum { ROOM = 64 };
    float factor[ROOM * 16];
    int32_t end[ROOM];
    struct kv_weight_parts parts = {.room = w->n_token % 4 == 0 ? 1 : ROOM, 0, 0, end, factor};
    struct kv_attend_tap tap = {
        .weight = w->weight, .row_stride = w->stride, .max = max, .sum = sum};
    struct kv_attend_job job = {
        .seq = w->kv,
        .layer = layer,
        .head = head,
        .n_tok = 1,
        .n_group = w->n_group,
        .pos0 = w->n_token,
        .q = q,
        .q_stride = (size_t)(w->n_group * w->g.dim_k),
        .scale = w->scale,
        .out = w->out,
        .out_stride = (size_t)(w->n_group * w->g.dim_v),
        .tap = &tap,
    };
    struct keep_view view = {.kv = w->kv, .n_token = w->n_token + 1, .state = w->state};
    struct pi_pass_watched lane = {.layer = layer, .head = head, .slot = slot};
    keep_plan_lane(w->keep, &view, 0, &lane);
    assert_true(lane.rows == (lane.n_note == 0));
    job.notes = lane.note;
    job.n_note = lane.n_note;
    if (!lane.rows && w->n_token % 2 == 0)
        tap.parts = &parts;
    kv_attend(&job, w->scratch);
    struct keep_attention a = {
        .layer = layer,
        .head = head,
        .n = kv_lane_len(w->kv, layer, head),
        .pos = w->n_token,
        .n_group = w->n_group,
        .weight = w->weight,
        .stride = w->stride,
        .out = w->out,
        .slot = slot,
    };
    if (lane.rows)
        keep_attended(w->keep, &view, &a, 0, 0);
    finish_weights(w, &tap, a.n);
}

/* The scores of the running layer's last lane. */
static const float *scores(const struct world *w, int32_t head)
{
    return w->keep->steps.score + (size_t)head * (size_t)w->keep->steps.cap;
}

static void choose(struct world *w, int32_t layer)
{
    struct keep_view view = {.kv = w->kv, .n_token = w->n_token + 1, .state = w->state};
    keep_choose_victims(w->keep, w->kv, &view, layer, 0, false);
}

/* Where the next token goes. */
static int32_t next_slot(const struct world *w, int32_t layer, int32_t head)
{
    int32_t victim = kv_lane_victim(w->kv, layer, head);
    return victim >= 0 ? victim : kv_lane_len(w->kv, layer, head);
}

static void reserve(struct world *w)
{
    struct keep_point at = {w->n_token, 0, 0.0, 0};
    assert_false(keep_step_due(w->keep, w->kv, at));
    check(keep_prepare(w->keep, w->kv, at, 1, &err), &err);
    check(kv_seq_reserve(w->kv, 1, &err), &err);
    check(keep_steps_reserve(w->keep, 1, keep_longest(w->keep, w->kv, at, 1), false, &err), &err);
}

/* ---- the published steps ---- */

#define DIM 4
#define BUDGET 5
#define N_STEP 6

static const struct {
    float q[2][DIM], k[DIM], v[DIM];
    float alpha[2][BUDGET];
    float out[2][DIM];
    float score[BUDGET]; /* mean over heads and dimensions */
    float plain[BUDGET]; /* the same without the division by the sum */
    float exact[2][BUDGET];
} steps[N_STEP] = {
    {.q = {{-0.125f, 1.0f, -1.625f, -0.625f}, {0.0f, 1.625f, 2.0f, 1.25f}},
     .k = {-0.25f, 1.125f, -1.75f, 1.25f},
     .v = {0.0f, -1.5f, 1.375f, -1.625f},
     .alpha = {{0.0881189807f, 0.1333197602f, 0.247135793f, 0.5314254661f, 0.0f},
               {0.2283949057f, 0.1396150054f, 0.5106904702f, 0.1212996188f, 0.0f}},
     .out = {{-0.5335706137f, -0.2041398018f, 0.4425570109f, -0.7170791059f},
             {-1.0242080686f, 0.7998631733f, -0.5587569783f, -0.007135731f}},
     .score = {0.0642918832f, 0.1577904114f, 0.4499593437f, 0.3671578602f, 0.0f},
     .plain = {0.5305060037f, 1.3551361101f, 3.7472550704f, 3.3448873604f, 0.0f},
     .exact = {{0.1261794213f, 0.4126017828f, 0.9721153487f, 2.1690471847f, 0.0f},
               {0.3746876402f, 0.3391827121f, 1.4929592644f, 0.4918579032f, 0.0f}}},
    {.q = {{2.0f, -1.0f, -0.875f, 0.25f}, {-1.5f, 0.875f, -0.875f, -1.375f}},
     .k = {0.5f, 0.25f, -1.625f, 1.625f},
     .v = {0.0f, 0.5f, -0.875f, -0.375f},
     .alpha = {{0.0275792372f, 0.6578245239f, 0.021988085f, 0.0687946317f, 0.2238135222f},
               {0.2029136182f, 0.0290049894f, 0.3142787598f, 0.3533531077f, 0.100449525f}},
     .out = {{-0.6299619078f, 1.1894424531f, 0.5215485666f, 0.4731442845f},
             {-0.6350620763f, 0.0170077697f, -0.0976514492f, -0.5206904185f}},
     .score = {0.0468188612f, 0.3970733124f, 0.1996584391f, 0.2374581034f, 0.0709325416f},
     .plain = {0.3004159988f, 6.2523225346f, 1.1605178807f, 1.6381435463f, 0.9056539707f},
     .exact = {{0.0395616407f, 1.8042231651f, 0.0558417469f, 0.2639025772f, 0.5426716599f},
               {0.2752549685f, 0.0766140233f, 1.0878285699f, 1.3488101827f, 0.1254486819f}}},
    {.q = {{-1.625f, -0.75f, 1.625f, 1.875f}, {1.125f, 0.375f, -1.125f, -2.0f}},
     .k = {1.125f, -0.875f, -0.5f, -1.75f},
     .v = {0.5f, -1.125f, 1.5f, 1.875f},
     .alpha = {{0.0148380816f, 0.0765406488f, 0.626021338f, 0.1291868049f, 0.1534131267f},
               {0.8046442392f, 0.0802954327f, 0.0156880651f, 0.0543306074f, 0.0450416556f}},
     .out = {{-0.9203333667f, 0.9392116567f, -0.9533441994f, -0.2413490959f},
             {0.3104925265f, -0.8001507476f, 1.2951008141f, 1.4818645151f}},
     .score = {0.5121764505f, 0.0906708596f, 0.3810149581f, 0.1032285444f, 0.0434119836f},
     .plain = {7.6589812419f, 0.9171696356f, 1.9415526034f, 0.8147033843f, 0.3117357359f},
     .exact = {{0.0616902119f, 0.2032946207f, 1.8101909712f, 0.5577014655f, 0.1869156362f},
               {2.3945435397f, 0.2504309714f, 0.0712528245f, 0.1838929765f, 0.1487346798f}}},
    {.q = {{0.875f, -0.875f, 1.5f, -0.125f}, {0.75f, 0.75f, -0.375f, -2.0f}},
     .k = {2.0f, -1.625f, -0.375f, -0.5f},
     .v = {1.125f, -0.375f, 1.875f, -0.375f},
     .alpha = {{0.2629309299f, 0.1463431013f, 0.0274970541f, 0.019498331f, 0.5437305837f},
               {0.6652903164f, 0.0604481523f, 0.0262023345f, 0.0529301707f, 0.195129026f}},
     .out = {{0.5773037087f, -0.2315977532f, 1.5389247012f, 0.4003177063f},
             {0.4632449691f, -0.7559324784f, 1.45117545f, 1.1454072916f}},
     .score = {0.5801382789f, 0.1195511935f, 0.031884012f, 0.0407410322f, 0.346340442f},
     .plain = {5.4879108186f, 0.9564537064f, 0.2765301611f, 0.3873651644f, 2.7372464684f},
     .exact = {{0.6158385413f, 0.4432729754f, 0.1196346531f, 0.0489977221f, 1.2121281929f},
               {1.6297038579f, 0.1853012384f, 0.1213216152f, 0.1624534256f, 0.425077747f}}},
    {.q = {{0.25f, 1.25f, 0.125f, -0.25f}, {-1.25f, 0.625f, 0.375f, -0.375f}},
     .k = {-1.375f, -0.125f, -0.625f, 0.75f},
     .v = {0.625f, 1.75f, -0.5f, -1.625f},
     .alpha = {{0.17621311f, 0.2389804179f, 0.1495501241f, 0.3292094304f, 0.1060469176f},
               {0.1335151559f, 0.0592469913f, 0.4922085452f, 0.2655265934f, 0.0495027141f}},
     .out = {{0.0917702992f, -0.0518930401f, 1.0800259582f, -0.2483718711f},
             {0.3782373547f, 0.3979892306f, 0.4713321075f, -0.9402952093f}},
     .score = {0.1935801662f, 0.1724127209f, 0.3609892515f, 0.3345390134f, 0.0729138899f},
     .plain = {0.7997462145f, 0.7521369291f, 1.3708099171f, 1.3769768086f, 0.3094119786f},
     .exact = {{0.524104913f, 0.7527670922f, 0.4949664282f, 0.9922403209f, 0.1600356164f},
               {0.5183958119f, 0.1718138023f, 1.7611452769f, 0.8108736542f, 0.0966659029f}}},
    {.q = {{1.75f, 0.125f, 2.0f, 0.125f}, {-1.375f, -0.375f, -1.5f, 0.25f}},
     .k = {-1.375f, 1.5f, -0.875f, 0.375f},
     .v = {1.875f, 1.5f, 0.0f, -1.25f},
     .alpha = {{0.327283992f, 0.5610953027f, 0.0397040529f, 0.0384824876f, 0.0334341647f},
               {0.0454762859f, 0.0440771277f, 0.3308172149f, 0.2988684476f, 0.2807609238f}},
     .out = {{-0.2398123021f, 0.6756318969f, 1.0850826848f, 1.0059069536f},
             {0.7173581476f, 0.5777429922f, 0.3578270647f, -1.2448451925f}},
     .score = {0.2329751737f, 0.3498653114f, 0.2084182132f, 0.1897599011f, 0.1816440355f},
     .plain = {1.2582480361f, 1.7215211465f, 2.6949768306f, 2.4408948815f, 2.3500922889f},
     .exact = {{1.0566458815f, 1.5992787114f, 0.1392085474f, 0.1374625847f, 0.1168864638f},
               {0.1781651857f, 0.1410793064f, 0.7436958438f, 1.0450711722f, 0.5944170177f}}},
};

static const float first_k[3][DIM] = {{-1.0f, 0.0f, -0.125f, 1.125f},
                                      {1.875f, 0.125f, -0.875f, 1.375f},
                                      {-0.875f, 1.375f, -0.75f, 1.625f}};
static const float first_v[3][DIM] = {{-0.875f, -0.125f, 0.125f, 0.5f},
                                      {-0.875f, 1.75f, 1.0f, 1.0f},
                                      {-1.375f, 1.5f, -1.75f, -0.125f}};

static void expect_near(float x, double wanted, const char *what, int32_t step, int32_t slot)
{
    if (!(fabs((double)x - wanted) <= (2e-6 + attention_error()) * (1.0 + fabs(wanted))))
        fail_msg("%s, step %d, slot %d: %.8g instead of %.8g", what, step, slot, (double)x, wanted);
}

/* Three tokens of a prompt shorter than the budget, and the steps; victims as the next write
   slot. */
static void run_steps(const char *options, enum kv_type type_v, const int32_t victims[N_STEP],
                      bool compare)
{
    struct world w = {.g = {1, 1, DIM, DIM, 16, KV_TYPE_F32, type_v}, .n_group = 2, .scale = 0.5f};
    world_make(&w, options);
    for (; w.n_token < 3; w.n_token++) {
        check(kv_seq_reserve(w.kv, 1, &err), &err);
        append(&w, 0, 0, first_k[w.n_token], first_v[w.n_token]);
    }
    for (int32_t t = 0; t < N_STEP; t++, w.n_token++) {
        int32_t slot = next_slot(&w, 0, 0), n;
        assert_int_equal(slot, t == 0 ? 3 : victims[t - 1]);
        reserve(&w);
        append(&w, 0, 0, steps[t].k, steps[t].v);
        n = kv_lane_len(w.kv, 0, 0);
        assert_int_equal(n, t == 0 ? 4 : BUDGET);
        attend(&w, 0, 0, slot, steps[t].q[0]);
        for (int32_t i = 0; compare && i < n; i++) {
            const double one = exp((double)w.keep->steps.log_scale[0]);
            double exact = 0.5 * ((double)steps[t].exact[0][i] + (double)steps[t].exact[1][i]);
            float x = scores(&w, 0)[i];
            expect_near(w.weight[i], (double)steps[t].alpha[0][i], "weight", t, i);
            expect_near(w.weight[w.stride + (size_t)i], (double)steps[t].alpha[1][i], "weight", t,
                        i);
            if (strstr(options, "exact") != NULL)
                expect_near(x, exact, "exact", t, i);
            else if (strstr(options, "normalise=off") != NULL)
                expect_near((float)((double)x * one / DIM), (double)steps[t].plain[i], "plain", t,
                            i);
            else if (strstr(options, "newest") == NULL || i != slot)
                expect_near(x / DIM, (double)steps[t].score[i], "score", t, i);
        }
        for (int32_t d = 0; compare && d < 2 * DIM; d++)
            expect_near(w.out[d], (double)steps[t].out[d / DIM][d % DIM], "output", t, d);
        choose(&w, 0);
        assert_int_equal(next_slot(&w, 0, 0), victims[t]);
    }
    world_free(&w);
}

TEST(evicts_what_the_authors_do)
{
    static const int32_t normalised[N_STEP] = {4, 0, 4, 2, 4, 4};
    static const int32_t plain[N_STEP] = {4, 0, 4, 2, 4, 0};
    static const int32_t older[N_STEP] = {4, 0, 4, 2, 4, 3};
    int32_t exact[N_STEP] = {4};
    for (int32_t t = 1; t < N_STEP; t++) /* from the file's exact losses */
        for (int32_t i = 1; i < BUDGET; i++)
            if (steps[t].exact[0][i] + steps[t].exact[1][i] <
                steps[t].exact[0][exact[t]] + steps[t].exact[1][exact[t]])
                exact[t] = i;
    run_steps("budget=5,prompt-window=3", KV_TYPE_F32, normalised, true);
    run_steps("budget=5,prompt-window=3", KV_TYPE_F16, normalised, true);
    run_steps("budget=5,prompt-window=3,granularity=layer-head", KV_TYPE_F32, normalised, true);
    run_steps("budget=5,prompt-window=3,combine=max", KV_TYPE_F32, normalised, true);
    run_steps("budget=5,prompt-window=3,normalise=off", KV_TYPE_F32, plain, true);
    run_steps("budget=5,prompt-window=3,newest=on", KV_TYPE_F32, older, true);
    run_steps("budget=5,prompt-window=3,window=1", KV_TYPE_F32, older, true);
    /* Where the exact loss chooses otherwise, the published steps end. */
    bool same = memcmp(exact, normalised, sizeof(exact)) == 0;
    for (int32_t t = 0; t < N_STEP; t++)
        same = same && exact[t] == normalised[t];
    if (same)
        run_steps("budget=5,prompt-window=3,score=exact", KV_TYPE_F32, exact, true);
}

/* The losses of one state: the lane has the vector's contents, and no choice matters. */
TEST(exact_losses_are_those_of_the_vectors)
{
    struct world w = {
        .g = {1, 1, DIM, DIM, 16, KV_TYPE_F32, KV_TYPE_F32}, .n_group = 2, .scale = 0.5f};
    world_make(&w, "budget=5,prompt-window=3,score=exact");
    for (; w.n_token < 3; w.n_token++) {
        check(kv_seq_reserve(w.kv, 1, &err), &err);
        append(&w, 0, 0, first_k[w.n_token], first_v[w.n_token]);
    }
    static const int32_t write[N_STEP] = {3, 4, 0, 4, 2, 4};
    for (int32_t t = 0; t < N_STEP; t++, w.n_token++) {
        if (t >= 2) /* as the file's victims, not ours */
            kv_seq_set_victim(w.kv, 0, 0, write[t]);
        reserve(&w);
        append(&w, 0, 0, steps[t].k, steps[t].v);
        attend(&w, 0, 0, write[t], steps[t].q[0]);
        for (int32_t i = 0; i < kv_lane_len(w.kv, 0, 0); i++)
            expect_near(scores(&w, 0)[i],
                        0.5 * ((double)steps[t].exact[0][i] + (double)steps[t].exact[1][i]),
                        "exact", t, i);
        choose(&w, 0);
    }
    world_free(&w);
}

/* ---- logits of any size ---- */

/* One key per logit, two query heads with the signs of the second turned. */
static void run_logits(const char *options, const float *logits, int32_t n, const double *alpha,
                       int32_t victim)
{
    struct world w = {
        .g = {1, 1, DIM, DIM, 16, KV_TYPE_F32, KV_TYPE_F32}, .n_group = 1, .scale = 1.0f};
    const float q[DIM] = {1.0f};
    world_make(&w, options);
    for (; w.n_token < n - 1; w.n_token++) {
        const float k[DIM] = {logits[w.n_token]}, v[DIM] = {1.0f, (float)w.n_token, 0.5f, -2.0f};
        check(kv_seq_reserve(w.kv, 1, &err), &err);
        append(&w, 0, 0, k, v);
    }
    const float k[DIM] = {logits[n - 1]}, v[DIM] = {1.0f, (float)n - 1.0f, 0.5f, -2.0f};
    reserve(&w);
    append(&w, 0, 0, k, v);
    attend(&w, 0, 0, n - 1, q);
    for (int32_t i = 0; i < n; i++) {
        assert_true(scores(&w, 0)[i] == scores(&w, 0)[i]);
        assert_true(w.weight[i] >= 0.0f && w.weight[i] <= 1.0f);
        if (alpha != NULL)
            expect_near(w.weight[i], alpha[i], "weight", 0, i);
    }
    for (int32_t d = 0; d < DIM; d++)
        assert_true(isfinite(w.out[d]));
    choose(&w, 0);
    assert_int_equal(next_slot(&w, 0, 0), victim);
    world_free(&w);
}

TEST(takes_logits_of_any_size)
{
    static const char *const options[] = {"budget=3,prompt-window=1",
                                          "budget=3,prompt-window=1,normalise=off",
                                          "budget=3,prompt-window=1,score=exact"};
    static const float rows[][3] = {{100.0f, 99.0f, 0.0f},     {-110.0f, -111.0f, -150.0f},
                                    {88.0f, 88.0f, 88.0f},     {1000.0f, 999.0f, -1000.0f},
                                    {-1000.0f, 1000.0f, 0.0f}, {-1000.0f, -1000.5f, -1001.0f}};
    static const double alpha[][3] = {{0.7310585786, 0.2689414214, 0.0},
                                      {0.7310585786, 0.2689414214, 0.0},
                                      {1.0 / 3, 1.0 / 3, 1.0 / 3}};
    /* Of the fourth two get nothing: the older goes. */
    static const int32_t victims[] = {2, 2, 0, 2, 0, 2};
    for (size_t o = 0; o < PI_LEN(options); o++)
        for (size_t r = 0; r < PI_LEN(rows); r++) {
            if (o == 2 &&
                (r == 2 || r == 5)) /* values differ in one dimension: the middle is nearest */
                run_logits(options[o], rows[r], 3, r < 3 ? alpha[r] : NULL, 1);
            else
                run_logits(options[o], rows[r], 3, r < 3 ? alpha[r] : NULL, victims[r]);
        }
}

/* Two KV heads whose logits are 2000 apart: un-normalised the large one decides alone; normalised
   both do. */
TEST(normalising_lets_heads_of_any_scale_decide)
{
    for (int32_t off = 0; off < 2; off++) {
        struct world w = {
            .g = {1, 2, DIM, DIM, 16, KV_TYPE_F32, KV_TYPE_F32}, .n_group = 1, .scale = 1.0f};
        static const float logits[2][3] = {{1000.0f, 998.0f, 999.0f},
                                           {-1000.0f, -990.0f, -1003.0f}};
        const float q[DIM] = {1.0f}, v[DIM] = {1.0f};
        world_make(&w, off ? "budget=3,prompt-window=1,normalise=off" : "budget=3,prompt-window=1");
        for (; w.n_token < 3; w.n_token++) {
            if (w.n_token < 2)
                check(kv_seq_reserve(w.kv, 1, &err), &err);
            else
                reserve(&w);
            for (int32_t h = 0; h < 2; h++) {
                const float k[DIM] = {logits[h][w.n_token]};
                append(&w, 0, h, k, v);
            }
            for (int32_t h = 0; w.n_token == 2 && h < 2; h++)
                attend(&w, 0, h, 2, q);
        }
        w.n_token = 2;
        choose(&w, 0);
        /* alpha: 0.665, 0.090, 0.245 and 0, 1, 0. */
        assert_int_equal(kv_lane_victim(w.kv, 0, 0), off ? 1 : 2);
        assert_int_equal(kv_lane_victim(w.kv, 0, 1), off ? 1 : 2);
        world_free(&w);
    }
}

/* ---- thousands of steps ---- */

#define LAYERS 2
#define HEADS 2
#define GROUP 3
#define D 32
#define B 24

/* The score of a slot in a lane, in double, from the stored entry (norms in bf16). */
static void reference(const struct world *w, int32_t layer, int32_t head, const float *q,
                      double *out, bool exact)
{
    int32_t n = kv_lane_len(w->kv, layer, head);
    float key[D], value[B][D];
    double x[GROUP][B], o[D], met[GROUP][D];
    for (int32_t g = 0; g < GROUP; g++)
        query_met(kv_seq_geometry(w->kv)->type_k, q + g * D, D, met[g]);
    for (int32_t i = 0; i < n; i++) {
        kv_lane_key(w->kv, layer, head, i, key);
        kv_lane_value(w->kv, layer, head, i, value[i]);
        for (int32_t g = 0; g < GROUP; g++) {
            x[g][i] = 0.0;
            for (int32_t d = 0; d < D; d++)
                x[g][i] += met[g][d] * (double)key[d] * (double)w->scale;
        }
        out[i] = 0.0;
    }
    for (int32_t g = 0; g < GROUP; g++) {
        double max = x[g][0], sum = 0.0;
        memset(o, 0, sizeof(o));
        for (int32_t i = 1; i < n; i++)
            max = x[g][i] > max ? x[g][i] : max;
        for (int32_t i = 0; i < n; i++)
            sum += exp(x[g][i] - max);
        for (int32_t i = 0; i < n; i++)
            for (int32_t d = 0; d < D; d++)
                o[d] += exp(x[g][i] - max) / sum * (double)value[i][d];
        for (int32_t i = 0; i < n; i++) {
            double alpha = exp(x[g][i] - max) / sum, l2 = 0.0;
            float norm = 0.0f;
            for (int32_t d = 0; d < D; d++) {
                norm += fabsf(value[i][d]);
                l2 += ((double)value[i][d] - o[d]) * ((double)value[i][d] - o[d]);
            }
            if (exact && 1.0 - alpha < 1e-9)
                out[i] = INFINITY;
            else
                out[i] += (exact ? alpha / (1.0 - alpha) * sqrt(l2)
                                 : alpha * (double)pi_f32_from_bf16(pi_bf16_from_f32(norm))) /
                          GROUP;
        }
    }
}

/* Of a score, as a part of it: a logit's error is that of its weight. */
static double score_error(void)
{
    return 1e-4 + 50.0 * attention_error();
}

/* The lowest score that may go of n, where a chosen slot is not it by more than rounding. */
static void expect_lowest(const double *score, const int32_t *pos, int32_t n, int32_t lo,
                          int32_t hi, int32_t chosen)
{
    double lowest = INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (pos[i] >= lo && pos[i] < hi && score[i] < lowest)
            lowest = score[i];
    assert_in_range(chosen, 0, n - 1);
    assert_true(pos[chosen] >= lo && pos[chosen] < hi);
    if (!(score[chosen] <= lowest * (1.0 + 2.0 * score_error()) + 1e-30))
        fail_msg("slot %d has %.9g, the lowest is %.9g", chosen, score[chosen], lowest);
}

/* Whether all but one entry of a lane are unchanged and in place. */
struct contents {
    int32_t n;
    int32_t pos[B];
    float k[B][D], v[B][D];
};

static void read_contents(const struct world *w, int32_t layer, int32_t head, struct contents *c)
{
    c->n = kv_lane_len(w->kv, layer, head);
    for (int32_t i = 0; i < c->n; i++) {
        c->pos[i] = kv_lane_pos(w->kv, layer, head, i);
        kv_lane_key(w->kv, layer, head, i, c->k[i]);
        kv_lane_value(w->kv, layer, head, i, c->v[i]);
    }
}

static void random_step(struct world *w, uint64_t *rng, bool exact, int32_t lo, int32_t window)
{
    double score[HEADS][B], together[B];
    bool layer_wide = w->config.rules.granularity == KEEP_LAYER;
    /* At once; a GPU leaves rows apart, but for what the host scores. */
    bool adds = layer_wide && (exact || !pi_device_default()->floats);
    reserve(w);
    for (int32_t l = 0; l < LAYERS; l++) {
        int32_t pos[HEADS][B];
        for (int32_t h = 0; h < HEADS; h++) {
            static struct contents before, after;
            float k[D], v[D], q[GROUP * D];
            for (int32_t d = 0; d < D; d++) {
                k[d] = 2.0f * rng_float(rng);
                v[d] = rng_float(rng) * (float)(1 + rng_below(rng, 4));
            }
            for (int32_t d = 0; d < GROUP * D; d++)
                q[d] = rng_float(rng);
            int32_t slot = next_slot(w, l, h), n;
            read_contents(w, l, h, &before);
            append(w, l, h, k, v);
            read_contents(w, l, h, &after);
            n = after.n;
            assert_int_equal(n, before.n < B ? before.n + 1 : B);
            assert_int_equal(after.pos[slot], w->n_token);
            for (int32_t i = 0; i < before.n; i++)
                if (i != slot && (before.pos[i] != after.pos[i] ||
                                  memcmp(before.k[i], after.k[i], sizeof(k)) != 0 ||
                                  memcmp(before.v[i], after.v[i], sizeof(v)) != 0))
                    fail_msg("slot %d moved", i);
            attend(w, l, h, slot, q);
            reference(w, l, h, q, score[h], exact);
            for (int32_t i = 0; i < n; i++) {
                together[i] = h == 0 ? score[h][i] : together[i] + score[h][i];
                double got = (double)scores(w, adds ? 0 : h)[i];
                double wanted = adds ? together[i] : score[h][i];
                if (wanted == INFINITY)
                    assert_true(got > 1e30);
                else if (!(fabs(got - wanted) <= score_error() * wanted + 1e-12))
                    fail_msg("score %.9g instead of %.9g", got, wanted);
            }
            memcpy(pos[h], after.pos, sizeof(after.pos));
        }
        choose(w, l);
        int32_t n = kv_lane_len(w->kv, l, 0), hi = w->n_token + 1 - window;
        for (int32_t h = 0; h < HEADS; h++) {
            int32_t victim = kv_lane_victim(w->kv, l, h);
            if (n < B)
                assert_int_equal(victim, -1);
            else
                expect_lowest(layer_wide ? together : score[h], pos[h], n, lo, hi, victim);
            if (layer_wide)
                assert_int_equal(victim, kv_lane_victim(w->kv, l, 0));
        }
    }
    w->n_token++;
}

TEST(agrees_with_doubles_over_many_steps)
{
    static const struct {
        const char *options;
        enum kv_type k, v;
        bool exact;
        int32_t lo, window;
    } cases[] = {
        {"budget=24,prompt-window=8", KV_TYPE_F32, KV_TYPE_F32, false, 0, 0},
        {"budget=24,prompt-window=8", KV_TYPE_F16, KV_TYPE_Q8_0, false, 0, 0},
        {"budget=24,prompt-window=8,granularity=layer-head", KV_TYPE_Q8_0, KV_TYPE_F16, false, 0,
         0},
        {"budget=24,prompt-window=8,granularity=layer-head,sinks=3,window=5", KV_TYPE_F16,
         KV_TYPE_F16, false, 3, 5},
        {"budget=24,prompt-window=8,prefix=7,window=16", KV_TYPE_F32, KV_TYPE_F32, false, 7, 16},
        {"budget=24,prompt-window=8,score=exact", KV_TYPE_F32, KV_TYPE_Q8_0, true, 0, 0},
        {"budget=24,prompt-window=8,score=exact,sinks=1", KV_TYPE_F16, KV_TYPE_F16, true, 1, 0},
    };
    uint64_t rng = 5;
    int32_t n_step = 0;
    for (size_t c = 0; c < PI_LEN(cases); c++) {
        struct world w = {.g = {LAYERS, HEADS, D, D, 16, cases[c].k, cases[c].v},
                          .n_group = GROUP,
                          .scale = 0.5f};
        pith_kv_stats full, now;
        world_make(&w, cases[c].options);
        for (int32_t t = 0; t < 1430; t++, n_step++) {
            random_step(&w, &rng, cases[c].exact, cases[c].lo, cases[c].window);
            kv_cache_stats(w.cache, &now);
            if (t == B - 1)
                full = now;
            if (t >= B) { /* nothing grows, nothing shrinks */
                assert_int_equal(now.used_bytes, full.used_bytes);
                assert_int_equal(now.peak_bytes, full.peak_bytes);
                assert_int_equal(now.live_bytes, full.live_bytes);
                assert_int_equal(now.table_bytes, full.table_bytes);
            }
        }
        world_free(&w);
    }
    assert_true(n_step >= 10000);
}

/* ---- heads on several threads ---- */

#define MANY_HEADS 4

/* A step of all lanes, whose heads are scored in an order; returns the victim. */
static int32_t step_in_order(struct world *w, const int32_t *order, int32_t slot, const float *q)
{
    for (int32_t i = 0; i < MANY_HEADS; i++)
        attend(w, 0, order[i], slot, q + order[i] * GROUP * D);
    choose(w, 0);
    return kv_lane_victim(w->kv, 0, 0);
}

/* The sum has the same bits for any order of heads, and a pass that was given up leaves nothing. */
TEST(heads_in_any_order_give_the_same_bits)
{
    static const char *const options[] = {
        "budget=24,prompt-window=8", "budget=24,prompt-window=8,combine=max",
        "budget=24,prompt-window=8,score=exact", "budget=24,prompt-window=8,newest=on",
        "budget=24,prompt-window=8,normalise=off"};
    static const int32_t orders[][MANY_HEADS] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 2, 3},
                                                 {2, 0, 1, 3}, {0, 2, 1, 3}, {0, 1, 3, 2}};
    uint64_t rng = 11;
    for (size_t c = 0; c < PI_LEN(options); c++) {
        struct world w = {.g = {1, MANY_HEADS, D, D, 16, KV_TYPE_F16, KV_TYPE_F16},
                          .n_group = GROUP,
                          .scale = 0.5f};
        float q[MANY_HEADS * GROUP * D], row[D], first[B];
        int32_t victim = -1;
        world_make(&w, options[c]);
        for (int32_t t = 0; t < B; t++) {
            reserve(&w);
            for (int32_t h = 0; h < MANY_HEADS; h++) {
                for (int32_t d = 0; d < D; d++)
                    row[d] = rng_float(&rng);
                append(&w, 0, h, row, row);
            }
            w.n_token += t < B - 1;
        }
        for (size_t i = 0; i < PI_LEN(q); i++)
            q[i] = rng_float(&rng);
        for (size_t i = 0; i < PI_LEN(orders); i++) {
            int32_t got = step_in_order(&w, orders[i], B - 1, q);
            if (i == 0) {
                memcpy(first, scores(&w, 0), sizeof(first));
                victim = got;
            }
            assert_in_range(got, 0, B - 1);
            assert_int_equal(got, victim);
            assert_memory_equal(first, scores(&w, 0), sizeof(first));
            attend(&w, 0, 0, B - 1, q);
            attend(&w, 0, 1, B - 1, q);
            check(keep_steps_reserve(w.keep, 1, B, false, &err), &err);
        }
        world_free(&w);
    }
}

/* ---- options ---- */

TEST(reads_its_options)
{
    struct keep_config c;
    check(keep_config_parse("longflow:budget=34", &c, &err), &err);
    assert_int_equal(c.rules.overwrite, 1);
    assert_int_equal(c.rules.granularity, KEEP_LAYER);
    assert_int_equal(c.rules.sinks + c.rules.window + c.rules.prefix, 0);
    expect(keep_config_parse("longflow:budget=33", &c, &err), &err, PITH_INVALID, "33");
    expect(keep_config_parse("longflow:budget=33", &c, &err), &err, PITH_INVALID, "34");
    expect(keep_config_parse("longflow:budget=60,prompt-window=60", &c, &err), &err, PITH_INVALID,
           "62");
    check(keep_config_parse("longflow:budget=50%", &c, &err), &err);
    expect(keep_config_parse("longflow:budget=64,sinks=32,window=32", &c, &err), &err, PITH_INVALID,
           "none to overwrite");
    check(keep_config_parse("longflow:budget=64,sinks=32,window=31", &c, &err), &err);
    check(keep_config_parse("longflow:budget=64,overwrite=off,granularity=all", &c, &err), &err);
}

/* Settings that overwriting can be combined with, for any policy. */
TEST(says_what_overwriting_goes_with)
{
    pith_keep_rules rules;
    expect(pith_policy_check(PITH_KEEP, "knorm:overwrite=on", &err), &err, PITH_INVALID, "knorm");
    expect(pith_policy_check(PITH_KEEP, "streaming:overwrite=on", &err), &err, PITH_INVALID,
           "single steps");
    expect(pith_policy_check(PITH_KEEP, "longflow:granularity=all", &err), &err, PITH_INVALID,
           "all");
    expect(pith_policy_check(PITH_KEEP, "longflow:granularity=head", &err), &err, PITH_INVALID,
           "head");
    expect(pith_policy_check(PITH_KEEP, "longflow:batch=64", &err), &err, PITH_INVALID, "batch");
    expect(pith_policy_check(PITH_KEEP, "tova:budget=8,window=8", &err), &err, PITH_INVALID,
           "none to overwrite");
    expect(pith_policy_check(PITH_KEEP, "longflow:overwrite=maybe", &err), &err, PITH_INVALID,
           "maybe");
    check(pith_policy_check(PITH_KEEP, "tova:budget=8,window=7", &err), &err);
    check(pith_policy_check(PITH_KEEP, "longflow:overwrite=off,granularity=all,batch=64", &err),
          &err);
    check(pith_keep_get_rules("longflow", &rules, &err), &err);
    assert_true(rules.overwrite);
    check(pith_keep_get_rules("knorm", &rules, &err), &err);
    assert_false(rules.overwrite);
}
