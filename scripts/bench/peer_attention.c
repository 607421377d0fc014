/*
 * peer_attention.c - llama.cpp's flash attention on the processor, on the shape that bench_read
 * measures: 128 tokens of 32 query heads behind T entries of 8 KV heads of 128, keys and values in
 * f16. Built by run.py against ggml of a peer's tree; it is no part of Pith.
 *
 * usage: peer_attention THREADS ROUNDS T...; prints T and the median seconds of one call per line.
 */
#include <ggml-cpu.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIM 128
#define CHUNK 128
#define HEADS 32
#define KV_HEADS 8
#define MAX_ROUND 101

static uint32_t state = 1;

static float next_random(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * 0x1p-23f - 1.0f;
}

static void fill_f16(struct ggml_tensor *t)
{
    ggml_fp16_t *x = t->data;
    for (int64_t i = 0; i < ggml_nelements(t); i++)
        x[i] = ggml_fp32_to_fp16(next_random());
}

static void fill_f32(struct ggml_tensor *t)
{
    float *x = t->data;
    for (int64_t i = 0; i < ggml_nelements(t); i++)
        x[i] = next_random();
}

/* Token c sees the entries before the chunk, its own and those of the chunk before it. */
static void fill_mask(struct ggml_tensor *t, int64_t before)
{
    ggml_fp16_t *x = t->data;
    for (int64_t c = 0; c < t->ne[1]; c++)
        for (int64_t k = 0; k < t->ne[0]; k++)
            x[c * t->ne[0] + k] = ggml_fp32_to_fp16(k <= before + c ? 0.0f : -INFINITY);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure(int64_t before, int n_thread, int n_round)
{
    int64_t n = before + CHUNK;
    size_t bytes = (size_t)n * DIM * KV_HEADS * 4 + (size_t)n * CHUNK * 2 + (64u << 20);
    struct ggml_init_params params = {.mem_size = bytes};
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_tensor *q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, DIM, CHUNK, HEADS);
    struct ggml_tensor *k = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, DIM, n, KV_HEADS);
    struct ggml_tensor *v = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, DIM, n, KV_HEADS);
    struct ggml_tensor *mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n, CHUNK);
    struct ggml_tensor *out =
        ggml_flash_attn_ext(ctx, q, k, v, mask, 1.0f / sqrtf((float)DIM), 0.0f, 0.0f);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    double seconds[MAX_ROUND];
    ggml_build_forward_expand(graph, out);
    fill_f32(q);
    fill_f16(k);
    fill_f16(v);
    fill_mask(mask, before);
    struct ggml_cplan plan = ggml_graph_plan(graph, n_thread, NULL);
    plan.work_data = malloc(plan.work_size + 64);
    for (int i = -1; i < n_round; i++) { /* the first touches memory and does not count */
        int64_t start = ggml_time_us();
        if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS)
            exit(1);
        if (i >= 0)
            seconds[i] = 1e-6 * (double)(ggml_time_us() - start);
    }
    free(plan.work_data);
    ggml_free(ctx);
    qsort(seconds, (size_t)n_round, sizeof(*seconds), ascending);
    return seconds[n_round / 2];
}

int main(int argc, char **argv)
{
    int n_round = argc > 2 ? atoi(argv[2]) : 0;
    if (argc < 4 || n_round < 1 || n_round > MAX_ROUND) {
        fputs("usage: peer_attention THREADS ROUNDS T...\n", stderr);
        return 2;
    }
    ggml_time_init();
    ggml_cpu_init();
    for (int i = 3; i < argc; i++) {
        printf("%s,%.6f\n", argv[i], measure(atoll(argv[i]), atoi(argv[1]), n_round));
        fflush(stdout);
    }
    return 0;
}
