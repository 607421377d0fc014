/*
 * plan_table.c - how bytes of KV memory are best spent, by measurement. The one place to change
 * when there are new figures.
 *
 * Source: scripts/docs/real_budget.sh measures the cells, and scripts/docs/real_budget_table.py
 * OUT --points prints the rows below. Rows of `--kv` as users have it come from its table "By --kv
 * itself". docs/real/budget.md shows them with their errors. Facts are of texts of 2,048 tokens,
 * perplexity of 4,096.
 */
#include "engine/plan_table.h"

#include <math.h>
#include <string.h>

/* kvzap's window is small beside half of the budget, which it keeps as recent entries. */
#define KVZAP "kvzap:window=32"

const struct plan_way pi_plan_ways[PLAN_N_WAY] = {
    [PLAN_F16] = {"f16", "f16", NULL, NULL, false},
    [PLAN_Q8] = {"q8_0", "q8_0", NULL, NULL, false},
    [PLAN_Q8_TURBO4] = {"q8_0", "turbo4", NULL, NULL, false},
    [PLAN_Q8_TURBO3] = {"q8_0", "turbo3", NULL, NULL, false},
    [PLAN_TURBO4] = {"turbo4:force", "turbo4", NULL, NULL, false},
    [PLAN_KVZAP_TURBO4] = {"q8_0", "turbo4", KVZAP, NULL, true},
    [PLAN_KVZAP] = {NULL, NULL, KVZAP, NULL, true},
    [PLAN_KVZAP_TEXT] = {NULL, NULL, KVZAP, "text", true},
    [PLAN_V3_TEXT] = {NULL, NULL, "triattention:v3", "text", false},
    [PLAN_V3_KV] = {NULL, NULL, "triattention:v3", "kv", false},
    [PLAN_V3] = {NULL, NULL, "triattention:v3", NULL, false},
    [PLAN_STREAMING_TEXT] = {NULL, NULL, "streaming:sinks=4", "text", false},
    [PLAN_STREAMING] = {NULL, NULL, "streaming:sinks=4", NULL, false},
};

/* kvzap at about half of the entries and more, on values of 4 bits, loses less than values of 3
   bits do. Below that entries are worth more than bits, and text comes back. Without statistics the
   choice of entries loses so much that recall helps at once. */
static const struct plan_choice usual[] = {
    {PLAN_F16, 1.0},
    {PLAN_Q8, 1.0},
    {PLAN_Q8_TURBO4, 1.0},
    {PLAN_KVZAP_TURBO4, 0.45},
    {PLAN_Q8_TURBO3, 1.0},
    {PLAN_KVZAP_TEXT, 0.0},
    {PLAN_KVZAP, 0.0},
    {PLAN_V3_TEXT, 0.1},
    {PLAN_V3_KV, 0.2},
    {PLAN_V3, 0.1},
    {PLAN_STREAMING_TEXT, 0.0},
    {PLAN_STREAMING, 0.0},
    {PLAN_N_WAY, 0.0},
};

/* The same where few query heads share a KV head: without statistics coarse keys of all entries
   cost less than a part of the entries. */
static const struct plan_choice few_heads[] = {
    {PLAN_F16, 1.0},
    {PLAN_Q8, 1.0},
    {PLAN_Q8_TURBO4, 1.0},
    {PLAN_KVZAP_TURBO4, 0.45},
    {PLAN_Q8_TURBO3, 1.0},
    {PLAN_KVZAP_TEXT, 0.0},
    {PLAN_KVZAP, 0.0},
    {PLAN_TURBO4, 1.0},
    {PLAN_V3_TEXT, 0.1},
    {PLAN_V3_KV, 0.2},
    {PLAN_STREAMING_TEXT, 0.0},
    {PLAN_STREAMING, 0.0},
    {PLAN_N_WAY, 0.0},
};

static const struct plan_point smollm2[] = {
    {PLAN_F16, 100.0f, 100.0f, 0.0f, 0.0f, 0.0f},
    {PLAN_Q8, 53.8f, 96.2f, 3.8f, -0.0f, 0.1f},
    {PLAN_Q8_TURBO4, 40.8f, 88.5f, 3.7f, 0.6f, 0.1f},
    {PLAN_Q8_TURBO3, 37.7f, 84.6f, 6.0f, 2.0f, 0.4f},
    {PLAN_TURBO4, 27.7f, 76.9f, 2.6f, 3.2f, 0.2f},
    {PLAN_KVZAP_TURBO4, 26.0f, 96.2f, 4.1f, 0.7f, 0.4f},
    {PLAN_KVZAP_TURBO4, 21.0f, 92.3f, 4.8f, 0.4f, 0.3f},
    {PLAN_KVZAP, 25.9f, 88.5f, 7.9f, 1.5f, 0.2f},
    {PLAN_KVZAP, 14.5f, 76.9f, 10.2f, 3.3f, 0.5f},
    {PLAN_KVZAP, 8.6f, 50.0f, 9.4f, 6.1f, 0.7f},
    {PLAN_KVZAP_TEXT, 25.9f, 88.5f, 6.6f, 1.5f, 0.2f},
    {PLAN_KVZAP_TEXT, 9.8f, 96.2f, 3.6f, 3.2f, 0.2f},
    {PLAN_KVZAP_TEXT, 4.1f, 80.8f, 8.6f, 9.0f, 1.0f},
    {PLAN_V3_TEXT, 14.1f, 84.6f, 5.4f, NAN, NAN},
    {PLAN_V3, 25.9f, 38.5f, 2.0f, 4.1f, 0.8f},
    {PLAN_STREAMING_TEXT, 14.1f, 84.6f, 11.0f, NAN, NAN},
    {PLAN_STREAMING, 25.9f, 50.0f, 5.4f, 3.4f, 1.2f},
};

static const struct plan_point coder_05b[] = {
    {PLAN_F16, 100.0f, 100.0f, 0.0f, 0.0f, 0.0f},
    {PLAN_Q8, 53.8f, -1.0f, 0.0f, 0.8f, 0.5f}, /* docs/store.md */
    {PLAN_Q8_TURBO4, 40.8f, 100.0f, 0.0f, 0.5f, 0.2f},
    {PLAN_Q8_TURBO3, 37.7f, 94.3f, 5.5f, 1.4f, 0.4f},
    {PLAN_KVZAP_TURBO4, 26.0f, 100.0f, 0.0f, 1.0f, 0.2f},
    {PLAN_KVZAP_TURBO4, 20.8f, 100.0f, 0.0f, 1.1f, 0.5f},
    {PLAN_KVZAP, 25.8f, 97.1f, 2.7f, 1.2f, 0.2f},
    {PLAN_KVZAP, 14.5f, 85.7f, 5.2f, 5.4f, 0.9f},
    {PLAN_KVZAP_TEXT, 25.8f, 94.3f, 3.0f, 1.2f, 0.2f},
    {PLAN_KVZAP_TEXT, 14.5f, 94.3f, 3.0f, 5.4f, 0.9f},
    {PLAN_KVZAP_TEXT, 9.4f, 91.4f, 8.5f, 5.7f, 1.0f},
    {PLAN_KVZAP_TEXT, 3.5f, 82.9f, 5.5f, 17.5f, 1.5f},
    {PLAN_STREAMING_TEXT, 14.1f, 97.1f, 2.8f, NAN, NAN},
    {PLAN_STREAMING, 25.9f, 60.0f, 2.5f, 1.2f, 1.0f},
};

static const struct plan_point coder_15b[] = {
    {PLAN_F16, 100.0f, 100.0f, 0.0f, 0.0f, 0.0f},
    {PLAN_Q8, 53.1f, -1.0f, 0.0f, 0.0f, 0.1f}, /* docs/store.md */
    {PLAN_Q8_TURBO4, 39.9f, 100.0f, 0.0f, 0.1f, 0.2f},
    {PLAN_Q8_TURBO3, 36.8f, 97.4f, 2.5f, 1.3f, 0.5f},
    {PLAN_KVZAP_TURBO4, 25.5f, 100.0f, 0.0f, 0.8f, 0.3f},
    {PLAN_KVZAP_TURBO4, 22.5f, 97.4f, 2.5f, 0.2f, 0.1f},
    {PLAN_KVZAP, 25.3f, 100.0f, 0.0f, 1.7f, 0.8f},
    {PLAN_KVZAP, 14.2f, 92.3f, 2.6f, 2.5f, 1.2f},
    {PLAN_KVZAP_TEXT, 14.2f, 97.4f, 2.5f, 2.5f, 1.2f},
    {PLAN_KVZAP_TEXT, 10.4f, 94.9f, 2.9f, 2.6f, 0.8f},
    {PLAN_KVZAP_TEXT, 4.9f, 100.0f, 0.0f, 10.2f, 1.2f},
    {PLAN_STREAMING_TEXT, 13.8f, 97.4f, 2.5f, NAN, NAN},
    {PLAN_STREAMING, 25.3f, 64.1f, 4.9f, NAN, NAN},
};

#define POINTS(array) array, PI_LEN(array)

static const struct plan_class classes[] = {
    {"SmolLM2-135M", "llama", 0.135e9, few_heads, POINTS(smollm2)},
    {"Qwen2.5-Coder-0.5B", "qwen2", 0.63e9, usual, POINTS(coder_05b)},
    {"Qwen2.5-Coder-1.5B", "qwen2", 1.78e9, usual, POINTS(coder_15b)},
};

/* Doublings of size between two models. */
static double doublings(double a, double b)
{
    return fabs(log2(fmax(a, 1.0) / fmax(b, 1.0)));
}

const struct plan_class *pi_plan_class(const char *architecture, double n_param, bool *same)
{
    const double other_architecture = 100.0;
    const struct plan_class *best = NULL;
    double least = INFINITY;
    for (size_t i = 0; i < PI_LEN(classes); i++) {
        double far = doublings(classes[i].n_param, n_param);
        if (strcmp(classes[i].architecture, architecture) != 0)
            far += other_architecture;
        if (far >= least)
            continue;
        least = far;
        best = &classes[i];
    }
    *same = least < 1.0;
    return best;
}
